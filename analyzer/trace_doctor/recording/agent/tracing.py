"""The traces: PyTorch's own profiler over a few steps, with a mark on each of them."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.agent import shortening
from trace_doctor.recording.agent.home import Home
from trace_doctor.recording.agent.patches import Function, Patches


class Tracer:
    """One trace. `warm()`, then `start(step)`, `step(step)` at each boundary, and `stop()`."""

    def __init__(self, torch: Any, path: Path, shapes: bool, stacks: bool) -> None:
        from torch.profiler import ProfilerActivity, profiler

        self.torch = torch
        self.path = path
        self.steps = 0
        self.running = False
        """whether it has begun, and nothing of it failed: torch ends the process where anything else is written"""
        self._on = False
        self._mark: Any = None
        self._home = Home()
        self._function: Any = None
        self.stacks_end = False
        """whether the script has set a profile function meanwhile, in place of torch's"""
        on_gpu = torch.cuda.is_initialized()
        self.profile = profiler._KinetoProfile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])],
            record_shapes=shapes,
            with_stack=stacks,
            profile_memory=shapes and on_gpu,
        )

    def warm(self) -> None:
        """Has the profiler prepare itself, before the steps it is to record."""
        self.profile.prepare_trace()

    def start(self, step: int) -> None:
        """Raises RuntimeError where another profiler runs."""
        self._home.settle()
        self._on = not self.torch.autograd._profiler_enabled()  # also where it fails half-way
        self.profile.start_trace()
        self._function = sys.getprofile()
        self._open(step)
        self.running = True

    @property
    def here(self) -> bool:
        """Whether this is the thread that it was started in: in another one torch cannot stop it, and ends the process where
        it is written nevertheless."""
        return not self._on or self._home.here

    def step(self, step: int) -> None:
        """The step so far is over; `step` begins."""
        self._close()
        self._open(step)

    def stop(self) -> None:
        """The last step is over; what follows is not recorded. Whatever fails, the profiler is off."""
        if not self._on:
            return
        complete = self.running
        self._on = self.running = False
        try:
            self._close()
            if self.torch.cuda.is_initialized():
                self.torch.cuda.synchronize()
        finally:
            theirs = sys.getprofile()
            self.profile.stop_trace()
            if self.profile.with_stack and theirs is not None and theirs is not self._function:
                self.stacks_end = True
                if hasattr(theirs, "enable"):
                    theirs.enable()  # of cProfile
                else:
                    sys.setprofile(theirs)
        self.running = complete

    def _open(self, step: int) -> None:
        self._mark = self.torch.autograd.profiler.record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()
        self.steps += 1

    def _close(self) -> None:
        if self._mark is not None:
            mark, self._mark = self._mark, None
            mark.__exit__(None, None, None)

    def write(self, room: float) -> tuple[int, int]:
        """Writes the trace, or as many of its first steps as are within `room`. (bytes on disk, steps kept); where not even
        one step is, the bytes it would have taken."""
        packed = whole_files.aside(self.path)
        plain = packed.with_name(f"{packed.name}.json")
        try:
            self.profile.export_chrome_trace(str(plain))
            if not plain.exists():  # the profiler keeps to itself that it could not write
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            size, written = packed.stat().st_size, self.steps
            if size > room:
                size, written = self._shortened(plain, packed, size, room)
            if written:
                packed.replace(self.path)
        finally:
            for path in packed.parent.glob(f"{packed.name}*"):
                path.unlink(missing_ok=True)
            self.profile.profiler = None
        return size, written

    def _shortened(self, plain: Path, packed: Path, size: int, room: float) -> tuple[int, int]:
        steps = min(int(self.steps * room / size), self.steps - 1)
        of = shortening.borders(plain) if steps else None
        while of is not None and 0 < steps <= len(of.ends):
            with gzip.open(
                packed, "wt", compresslevel=3, encoding="utf-8", errors="surrogateescape"
            ) as target:
                target.writelines(shortening.until(plain, steps, of))
            if packed.stat().st_size <= room:
                return packed.stat().st_size, steps
            steps -= 1
        return size, 0


class OtherProfilers:
    """Profilers of the script itself. They come first: ours stops when one of them is about to start."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.give_way: Callable[[], None] = lambda: None
        self._preparing_ours = False
        self._alive = 0
        self._patches = Patches()

    def install(self) -> None:
        """Counts the profilers that the script starts itself."""
        outer = self.torch.profiler.profile
        self._patches.wrap(self.torch.autograd.profiler.profile, "_prepare_trace", self._around_prepare)
        self._patches.wrap(outer, "start", lambda start: self._counting(start, 1))
        self._patches.wrap(outer, "stop", lambda stop: self._counting(stop, -1))

    def uninstall(self) -> None:
        """Undoes `install`."""
        self._patches.undo()

    def _around_prepare(self, prepare: Function) -> Function:
        def watched(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._preparing_ours:
                self.give_way()
            return prepare(profile, *args, **kwargs)

        return watched

    def _counting(self, act: Function, change: int) -> Function:
        def watched(profile: Any, *args: Any, **kwargs: Any) -> Any:
            self._alive = max(self._alive + change, 0)
            return act(profile, *args, **kwargs)

        return watched

    def warm(self, tracer: Tracer) -> None:
        """Prepares ours."""
        self._preparing_ours = True
        try:
            tracer.warm()
        finally:
            self._preparing_ours = False

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script runs or has still to come in its schedule."""
        return self._alive > 0 or bool(self.torch.autograd._profiler_enabled())
