"""Which leading steps are warm-up: they compile, autotune, cold-start, allocate, or are far slower than the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import covered, pairs, union
from trace_doctor.evidence.names.event_names import (
    is_allocator,
    is_compile,
    is_copy_call,
    is_segment_alloc,
    is_segment_free,
    is_synchronize,
)
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Cat, Run

COLD_NS = 1_000_000
"""A runtime or driver call this long is no ordinary call: module loading or library initialisation."""
SLOW = 3.0
"""A leading step that takes more medians than this is warm-up."""
_AUTOTUNE = ("benchmark_all_configs", "autotune_to_one_config", ": do_bench", "cudnnFind", "miopenFind")


def leading_warmup(facts: Facts, spans: I64, pace: I64, kinds: Sequence[str]) -> int:
    """How many of the leading steps are warm-up.

    `spans` are the steps, (n, 2) ns; `pace` how long each took until its GPU work was done. A step is compared with those of its
    kind: a prefill may take hundreds of decodes.
    """
    if not len(spans):
        return 0
    run = facts.run
    marks = [
        _holds(run, spans, run.named(is_compile)),
        _holds(run, spans, run.named(lambda n: any(a in n for a in _AUTOTUNE))),
        _holds(run, spans, cold_starts(run, facts[Launches], facts[Nesting])),
        _grows(run, spans),
        pace > SLOW * _usual(pace, kinds),
    ]
    warm = np.logical_or.reduce(marks)
    return len(warm) if warm.all() else int(np.argmin(warm))


def _usual(pace: I64, kinds: Sequence[str]) -> npt.NDArray[np.float64]:
    """Of each step the median pace of its kind."""
    _, kind = np.unique(np.array(kinds), return_inverse=True)
    return np.array([np.median(pace[kind == k]) for k in range(kind.max() + 1)])[kind]


def first_uses(run: Run, launches: Launches, nesting: Nesting) -> Bool:
    """Runtime and driver calls of 1 ms or more that are the first for their kernel, or in the first run of their
    operator.

    Modules load and libraries start at the first use. A later call as long was held by something else: a full queue,
    or a host that lost its core (in 17 captures with real cold starts, all their time lies in first uses).
    """
    calls = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER))
    work = launches.first_work(calls)
    kinds = run.name[calls].astype(np.int64) * (len(run.names) + 1) + np.where(
        work >= 0, run.name[work] + 1, 0
    )
    long = run.dur[calls] >= COLD_NS
    is_first = np.zeros(len(run), dtype=bool)
    if not long.any():
        return is_first
    long_kinds, rows = np.unique(kinds[long]), calls[long]
    kind = np.minimum(np.searchsorted(long_kinds, kinds), len(long_kinds) - 1)
    same = long_kinds[kind] == kinds
    is_first[_firsts(kind[same], calls[same])] = True
    operators = np.flatnonzero(run.cat == Cat.CPU_OP)
    first_run = np.zeros(len(run), dtype=bool)
    first_run[_firsts(run.name[operators], operators)] = True
    is_first[rows[nesting.inside(rows, first_run)]] = True
    return np.asarray(is_first & (run.dur >= COLD_NS))


def _firsts(kinds: npt.NDArray[np.integer[Any]], rows: I64) -> I64:
    """The first row of each kind."""
    first = np.full(int(kinds.max(initial=-1)) + 1, -1, dtype=np.int64)
    first[kinds[::-1]] = rows[::-1]  # of several the last one written stays
    return first[first >= 0]


def cold_starts(run: Run, launches: Launches, nesting: Nesting) -> I64:
    """First uses that neither wait, copy nor allocate, while the GPU mostly idles."""
    ordinary = run.name_ids(is_synchronize, is_copy_call, is_allocator)
    calls = np.flatnonzero(first_uses(run, launches, nesting) & ~np.isin(run.name, ordinary))
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
