"""Times and links that no machine can have made: what rules conclude from them is nothing."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import covered, pairs, total, union
from trace_doctor.evidence.names.event_names import is_graph_launch, is_launch
from trace_doctor.evidence.trace.graph_captures import GraphCaptures
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model.captures import LEAST_LAUNCHES
from trace_doctor.run import Cat, Run

LEAST_MEDIAN_NS = {"operator": 300, "launch": 300, "kernel": 300}
"""No machine does half of them faster: the profiler alone takes longer to note an operator, and a GPU to start a kernel. In 120 public
captures the least medians are 0.9, 1.0 and 1.0 us, and durations in whole us are 0 or more than that."""
LEAST_APART_NS = 300
"""Nor do operators of a thread follow each other faster, as their median: the least of 120 public captures is 680 ns."""
LEAST_TENTH_NS = 10
"""Nor a tenth of all operators, of which some do next to nothing in any program: of 112 public captures the least has 40 ns, all others
120 and more."""
MOST_LATE_NS = 10 * 10**9
"""No GPU lets work wait for so long while it has nothing else to do."""
MOST_AHEAD_NS = 1_000_000
"""GPU work begins after the call that launches it, in 90 public captures by 5 us at least. Clocks of the two that are converted badly
have differed by less than this."""
MOST_AT_ONCE = 1.5
"""Work of a stream runs one after the other: in 90 public captures its times sum up to 1.006 of what they cover."""
_LEAST = 10
"""events: fewer show no pattern"""


def implausible(facts: Facts) -> str:
    """Why the times of a trace, or what it links, cannot be so; "" where nothing speaks against them."""
    if why := _too_fast(facts.run):
        return f"its times are in another unit: {why}"
    steps = facts.get(Steps)
    if steps is None:
        return ""
    return _one_sided(facts, steps) or _too_early(facts) or _at_once(facts.run) or _too_late(facts)


def _too_early(facts: Facts) -> str:
    """Half of the GPU work, and more, begins before the calls that launch it."""
    run, launch = facts.run, facts[Launches].launch
    ahead = (run.ts[launch] - run.ts[run.gpu])[launch >= 0]
    if len(ahead) < _LEAST or (middle := int(np.median(ahead))) <= MOST_AHEAD_NS:
        return ""
    return (
        f"its GPU work begins before its launches, by {middle / 1e6:,.0f} ms: the times of the two do not fit"
    )


def _at_once(run: Run) -> str:
    """Work of one stream that runs at the same time."""
    streams = np.stack([run.device[run.gpu], run.stream[run.gpu]], axis=1)
    kinds, which = np.unique(streams, axis=0, return_inverse=True)
    for number, (device, stream) in enumerate(kinds.tolist()):
        rows = run.gpu[which.ravel() == number]
        busy = total(union(pairs(run.ts[rows], run.end[rows])))
        if len(rows) >= _LEAST and int(run.dur[rows].sum()) > MOST_AT_ONCE * busy:
            return f"work of stream {stream} of GPU {device} runs at the same time: its durations cannot be so long"
    return ""


def _too_fast(run: Run) -> str:
    """What no machine can be so fast at, if anything: events that take no time at all say nothing."""
    rows = {
        "operator": run.is_cat(Cat.CPU_OP),
        "launch": run.is_named(is_launch) & run.is_cat(Cat.RUNTIME, Cat.DRIVER),
        "kernel": run.is_cat(Cat.KERNEL),
    }
    for what, least in LEAST_MEDIAN_NS.items():
        times = run.dur[rows[what] & run.own & (run.dur > 0)]
        if len(times) >= _LEAST and (middle := int(np.median(times))) < least:
            return f"the median {what} takes {middle} ns"
        if (
            what == "operator"
            and len(times) >= 10 * _LEAST
            and (tenth := int(np.quantile(times, 0.1))) < LEAST_TENTH_NS
        ):
            return f"a tenth of its operators take at most {tenth} ns"
    return _too_close(run, np.flatnonzero(rows["operator"] & run.own))


def _too_close(run: Run, operators: I64) -> str:
    """What no thread can be so fast at: the time from the begin of one operator to that of the next."""
    by_thread = operators[np.argsort(run.thread[operators], kind="stable")]  # of each thread by time
    apart = np.diff(run.ts[by_thread])[run.thread[by_thread][1:] == run.thread[by_thread][:-1]]
    apart = apart[apart > 0]
    if len(apart) < _LEAST or (middle := int(np.median(apart))) >= LEAST_APART_NS:
        return ""
    return f"the median operator begins {middle} ns after the one before"


def _too_late(facts: Facts) -> str:
    """Work that began long after its launch on a GPU that was idle: a time of the two is damaged, and idle time is laid to others."""
    run, launch = facts.run, facts[Launches].launch
    for device in np.unique(run.device[run.gpu]).tolist():
        here = run.device[run.gpu] == device
        rows, calls = run.gpu[here], launch[here]
        waits = pairs(np.where(calls >= 0, run.end[calls], run.ts[rows]), run.ts[rows])
        waits = waits[waits[:, 1] - waits[:, 0] > MOST_LATE_NS]
        idle = waits[:, 1] - waits[:, 0] - covered(waits, union(pairs(run.ts[rows], run.end[rows])))
        if (most := int(idle.max(initial=0))) > MOST_LATE_NS:
            return f"GPU work begins {most / 1e9:,.0f} s after its launch, though the GPU was idle: one of its times is damaged"
    return ""


def _one_sided(facts: Facts, steps: Steps) -> str:
    """Why what the host launched and what the GPU did are not both there, though a profiler records each with the other. What
    is launched into a CUDA graph runs later, by the launch of the graph."""
    run, launches, (start, end) = facts.run, facts[Launches], steps.window
    linked, kernels = launches.with_launch(start, end, Cat.KERNEL)
    if linked < LEAST_LAUNCHES * kernels:
        return f"the launches of {kernels - linked:,} of its {kernels:,} kernels are missing"
    calls = run.named(is_launch, Cat.RUNTIME, Cat.DRIVER)
    calls = calls[(run.ts[calls] >= start) & (run.ts[calls] < end) & ~facts[GraphCaptures].holds(calls, run)]
    lost = int((launches.first_work(calls) < 0).sum())
    if len(calls) - lost < LEAST_LAUNCHES * len(calls):
        return f"the kernels of {lost:,} of its {len(calls):,} launches are missing"
    graphs = calls[run.is_named(is_graph_launch)[calls]]  # few calls, and most of the work
    lost = int((launches.first_work(graphs) < 0).sum())
    if len(graphs) - lost < LEAST_LAUNCHES * len(graphs):
        return f"the kernels of {lost:,} of its {len(graphs):,} launches of CUDA graphs are missing"
    return ""
