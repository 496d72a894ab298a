"""What a page shows of single blocks: its sums are those of the picture, however little of it is held one by one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.capture import Capture
from trace_doctor.engine.detail.memory import memory_detail
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.model import MEMORY_CATEGORIES
from trace_doctor.model.memory_detail import DeviceBlocksDetail, MemoryDetail
from trace_doctor.snapshot import Snapshot
from trace_doctor.testing import MIB, SnapshotBuilder


def facts_of(snapshot: Snapshot) -> Facts:
    return Facts(Capture(rank=0, snapshot=snapshot))


def detail(facts: Facts, most: int = 1000) -> MemoryDetail:
    made = memory_detail(facts, most)
    assert made is not None
    return made


def by_category(device: DeviceBlocksDetail, point: int) -> dict[str, int]:
    """Bytes of the classes at one point, as a page adds them up."""
    b = device.blocks
    sums = dict.fromkeys(MEMORY_CATEGORIES, 0)
    for size, category, first, last in zip(b.size, b.category, b.first, b.last, strict=True):
        if first <= point < last:
            sums[MEMORY_CATEGORIES[category]] += size
    for group in device.added:
        sums[MEMORY_CATEGORIES[group.category]] += sum(c[1] for c in group.changes if c[0] <= point)
    return {name: size for name, size in sums.items() if size}


def agrees(facts: Facts, most: int, every: int = 1) -> None:
    """At each `every`-th point of the series, blocks and added-up blocks are what the picture shows."""
    made = {d.device: d for d in detail(facts, most).devices}
    for series in facts[MemoryLedger].series:
        device = made[series.device]
        for i, at in [*enumerate(series.at)][::every]:
            shown = {c: values[i] for c, values in series.live_by_category.items() if values[i]}
            same = [p for p, moment in enumerate(device.at) if moment == at]
            assert shown in [by_category(device, p) for p in same]
        for point, live in [*enumerate(device.live)][::every]:
            assert sum(by_category(device, point).values()) == live


def training(layers: int = 4, steps: int = 3) -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.held(20 * MIB)
    b.train(steps, parameters=[8 * MIB] * layers)
    return b


@given(layers=st.integers(1, 6), steps=st.integers(1, 4), most=st.integers(1, 60))
def test_sums_at_each_point_are_those_of_the_picture(layers: int, steps: int, most: int) -> None:
    agrees(facts_of(training(layers, steps).snapshot()), most)


def test_a_long_record_is_held_by_the_points_of_its_picture() -> None:
    b = training()
    for _ in range(600):
        with b.forward():
            b.temporary(MIB, 2 * MIB)
    facts = facts_of(b.snapshot())
    agrees(facts, 20)
    (device,) = detail(facts, 20).devices
    history = facts[MemoryBlocks].devices[0].history
    assert len(device.blocks.size) == 20 < device.recorded < len(history.size)
    whole = detail(facts, 10_000).devices[0]
    assert sorted(whole.blocks.size)[-20:] == sorted(device.blocks.size)
    assert not whole.added


def test_stacks_of_added_up_blocks_are_bounded() -> None:
    b = SnapshotBuilder()
    for line in range(300):
        with b.forward(line=line):
            b.alloc(MIB)
    made = detail(facts_of(b.snapshot()), 60)
    assert len(made.parent) <= 120
    assert len(made.devices[0].added) <= 3
    agrees(facts_of(b.snapshot()), 60)


def test_a_block_has_its_step_its_time_and_its_stack() -> None:
    b = training(steps=2)
    with b.forward("/home/me/loss.py", 22):
        b.alloc(77 * MIB)
    made = detail(facts_of(b.snapshot()))
    (device,) = made.devices
    n = device.blocks.size.index(77 * MIB)
    assert device.blocks.step[n] == 2
    assert device.at[device.blocks.first[n]] == device.blocks.since[n]
    frames, node = [], device.blocks.node[n]
    while node >= 0:
        frames.append(made.frames[made.frame[node]])
        node = made.parent[node]
    assert any(f.startswith("/home/me/loss.py:22 ") for f in frames)
    assert frames[-1].endswith(" <module>")
    torch_own = {made.frames[n] for n in made.library}
    assert torch_own and all(f.startswith("torch/") for f in torch_own)
    held = device.blocks.size.index(20 * MIB)
    assert (device.blocks.step[held], device.blocks.since[held], device.blocks.first[held]) == (-1, -1, 0)


def test_the_moment_of_a_failed_allocation_is_a_point_even_where_the_picture_has_none() -> None:
    b = training()
    b.oom(1024 * MIB, device_free=MIB)
    for _ in range(600):
        with b.forward():
            b.temporary(MIB, 2 * MIB)
    facts = facts_of(b.snapshot())
    (device,) = detail(facts).devices
    history = facts[MemoryBlocks].devices[0].history
    (point,) = device.failures
    assert device.live[point] == history.live[int((history.action == 9).nonzero()[0][0])]
    assert device.at[point] in [m.at for m in facts[MemoryLedger].series[0].marks if m.kind == "oom"]


def test_without_a_history_there_is_the_moment_of_the_dump() -> None:
    b = SnapshotBuilder()
    for size in (4, 30, 2):
        b.held(size * MIB, frames=[("/home/me/train.py", 5, "main")])
    (device,) = detail(facts_of(b.snapshot())).devices
    assert (device.unit, device.at, device.live) == ("end", [0.0], [36 * MIB])
    assert by_category(device, 0) == {"unknown": 36 * MIB}
    few = detail(facts_of(b.snapshot()), 1).devices[0]
    assert few.blocks.size == [30 * MIB]
    assert sum(by_category(few, 0).values()) == 36 * MIB
    assert few.recorded == 3


def tiled(device: DeviceBlocksDetail) -> None:
    """The figures of the segments add up to what is reserved, and to the blocks shown."""
    space = device.space
    free = space.free_split + space.free_segments
    assert space.reserved == space.allocated + space.rounding + free
    assert len(device.segments) == space.segments
    blocks = [b for s in device.segments for b in s.blocks]
    assert sum(b[2] for b in blocks if b[3]) == space.allocated == device.live[-1]
    assert sum(b[1] for b in blocks if not b[3]) == free
    assert max((b[1] for b in blocks if not b[3]), default=0) == space.largest_free
    for segment in device.segments:
        assert sum(b[1] for b in segment.blocks) == segment.size


def test_segments_add_up_to_the_reserved_bytes() -> None:
    b = training()
    kept = [b.alloc(30 * MIB) for _ in range(4)]
    b.free(kept[1])
    facts = facts_of(b.snapshot())
    (device,) = detail(facts).devices
    tiled(device)
    assert device.space.free_split + device.space.free_segments >= 30 * MIB
    assert device.space.reserved == facts[MemoryLedger].series[0].reserved[-1]


def test_the_largest_segments_are_shown_where_there_is_no_room() -> None:
    b = SnapshotBuilder()
    for size in (25, 200, 50):
        b.alloc(size * MIB)
    (device,) = detail(facts_of(b.snapshot()), 1).devices
    assert [s.size for s in device.segments] == [200 * MIB]
    assert device.space.segments == 3


def test_only_the_asked_device() -> None:
    facts = Facts(Capture(rank=0, snapshot=training().snapshot()), Options(device=3))
    assert memory_detail(facts, 100) is None


@pytest.mark.captures
def test_real_snapshots_agree_with_their_pictures_and_stay_small(captures_dir: Path) -> None:
    paths = sorted((captures_dir / "snapshots").glob("*/*.p*kl*"))
    assert paths
    for path in paths:
        facts = facts_of(load_snapshot(path, path.name))
        if facts.get(MemoryLedger) is not None:
            agrees(facts, 300, every=25)
        assert len(msgspec.json.encode(detail(facts, 12_000))) < 1_500_000
        for device in detail(facts, 100_000).devices:
            tiled(device)
