"""The allocator's history and snapshots of it. CUDA only: elsewhere nothing of this kind is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.agent.patches import Function, Patches


def peak_allocated(torch: Any) -> int | None:
    """Bytes that live tensors took at most since the start, on the device of this process that held most."""
    if not torch.cuda.is_initialized():
        return None
    return max(int(torch.cuda.max_memory_allocated(d)) for d in range(torch.cuda.device_count()))


class MemoryHistory:
    """Starts and stops the history; finds the moment of a step at which most memory is held.

    A script that keeps a history of its own is left alone: there is one, and whoever stops it stops it for all."""

    def __init__(self, torch: Any, entries: int) -> None:
        self.torch = torch
        self.entries = entries
        self.on = False
        self.theirs = False
        """whether the script has started or stopped a history itself"""
        self._held: dict[str, int] = {}
        self._peak_moment: str | None = None
        self.peak_path: Path | None = None
        """where to dump the peak of this step; None: only look for it"""
        self._patches = Patches()
        self._record: Function = torch.cuda.memory._record_memory_history

    @property
    def possible(self) -> bool:
        """Whether the script has begun to use CUDA."""
        return bool(self.torch.cuda.is_initialized())

    def install(self) -> None:
        """Notices where the script records memory history itself, which is left alone."""
        self._patches.wrap(self.torch.cuda.memory, "_record_memory_history", self._around_record)

    def uninstall(self) -> None:
        """Undoes `install`."""
        self._patches.undo()

    def _around_record(self, record: Function) -> Function:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.theirs = True
            return record(*args, **kwargs)

        return watched

    def start(self) -> None:
        """Begins to record allocations with stacks, unless the script does so itself."""
        if not self.theirs:  # stacks="all": the backward pass has no Python frames
            self._record(max_entries=self.entries, stacks="all")
            self.on = True

    def stop(self) -> None:
        """Stops recording, unless it is the script's own."""
        if self.on and not self.theirs:
            self._record(enabled=None)
        self.on = False

    def dump(self, path: Path) -> None:
        """Writes the snapshot, whole or not at all."""
        with whole_files.replacing(path) as temporary:  # torch writes in place, for seconds
            self.torch.cuda.memory._dump_snapshot(str(temporary))

    def at(self, moment: str) -> None:
        """A moment of each step (before backward, at its end) at which the peak may be."""
        if self.peak_path is None:
            self._held[moment] = max(self._held.get(moment, 0), int(self.torch.cuda.memory_allocated()))
        elif moment == self._peak_moment:
            path, self.peak_path = self.peak_path, None
            self.dump(path)

    def take_peak(self, path: Path) -> None:
        """A step begins in which a snapshot is taken at the moment that was the highest of those before."""
        if self._held:
            self._peak_moment = max(self._held, key=lambda m: self._held[m])
            self.peak_path = path
