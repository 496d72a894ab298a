"""What each host call and each GPU operation of a window had to wait for: the graph that the replay re-times.

Host calls are the runtime and driver calls of all threads. Every weight is chosen so that the observed times satisfy
the graph; what no constraint explains is kept apart as `GpuOps.unexplained`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.names.event_names import is_device_synchronize, is_step, is_synchronize
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

NONE = -(1 << 62)
"""A constraint that never binds."""
SLOW_MEDIANS, SLOW_NS = 5, 50_000
"""A launch call this long (both) hands its work over when it ends: the driver was loading or waiting in it."""
LATENCY_PERCENTILE = 2
RUNAHEAD_NS, RUNAHEAD_LATENCY_NS = 50_000, 6_000
"""Where even the shortest latencies are longer, the host runs ahead and none of them shows the hardware's own."""
TURNAROUND_NS = 10_000
"""Pauses up to this between two queued operations are the device's own."""
EVENT_NS = 15_000
"""An operation that ended at most this long before another stream's began may have been waited for."""


class HostCalls(Struct, frozen=True):
    """Outermost runtime and driver calls, clipped to the window, by start; the last one is the end of host work."""

    row: I64
    """row of the run, -1 for the end mark"""
    thread: I64
    start: I64
    end: I64
    after: I64
    """the call that this one follows at its observed distance, -1: the start of the window"""
    in_thread: Bool
    """whether that is the previous call of the same thread, inside one operator"""
    waits_for: I64
    """index of the GPU operation whose end it waits for, -1 for none"""

    def __len__(self) -> int:
        return len(self.row)


class GpuOps(Struct, frozen=True):
    """Kernels, copies and memsets that ran in the window, clipped to it, by start."""

    row: I64
    start: I64
    end: I64
    call: I64
    """index of the host call that launched it, -1: before the window, or not captured"""
    at_call_end: Bool
    latency: I64
    """from the hand-over to the start on a free device, as far as observed"""
    previous: I64
    """of the same stream, -1 for the first"""
    pause: I64
    """the least distance to it; negative where the two overlapped"""
    other: I64
    """of another stream, whose end it may have waited for; -1 for none"""
    fixed: I64
    """a start that nothing in the window moves, NONE without one"""
    unexplained: I64
    """what is left between the latest of these and the observed start, ns >= 0"""

    def __len__(self) -> int:
        return len(self.row)


class ReplayGraph(Struct, frozen=True, dict=True):
    """The constraints of one window."""

    window: tuple[int, int]
    calls: HostCalls
    ops: GpuOps

    @classmethod
    def build(cls, facts: Facts, window: tuple[int, int]) -> Self:
        """Of the calls and operations in `window`, ns from start to end."""
        run = facts.run
        call_of_row, calls = _host_calls(facts, window)
        ops = _gpu_ops(run, facts[Launches], window, calls, call_of_row)
        return cls(window, _with_waits(run, calls, ops), ops)

    @cached_property
    def order(self) -> I64:
        """Calls (i >= 0) and operations (as ~j) in the order in which their starts can be computed."""
        calls, ops = self.calls, self.ops
        launched = at_rows(calls.start, ops.call, NONE)
        when = np.concatenate([calls.start, np.maximum(ops.start, launched)])
        is_op = np.arange(len(when)) >= len(calls)
        order = np.lexsort((is_op, when))
        return np.where(order < len(calls), order, ~(order - len(calls)))


# -- host ------------------------------------------------------------------------------------------------------


def _host_calls(facts: Facts, window: tuple[int, int]) -> tuple[I64, HostCalls]:
    """The calls without their waits, and for each row of the run the index of the call that it is (part of), or -1."""
    run, nesting = facts.run, facts[Nesting]
    rows = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER))
    outer = nesting.outermost(rows)
    outer = outer[(run.ts[outer] < window[1]) & (run.end[outer] > window[0])]
    outer = outer[np.argsort(np.maximum(run.ts[outer], window[0]), kind="stable")]
    host_end = _end_of_host(run, window)
    row = np.append(outer, -1)
    thread = np.append(run.thread[outer].astype(np.int64), -1)
    start = np.append(np.maximum(run.ts[outer], window[0]), host_end)
    end = np.append(np.minimum(run.end[outer], window[1]), host_end)
    after, in_thread = _predecessors(facts, thread, start, end)
    call_of_row = np.full(len(run), -1, dtype=np.int64)
    call_of_row[outer] = np.arange(len(outer))
    call_of_row[rows] = at_rows(call_of_row, nesting.around(rows, call_of_row != -1), -1)
    return call_of_row, HostCalls(row, thread, start, end, after, in_thread, np.full(len(row), -1))


def _end_of_host(run: Run, window: tuple[int, int]) -> int:
    """When the host is done: at the end of the window, or before where GPU work that it launched ends the window."""
    if not (run.end[run.gpu] == window[1]).any():
        return window[1]
    work = run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.RUNTIME, Cat.DRIVER) & (run.ts < window[1])
    last = int(run.end[work].max()) if work.any() else window[0]
    return max(window[0], min(last, window[1]))


