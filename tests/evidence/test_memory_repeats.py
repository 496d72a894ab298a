"""Layers are counted by the stacks that every one of them has, and recomputation is replayed layer by layer."""

from __future__ import annotations

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.stale_graphs import stale_graphs
from trace_doctor.testing import MIB, SnapshotBuilder
from trace_doctor_rules.memory import _repeated_layers as evidence
from trace_doctor_rules.memory._repeated_layers import live_when_recomputed
from trace_doctor_rules.memory.activation_bound import ActivationBound


def repeats(device: DeviceBlocks, moment: int) -> evidence.Repeats | None:
    return evidence.repeats(
        device,
        moment,
        stale_graphs(device),
        min_stacks=ActivationBound.min_stacks,
        min_explained=ActivationBound.min_explained,
    )


def blocks(b: SnapshotBuilder) -> DeviceBlocks:
    return Facts(Capture(rank=0, snapshot=b.snapshot()))[MemoryBlocks].devices[0]


def model(layers: int, sizes: list[int], *, steps: int = 3, head: int = 0) -> SnapshotBuilder:
    """Each layer makes blocks of these MiB; a line that occurs twice makes two of them."""
    b = SnapshotBuilder()
    b.held(50 * MIB)
    for _ in range(steps):
        kept = []
        for _ in range(layers):
            for i, size in enumerate(sizes):
                with b.forward("/home/me/model.py", 30 + min(i, 2)):
                    kept.append(b.alloc(size * MIB))
        if head:
            with b.forward("/home/me/model.py", 60):
                kept.append(b.alloc(head * MIB))
        with b.backward():
            gradient = b.alloc(MIB)
            for block in reversed(kept):
                b.free(block)
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
    return b


@pytest.mark.parametrize("layers", [2, 3, 7, 24])
@pytest.mark.parametrize("sizes", [[4, 8, 2], [4, 8, 2, 6], [5, 1, 3, 3, 3]])
def test_layers_are_counted_whatever_they_hold(layers: int, sizes: list[int]) -> None:
    device = blocks(model(layers, sizes, head=3))
    found = repeats(device, device.history.peak)
    assert found is not None
    assert found.count == layers
    assert found.bytes == layers * sum(sizes) * MIB


def test_a_layer_that_memory_ran_out_in_is_counted_with_the_others() -> None:
    b = SnapshotBuilder()
    b.held(50 * MIB)
    for layer in range(9):
        for line in range(3 if layer < 8 else 1):
            with b.forward("/home/me/model.py", 30 + line):
                b.alloc(20 * MIB)
    with b.script_line(12):
        b.oom(20 * MIB, device_free=MIB)
    device = blocks(b)
    found = repeats(device, device.history.n - 1)
    assert found is not None
    assert found.count == 8


def test_each_layer_keeps_its_last_block_and_one_layer_is_whole() -> None:
    """Ten layers of 4 + 8 + 2 MiB: what is left is the 2 MiB of nine of them and the tenth, which backward repeats while its
    gradient of 1 MiB is there."""
    device = blocks(model(10, [4, 8, 2]))
    found = repeats(device, device.history.peak)
    assert found is not None
    assert int(live_when_recomputed(device, found, stale_graphs(device)).max()) == (50 + 9 * 2 + 14 + 1) * MIB


def test_recomputation_never_costs_memory() -> None:
    for layers in (2, 5):
        device = blocks(model(layers, [1, 1, 30], head=200))
        found = repeats(device, device.history.peak)
        assert found is not None
        assert (
            int(live_when_recomputed(device, found, stale_graphs(device)).max()) <= device.history.peak_bytes
        )


def test_different_code_does_not_repeat() -> None:
    b = SnapshotBuilder()
    kept = []
    for line in range(12):
        with b.forward("/home/me/model.py", 30 + line):
            kept.append(b.alloc(20 * MIB))
    with b.backward():
        b.alloc(MIB)
        b.free(*kept)
    device = blocks(b)
    assert repeats(device, device.history.peak) is None
