"""Bytes in the middle of a gzip file: found near points that a reading has noted, or notes itself."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from trace_doctor.loaders import gunzip
from trace_doctor.loaders.gunzip import Gunzip

APART, PIECE = 1 << 12, 1 << 10


@pytest.fixture(autouse=True)
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gunzip, "APART", APART)
    monkeypatch.setattr(gunzip, "PIECE", PIECE)
    monkeypatch.setattr(gunzip, "READ", 300)


def text_of(size: int) -> bytes:
    rng = random.Random(size)
    return b"".join(b'{"ts": %d, "name": "op%d"},\n' % (i, rng.randrange(99)) for i in range(size // 25))


def packed(path: Path, *members: bytes) -> bytes:
    path.write_bytes(b"".join(gzip.compress(member, 6) for member in members))
    return b"".join(members)


@pytest.mark.parametrize("read_before", [True, False])
@pytest.mark.parametrize("members", [1, 3])
def test_what_lies_around_a_byte(tmp_path: Path, read_before: bool, members: int) -> None:
    text = packed(tmp_path / "a.gz", *(text_of(90_000 + n) for n in range(members)))
    packing = Gunzip(tmp_path / "a.gz")
    if read_before:
        assert b"".join(packing.pieces()) == text
    rng = random.Random(1)
    for offset in [0, len(text) - 1, *(rng.randrange(len(text)) for _ in range(40))]:
        start, found = packing.around(offset)
        assert start <= offset < start + len(found)
        assert text[start : start + len(found)] == found
        assert len(found) <= APART + 2 * PIECE
    start, found = packing.around(len(text) + 5)
    assert start + len(found) == len(text)


@pytest.mark.parametrize("padding", [1, 299, 1000])
def test_zeros_between_members_are_padding(tmp_path: Path, padding: int) -> None:
    """As `gzip` takes them, however the reading of the file cuts them."""
    texts = [text_of(3_000 + n) for n in range(4)]
    (tmp_path / "a.gz").write_bytes(b"".join(gzip.compress(text, 6) + bytes(padding) for text in texts))
    packing = Gunzip(tmp_path / "a.gz")
    assert b"".join(packing.pieces()) == b"".join(texts)
    assert packing.problem == ""


def test_the_number_of_points_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the file: then there is more between them."""
    monkeypatch.setattr(gunzip, "MOST", 8)
    text = packed(tmp_path / "a.gz", text_of(400_000))
    packing = Gunzip(tmp_path / "a.gz")
    assert b"".join(packing.pieces()) == text
    assert len(packing._points) <= 8
    for offset in range(0, len(text), 30_001):
        start, found = packing.around(offset)
        assert start <= offset < start + len(found)
        assert text[start : start + len(found)] == found
        assert len(found) <= len(text) // 3


def test_whoever_stops_at_the_last_bytes_knows_of_the_damage(tmp_path: Path) -> None:
    """A file that is refused is refused with the same words, however far ahead of its reader it was unpacked."""
    path = tmp_path / "a.gz"
    packed(path, b"true, and more")
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    packing = Gunzip(path)
    assert next(packing.pieces()) == b"true, and more"
    assert "incorrect data check" in packing.problem


def test_up_to_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    text = packed(path, text_of(200_000))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 50] = b"\xff" * 50
    path.write_bytes(content)
    packing = Gunzip(path)
    before = b"".join(packing.pieces())
    assert 0 < len(before) < len(text) and "damaged" in packing.problem
    for offset in (0, len(before) // 2, len(before) - 1, len(before) + 10):
        start, found = packing.around(offset)
        assert before[start : start + len(found)] == found
        assert start + len(found) > min(offset, len(before) - 1)


def test_a_file_that_is_another_by_now(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    text = packed(path, text_of(200_000))
    packing = Gunzip(path)
    assert b"".join(packing.pieces()) == text
    path.write_bytes(b"x" * path.stat().st_size)
    start, found = packing.around(len(text) // 2)
    assert not found or not text.startswith(found[:100], start)
