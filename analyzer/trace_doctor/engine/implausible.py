"""Times and links that no machine can have made: what rules conclude from them is nothing."""

from __future__ import annotations

import re

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.intervals import covered, pairs, total, union
from trace_doctor.evidence.names.event_names import (
    has_no_kind,
    is_allocator,
    is_copy_call,
    is_device_synchronize,
    is_graph_launch,
    is_launch,
    is_synchronize,
)
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
MOST_LATE_ALL_NS = 10**9
"""Nor half of it for so long: the most of 99 public captures and samples, of which some were filtered, is 136 ms."""
MOST_AHEAD_NS = 1_000_000
"""GPU work begins after the call that launches it, in 90 public captures by 5 us at least. Clocks of the two that are converted badly
have differed by less than this."""
MOST_AT_ONCE = 1.5
"""Work of a stream runs one after the other: in 90 public captures its times sum up to 1.006 of what they cover."""
MOST_LOST_LAUNCHES = 0.03
"""of the calls that launch a kernel, those without one: in 124 public captures, none of any that has kernels"""
MOST_ORPHANS = 0.4
"""of the kernels, those without the call that launched them: in public captures up to 0.25, of ROCm and of graphs; copies up to 0.34"""
MOST_SHARED = 0.03
"""of the calls that launch one kernel, those with several: in 124 public captures none has"""
MOST_UNFINISHED_NS = 20_000
"""A copy to pageable memory is over when its call returns, and so is all work when `cudaDeviceSynchronize` does: in 81 public captures and
samples by 1 us at least."""
_LEAST = 10
"""events: fewer show no pattern"""
_LEAST_COPIES = 2
_DIRECTION = re.compile(r"(?i)\b(?:h|d|a|p|host|device|peer)to(?:h|d|a|p|host|device|peer)\b|dma")


def implausible(facts: Facts) -> str:
    """Why the times of a trace, or what it links, cannot be so; "" where nothing speaks against them."""
    if why := _too_fast(facts.run):
        return f"its times are in another unit: {why}"
    if why := lost_events(facts.run):
        return why
    steps = facts.get(Steps)
    if steps is None:
        return ""
    checks = (_unknown_names, _too_early, _at_once, _shared_launches, _too_late, _not_waited_for)
    return _one_sided(facts, steps) or next(filter(None, (check(facts) for check in checks)), "")


def _unknown_names(facts: Facts) -> str:
    """What no rule knows by name was not looked at."""
    run = facts.run
    if not len(run.gpu):
        return ""
    calls = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER))
    if len(calls) >= _LEAST and not run.is_named(_is_known_call)[calls].any():
        return f"none of its {len(calls):,} runtime calls has a known name"
    copies = np.flatnonzero(run.is_cat(Cat.MEMCPY))
    if len(copies) >= _LEAST_COPIES and not run.is_named(_says_direction)[copies].any():
        return f"the names of its {len(copies):,} copies do not say from where to where"
    return ""


def _is_known_call(name: str) -> bool:
    return is_launch(name) or is_synchronize(name) or is_copy_call(name) or is_allocator(name)


def _says_direction(name: str) -> bool:
    """Or is named as torch 2.14 does where it does not know: that is no sign of a changed file."""
    return _DIRECTION.search(name) is not None or has_no_kind(name)


def _not_waited_for(facts: Facts) -> str:
    """Calls that wait for GPU work, and return before it has ended."""
    run, launch = facts.run, facts[Launches].launch
    to_host = run.is_named(lambda name: "DtoH" in name and "Pinned" not in name) & run.is_cat(Cat.MEMCPY)
    copies = to_host[run.gpu] & (launch >= 0)
    early = [run.end[run.gpu[copies]] - run.end[launch[copies]]]
    linked = np.flatnonzero(launch >= 0)
    linked = linked[np.argsort(run.ts[launch[linked]], kind="stable")]
    calls = run.named(is_device_synchronize, Cat.RUNTIME, Cat.DRIVER)
    at = np.searchsorted(run.ts[launch[linked]], run.ts[calls]) - 1
    ends = np.maximum.accumulate(run.end[run.gpu[linked]])
    early.append(ends[at[at >= 0]] - run.end[calls[at >= 0]])
    all_of_them = np.concatenate(early)
    if len(all_of_them) < _LEAST_COPIES or (middle := int(np.median(all_of_them))) <= MOST_UNFINISHED_NS:
        return ""
    return f"calls that wait for the GPU return {middle / 1e6:,.2f} ms before its work ends: the times of the two do not fit"


def _too_early(facts: Facts) -> str:
    """Half of the GPU work, and more, begins before the calls that launch it."""
    run, launch = facts.run, facts[Launches].launch
    ahead = (run.ts[launch] - run.ts[run.gpu])[launch >= 0]
    if len(ahead) < _LEAST or (middle := int(np.median(ahead))) <= MOST_AHEAD_NS:
        return ""
    return (
        f"its GPU work begins before its launches, by {middle / 1e6:,.0f} ms: the times of the two do not fit"
    )


