"""Pieces of a file made ahead of their use, gzip members that do not check out, files that change meanwhile."""

from __future__ import annotations

import gzip
import os
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trace_doctor.errors import DamagedCapture
from trace_doctor.loaders.kineto import args
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.progress import listening
from trace_doctor.loaders.stream import AHEAD, PIECE, ByteStream, ahead
from trace_doctor.run import Run


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
    assert b"".join(stream.pieces()) == b"sound " * 1000
    assert "damaged" in stream.problem


@pytest.mark.parametrize("size", [2_000, 2 << 20])
@pytest.mark.parametrize("where", [0.02, 0.5, 0.99])
def test_all_that_precedes_the_damage_is_given(tmp_path: Path, size: int, where: float) -> None:
    """A small file is unpacked in one call, and the damage in it must not cost the whole."""
    text = random.Random(0).randbytes(size // 2).hex().encode()
    first, packed = gzip.compress(b"first "), bytearray(gzip.compress(text, 1))
    damaged = 10 + int(where * (len(packed) - 18))
    before = zlib.decompressobj(31).decompress(packed[:damaged])
    packed[damaged] ^= 0x10
    path = tmp_path / "a.gz"
    path.write_bytes(first + packed)
    stream = ByteStream(path)
    assert b"".join(stream.pieces()).startswith(b"first " + before)
    assert "damaged" in stream.problem


# -- a file that is another by the time it is read on ----------------------------------------------------------------

COUNT = 40_000


def trace(first: int, count: int) -> bytes:
    return b"".join(
        b',\n{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": %d, "dur": 1, "args": {"n": %d}}' % (i, i)
        for i in range(first, first + count)
    )  # fmt: skip


HEAD = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [' + trace(0, 1)[1:]


def load_while(path: Path, change: Callable[[], object]) -> Run:
    """The trace; after its first piece something happens to the file."""
    told = iter([change])
    with listening(lambda _: next(told, int)()):
        return load_trace(path, "trace.json")


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(HEAD + trace(1, COUNT) + b"]}")
    run = load_while(path, lambda: os.truncate(path, PIECE + 1000))
    assert 0 < len(run) < COUNT and run.ts.tolist() == [1000 * i for i in range(len(run))]
    assert run.damage.truncated


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(HEAD + trace(1, COUNT))

    def grow() -> None:
        with path.open("ab") as file:
            file.write(trace(COUNT + 1, 10)[:-20])

    run = load_while(path, grow)
    assert len(run) >= COUNT + 10
    assert run.damage.truncated


def test_a_file_that_another_takes_the_place_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(args, "KEPT", 0)  # as with large files: arguments are read again
    path, other = tmp_path / "trace.json", tmp_path / "other.json"
    path.write_bytes(HEAD + trace(1, COUNT) + b"]}")
    other.write_bytes(b" " * path.stat().st_size)
    run = load_while(path, lambda: os.replace(other, path))
    assert len(run) == COUNT + 1 and not run.damage.truncated  # what was opened is read to its end
    with pytest.raises(DamagedCapture, match="changed while it was being read"):
        run.args([COUNT])
    path.unlink()
    with pytest.raises(DamagedCapture, match="cannot be read any more"):
        load_while(put_again(path), path.unlink).args([COUNT])


def put_again(path: Path) -> Path:
    path.write_bytes(HEAD + trace(1, COUNT) + b"]}")
    return path
