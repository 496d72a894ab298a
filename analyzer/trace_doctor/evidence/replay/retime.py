"""Re-timing a replay graph: when everything happens once some of it is left out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct, field

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.idle.host_causes import PAUSE_NS
from trace_doctor.evidence.intervals import NOTHING, covered, intersect, intervals, pairs, subtract
from trace_doctor.evidence.replay.dependency_graph import NONE, ReplayGraph

BLOCK = 1 << 14
"""rows that are Python numbers at once: these take far more memory than columns"""
Column = TypeVar("Column", I64, Bool)


class LeftOut(Struct, frozen=True):
    """What a replay leaves out, in terms of the graph."""

    host: dict[int, I64] = field(default_factory=dict)
    """thread -> the set of host time that is not spent (see `intervals`)"""
    calls: Bool | None = None
    """mask over the calls: no longer waits"""
    ops: Bool | None = None
    """mask over the GPU operations: does not run"""
    shorter: I64 | None = None
    """ns that each GPU operation takes less"""
    own: dict[int, I64] = field(default_factory=dict)
    """thread -> the set of host time of which only `own_share` is spent, pauses apart but for `views`"""
    views: dict[int, I64] = field(default_factory=dict)
    """thread -> the set of host time in operators that look at memory anew: however many follow each other, no pause"""
    own_share: float = 1.0
    arrivals: dict[int, I64] = field(default_factory=dict)
    """thread -> waits for batches of worker processes, (n, 2) ns: they are made when they are made, however early they are
    asked for, and no wait ends sooner"""

    @classmethod
    def of(cls, graph: ReplayGraph, spans: Iterable[tuple[int, int, int]], calls: I64, ops: I64) -> LeftOut:
        """From (thread, start, end) spans, rows of blocking calls, and rows of GPU operations."""
        by_thread: dict[int, list[tuple[int, int]]] = {}
        for thread, start, end in spans:
            by_thread.setdefault(thread, []).append((start, end))
        return cls(
            {t: intervals(s) for t, s in by_thread.items()},
            np.isin(graph.calls.row, calls) if len(calls) else None,
            np.isin(graph.ops.row, ops) if len(ops) else None,
        )


def retime(graph: ReplayGraph, left_out: LeftOut | None = None, *, keep_unexplained: bool = True) -> int:
    """The length of the window (ns) when the calls and operations start as early as their constraints allow.

    Host calls keep their observed distance minus what is left out, and none comes before the batch that it followed; a call
    that lies wholly in time left out does not wait either. A GPU operation that is left out takes no time but keeps its place in the stream.
    """
    left_out = left_out or LeftOut()
    ops = graph.ops
    takes = ops.end - ops.start + (ops.unexplained if keep_unexplained else 0)
    if left_out.shorter is not None:
        takes = takes - left_out.shorter
    stays = ~left_out.ops if left_out.ops is not None else np.ones(len(ops), dtype=bool)
    host, device = _run(graph, (*_host_times(graph, left_out), _not_before(graph, left_out)), takes, stays)
    return max(host, device) - graph.window[0]


def _host_times(graph: ReplayGraph, left_out: LeftOut) -> tuple[I64, I64, I64]:
    """For each call: its distance from the one it follows, its length without waiting, and what it waits for."""
    calls, ops = graph.calls, graph.ops
    begins = at_rows(calls.end, calls.after, graph.window[0])
    works_from = np.maximum(calls.start, at_rows(ops.end, calls.waits_for, NONE))
    gap, length = calls.start - begins, calls.end - works_from
    removed = np.zeros(len(calls), dtype=bool)
    everyone = intervals((int(a), int(b)) for some in left_out.host.values() for a, b in some)
    if left_out.host:
        whole = calls.end - calls.start
        gap = gap - covered(pairs(begins, calls.start), everyone)
        for t in np.unique(calls.thread).tolist():
            own = left_out.host.get(t, NOTHING)
            on_thread = calls.thread == t
            inside = on_thread & calls.in_thread
            gap[inside] = (calls.start - begins)[inside] - covered(pairs(begins, calls.start)[inside], own)
            length[on_thread] -= covered(pairs(works_from, calls.end)[on_thread], own)
            removed[on_thread] = (
                covered(pairs(calls.start, calls.end)[on_thread], own) == whole[on_thread]
            ) & (whole[on_thread] > 0)
    for t, some in left_out.own.items():
        rest = subtract(some, everyone)
        views = intersect(rest, left_out.views.get(t, NOTHING))
        for spent, since, until in ((gap, begins, calls.start), (length, works_from, calls.end)):
            pause = until - since >= PAUSE_NS
            for counts, own in ((~pause, rest), (pause, views)):
                on_thread = (calls.thread == t) & counts
                less = (1 - left_out.own_share) * covered(pairs(since, until)[on_thread], own)
                spent[on_thread] -= less.astype(np.int64)
    if left_out.calls is not None:
        removed |= left_out.calls
    return gap, length, np.where(removed, -1, calls.waits_for)


def _not_before(graph: ReplayGraph, left_out: LeftOut) -> I64:
    """For each call the moment before which the batch that it needs is not there: the end of a wait for workers since the
    call before it, and what of its distance lies behind that."""
    calls = graph.calls
    earliest = np.full(len(calls), NONE, dtype=np.int64)
    for thread, waits in left_out.arrivals.items():
        own = np.flatnonzero(calls.thread == thread)
        at = np.searchsorted(calls.start[own], waits[:, 1])
        waits, own = waits[at < len(own)], own[at[at < len(own)]]
        behind = pairs(waits[:, 1], calls.start[own])
        left = covered(behind, left_out.host.get(thread, NOTHING))
        np.maximum.at(earliest, own, calls.start[own] - left)
    return earliest


def _run(
    graph: ReplayGraph, host_times: tuple[I64, I64, I64, I64], takes: I64, stays: Bool
) -> tuple[int, int]:
    """When the host and the device are done. One pass in order of the observed starts."""
    calls, ops, begin = graph.calls, graph.ops, graph.window[0]
    _, length, waits_for, _ = host_times
    started, returned = array("q", [begin]) * len(calls), array("q", [NONE]) * len(calls)
    ends = array("q", [NONE]) * (
        len(ops) + 1
    )  # an operation not yet computed binds nobody, nor does the one at -1

    def end_of(i: int) -> int:
        """When call i returns; computed when first asked for, because it may wait for operations launched in it."""
        if (known := returned[i]) == NONE:
            known = max(started[i], ends[waits_for[i]]) + int(length[i])
            returned[i] = known
        return known

    order = graph.order
    of_calls = _rows(order[order >= 0], calls.after, *host_times)
    of_ops = _rows(
        ~order[order < 0],
        *(
            ops.fixed,
            ops.previous,
            ops.pause,
            stays,
            ops.call,
            ops.at_call_end,
            ops.latency,
            ops.other,
            takes,
        ),
    )
    for is_call in chain.from_iterable(b.tolist() for b in _blocks(order >= 0)):
        if is_call:
            i, after, gap, length_ns, awaited, earliest = next(of_calls)
            started[i] = start = max((end_of(after) if after >= 0 else begin) + gap, earliest)
            if awaited < 0:
                returned[i] = start + length_ns
            continue
        j, ready, previous, pause, stays_, call, at_end, latency, other, busy = next(of_ops)
        if ends[previous] + pause > ready:
            ready = ends[previous] + pause
        if not stays_:
            ends[j] = max(ready, begin) if previous < 0 else ends[previous] + min(pause, 0)
            continue
        if call >= 0 and (handed := (end_of(call) if at_end else started[call]) + latency) > ready:
            ready = handed
        if ends[other] > ready:
            ready = ends[other]
        ends[j] = ready + busy
    for i in np.flatnonzero(waits_for >= 0).tolist():
        end_of(i)
    return max(returned), max(ends)


def _rows(order: I64, *columns: I64 | Bool) -> Iterator[tuple[Any, ...]]:
    """The columns' values in an order, each with its place."""
    for places in _blocks(order):
        yield from zip(places.tolist(), *(column[places].tolist() for column in columns), strict=True)


def _blocks(column: Column) -> Iterator[Column]:
    return (column[at : at + BLOCK] for at in range(0, len(column), BLOCK))
