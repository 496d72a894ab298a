"""The traces: PyTorch's own profiler over a few steps, with a mark on each of them."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.agent import shortening
from trace_doctor.recording.agent.patches import Function, Patches


class Tracer:
    """One trace. `warm()`, then `start(step)`, `step(step)` at each boundary, and `stop()`."""

    def __init__(self, torch: Any, path: Path, shapes: bool, stacks: bool) -> None:
        from torch.profiler import ProfilerActivity, profiler

        self.torch = torch
        self.path = path
        self.steps = 0
        self.running = False
        self._stopped = False
        self._mark: Any = None
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
        self.profile.start_trace()
        self.running = True
        self._open(step)

    def step(self, step: int) -> None:
        """The step so far is over; `step` begins."""
        self._close()
        self._open(step)

    def end_steps(self) -> None:
        """The last step is over; what follows is not recorded."""
        self._close()
        if self.running and not self._stopped:
            self._stopped = True
            if self.torch.cuda.is_initialized():
                self.torch.cuda.synchronize()
            self.profile.stop_trace()

    def stop(self) -> None:
        """The last step is over, and the recording of this trace."""
        self.end_steps()
        self.running = False

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
            with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            size, written = packed.stat().st_size, self.steps
            if size > room:
                size, written = self._shortened(plain, packed, size, room)
            if written:
                packed.replace(self.path)
        finally:
            for path in (plain, packed):
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
