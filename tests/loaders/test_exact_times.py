"""Starts as microseconds since 1970 with three decimals keep their nanoseconds."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from trace_doctor.loaders.kineto.decode import nanoseconds
from trace_doctor.loaders.kineto.exact_times import exact
from trace_doctor.loaders.kineto.trace import load_trace

BEGIN = 1_712_195_495_406_752_797


def _document(starts: list[int]) -> str:
    events = ",\n".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "op \\"ts\\": 1.5 {n}", "pid": 1, "tid": 1,'
        f' "ts": {ns // 1000}.{ns % 1000:03}, "dur": 0.5, "args": {{"External id": {n}}}}}'
        for n, ns in enumerate(starts)
    )
    return f'{{"schemaVersion": 1, "displayTimeUnit": "ns", "traceEvents": [\n{events}\n]}}'


@pytest.mark.parametrize("decoder", ["python", "c"])
@pytest.mark.parametrize("packed", [False, True])
def test_starts_are_those_of_the_text(
    tmp_path: Path, packed: bool, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if decoder == "python":
        monkeypatch.setenv("TRACE_DOCTOR_DECODER", "python")
    starts = [BEGIN + 37 * n for n in range(2_000)]
    text = _document(starts)
    path = tmp_path / ("trace.json.gz" if packed else "trace.json")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    run = load_trace(path, path.name)
    said = json.loads(text, parse_float=Decimal)["traceEvents"]
    assert run.ts.tolist() == [int(e["ts"] * 1000) for e in said] == starts


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_start_that_is_cut_between_pieces_is_found(size: int) -> None:
    starts = [BEGIN + 37 * n for n in range(50)]
    text = _document(starts).encode()
    offsets = np.array([i for i in range(len(text)) if text.startswith(b'{"ph"', i)])
    rounded = (np.array(starts) // 250) * 250
    pieces = (text[i : i + size] for i in range(0, len(text), size))
    assert exact(rounded, offsets, pieces).tolist() == starts


def test_what_cannot_be_found_keeps_its_time() -> None:
    assert exact(np.array([5, 7]), np.array([0, 10]), [b"no events here"]).tolist() == [5, 7]


@pytest.mark.parametrize("decoder", ["python", "c"])
def test_a_damaged_start_beyond_all_times_harms_no_other(
    tmp_path: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More nanoseconds than an int64 holds."""
    if decoder == "python":
        monkeypatch.setenv("TRACE_DOCTOR_DECODER", "python")
    starts = [BEGIN + 37 * n for n in range(20)]
    path = tmp_path / "trace.json"
    for damaged in ("67125010763085883.226", "9999999999999999.5", "999999999999999999.5"):
        text = _document(starts).replace(f"{starts[3] // 1000}.{starts[3] % 1000:03}", damaged, 1)
        path.write_text(text)
        found = load_trace(path, path.name).ts.tolist()
        assert [ns for ns in found if ns in starts] == starts[:3] + starts[4:]


def test_halves_go_to_the_even_one_of_the_text() -> None:
    """Old traces of autograd count in half nanoseconds, whose floats are a little less or more."""
    texts = [
        f"{whole}.{part}"
        for whole in (0, 7, 109454, 8_000_000_123)
        for part in ("6455", "6445", "0005", "64549", "645501")
    ]
    texts += [f"-{text}" for text in texts]
    wanted = [int((Decimal(text) * 1000).to_integral_value()) for text in texts]
    assert nanoseconds(np.array([float(text) for text in texts])).tolist() == wanted
    text = ", ".join(
        f'{{"ts": 1700000000000000.{part}' for part in ("6455", "6445", "64449", "64551")
    ).encode()
    places = np.array([i for i in range(len(text)) if text[i : i + 1] == b"{"])
    rounded = np.full(4, 1_700_000_000_000_000_750)
    assert (exact(rounded, places, [text]) - 1_700_000_000_000_000_000).tolist() == [646, 644, 644, 646]
