"""Calls of compiled functions that fit none of the compiled versions, for which none is made.

Dynamo looks for code that fits (`TorchDynamo Cache Lookup`) each time it meets a function that it has compiled. What it
finds runs right behind; what it does not find is compiled, until there are `recompile_limit` versions: from then on the
function runs as it is, and nothing says so but the lookup. The same lookup in vain is seen where Dynamo was told to
compile no more (`torch.compiler.set_stance`), or does not for a while (under a dispatch mode, say): then later calls find
their code again. What the limit is, no trace says; PyTorch's log says when it is reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.compile.compile_regions import Regions
from trace_doctor.evidence.compile.recompiles import Compilation
from trace_doctor.evidence.intervals import holds, intervals
from trace_doctor.evidence.names.event_names import is_compile
from trace_doctor.loaders.torch_trace import LoggedLimit
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, is_user_frame, python_frame, same_file

_LOOKUP = "TorchDynamo Cache Lookup"


class CacheMiss(Struct, frozen=True):
    """One lookup in vain, [start, end) ns, with eager operators behind it."""

    start: int
    end: int
    frame: Frame | None
    """the function that runs instead; None without stacks"""


class UncompiledCalls(Struct, frozen=True, kw_only=True):
    """One compiled function of which calls run as plain Python, since none of its versions fits."""

    frame: Frame | None
    """None where stacks were not recorded: then all such calls are one function's"""
    misses: tuple[CacheMiss, ...] = ()
    """calls in steady steps"""
    found_later: bool = False
    """a call after the first of these ran compiled code, or was compiled"""
    versions: int | None = None
    """how many there are; None where the capture does not hold the first compilation"""
    limit: LoggedLimit | None = None
    """PyTorch's own word that no more versions are made"""
    changed: tuple[str, ...] = ()
    """the guards that failed when the next one was not made, as the log says them"""


def find_misses(run: Run, compiled: I64, compilations: Sequence[Compilation]) -> tuple[CacheMiss, ...]:
    """By start. `compiled`: rows of compiled code that runs, in any form. What is looked up while code is compiled is the
    compiler's own."""
    rows = run.named(lambda n: n == _LOOKUP)
    answers = np.union1d(compiled, run.named(is_compile))
    python = np.flatnonzero(run.is_cat(Cat.PYTHON))
    operators = run.named(lambda n: n.startswith("aten::"), Cat.CPU_OP)
    cache_misses: list[CacheMiss] = []
    for thread in np.unique(run.thread[rows]):
        own_rows = rows[run.thread[rows] == thread]
        busy = intervals((c.start, c.end) for c in compilations if c.thread == thread)
        own_rows = own_rows[~holds(busy, run.ts[own_rows])]
        following = np.append(run.ts[own_rows][1:], np.iinfo(np.int64).max)
        frames = python[run.thread[python] == thread]
        ends = run.end[own_rows]
        vain = ~_begins(run, answers, thread, ends, following) & _begins(
            run, operators, thread, ends, following
        )
        first = np.searchsorted(run.ts[frames], ends)
        for row, at in zip(own_rows[vain].tolist(), first[vain].tolist(), strict=True):
            frame = python_frame(run.text(int(frames[at]))) if at < len(frames) else None
            called = frame if frame is not None and is_user_frame(frame.file) else None
            cache_misses.append(CacheMiss(int(run.ts[row]), int(run.end[row]), called))
    return tuple(sorted(cache_misses, key=lambda miss: miss.start))


def _begins(run: Run, rows: I64, thread: int, since: I64, until: I64) -> Bool:
    """Whether one of these rows begins on the thread between two moments (ns), for each pair of them."""
    begun = run.ts[rows[run.thread[rows] == thread]]
    some: Bool = np.searchsorted(begun, until) > np.searchsorted(begun, since)
    return some


def by_function(
    misses: Iterable[CacheMiss],
    regions: Regions,
    compilations: Sequence[Compilation],
    limits: Sequence[UncompiledCalls],
) -> tuple[UncompiledCalls, ...]:
    """The functions that run without the compiler; `limits`: those of which the log says it, called or not."""
    of_frame: dict[Frame | None, list[CacheMiss]] = {}
    for miss in misses:
        of_frame.setdefault(miss.frame, []).append(miss)
    functions, logged = [], list(limits)
    for frame, some in of_frame.items():
        log_entry = next(
            (u for u in logged if _same(u.frame, frame) or (frame is None and len(limits) == 1)), None
        )
        if log_entry is not None:
            logged.remove(log_entry)
        later = [r.start for r in regions.all if frame is None or _same(r.frame, frame)]
        own_compilations = [
            c for c in compilations if c.of_frame and (frame is None or _same(c.frame, frame))
        ]
        functions.append(
            UncompiledCalls(
                frame=frame or (log_entry.frame if log_entry else None),
                misses=tuple(some),
                found_later=max([*later, *(c.start for c in own_compilations)], default=0) > some[0].start,
                versions=len(own_compilations)
                if frame and any(c.recompile_id == 0 for c in own_compilations)
                else None,
                limit=log_entry.limit if log_entry else None,
                changed=log_entry.changed if log_entry else (),
            )
        )
    return (*functions, *logged)


def _same(one: Frame | None, other: Frame | None) -> bool:
    """Whether these are one function; a log's file is absolute, a trace's is not."""
    return (
        one is not None
        and other is not None
        and (one.function, one.line) == (other.function, other.line)
        and same_file(one.file, other.file)
    )
