"""Columns on disk: what is read back is what was written, and anything else is refused as a whole."""

from __future__ import annotations

import dataclasses
import io
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from trace_doctor.errors import NotACapture
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.loaders import columns
from trace_doctor.loaders.columns import Content, Unusable
from trace_doctor.loaders.kineto import load_trace
from trace_doctor.loaders.snapshot import load_snapshot
from trace_doctor.loaders.torch_trace import CompileLog, LogFrame, LoggedCompile
from trace_doctor.loading.single import derive
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder, SnapshotBuilder

KEY = {"size": 7, "samples": "abc"}


def a_run(tmp_path: Path) -> Run:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            b.loader(300)
            with b.op("aten::mm"):
                b.launch(200, "gemm")
            b.idle_until_done()
    run = load_trace(b.write(tmp_path / "t.json"), "t.json")
    derive(run)
    return run


def a_snapshot(tmp_path: Path) -> Content:
    b = SnapshotBuilder()
    b.train(steps=2)
    return load_snapshot(b.write(tmp_path / "s.pickle"), "s.pickle")


def a_log(tmp_path: Path) -> Content:
    compiles = (
        LoggedCompile("0/0", LogFrame("train.py", 3, "forward"), 1.5),
        LoggedCompile("1/0", None, None),
    )
    return CompileLog("log", 0, "2.9", (), compiles, (), 4, ("cut",))


def same(one: Content, two: Content) -> None:
    """Equal in every field, arrays in type and value."""
    assert type(one) is type(two)
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if field.name in ("read_args", "_masks"):
            continue
        if field.name == "derived":
            assert a.keys() == b.keys()
            pairs = [(a[k], b[k]) for k in a]
        elif dataclasses.is_dataclass(a) and field.name == "memory":
            pairs = [(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)]
        else:
            pairs = [(a, b)]
        for x, y in pairs:
            if isinstance(x, np.ndarray):
                assert x.dtype == y.dtype, field.name
                assert np.array_equal(x, y), field.name
            else:
                assert x == y, field.name
                assert msgspec.to_builtins(x) == msgspec.to_builtins(y), field.name


@pytest.mark.parametrize("make", [a_run, a_snapshot, a_log])
def test_what_is_read_is_what_was_written(tmp_path: Path, make: Any) -> None:
    content = make(tmp_path)
    with (tmp_path / "c").open("w+b") as file:
        columns.write(file, content, KEY)
        same(columns.read(file, KEY), content)


def test_names_that_are_no_valid_text_and_numbers_of_any_size_survive(tmp_path: Path) -> None:
    run = dataclasses.replace(a_run(tmp_path), meta={"big": 1 << 80, "nan": float("inf")}, rank_how="\ud800")
    with (tmp_path / "c").open("w+b") as file:
        columns.write(file, run, KEY)
        same(columns.read(file, KEY), run)


def test_the_call_tree_is_not_made_again_and_a_changed_run_begins_without(tmp_path: Path) -> None:
    from trace_doctor.evidence.base import Facts
    from trace_doctor.run import Capture

    run = a_run(tmp_path)
    with (tmp_path / "c").open("w+b") as file:
        columns.write(file, run, KEY)
        found = columns.read(file, KEY)
    assert isinstance(found, Run)
    assert Facts(Capture(0, found))[Nesting].parent is found.derived["Nesting.parent"]
    assert dataclasses.replace(found, rank=1).derived == {}


@pytest.mark.parametrize("change", [{"size": 8}, {"samples": "abd"}, {"content": "x"}])
def test_columns_of_something_else_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with (tmp_path / "c").open("w+b") as file:
        columns.write(file, a_run(tmp_path), KEY)
        with pytest.raises(Unusable):
            columns.read(file, {**KEY, **change})


def test_damage_anywhere_is_refused(tmp_path: Path) -> None:
    """Each of the first bytes, and a sample of the others, flipped; each length cut: never wrong data, never a crash."""
    buffer = io.BytesIO()
    columns.write(buffer, a_run(tmp_path), KEY)
    good = buffer.getvalue()
    chosen = random.Random(1)
    positions = [*range(64), *chosen.sample(range(64, len(good)), 300)]
    damaged = [
        good[:at] + bytes([good[at] ^ (1 << chosen.randrange(8))]) + good[at + 1 :] for at in positions
    ]
    damaged += [good[:at] for at in [*range(0, 64), *chosen.sample(range(64, len(good)), 60)]]
    damaged += [good + b"\0", good[64:], b"", b"\0" * len(good)]
    path = tmp_path / "c"
    with path.open("w+b") as file:
        columns.write(file, a_run(tmp_path), KEY)
        sound = columns.read(file, KEY)
    for text in damaged:
        path.write_bytes(text)
        with path.open("rb") as file:
            try:
                found = columns.read(file, KEY)
            except Unusable:
                continue
            same(found, sound)  # padding between arrays was hit


@pytest.mark.parametrize("broken", ["name", "thread", "cat", "derived"])
def test_numbers_that_point_nowhere_are_refused(tmp_path: Path, broken: str) -> None:
    run = a_run(tmp_path)
    if broken == "derived":
        run.derived["Nesting.parent"] = np.full(len(run), len(run), np.int32)
    else:
        run = dataclasses.replace(run, **{broken: np.full(len(run), 99, getattr(run, broken).dtype)})
    with (tmp_path / "c").open("w+b") as file:
        columns.write(file, run, KEY)
        with pytest.raises(Unusable, match="points nowhere"):
            columns.read(file, KEY)


@pytest.mark.captures
def test_real_captures(captures_dir: Path, tmp_path: Path) -> None:
    """Some of each kind, small ones."""
    traces = [p for p in sorted((captures_dir / "traces").rglob("*.json*")) if p.stat().st_size < 1 << 20]
    snapshots = [
        p for p in sorted((captures_dir / "snapshots").rglob("*.p*kl*")) if p.stat().st_size < 1 << 20
    ]
    assert traces and snapshots
    for path in [*traces[::6], *snapshots[::3]]:
        try:
            load = load_trace if path in traces else load_snapshot
            content = load(path, path.name)
        except NotACapture:
            continue
        with (tmp_path / "c").open("w+b") as file:
            columns.write(file, content, KEY)
            same(columns.read(file, KEY), content)
