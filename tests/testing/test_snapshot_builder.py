"""SnapshotBuilder: what it writes is what an allocator would have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.snapshot import Action, Snapshot
from trace_doctor.testing import GIB, KIB, MIB, SnapshotBuilder


def actions(snapshot: Snapshot) -> list[str]:
    return [Action(a).name.lower() for a in snapshot.action.tolist()]


def test_the_example_of_its_documentation() -> None:
    b = SnapshotBuilder()
    b.held(100 * MIB)
    for _ in range(3):
        with b.forward("model.py", 12):
            kept = b.alloc(200 * MIB)
        with b.backward("MmBackward0"):
            grad = b.alloc(100 * MIB)
            b.free(kept)
        with b.optimizer_step():
            b.temporary(50 * MIB)
        with b.zero_grad():
            b.free(grad)
    snapshot = b.snapshot()
    assert actions(snapshot)[:4] == ["segment_alloc", "alloc", "segment_alloc", "alloc"]
    assert actions(snapshot).count("segment_alloc") == 2  # the next steps find everything in the cache
    assert [a.name for a in snapshot.annotations[:2]] == ["Optimizer.step#AdamW.step"] * 2


def test_cached_blocks_are_split_and_merged() -> None:
    b = SnapshotBuilder()
    whole = b.alloc(100 * MIB)
    b.free(whole)
    left, right = b.alloc(30 * MIB), b.alloc(70 * MIB)
    assert (left.addr, right.addr) == (whole.addr, whole.addr + 30 * MIB)
    b.free(left, right)
    assert b.alloc(100 * MIB).addr == whole.addr
    assert actions(b.snapshot()).count("segment_alloc") == 1


@pytest.mark.parametrize(("asked", "segment"), [(KIB, 2 * MIB), (2 * MIB, 20 * MIB), (11 * MIB, 12 * MIB)])
def test_segments_have_the_sizes_that_torch_asks_for(asked: int, segment: int) -> None:
    b = SnapshotBuilder()
    b.alloc(asked)
    assert b.snapshot().segment_size.tolist() == [segment]


def test_mistakes_of_the_author_are_errors() -> None:
    b = SnapshotBuilder(device_bytes=GIB)
    block = b.alloc(MIB)
    with pytest.raises(ValueError, match="before everything"):
        b.held(MIB)
    b.free(block)
    with pytest.raises(ValueError, match="free already"):
        b.free(block)
    with pytest.raises(MemoryError, match="use oom"):
        b.alloc(2 * GIB)


def test_expandable_segments_grow_at_their_end() -> None:
    b = SnapshotBuilder(expandable_segments=True)
    blocks = [b.alloc(size * MIB) for size in (30, 50, 70)]
    b.free(*blocks)
    whole = b.alloc(200 * MIB)
    snapshot = b.snapshot()
    assert actions(snapshot).count("segment_map") == 4
    assert "segment_alloc" not in actions(snapshot)
    assert (whole.addr, snapshot.segment_size.tolist()) == (blocks[0].addr, [200 * MIB])


def test_equal_texts_give_equal_files_whichever_objects_they_are(tmp_path: Path) -> None:
    """Constants of a module are shared where Python compiled it, and not where it loaded it."""
    made = []
    for name in ("loss", "".join(["lo", "ss"])):
        b = SnapshotBuilder()
        for function in ("loss", name):
            b.alloc(1 << 20, frames=[("train.py", 7, function)])
        made.append(b.write(tmp_path / "snapshot.pickle").read_bytes())
    assert made[0] == made[1]