def _at_once(facts: Facts) -> str:
    """Work of one stream that runs at the same time."""
    run = facts.run
    streams = np.stack([run.device[run.gpu], run.stream[run.gpu]], axis=1)
    kinds, which = np.unique(streams, axis=0, return_inverse=True)
    for number, (device, stream) in enumerate(kinds.tolist()):
        rows = run.gpu[which.ravel() == number]
        busy = total(union(pairs(run.ts[rows], run.end[rows])))
        if len(rows) >= _LEAST and int(run.dur[rows].sum()) > MOST_AT_ONCE * busy:
            return f"work of stream {stream} of GPU {device} runs at the same time: its durations cannot be so long"
    return ""


def _shared_launches(facts: Facts) -> str:
    """Calls that launch one kernel each, and have several, as where work stands twice in the file."""
    run, launch = facts.run, facts[Launches].launch
    several = run.is_named(lambda name: is_graph_launch(name) or "MultiDevice" in name)
    kernels = launch[(launch >= 0) & (run.cat[run.gpu] == Cat.KERNEL)]
    calls, counts = np.unique(kernels[~several[kernels]], return_counts=True)
    if len(calls) < _LEAST or (shared := int((counts > 1).sum())) <= MOST_SHARED * len(calls):
        return ""
    return (
        f"{shared:,} of its {len(calls):,} kernel launches have several kernels each: work stands in it twice"
    )


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
        waits = waits[waits[:, 1] > waits[:, 0]]
        idle = waits[:, 1] - waits[:, 0] - covered(waits, union(pairs(run.ts[rows], run.end[rows])))
        if (most := int(idle.max(initial=0))) > MOST_LATE_NS:
            return f"GPU work begins {most / 1e9:,.0f} s after its launch, though the GPU was idle: one of its times is damaged"
        middle = int(np.median(idle)) if 2 * len(idle) > len(rows) >= _LEAST else 0
        if middle > MOST_LATE_ALL_NS:
            return f"half of its GPU work begins {middle / 1e9:,.0f} s and more after its launch, though the GPU was idle"
    return ""


def _one_sided(facts: Facts, steps: Steps) -> str:
    """Why what the host launched and what the GPU did are not both there, though a profiler records each with the other. What
    is launched into a CUDA graph runs later, by the launch of the graph."""
    run, launches, (start, end) = facts.run, facts[Launches], steps.window
    calls = run.named(is_launch, Cat.RUNTIME, Cat.DRIVER)
    for cat, what in ((Cat.KERNEL, "kernels"), (Cat.MEMCPY, "copies")):
        linked, work = launches.with_launch(start, end, cat)
        if work - linked > MOST_ORPHANS * work and (cat == Cat.KERNEL or len(calls)):
            return f"the launches of {work - linked:,} of its {work:,} {what} are missing"
    calls = calls[(run.ts[calls] >= start) & (run.ts[calls] < end) & ~facts[GraphCaptures].holds(calls, run)]
    of_graphs = run.is_named(is_graph_launch)[calls]
    graphs, single = calls[of_graphs], calls[~of_graphs]  # graphs: few calls, and most of the work
    lost = int((launches.first_work(single) < 0).sum())
    if lost > MOST_LOST_LAUNCHES * len(single):
        return f"the kernels of {lost:,} of its {len(single):,} launches are missing"
    lost = int((launches.first_work(graphs) < 0).sum())
    if lost > LEAST_LAUNCHES * len(graphs):
        return f"the kernels of {lost:,} of its {len(graphs):,} launches of CUDA graphs are missing"
    return ""


MOST_LOST = 0.03
"""share of neighbors by number with others missing between them. What is cut off or kept elsewhere, as memory events are, leaves a few
large holes: in 71 public captures with numbers the most is 0.007, in two that were sampled 0.62."""
_LEAST_NUMBERS = 100
"""numbers: fewer show no share"""
_SAMPLE = 4_000
"""events in the middle of the trace: their arguments are read again from the file"""


def lost_events(run: Run) -> str:
    """Which share of the events is missing, if it is one that matters; "" where the trace does not number its events."""
    rows = np.flatnonzero(run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.PYTHON) & run.own)
    if run.meta.get("with_stack") and not run.is_cat(Cat.PYTHON).any():
        return ""  # the frames have numbers too, and may have been left out on purpose
    first = max(len(rows) - _SAMPLE, 0) // 2
    numbers = _numbers(run, rows[first : first + _SAMPLE])
    if len(numbers) < _LEAST_NUMBERS or (lost := float(np.mean(np.diff(numbers) > 1))) <= MOST_LOST:
        return ""
    return f"about {lost:.0%} of its operators, annotations and Python frames are missing: there are gaps in their numbers"


def _numbers(run: Run, rows: I64) -> I64:
    """`Ev Idx` of these events, each once, rising."""
    numbers = (args.get("Ev Idx") for args in run.args(rows.tolist()))
    return np.unique(np.array([n for n in numbers if type(n) is int and 0 <= n < 1 << 62], dtype=np.int64))
