"""The moment of a step at which most memory is held, with CUDA's allocator played by a list of numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trace_doctor.recording.agent.memory import MemoryHistory


class Allocator:
    """What of `torch.cuda` the history needs."""

    def __init__(self) -> None:
        self.allocated = 0
        self.recording: list[object] = []
        memory = SimpleNamespace(
            _record_memory_history=lambda enabled="all", **_: self.recording.append(enabled),
            _dump_snapshot=lambda path: Path(path).write_text(str(self.allocated)),
        )
        self.torch = SimpleNamespace(
            cuda=SimpleNamespace(memory=memory, memory_allocated=lambda: self.allocated)
        )


def step(allocator: Allocator, history: MemoryHistory, before_backward: int, end: int) -> None:
    for moment, allocated in (("before backward", before_backward), ("at the step's end", end)):
        allocator.allocated = allocated
        history.at(moment)


@pytest.mark.parametrize("held", [(900, 300), (200, 700)])
def test_the_snapshot_is_taken_where_the_step_before_held_most(tmp_path: Path, held: tuple[int, int]) -> None:
    allocator = Allocator()
    history = MemoryHistory(allocator.torch, 100)
    step(allocator, history, *held)
    assert not list(tmp_path.iterdir())
    history.take_peak(tmp_path / "peak")
    step(allocator, history, *held)
    step(allocator, history, *held)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"peak": str(max(held))}


def test_a_history_of_the_scripts_own_is_not_stopped() -> None:
    allocator = Allocator()
    history = MemoryHistory(allocator.torch, 100)
    before = allocator.torch.cuda.memory._record_memory_history
    history.install()
    history.start()
    assert allocator.recording == ["all"] and not history.theirs
    allocator.torch.cuda.memory._record_memory_history("state")
    history.stop()
    history.start()
    assert allocator.recording == ["all", "state"]
    history.uninstall()
    assert allocator.torch.cuda.memory._record_memory_history is before
