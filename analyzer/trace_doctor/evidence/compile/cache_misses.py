"""Calls of compiled functions that fit none of the compiled versions, for which none is made any more.

Dynamo looks for code that fits (`TorchDynamo Cache Lookup`) each time it meets a function that it has compiled. What it
finds runs right behind; what it does not find is compiled, until there are `recompile_limit` versions: from then on the
function runs as it is, and nothing says so but the lookup. In about 100 real captures of torch 2.0 to 2.13 compiled code
follows every lookup.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.names.event_names import is_compile
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, is_user_frame, python_frame

_LOOKUP = "TorchDynamo Cache Lookup"


class CacheMiss(Struct, frozen=True):
    """One lookup in vain, [start, end) ns."""

    start: int
    end: int
    frame: Frame | None
    """the function that runs instead; None without stacks"""


def find_misses(run: Run, compiled: I64) -> tuple[CacheMiss, ...]:
    """By start. `compiled`: rows of compiled code that runs, in any form."""
    rows = run.named(lambda n: n == _LOOKUP)
    answers = np.union1d(compiled, run.named(is_compile))
    python = np.flatnonzero(run.is_cat(Cat.PYTHON))
    cache_misses: list[CacheMiss] = []
    for thread in np.unique(run.thread[rows]):
        own_rows = rows[run.thread[rows] == thread]
        begun = run.ts[answers[run.thread[answers] == thread]]
        frames = python[run.thread[python] == thread]
        following = np.append(run.ts[own_rows][1:], np.iinfo(np.int64).max)
        vain = np.searchsorted(begun, following) == np.searchsorted(begun, run.end[own_rows])
        first = np.searchsorted(run.ts[frames], run.end[own_rows])
        for row, at in zip(own_rows[vain].tolist(), first[vain].tolist(), strict=True):
            frame = python_frame(run.text(int(frames[at]))) if at < len(frames) else None
            called = frame if frame is not None and is_user_frame(frame.file) else None
            cache_misses.append(CacheMiss(int(run.ts[row]), int(run.end[row]), called))
    return tuple(sorted(cache_misses, key=lambda miss: miss.start))
