"""Segments taken, given back and taken again, and memory at the moment an allocation fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.allocator import (
    AllocatorActivity,
    DeviceActivity,
    Episode,
    caused_by,
    episodes_of,
)
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.out_of_memory import OutOfMemory, gaps_at
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.testing import MIB, RunBuilder, SnapshotBuilder


def activity(b: SnapshotBuilder) -> DeviceActivity:
    return Facts(Capture(rank=0, snapshot=b.snapshot()))[AllocatorActivity].devices[0]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=3, max_size=30))
def test_growing_is_never_an_episode(sizes: list[int]) -> None:
    b = SnapshotBuilder()
    for size in sizes:
        b.alloc(size * MIB)
    assert activity(b).episodes == ()


@settings(max_examples=50, deadline=None)
@given(rounds=st.integers(1, 12), mib=st.integers(12, 400))
def test_one_episode_per_round_of_giving_back_and_taking_again(rounds: int, mib: int) -> None:
    b = SnapshotBuilder()
    for _ in range(rounds + 1):
        b.temporary(mib * MIB)
        b.empty_cache()
    found = activity(b)
    segment = found.max_reserved
    assert [e.bytes for e in found.episodes] == [segment] * rounds
    assert {e.cause for e in found.episodes} == {"empty_cache"}
    assert (found.takes, found.gives) == (rounds + 1, rounds + 1)


def test_only_what_lies_below_the_earlier_maximum_is_taken_again() -> None:
    b = SnapshotBuilder()
    b.temporary(100 * MIB)
    b.release_cached()
    b.temporary(300 * MIB)
    (episode,) = activity(b).episodes
    assert episode.bytes == 100 * MIB
    assert episode.cause == "pressure"


def test_retries_before_a_failure_are_no_episode() -> None:
    b = SnapshotBuilder()
    b.temporary(100 * MIB)
    b.release_cached()
    b.oom(900 * MIB, device_free=0)
    b.temporary(100 * MIB)
    assert activity(b).episodes == ()


def test_files_without_frames_of_segments_do_not_say_who_gave_back() -> None:
    b = SnapshotBuilder(stacks=None)
    for _ in range(3):
        b.temporary(100 * MIB)
        b.empty_cache()
    assert {e.cause for e in activity(b).episodes} == {"unknown"}


def test_a_trace_with_totals_has_episodes_and_calls() -> None:
    b = RunBuilder(memory=True)
    for _ in range(4):
        with b.step(), b.op("aten::empty"):
            b.runtime("cudaMalloc", 50)
            b.memory(MIB, reserved=200 * MIB)
            b.launch(10)
            b.runtime("cudaFree", 80)
            b.memory(-MIB, reserved=100 * MIB)
    found = Facts(Capture(rank=0, run=b.run()))[AllocatorActivity]
    assert len(found.devices[0].episodes) == 3
    assert found.calls is not None
    assert found.calls.name == ("cudaMalloc", "cudaFree") * 4
    assert len(found.calls.removal().host_spans) == 8


def test_stream_ordered_allocation_is_no_driver_call() -> None:
    b = RunBuilder()
    with b.step(), b.op("aten::empty"):
        b.runtime("cudaMallocAsync", 5)
        b.launch(10)
        b.runtime("cudaFreeAsync", 5)
    calls = Facts(Capture(rank=0, run=b.run()))[AllocatorActivity].calls
    assert calls is not None
    assert len(calls) == 0


def test_a_cpu_capture_has_no_allocator() -> None:
    b = RunBuilder(gpu=None)
    with b.step(), b.op("aten::mm"):
        pass
    with pytest.raises(NotCaptured, match="no GPU memory events"):
        Facts(Capture(rank=0, run=b.run()))[AllocatorActivity]


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 30_000), min_size=3, max_size=40), keep=st.integers(2, 5))
def test_gaps_are_the_free_blocks_of_the_allocator(sizes: list[int], keep: int) -> None:
    b = SnapshotBuilder()
    made = [b.alloc(size * 1024) for size in sizes]
    b.free(*[block for i, block in enumerate(made) if i % keep])
    now = len(b.entries)
    free = sorted(block.size for s in b._allocator.segments for block in s.blocks if not block.active)
    b.release_cached()  # later events are undone
    b.temporary(50 * MIB)
    snapshot = b.snapshot()
    device = Facts(Capture(rank=0, snapshot=snapshot))[MemoryBlocks].devices[0]
    gaps = gaps_at(snapshot, device, now)
    unsplit = sum(block.size - -(-block.requested // 512) * 512 for block in made if block.active)
    assert int(gaps.sum()) == sum(free) + unsplit
    assert int(gaps.max(initial=0)) >= max(free, default=0)


def test_what_was_free_when_an_allocation_failed() -> None:
    b = SnapshotBuilder()
    with b.forward():
        blocks = [b.alloc(30 * MIB) for _ in range(6)]
        b.free(*blocks[1::2])
        b.oom(100 * MIB, device_free=20 * MIB)
    b.free(*blocks[::2])
    (failure,) = Facts(Capture(rank=0, snapshot=b.snapshot()))[OutOfMemory].failures
    assert (failure.requested, failure.device_free, failure.live) == (100 * MIB, 20 * MIB, 90 * MIB)
    assert (failure.cached, failure.largest_gap) == (90 * MIB, 30 * MIB)
    assert failure.fits_if_packed
    assert failure.device_bytes == 200 * MIB


@pytest.mark.captures
def test_real_failures_of_four_ranks(captures_dir: Path) -> None:
    folder = captures_dir / "snapshots" / "cornell-sysphotonics_ccl-bench"
    for rank, path in enumerate(sorted(folder.glob("*.pickle"))):
        (failure,) = Facts(Capture(rank=rank, snapshot=load_snapshot(path, path.name)))[OutOfMemory].failures
        assert failure.device.device == rank
        mib = [failure.requested, failure.device_free, failure.cached, failure.largest_gap]
        assert np.allclose([v / MIB for v in mib if v is not None], [4008, 3842, 806, 112], atol=1)
        assert failure.fits_if_packed


@pytest.mark.captures
def test_real_churn_and_real_ramps(snapshot_file: Path) -> None:
    snapshot = load_snapshot(snapshot_file, snapshot_file.name)
    if not snapshot.has_history:
        pytest.skip("no history in this file")
    found = Facts(Capture(rank=0, snapshot=snapshot))[AllocatorActivity].devices
    episodes = [e for d in found for e in d.episodes]
    if snapshot_file.name == "04d383cd_snapshot.pickle":
        assert len(episodes) == 39
        assert sum(e.bytes for e in episodes) // MIB == 139_850
    else:
        assert episodes == []


def test_a_snapshot_tells_of_the_device_where_the_trace_beside_it_holds_the_cpu_alone() -> None:
    b, cpu = SnapshotBuilder(), RunBuilder(gpu=None)
    for _ in range(3):
        b.temporary(100 * MIB)
        b.empty_cache()
    with cpu.op("aten::mm", us=10):
        pass
    found = Facts(Capture(rank=0, run=cpu.run(), snapshot=b.snapshot()))[AllocatorActivity].devices
    assert [len(device.episodes) for device in found] == [2]


def test_of_python_frames_alone_who_does_not_empty_the_cache_was_short_of_memory() -> None:
    b = SnapshotBuilder(stacks="python")
    b.alloc(MIB)
    b.temporary(MIB)
    snapshot = b.snapshot()
    history = Facts(Capture(rank=0, snapshot=snapshot))[MemoryBlocks].devices[0].history
    assert caused_by(int(history.stack[0]), snapshot) == "pressure"


@pytest.mark.parametrize(
    ("names", "cause"),
    [
        (["c10::cuda::emptyCache()", "c10::malloc(int)"], "empty_cache"),
        (["empty_cache"], "empty_cache"),
        (["Native::DeviceCachingAllocator::garbage_collect_cached_blocks()", "c10::malloc(int)"], "gc_threshold"),
        (["c10::cuda::malloc(int)"], "pressure"),
        (["release_cached_blocks"], "pressure"),
    ],
)  # fmt: skip
def test_who_gave_a_segment_back(names: list[str], cause: str) -> None:
    b = SnapshotBuilder()
    b.alloc(MIB, frames=[("??", 0, name) for name in names])
    b.temporary(MIB)
    snapshot = b.snapshot()
    history = Facts(Capture(rank=0, snapshot=snapshot))[MemoryBlocks].devices[0].history
    assert caused_by(int(history.stack[0]), snapshot) == cause


def test_churn_may_begin_with_the_first_entry_of_the_record() -> None:
    at, before, after = np.array([0, 1]), np.array([200, 100]), np.array([100, 200])
    assert episodes_of(at, before, after, np.zeros(2, dtype=bool)) == [Episode(0, 1, 100)]
