"""Zstandard files are read as gzip files are, where the package zstandard is installed."""

from __future__ import annotations

import gzip
import pickle
import random
from pathlib import Path

import msgspec
import pytest

from trace_doctor import analyze
from trace_doctor.errors import TraceDoctorError
from trace_doctor.loaders import forward, unzstd
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.loaders.unzstd import Unzstd
from trace_doctor.recording import folder as recordings

zstandard = pytest.importorskip("zstandard")
SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "straggler" / "cpu" / "fault"


def _packed(path: Path, *frames: bytes) -> bytes:
    path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(frame) for frame in frames))
    return b"".join(frames)


def _text(size: int) -> bytes:
    rng = random.Random(size)
    return b"".join(b'{"ts": %d, "name": "op%d"},\n' % (i, rng.randrange(9999)) for i in range(size // 25))


def test_a_recording_says_the_same_however_it_is_packed(tmp_path: Path) -> None:
    for file in SAMPLE.iterdir():
        if file.suffix == ".gz":
            _packed(tmp_path / f"{file.stem}.zst", gzip.decompress(file.read_bytes()))
        else:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    packed, plain = (msgspec.json.encode(analyze(folder)) for folder in (tmp_path, SAMPLE))
    assert packed.replace(b".json.zst", b".json.gz") == plain
    assert recordings.missing_captures(tmp_path) == []


@pytest.mark.parametrize("frames", [1, 3])
def test_what_lies_around_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: int) -> None:
    monkeypatch.setattr(forward, "STRETCH", 1 << 12)
    text = _packed(tmp_path / "a.zst", *(_text(90_000 + n) for n in range(frames)))
    unpacker = Unzstd(tmp_path / "a.zst")
    assert b"".join(unpacker.pieces()) == text and not unpacker.problem and not unpacker.trailing
    rng = random.Random(1)
    for offset in [0, len(text) - 1, *sorted(rng.randrange(len(text)) for _ in range(20)), 5]:
        start, found = unpacker.around(offset)
        assert start <= offset < start + len(found) <= start + (1 << 12)
        assert text[start : start + len(found)] == found
    assert pickle.loads(pickle.dumps(unpacker)).around(9)[1] == text[: 1 << 12]
    assert unpacker.around(len(text) + 9999)[1] == b""


def test_a_file_that_is_cut_gives_what_precedes_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    text = _packed(path, _text(400_000))
    path.write_bytes(path.read_bytes()[:-500])
    stream = ByteStream(path)
    read = b"".join(stream.pieces())
    assert stream.problem == "the Zstandard data ends early"
    assert len(read) > 10_000 and text.startswith(read)


def test_damage_ends_the_data_and_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(_text(400_000)))  # as zstd does
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    stream = ByteStream(path)
    assert b"".join(stream.pieces())
    assert stream.problem.startswith("the Zstandard data is damaged")


def test_what_follows_the_last_frame_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    text = _packed(path, b"{}" * 50, b"[]" * 50)
    path.write_bytes(path.read_bytes() + b"\x50\x2a\x4d\x18\x04\0\0\0skip" + bytes(7) + b"and more")
    stream = ByteStream(path)
    assert b"".join(stream.pieces()) == text
    assert (stream.trailing, stream.problem) == (8, "")


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unzstd, "BOMB", 1 << 20)
    monkeypatch.setattr(unzstd, "_READ", 64)
    _packed(tmp_path / "a.zst", bytes(64 << 20))
    stream = ByteStream(tmp_path / "a.zst")
    assert sum(map(len, stream.pieces())) < 64 << 20
    assert "more than 1000 times" in stream.problem


def test_without_the_package_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unzstd, "zstandard", None)
    _packed(tmp_path / "rank0.json.zst", b'{"traceEvents": []}')
    with pytest.raises(TraceDoctorError, match="a Zstandard file; decompress it first"):
        discover([tmp_path / "rank0.json.zst"])
