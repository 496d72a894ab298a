"""Small runs written down as columns, for evidence that only reads columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.run import Cat, MemoryEvents, Run, Thread

US = 1000
Event = tuple[Cat, str, float, float, dict[str, int]]


def build_run(events: list[Event], threads: list[Thread] | None = None, base_ns: int = 0) -> Run:
    """A run from (category, name, start us, duration us, {thread, device, stream, correlation, external})."""
    rows = sorted(
        ((base_ns + round(ts * US), -round(dur * US), i) for i, (_, _, ts, dur, _) in enumerate(events))
    )
    order = [i for _, _, i in rows]
    names = sorted({e[1] for e in events})
    gpu = (Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)

    def column(key: str, default: int, dtype: type, on_gpu: int | None = None) -> np.ndarray:
        values = []
        for i in order:
            cat, _, _, _, extra = events[i]
            values.append(extra.get(key, on_gpu if on_gpu is not None and cat in gpu else default))
        return np.array(values, dtype=dtype)

    nothing = np.empty(0, dtype=np.int64)
    return Run(
        path="hand.json",
        ts=np.array([r[0] for r in rows], dtype=np.int64),
        dur=np.array([-r[1] for r in rows], dtype=np.int64),
        name=np.array([names.index(events[i][1]) for i in order], dtype=np.int32),
        cat=np.array([events[i][0] for i in order], dtype=np.uint8),
        thread=column("thread", 0, np.int32),
        device=column("device", -1, np.int16, on_gpu=0),
        stream=column("stream", -1, np.int32, on_gpu=7),
        correlation=column("correlation", -1, np.int64),
        external_id=column("external", -1, np.int64),
        offset=np.array(order, dtype=np.int64),
        names=names,
        threads=threads or [Thread("1", "1"), Thread("1", "2"), Thread("1", "3")],
        memory=MemoryEvents(nothing, nothing, nothing, nothing, nothing, nothing.astype(np.int16)),
        meta={},
    )


@pytest.fixture
def facts() -> Callable[..., Facts]:
    """`facts(events, options=..., threads=...)`: the evidence of a run written down as columns."""

    def make(events: list[Event], options: Options | None = None, **more: object) -> Facts:
        return Facts(Capture(0, build_run(events, **more)), options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Run]:
    """`make_run(events)`: the run alone, for tests that make many."""
    return build_run