def _predecessors(facts: Facts, thread: I64, start: I64, end: I64) -> tuple[I64, Bool]:
    """The previous call of the thread where one operator stayed open between, else the last call of any thread
    that drives the GPU."""
    driving = np.flatnonzero(_drives(facts, thread))
    by_end = driving[np.argsort(end[driving], kind="stable")]
    after = at_rows(by_end, _last_before(end[by_end], by_end, start), -1)
    in_thread = np.zeros(len(start), dtype=bool)
    for these, open_from, open_to in _operators_by_thread(facts, thread):
        before, now = these[:-1], these[1:]
        op = np.searchsorted(open_from, end[before], side="right") - 1
        stays_open = (at_rows(open_to, op, NONE) >= start[now]) & (start[now] >= end[before])
        after[now[stays_open]], in_thread[now[stays_open]] = before[stays_open], True
    return after, in_thread


def _last_before(ends: I64, numbers: I64, start: I64) -> I64:
    """For each call the place of the last one that ended by its start, -1 for none. Of calls that ended right then
    only those numbered below it count: calls without length do not follow themselves."""
    own, size = np.arange(len(start)), len(start) + 1
    first = np.searchsorted(ends, start)
    tied = np.append(ends, NONE)[first] == start
    keys = np.searchsorted(ends, ends) * size + numbers
    return np.searchsorted(keys, first * size + np.where(tied, own, 0)) - 1


def _drives(facts: Facts, thread: I64) -> Bool:
    """Calls that others may follow: of the main thread and of threads that launch. A watchdog or a pinning thread
    calls the driver at its own pace."""
    threads = facts.get(Threads)
    launching = np.unique(facts.run.thread[facts[Launches].calls])
    drives = np.isin(thread, launching) | (thread == (threads.main if threads is not None else -1))
    return drives if drives.any() else np.ones(len(thread), dtype=bool)


def _operators_by_thread(facts: Facts, thread: I64) -> Iterator[tuple[I64, I64, I64]]:
    """For each thread with calls: their indices, and start and end of its outermost operators."""
    run = facts.run
    ops = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~run.is_named(is_step))
    ops = facts[Nesting].outermost(ops)
    for t in np.unique(thread).tolist():
        own = ops[run.thread[ops] == t]
        yield np.flatnonzero(thread == t), run.ts[own], run.end[own]


def _with_waits(run: Run, calls: HostCalls, ops: GpuOps) -> HostCalls:
    """A copy call that returned after its own copy, to or from memory that is not pinned, waited for it. A synchronise
    waited for what ended while it was open; if nothing did, it still waits for what its stream (a device synchronise:
    the device) had done before."""
    waits_for = np.full(len(calls), -1, dtype=np.int64)
    if len(ops):
        by_end = np.argsort(ops.end, kind="stable")
        free = run.name_ids(lambda name: "Pinned" in name or "Device -> Device" in name)
        holding = (run.cat[ops.row] == Cat.MEMCPY) & ~np.isin(run.name[ops.row], free) & (ops.call >= 0)
        own = by_end[holding[by_end]]
        own = own[ops.end[own] <= calls.end[ops.call[own]]]
        waits_for[ops.call[own]] = own  # of several the last one stays
        syncs = at_rows(run.is_named(is_synchronize), calls.row, False) & (waits_for < 0)
        device = syncs & at_rows(run.is_named(is_device_synchronize), calls.row, False)
        last = np.searchsorted(ops.end[by_end], calls.end, side="right") - 1
        ended = at_rows(by_end, last, -1)
        waits = syncs & (device | (at_rows(ops.end, ended, NONE) > calls.start))
        waits_for[waits] = ended[waits]
        rest = np.flatnonzero(syncs & ~waits & ~device)
        waits_for[rest] = _last_of_stream(calls, ops, _streams(run, ops.row), rest)
    return HostCalls(calls.row, calls.thread, calls.start, calls.end, calls.after, calls.in_thread, waits_for)


def _last_of_stream(calls: HostCalls, ops: GpuOps, streams: I64, rest: I64) -> I64:
    """For each call: what ended last before it on the stream that its thread last launched to; -1 for nothing."""
    ended = np.full(len(rest), -1, dtype=np.int64)
    launched_to = np.full(len(calls), -1, dtype=np.int64)
    launched = np.flatnonzero(ops.call >= 0)
    launched_to[ops.call[launched]] = streams[launched]
    for t in np.unique(calls.thread[rest]).tolist():
        launching = np.flatnonzero((calls.thread == t) & (launched_to >= 0))
        on_thread = np.flatnonzero(calls.thread[rest] == t)
        at = np.searchsorted(launching, rest[on_thread]) - 1
        stream = at_rows(launched_to[launching], at, -1)
        for s in np.unique(stream[stream >= 0]).tolist():
            which = on_thread[stream == s]
            on = np.flatnonzero(streams == s)
            on = on[np.argsort(ops.end[on], kind="stable")]
            last = np.searchsorted(ops.end[on], calls.start[rest[which]], side="right") - 1
            ended[which] = at_rows(on, last, -1)
    return ended


