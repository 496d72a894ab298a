"""The allocator's history replayed: exact against a slow replay, and refused where it contradicts itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.held import MemoryHeld
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.memory.timeline import DeviceHistory, MemoryTimeline
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.snapshot import Snapshot
from trace_doctor.testing import KIB, MIB, SnapshotBuilder

Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["forward", "backward", "optimizer", "zero_grad", "script", "free", "give_back"]),
        st.integers(0, 40),
    ),
    min_size=3,
    max_size=60,
)


def built(steps: list[Step], held: list[int], **options: Any) -> SnapshotBuilder:
    """A history of arbitrary stages, with blocks freed in any order."""
    b = SnapshotBuilder(**options)
    alive = [b.held((size + 1) * 100 * KIB) for size in held]
    stages: dict[str, Callable[[], Any]] = {
        "forward": b.forward,
        "backward": b.backward,
        "optimizer": b.optimizer_step,
        "zero_grad": b.zero_grad,
    }
    for what, n in steps:
        if what == "give_back":
            b.release_cached()
        elif what == "free":
            if alive:
                b.free(alive.pop(n % len(alive)))
        elif what == "script":
            with b.script_line(n):
                alive.append(b.alloc((n + 1) * 300 * KIB + n))
        else:
            with stages[what]():
                alive.append(b.alloc((n + 1) * 300 * KIB + n))
                if n % 3 == 0:
                    b.free(alive.pop(n % len(alive)))
    while len(b.entries) < 3:
        b.temporary(KIB)
    return b


def facts(b: SnapshotBuilder | Snapshot) -> Facts:
    return Facts(Capture(rank=0, snapshot=b.snapshot() if isinstance(b, SnapshotBuilder) else b))


def history(b: SnapshotBuilder) -> DeviceHistory:
    return facts(b)[MemoryTimeline].devices[0]


def slow_live(data: dict[str, Any], device: int = 0) -> list[int]:
    """Live bytes after every entry, backwards from the final blocks: another way to the same numbers."""
    live = sum(b["requested_size"] for s in data["segments"] for b in s["blocks"] if b["state"] != "inactive")
    found = [live]
    for entry in reversed(data["device_traces"][device]):
        if entry["action"] == "alloc":
            live -= entry["size"]
        elif entry["action"] == "free_completed":
            live += entry["size"]
        found.append(live)
    return found[::-1]


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, held=st.lists(st.integers(0, 30), max_size=6))
def test_live_and_reserved_agree_with_a_slow_replay(steps: list[Step], held: list[int]) -> None:
    b = built(steps, held)
    h = history(b)
    assert h.live.tolist() == slow_live(b.data())
    assert h.reserved is not None
    assert int(h.reserved[-1]) == sum(s["total_size"] for s in b.data()["segments"])
    assert (h.reserved >= h.live).all()
    for moment in {0, h.n // 2, h.peak, h.n}:
        assert int(h.size[h.alive(moment)].sum()) == int(h.live[moment])


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    held=st.lists(st.integers(0, 30), max_size=6),
    stacks=st.sampled_from(["all", "python", "cpp", None]),
)
def test_categories_sum_to_the_live_bytes_at_every_moment(
    steps: list[Step], held: list[int], stacks: Any
) -> None:
    f = facts(built(steps, held, stacks=stacks))
    d: DeviceBlocks = f[MemoryBlocks].devices[0]
    for moment in range(0, d.history.n + 1, max(1, d.history.n // 7)):
        assert sum(d.at(moment).values()) == int(d.history.live[moment])
    ledger = f[MemoryLedger]
    row, series = ledger.rows[0], ledger.series[0]
    assert (
        sum(getattr(row.by_category, c) for c in row.by_category.__struct_fields__)
        == row.peak_bytes
        == int(d.history.live.max())
    )
    totals = np.sum(list(series.live_by_category.values()), axis=0)
    assert int(totals[series.peak_index]) == row.peak_bytes == int(totals.max())


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, held=st.lists(st.integers(0, 30), max_size=6), which=st.integers(0, 1000))
def test_the_peak_never_rises_without_some_blocks_and_never_falls_by_more_than_they_hold(
    steps: list[Step], held: list[int], which: int
) -> None:
    h = history(built(steps, held))
    blocks = np.flatnonzero(np.arange(len(h.size)) % 5 == which % 5)
    without = h.peak_without(blocks)
    assert h.peak_bytes - int(h.bytes_over_time(blocks).max(initial=0)) <= without <= h.peak_bytes
    earlier = h.peak_without(blocks, freed=(np.maximum(h.born[blocks], 0) + h.freed[blocks]) // 2)
    assert without <= earlier <= h.peak_bytes
    assert h.peak_without(np.arange(len(h.size))) == 0


@settings(max_examples=20, deadline=None)
@given(steps=STEPS, held=st.lists(st.integers(0, 30), max_size=4), by=st.integers(1, 10**12))
def test_other_addresses_and_another_clock_change_nothing(
    steps: list[Step], held: list[int], by: int
) -> None:
    """Only the order of entries counts."""
    b = built(steps, held)
    plain = facts(b)[MemoryLedger]
    data = pickle.loads(pickle.dumps(b.data()))
    for s in data["segments"]:
        s["address"] += by * 512
        for block in s["blocks"]:
            block["address"] += by * 512
    for entry in data["device_traces"][0]:
        entry["time_us"] += by
        entry["addr"] += by * 512
    for note in data["external_annotations"]:
        note["time_us"] += by
    moved = SnapshotBuilder()
    moved.data = lambda: data  # type: ignore[method-assign]
    assert facts(moved)[MemoryLedger] == plain


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, held=st.lists(st.integers(0, 30), max_size=4), cut=st.floats(0, 1))
def test_a_record_that_lost_its_start_tells_the_same_about_the_rest(
    steps: list[Step], held: list[int], cut: float
) -> None:
    """The ring buffer keeps the last entries only; what was alive before follows from the rest and the final blocks."""
    b = built(steps, held)
    whole = history(b)
    data = pickle.loads(pickle.dumps(b.data()))
    lost = int(cut * (whole.n - 3))
    data["device_traces"][0] = data["device_traces"][0][lost:]
    if not any(e["action"] in ("alloc", "free_completed") for e in data["device_traces"][0]):
        return
    b.data = lambda: data  # type: ignore[method-assign]
    rest = history(b)
    assert rest.live.tolist() == whole.live[lost:].tolist()
    assert rest.reserved is not None
    assert whole.reserved is not None
    assert rest.reserved.tolist() == whole.reserved[lost:].tolist()


def test_blocks_older_than_the_record() -> None:
    b = SnapshotBuilder()
    stays, goes = b.held(5 * MIB), b.held(7 * MIB)
    b.temporary(MIB)
    b.free(goes)
    h = history(b)
    older = h.born == -1
    assert sorted(h.size[older].tolist()) == [stays.requested, goes.requested]
    assert h.live.tolist()[0] == 12 * MIB
    assert h.live.tolist()[-1] == 5 * MIB


def _edited(change: Callable[[dict[str, Any]], None]) -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(2)
    data = pickle.loads(pickle.dumps(b.data()))
    change(data)
    b.data = lambda: data  # type: ignore[method-assign]
    return b


def _drop_a_free(data: dict[str, Any]) -> None:
    entries = data["device_traces"][0]
    entries.pop(next(i for i, e in enumerate(entries) if e["action"] == "free_completed"))


def _free_twice(data: dict[str, Any]) -> None:
    entries = data["device_traces"][0]
    at = next(i for i, e in enumerate(entries) if e["action"] == "free_completed")
    entries.insert(at, dict(entries[at]))


def _other_size(data: dict[str, Any]) -> None:
    next(e for e in data["device_traces"][0] if e["action"] == "free_completed")["size"] += 512


def _lost_block(data: dict[str, Any]) -> None:
    block = next(
        b for s in reversed(data["segments"]) for b in s["blocks"] if b["state"] == "active_allocated"
    )
    block["state"] = "inactive"


def _other_total(data: dict[str, Any]) -> None:
    data["segments"][0]["requested_size"] += 1


@pytest.mark.parametrize("change", [_drop_a_free, _free_twice, _other_size, _lost_block, _other_total])
def test_a_history_that_contradicts_itself_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(NotCaptured, match="contradicts itself"):
        facts(_edited(change))[MemoryTimeline]


def test_segments_that_contradict_leave_reserved_unknown() -> None:
    b = _edited(lambda data: data["segments"][0].update(total_size=data["segments"][0]["total_size"] // 64))
    assert history(b).reserved is None
    assert facts(b)[MemoryLedger].rows[0].max_reserved_bytes is None


@pytest.mark.captures
def test_real_histories_never_contradict_their_segments(snapshot_file: Path) -> None:
    snapshot = load_snapshot(snapshot_file, snapshot_file.name)
    if not snapshot.has_history:
        with pytest.raises(NotCaptured, match="no allocation history"):
            facts(snapshot)[MemoryTimeline]
        return
    timeline = facts(snapshot)[MemoryTimeline]
    assert timeline.refused == ()
    for h in timeline.devices:
        final = snapshot.segment_requested[snapshot.segment_device == h.device].sum()
        assert int(h.live[-1]) == int(final)
        assert h.reserved is not None


@pytest.mark.parametrize("change", [lambda data: data.update(device_traces=[]), _other_size])
def test_without_a_usable_history_it_is_told_what_is_held_but_no_peak(change: Callable[[Any], None]) -> None:
    b = _edited(change)
    f = facts(b)
    assert f.get(MemoryLedger) is None
    (row,) = f[MemoryHeld].rows
    live = [x for s in b.data()["segments"] for x in s["blocks"] if x["state"] != "inactive"]
    assert row.held_bytes == sum(x["requested_size"] for x in live) == sum(n for _, n in row.by_frame)
    assert row.blocks == len(live)


def test_a_device_with_a_history_needs_no_second_account() -> None:
    assert facts(_edited(lambda data: None)).get(MemoryHeld) is None


@pytest.mark.captures
def test_real_ledgers_sum_exactly(snapshot_file: Path) -> None:
    snapshot = load_snapshot(snapshot_file, snapshot_file.name)
    ledger = facts(snapshot).get(MemoryLedger)
    assert (ledger is not None) == snapshot.has_history
    for row, series in zip(ledger.rows, ledger.series, strict=True) if ledger else ():
        assert sum(getattr(row.by_category, c) for c in row.by_category.__struct_fields__) == row.peak_bytes
        assert len(series.at) <= 400
        assert sum(v[series.peak_index] for v in series.live_by_category.values()) == row.peak_bytes
        assert series.at == sorted(series.at)
