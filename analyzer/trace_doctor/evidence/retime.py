"""Re-timing a replay graph: when everything happens once some of it is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from trace_doctor.evidence.intervals import NOTHING, covered, intervals, pairs
from trace_doctor.evidence.replay_graph import NONE, ReplayGraph
from trace_doctor.run import I64, Bool


@dataclass(frozen=True)
class LeftOut:
    """What a replay leaves out, in terms of the graph."""

    host: dict[int, I64] = field(default_factory=dict)
    """thread -> the set of host time that is not spent (see `intervals`)"""
    calls: Bool | None = None
    """mask over the calls: no longer waits"""
    ops: Bool | None = None
    """mask over the GPU operations: does not run"""

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

    Host calls keep their observed distance minus what is left out; a call that lies wholly in time left out does not
    wait either. A GPU operation that is left out takes no time but keeps its place in the stream.
    """
    left_out = left_out or LeftOut()
    gap, length, waits_for = _host_times(graph, left_out)
    host, device = _run(graph, gap, length, waits_for, left_out.ops, keep_unexplained)
    return max(host, device) - graph.window[0]


def _host_times(graph: ReplayGraph, left_out: LeftOut) -> tuple[list[int], list[int], list[int]]:
    """For each call: its distance from the one it follows, its length without waiting, and what it waits for."""
    calls, ops = graph.calls, graph.ops
    begins = np.where(calls.after >= 0, calls.end[np.maximum(calls.after, 0)], graph.window[0])
    waits = calls.waits_for >= 0
    done = ops.end[np.maximum(calls.waits_for, 0)] if len(ops) else calls.start
    works_from = np.where(waits, np.maximum(calls.start, done), calls.start)
    gap, length = calls.start - begins, calls.end - works_from
    gone = np.zeros(len(calls), dtype=bool)
    if left_out.host:
        whole = calls.end - calls.start
        everyone = intervals((int(a), int(b)) for some in left_out.host.values() for a, b in some)
        gap = gap - covered(pairs(begins, calls.start), everyone)
        for t in np.unique(calls.thread).tolist():
            own = left_out.host.get(t, NOTHING)
            mine = calls.thread == t
            inside = mine & calls.in_thread
            gap[inside] = (calls.start - begins)[inside] - covered(pairs(begins, calls.start)[inside], own)
            length[mine] -= covered(pairs(works_from, calls.end)[mine], own)
            gone[mine] = (covered(pairs(calls.start, calls.end)[mine], own) == whole[mine]) & (
                whole[mine] > 0
            )
    if left_out.calls is not None:
        gone |= left_out.calls
    return gap.tolist(), length.tolist(), np.where(gone, -1, calls.waits_for).tolist()


def _run(
    graph: ReplayGraph,
    gap: list[int],
    length: list[int],
    waits_for: list[int],
    gone: Bool | None,
    keep_unexplained: bool,
) -> tuple[int, int]:
    """When the host and the device are done. One pass in order of the observed starts."""
    calls, ops = graph.calls, graph.ops
    begin = graph.window[0]
    after = calls.after.tolist()
    call, at_end, latency = ops.call.tolist(), ops.at_call_end.tolist(), ops.latency.tolist()
    previous, pause, other, fixed = (
        ops.previous.tolist(),
        ops.pause.tolist(),
        ops.other.tolist(),
        ops.fixed.tolist(),
    )
    takes = ops.end - ops.start + (ops.unexplained if keep_unexplained else 0)
    busy: list[int] = takes.tolist()
    runs: list[bool] = (~gone).tolist() if gone is not None else [True] * len(ops)
    started = [begin] * len(calls)
    returned: list[int | None] = [None] * len(calls)
    done: list[int] = [NONE] * len(ops)  # an operation not yet computed binds nobody

    def end_of(i: int) -> int:
        """When call i returns; computed when first asked for, because it may wait for operations launched in it."""
        known = returned[i]
        if known is None:
            awaited = waits_for[i]
            known = max(started[i], done[awaited] if awaited >= 0 else NONE) + length[i]
            returned[i] = known
        return known

    for coded in graph.order:
        if coded >= 0:
            before = after[coded]
            started[coded] = (end_of(before) if before >= 0 else begin) + gap[coded]
            continue
        j = ~coded
        ready = fixed[j]
        if (p := previous[j]) >= 0 and done[p] + pause[j] > ready:
            ready = done[p] + pause[j]
        if not runs[j]:
            done[j] = max(ready, begin) if p < 0 else done[p] + min(pause[j], 0)
            continue
        if (c := call[j]) >= 0:
            handed = (end_of(c) if at_end[j] else started[c]) + latency[j]
            if handed > ready:
                ready = handed
        if (o := other[j]) >= 0 and done[o] > ready:
            ready = done[o]
        done[j] = ready + busy[j]
    host = max((end_of(i) for i in range(len(calls))), default=begin)
    return host, max(done, default=begin)
