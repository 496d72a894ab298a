"""The allocator's history and snapshots of it. CUDA only: elsewhere nothing of this kind is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def peak_allocated(torch: Any) -> int | None:
    """Bytes that live tensors took at most since the start, on the device of this process that held most."""
    if not torch.cuda.is_initialized():
        return None
    return max(int(torch.cuda.max_memory_allocated(d)) for d in range(torch.cuda.device_count()))


class MemoryHistory:
    """Starts and stops the history; finds the moment of a step at which most memory is held."""

    def __init__(self, torch: Any, entries: int) -> None:
        self.torch = torch
        self.entries = entries
        self.on = False
        self._held: dict[str, int] = {}
        self._peak_moment: str | None = None
        self.peak_path: Path | None = None
        """where to dump the peak of this step; None: only look for it"""

    @property
    def possible(self) -> bool:
        return bool(self.torch.cuda.is_initialized())

    def start_with_cuda(self) -> None:
        """From the initialisation of CUDA on, whenever that comes: what runs out of memory mostly does so at once."""
        self.torch.cuda._lazy_call(self.start)

    def start(self) -> None:
        # stacks="all": the backward pass has no Python frames
        self.torch.cuda.memory._record_memory_history(max_entries=self.entries, stacks="all")
        self.on = True

    def stop(self) -> None:
        if self.on:
            self.torch.cuda.memory._record_memory_history(enabled=None)
            self.on = False

    def dump(self, path: Path) -> None:
        self.torch.cuda.memory._dump_snapshot(str(path))

    def at(self, moment: str) -> None:
        """A moment of each step (before backward, before and behind the optimizer) at which the peak may be."""
        if self.peak_path is not None:
            if moment == self._peak_moment:
                path, self.peak_path = self.peak_path, None
                self.dump(path)
            return
        self._held[moment] = max(self._held.get(moment, 0), int(self.torch.cuda.memory_allocated()))

    def seek_peak(self) -> None:
        """A step begins in which the highest of the moments is found."""
        self._held = {}

    def take_peak(self, path: Path) -> None:
        """A step begins in which a snapshot is taken at the moment that was the highest of the step before."""
        if self._held:
            self._peak_moment = max(self._held, key=lambda m: self._held[m])
            self.peak_path = path
