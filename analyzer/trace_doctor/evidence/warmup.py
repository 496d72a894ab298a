"""Which leading steps are warm-up: they compile, autotune, cold-start, allocate, or are far slower than the rest."""

from __future__ import annotations

import numpy as np

from trace_doctor.evidence.event_names import (
    is_allocator,
    is_compile,
    is_copy_call,
    is_segment_alloc,
    is_segment_free,
    is_synchronize,
)
from trace_doctor.evidence.intervals import covered, pairs, union
from trace_doctor.evidence.launches import Launches
from trace_doctor.run import I64, Bool, Cat, Run

COLD_NS = 1_000_000
"""A runtime or driver call this long is no ordinary call: module loading or library initialisation."""
SLOW = 3.0
"""A leading step that takes more medians than this is warm-up."""
_AUTOTUNE = ("benchmark_all_configs", "autotune_to_one_config", ": do_bench", "cudnnFind", "miopenFind")


def leading_warmup(run: Run, launches: Launches, spans: I64, pace: I64) -> tuple[int, str]:
    """How many of the leading steps are warm-up, and why.

    `spans` are the steps, (n, 2) ns; `pace` how long each took until its GPU work was done.
    """
    if not len(spans):
        return 0, ""
    marks = {
        "compiles": _holds(run, spans, run.named(is_compile)),
        "autotunes": _holds(run, spans, run.named(lambda n: any(a in n for a in _AUTOTUNE))),
        "starts libraries cold": _holds(run, spans, cold_starts(run, launches)),
        "allocates device memory": _grows(run, spans),
        f"takes over {SLOW:g} medians": pace > SLOW * np.median(pace),
    }
    warm = np.logical_or.reduce(list(marks.values()))
    count = len(warm) if warm.all() else int(np.argmin(warm))
    reasons = [why for why, which in marks.items() if which[:count].any()]
    return count, ", ".join(reasons)


def cold_starts(run: Run, launches: Launches) -> I64:
    """Runtime and driver calls of 1 ms or more that neither wait, copy nor allocate, while the GPU mostly idles.

    Only the first use of something is cold: a later call for the same kernel was held by something else. A launch
    call held by a full queue is as long, but then the GPU is busy.
    """
    ordinary = run.name_ids(lambda n: is_synchronize(n) or is_copy_call(n) or is_allocator(n))
    calls = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER) & ~np.isin(run.name, ordinary))
    work = launches.first_work(calls)
    kind = run.name[calls].astype(np.int64) * (len(run.names) + 1) + np.where(
        work >= 0, run.name[work], len(run.names)
    )
    calls = calls[np.sort(np.unique(kind, return_index=True)[1])]
    calls = calls[run.dur[calls] >= COLD_NS]
    busy = union(pairs(run.ts[run.gpu], run.end[run.gpu]))
    return np.asarray(calls[covered(pairs(run.ts[calls], run.end[calls]), busy) * 2 < run.dur[calls]])


def _holds(run: Run, spans: I64, rows: I64) -> Bool:
    """Whether a row starts in each step."""
    starts = run.ts[rows]
    return np.asarray(np.searchsorted(starts, spans[:, 1]) > np.searchsorted(starts, spans[:, 0]))


def _grows(run: Run, spans: I64) -> Bool:
    """Whether a step takes segments and gives none back. One that does both is churning, not warming up."""
    takes = _holds(run, spans, run.named(is_segment_alloc, Cat.RUNTIME, Cat.DRIVER))
    return takes & ~_holds(run, spans, run.named(is_segment_free, Cat.RUNTIME, Cat.DRIVER))
