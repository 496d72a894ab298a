"""Pieces of a file made ahead of their use, and gzip members that do not check out."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trace_doctor.loaders.progress import listening
from trace_doctor.loaders.stream import AHEAD, ByteStream, ahead


def test_pieces_come_in_order_and_progress_is_told_by_whoever_uses_them(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 20_000)
    told: list[tuple[int, int]] = []
    with listening(lambda count: told.append((threading.get_ident(), count))):
        assert b"".join(ahead(ByteStream(path).pieces())) == path.read_bytes()
    assert sum(count for _, count in told) == path.stat().st_size
    assert {thread for thread, _ in told} == {threading.get_ident()}


def test_an_error_arrives_behind_what_preceded_it() -> None:
    def broken() -> Iterator[bytes]:
        yield b"one"
        raise OSError(5, "Input/output error")

    pieces = ahead(broken())
    assert next(pieces) == b"one"
    with pytest.raises(OSError, match="Input/output"):
        next(pieces)


def test_who_stops_early_leaves_no_thread_and_no_open_file() -> None:
    made: list[int] = []
    closed = threading.Event()

    def endless() -> Iterator[bytes]:
        try:
            while True:
                made.append(1)
                yield b"x"
        finally:
            closed.set()

    before = threading.active_count()
    pieces = ahead(endless())
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]  # a generator
    assert closed.wait(10) and threading.active_count() == before
    assert len(made) <= 3 * AHEAD


def test_a_small_member_with_a_wrong_checksum_is_no_padding(tmp_path: Path) -> None:
    whole = gzip.compress(b"sound " * 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
    stream = ByteStream(path)
    list(stream.pieces())
    assert "damaged" in stream.problem
