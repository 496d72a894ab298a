"""The same events give the same columns, however the bytes are laid out."""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.errors import DamagedCapture
from trace_doctor.loaders import stream
from trace_doctor.loaders.kineto import args as kineto_args
from trace_doctor.loaders.kineto import window
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run

COLUMNS = ("ts", "dur", "cat", "device", "stream", "correlation", "external_id")

name = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)
argument = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | name,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(name | st.sampled_from(["ph", "name", "cat"]), inner, max_size=3)
    ),
    max_leaves=6,
)
events = st.lists(
    st.builds(
        lambda cat, name, ts, dur, tid, correlation, extra: {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": ts / 1000,
            "dur": dur / 1000,
            "args": {"correlation": correlation, "device": 0, "stream": tid, "extra": extra},
        },
        st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_memcpy", "python_function"]),
        name,
        st.integers(1, 10**12),
        st.integers(0, 10**9),
        st.integers(0, 40),
        st.integers(0, 2**32),
        argument,
    ),
    min_size=1,
    max_size=30,
)


def load_bytes(content: bytes, name: str = "trace.json") -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return load_trace(path, name)


def assert_same(a: Run, b: Run) -> None:
    for column in COLUMNS:
        assert getattr(a, column).tolist() == getattr(b, column).tolist(), column
    assert [a.text(i) for i in range(len(a))] == [b.text(i) for i in range(len(b))]
    assert a.args(range(len(a))) == b.args(range(len(b)))
    assert [a.threads[t] for t in a.thread] == [b.threads[t] for t in b.thread]
    assert a.damage == b.damage


def kineto_2x(e: dict[str, Any]) -> str:
    head = {k: e[k] for k in ("ph", "cat", "name", "pid", "tid")}
    line = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in head.items())
    args = ",\n      ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in e["args"].items())
    return f'  {{\n    {line},\n    "ts": {e["ts"]:.3f}, "dur": {e["dur"]:.3f},\n    "args": {{\n      {args}\n    }}\n  }}'


def one_field_a_line(e: dict[str, Any]) -> str:
    fields = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in e.items())
    return "  {\n" + fields + "\n  }"


def torch_18(e: dict[str, Any]) -> str:
    head = ", ".join(f"{json.dumps(k)}: {json.dumps(e[k])}" for k in ("ph", "cat", "name", "pid", "tid"))
    return f'  {{\n    {head},\n    "ts": {json.dumps(e["ts"])}, "dur": {json.dumps(e["dur"])},\n    "args": {json.dumps(e["args"])}\n  }}'


def layouts(made: list[dict[str, Any]]) -> list[str]:
    head = {"schemaVersion": 1, "deviceProperties": []}
    whole = {**head, "traceEvents": made, "traceName": "t.json"}
    texts = [
        json.dumps(whole),
        json.dumps(whole, separators=(",", ":")),
        json.dumps(whole, indent=2),
        json.dumps(whole, indent=4, sort_keys=True),
        json.dumps(whole, ensure_ascii=False),
    ]
    for write in (kineto_2x, one_field_a_line, torch_18):
        body = ",\n".join(map(write, made))
        texts.append(
            f'\n{{\n  "schemaVersion": 1,\n  "deviceProperties": [\n  ],\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "t.json"\n}}\n'
        )
    return texts


@given(events)
@settings(max_examples=60, deadline=None)
def test_all_layouts_give_the_same_columns(made: list[dict[str, Any]]) -> None:
    reference, *others = [load_bytes(text.encode()) for text in layouts(made)]
    assert len(reference) == len(made)
    assert reference.warnings == []
    for other in others:
        assert_same(reference, other)


@given(events, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_in_the_file_does_not_matter(made: list[dict[str, Any]], rng: random.Random) -> None:
    """Where (start, duration) tell the events apart."""
    apart = list({(e["ts"], e["dur"]): e for e in made}.values())
    shuffled = apart[:]
    rng.shuffle(shuffled)
    assert_same(load_bytes(layouts(apart)[0].encode()), load_bytes(layouts(shuffled)[0].encode()))


@given(events, st.lists(st.integers(1, 400), max_size=6))
@settings(max_examples=60, deadline=None)
def test_gzip_in_any_number_of_members_is_the_plain_file(
    made: list[dict[str, Any]], sizes: list[int]
) -> None:
    plain = layouts(made)[5].encode()
    members, rest = b"", plain
    for size in sizes:
        members, rest = members + gzip.compress(rest[:size]), rest[size:]
    packed = members + gzip.compress(rest) + b"\0" * 8
    assert_same(load_bytes(plain), load_bytes(packed, "trace.json.gz"))


@pytest.mark.parametrize("layout", range(8))
def test_chunk_borders_may_fall_anywhere(monkeypatch: pytest.MonkeyPatch, layout: int) -> None:
    made = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f'op "{i}" }}, {{"ph"',
            "pid": 1,
            "tid": 2,
            "ts": 3.5 * i,
            "dur": 2,
            "args": {"l": [{"name": 1}, {"ph": "X"}], "n": i},
        }
        for i in range(60)
    ]
    text = layouts(made)[layout].encode()
    whole = load_bytes(text)
    assert len(whole) == 60
    assert whole.warnings == []
    for size in (1, 7, 61, 300):
        monkeypatch.setattr(stream, "PIECE", size)
        monkeypatch.setattr(window.Window, "LOOK_AHEAD", 2000)
        assert_same(whole, load_bytes(text))


@pytest.mark.parametrize("room", ["there", "no folder", "full"])
def test_a_large_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    """Over the size that is kept in memory: arguments are read from the file again, plain and gzip, with and without
    room for a temporary file, which takes what is asked for more than once."""
    if room == "no folder":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    if room == "full":
        if not Path("/dev/full").exists():
            pytest.skip("this system has no device that is always full")
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **how: open("/dev/full", "r+b", **how))  # noqa: SIM115
    monkeypatch.setattr(kineto_args, "KEPT", 1 << 20)
    made = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f"op{i % 50}",
            "pid": 1,
            "tid": 2,
            "ts": i * 10,
            "dur": 9,
            "args": {"n": i, "pad": "x" * 1000},
        }
        for i in range(10_000)
    ]
    text = layouts(made)[5].encode()
    assert len(text) > 9 << 20
    rows = np.random.default_rng(1).permutation(10_000)[:200]
    for name, content in (("a.json", text), ("a.json.gz", gzip.compress(text, 1))):
        path = tmp_path / name
        path.write_bytes(content)
        run = load_trace(path, name)
        assert len(run) == 10_000
        for some in (rows, rows[::2] ^ 1, rows[1::2] ^ 3):
            assert [a["n"] for a in run.args(some)] == some.tolist()
        assert [a["n"] for a in run.args([5, 3, 5])] == [5, 3, 5]


def test_a_file_that_is_gone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_args, "KEPT", 0)
    path = tmp_path / "trace.json"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}]}'
    )
    run = load_trace(path, "run/trace.json")
    path.unlink()
    with pytest.raises(DamagedCapture, match=r"^run/trace\.json: cannot be read any more"):
        run.args([0])
    path.write_text("x" * 500)
    with pytest.raises(DamagedCapture, match="changed while it was being read"):
        run.args([0])
