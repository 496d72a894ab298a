"""When steps begin and end, without waiting for the device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Moment:
    """A moment on the host and, where there is CUDA, in the current stream."""

    host: float
    """seconds of time.perf_counter"""
    cpu: float
    """seconds that this thread was on a CPU so far"""
    event: Any = None

    @property
    def reached(self) -> bool:
        """Whether the GPU has come so far."""
        return self.event is None or bool(self.event.query())


def now(torch: Any) -> Moment:
    """The time on the host (s) and, where a stream can take one, a CUDA event."""
    event = None
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    return Moment(time.perf_counter(), time.thread_time(), event)


def between(begin: Moment, end: Moment) -> float:
    """Seconds, with the device's work where both moments are in its stream: it has reached them."""
    if begin.event is not None and end.event is not None:
        with contextlib.suppress(RuntimeError):  # the script has gone on to another device
            return float(begin.event.elapsed_time(end.event)) / 1e3
    return end.host - begin.host


class Compilations:
    """Counts what torch.compile has compiled; reads counters only where the script has imported Dynamo."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._modules = modules
        self._seen = 0

    def _count(self) -> int:
        utils = self._modules.get("torch._dynamo.utils")
        counters = getattr(utils, "counters", None)
        if not counters:
            return 0
        return int(counters["frames"]["total"]) + int(counters["stats"]["unique_graphs"])

    def watch_beginnings(self, begins: Callable[[Any], None]) -> Callable[[], None]:
        """`begins` is called when a compilation begins, until `torch._dynamo.reset()`. Gives what ends that."""
        handler = getattr(self._modules.get("torch._dynamo.callback"), "callback_handler", None)
        if handler is None or not hasattr(handler, "register_start_callback"):
            return lambda: None
        handler.register_start_callback(begins)

        def unwatch() -> None:
            with contextlib.suppress(ValueError):  # the script has reset torch.compile
                handler.remove_start_callback(begins)

        return unwatch

    def new(self) -> bool:
        """Whether anything was compiled since the last call."""
        count = self._count()
        changed, self._seen = count != self._seen, count
        return changed