# -- device ----------------------------------------------------------------------------------------------------


def _gpu_ops(
    run: Run, launches: Launches, window: tuple[int, int], calls: HostCalls, call_of_row: I64
) -> GpuOps:
    inside = (run.ts[run.gpu] < window[1]) & (run.end[run.gpu] > window[0])
    row = run.gpu[inside]
    start, end = run.ts[row], np.minimum(run.end[row], window[1])
    launch_row = launches.launch[inside].astype(np.int64)
    call = at_rows(call_of_row, launch_row, -1)
    streams = _streams(run, row)
    previous = _previous(streams, start, end)
    other = _other_stream(streams, start, end)
    launched = call >= 0
    at = np.maximum(call, 0)
    slow = launched & _slow(calls, call)[at] & (start >= calls.end[at])
    handed = np.where(slow, calls.end[at], calls.start[at])
    observed = start - handed
    latency_ns = _latency(observed[launched])
    latency = np.where(launched, np.minimum(latency_ns, observed), 0)
    before = np.maximum(previous, 0)
    pause_seen = start - end[before] if len(row) else start
    queued = launched & (previous >= 0) & (handed + latency_ns <= end[before]) if len(row) else launched
    pause = np.where(previous >= 0, np.minimum(_turnaround(pause_seen[queued]), pause_seen), 0)
    device_free = np.maximum(at_rows(end, previous, NONE) + pause, at_rows(end, other, NONE))
    # Work that began while its launch call was still open, with the device free for longer than it takes to go on: the
    # call itself held it (a module being loaded, a pageable copy being staged). Work that began at once when the device
    # was free was queued, however long the call.
    delayed = launched & (start <= calls.end[at]) & (device_free + TURNAROUND_NS < start)
    latency = np.where(delayed, observed, latency)
    early = (launch_row >= 0) & ~launched
    fixed = np.where(early, np.minimum(start, run.ts[np.maximum(launch_row, 0)] + latency_ns), NONE)
    fixed = np.where(start <= window[0], start, fixed)
    ready = np.maximum(np.where(launched, handed + latency, NONE), np.maximum(device_free, fixed))
    fixed = np.where(ready == NONE, start, fixed)
    unexplained = np.where(ready == NONE, 0, start - ready)
    return GpuOps(row, start, end, call, slow, latency, previous, pause, other, fixed, unexplained)


def _streams(run: Run, rows: I64) -> I64:
    """One number for each (device, stream)."""
    return run.device[rows].astype(np.int64) * (1 << 40) + run.stream[rows]


def _previous(streams: I64, start: I64, end: I64) -> I64:
    """The operation before each one on its stream, -1 for the first."""
    previous = np.full(len(start), -1, dtype=np.int64)
    order = np.lexsort((end, start, streams))
    same = streams[order[1:]] == streams[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _other_stream(streams: I64, start: I64, end: I64) -> I64:
    """The operation of another stream that ended last before each one began, if that was just before."""
    by_end = np.argsort(end, kind="stable")
    on = streams[by_end]
    begins = np.flatnonzero(np.concatenate([[True], on[1:] != on[:-1]]))[: len(on)]
    at = np.searchsorted(end[by_end], start, side="right") - 1
    own = at_rows(on, at, NONE) == streams
    # The last that ended is of the same stream: go back behind all of that stream that ended in a row.
    at[own] = begins[np.searchsorted(begins, at[own], side="right") - 1] - 1
    last = at_rows(by_end, at, -1)
    return np.where(start - at_rows(end, last, NONE) <= EVENT_NS, last, -1)


def _slow(calls: HostCalls, call: I64) -> Bool:
    """Which calls took far longer than launches do."""
    dur = calls.end - calls.start
    launching = np.unique(call[call >= 0])
    if not len(launching):
        return np.zeros(len(calls), dtype=bool)
    return np.asarray(dur >= max(SLOW_MEDIANS * float(np.median(dur[launching])), SLOW_NS))


def _latency(observed: I64) -> int:
    """From hand-over to start on a free device: a low percentile of what was seen, ns."""
    if not len(observed):
        return 0
    low = int(np.percentile(observed, LATENCY_PERCENTILE))
    return RUNAHEAD_LATENCY_NS if low > RUNAHEAD_NS else max(low, 0)


def _turnaround(pauses: I64) -> int:
    """The device's own pause between two operations of a stream that were both queued, ns: the median seen."""
    own = pauses[(pauses >= 0) & (pauses <= TURNAROUND_NS)]
    return int(np.median(own)) if len(own) else 0
