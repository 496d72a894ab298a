"""Where the main thread stays away from launching for long: named frames and annotations in which no kernel is launched."""

from __future__ import annotations

import re
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.host.preemption import held_up
from trace_doctor.evidence.idle.compute_device import Processor
from trace_doctor.evidence.idle.cpu_timeline import CpuTimeline
from trace_doctor.evidence.idle.data_loading import loader_mask
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.host_causes import PAUSE_NS
from trace_doctor.evidence.intervals import (
    NOTHING,
    clip,
    covered,
    intersect,
    intervals,
    pairs,
    subtract,
    total,
    union,
)
from trace_doctor.evidence.names.event_names import (
    is_collective,
    is_compile,
    is_launch,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import is_user_function, python_frame

CAUSES = ("python", "annotation", "dispatch")
OPERATORS = 0.1
"""In a capture of the CPU alone: share of a stretch that operators may take, without being its purpose"""
ANNOTATED_NS = 100_000
"""What somebody has given a name counts from a tenth of the time on: many of them may be one pause."""
_PHASE = re.compile(
    r"\W*(?:(?:\w*DataParallel\.)?forward|backward|loss|optimi[sz]er|train\w*|step|iteration|batch)\b.*",
    re.IGNORECASE,
)
"""annotations of what a step is made of"""
_OWN = re.compile(
    r"torch/profiler/.*|(?:.*/)?trace_doctor/recording/.*|torch/utils/data/.*|.*\bprofiler\.py\(\d+\): .*|<built-in .*(?:synchronize|acquire).*"
)
"""frames of the profiler, of data loading (its own rules), and waits"""
_BESIDE = re.compile(
    r"(?:\w*_)?(?:evaluat(?:e|ion)|eval|validat(?:e|ion)|checkpoint(?:ing)?|logging"
    r"|log_(?:metrics|stats|histograms?|scalars?|images?|loss(?:es)?|step|epoch|batch|progress|results|to)"
    r"|save(?:_(?:checkpoint|model|state|weights|snapshot|results|metrics))?|(?:compute_)?metrics|visuali[sz]e|plot)(?:_\w+)?"
    r"|_*log",  # not `log_likelihood`: that is a logarithm
    re.IGNORECASE,
)
"""names of what stands beside training, whatever operators it runs; in a capture of the CPU alone that is a pause, too"""
WRAPPED = 0.9
"""A function of the user's takes at least this share of a library's frame that does no more than call it."""


class Pause(Struct, frozen=True):
    """Stretches of one name."""

    name: str
    """the frame or annotation, numbers in annotations left out"""
    site: Site | None
    """the user's function around it, or itself"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ns of each, in steady steps"""
    idle: I64
    """the idle of the device meanwhile (CPU alone: of the main thread): a set of intervals"""
    steps: int
    """number of steady steps that have one"""
    works: bool = False
    """whether operators take most of it: its name alone says that it is no part of the step"""

    @property
    def inside(self) -> Site | None:
        """The user's function around it; None where it is that function itself."""
        itself = self.site is not None and self.name.startswith(f"{self.site.function} of ")
        return None if itself else self.site

    @property
    def idle_ns(self) -> int:
        return total(self.idle)


class HostPauses(Evidence, frozen=True):
    """Stretches of 1 ms and more (annotated ones: 100 us) on the main thread in steady steps, by name, most idle first.

    Raises NotCaptured where the GPU was not recorded."""

    pauses: tuple[Pause, ...]
    thread: int
    device: int
    """-1 in a capture without GPU work"""
    length: int
    """of the steady steps together, ns"""
    blank: I64
    """idle gaps of 1 ms and more for which Python was to blame and nothing here is the name: a set of intervals"""
    rest: I64
    """all idle time of the host's own work that nothing here names: a set of intervals"""
    stacks: bool
    """whether Python frames were recorded"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        facts[Processor]  # refuses where a GPU worked that was not recorded
        run, nesting, main, ledger = facts.run, facts[Nesting], facts[Threads].main, facts[IdleLedger]
        spans = facts[Steps].spans("steady")
        steady = intervals(spans)
        device = max(ledger.devices, key=lambda d: sum(ledger.owned(c, spans, d) for c in CAUSES), default=-1)
        idle = intersect(union(np.concatenate([ledger.pieces(c, device) for c in CAUSES])), steady)
        computing = facts[CpuTimeline].compute if device < 0 else NOTHING
        rows = _stretches(facts, run, nesting, main)
        rows = rows[covered(pairs(run.ts[rows], run.ts[rows] + 1), steady) > 0]
        sites = facts.get(CallSites)
        groups: dict[tuple[str, Site | None], list[int]] = {}
        for row in rows.tolist():
            site = sites.site(row) if sites is not None else None
            groups.setdefault((_name(run.text(row)), site), []).append(row)
        found = []
        for (name, site), members in groups.items():
            mine = pairs(run.ts[members], run.end[members])
            cover = intersect(union(mine), steady)
            works = device < 0 and total(intersect(computing, cover)) > OPERATORS * total(cover)
            found.append(
                Pause(
                    name=name,
                    site=site,
                    spans=tuple((int(s), int(e)) for s, e in mine),
                    works=works,
                    idle=intersect(union(np.concatenate([idle, computing])) if works else idle, cover),
                    steps=int((covered(np.array(spans, dtype=np.int64), cover) > 0).sum()),
                )
            )
        found.sort(key=lambda p: (-p.idle_ns, p.name))
        named = union(pairs(run.ts[rows], run.end[rows])) if len(rows) else NOTHING
        blame = union(np.concatenate([ledger.pieces(c, device) for c in ("python", "annotation")]))
        meeting = nesting.parent[_collectives(run, main)]
        meeting = meeting[meeting >= 0]
        named = union(np.concatenate([named, pairs(run.ts[meeting], run.end[meeting])]))
        blank = subtract(intersect(blame, steady), named)
        return cls(
            pauses=tuple(found),
            thread=main,
            device=device,
            length=total(steady),
            blank=blank[blank[:, 1] - blank[:, 0] >= PAUSE_NS],
            rest=subtract(idle, named),
            stacks=bool(run.is_cat(Cat.PYTHON).any()),
        )


def _is_phase(name: str) -> bool:
    return _PHASE.fullmatch(name) is not None and python_frame(name) is None


def _is_own(name: str) -> bool:
    return _OWN.fullmatch(name) is not None


def _stretches(facts: Facts, run: Run, nesting: Nesting, main: int) -> I64:
    """Outermost frames and annotations of the main thread that last long enough and launch no kernel, within a step."""
    named = run.is_cat(Cat.PYTHON) & (run.dur >= PAUSE_NS)
    named |= run.is_cat(Cat.USER_ANNOTATION) & (run.dur >= ANNOTATED_NS)
    named &= run.thread == main
    skip = run.is_named(is_step, is_optimizer, is_torch_mark, _is_phase)
    rows = np.flatnonzero(named & ~skip)
    rows = rows[_in_one_step(run, rows, facts[Steps])]
    rows = rows[_quiet(facts, run, rows)]
    rows = rows[~np.isin(rows, _around(nesting, _collectives(run, main)))]
    rows = rows[~_wrapping(run, nesting, rows)]
    rows = rows[_usually(facts, run, rows, main)]
    away = loader_mask(run, facts.options)
    away |= run.is_named(is_compile, _is_own)
    rows = rows[~away[rows] & ~nesting.inside(rows, away)]
    rows = rows[2 * held_up(run, nesting, rows, main) <= run.dur[rows]]
    return nesting.outermost(rows)


def _in_one_step(run: Run, rows: I64, steps: Steps) -> Bool:
    """Which hold no whole step: what does is the loop itself, and quiet where something in it takes most of the time."""
    start, end = np.array(steps.spans("steady"), dtype=np.int64).reshape(-1, 2).T
    behind = np.searchsorted(start, run.ts[rows])  # the first step that begins no earlier
    return np.asarray(run.end[rows] < np.append(end, np.iinfo(np.int64).max)[behind])


def _collectives(run: Run, main: int) -> I64:
    """What the main thread does together with other ranks: there it waits for them."""
    rows = run.named(is_collective, Cat.CPU_OP)
    return np.asarray(rows[run.thread[rows] == main])


def _around(nesting: Nesting, rows: I64) -> I64:
    """All events around some."""
    return np.array(
        sorted({above for row in rows.tolist() for above in nesting.ancestors(row)}), dtype=np.int64
    )


def _wrapping(run: Run, nesting: Nesting, rows: I64) -> Bool:
    """Which are frames of a library that only call a function of the user's (decorators, hooks): that is the name."""
    user = run.is_named(is_user_function) & run.is_cat(Cat.PYTHON)
    around = {
        above
        for row in rows[user[rows]].tolist()
        for above in nesting.ancestors(row)
        if run.cat[above] == Cat.PYTHON and not user[above] and run.dur[row] >= WRAPPED * run.dur[above]
    }
    return np.asarray(np.isin(rows, list(around)))


def _usually(facts: Facts, run: Run, rows: I64, main: int) -> Bool:
    """Which of these long and quiet rows bear a name that is long and quiet in half of the cases: else it is work that
    the machine held up. The cases in the trace that lent its frames count as well."""
    alike = run.by_name.rows(np.unique(run.name[rows]).tolist())
    often = np.bincount(run.name[alike[run.thread[alike] == main]], minlength=len(run.names))
    long = np.bincount(run.name[rows], minlength=len(run.names))
    for other in facts.capture.further:
        if isinstance(other, Run) and other.path == facts.capture.frames_from:
            theirs = Facts(Capture(facts.capture.rank, other), facts.options)
            number = {name: n for n, name in enumerate(other.names)}
            for name in np.unique(run.name[rows]).tolist():
                cases = np.flatnonzero(other.name == number.get(run.names[name], -1))
                often[name] += len(cases)
                long[name] += int(_quiet(theirs, other, cases[other.dur[cases] >= PAUSE_NS]).sum())
    return np.asarray((2 * long >= often)[run.name[rows]])


def _quiet(facts: Facts, run: Run, rows: I64) -> Bool:
    """Which of the rows hold no launch of a kernel; without GPU work, next to no operators."""
    launch = facts[Launches].launch
    if len(run.gpu):
        kernels = launch[(run.cat[run.gpu] == Cat.KERNEL) & (launch >= 0)]
        calls = np.union1d(kernels, run.named(is_launch, Cat.RUNTIME, Cat.DRIVER))
        starts = np.sort(run.ts[calls])
        return np.asarray(np.searchsorted(starts, run.end[rows]) == np.searchsorted(starts, run.ts[rows]))
    ops = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~run.is_named(is_torch_mark))
    cover = union(clip(pairs(run.ts[ops], run.end[ops]), *facts[Steps].window))
    quiet = covered(pairs(run.ts[rows], run.end[rows]), cover) <= OPERATORS * run.dur[rows]
    return np.asarray(quiet | run.is_named(_beside)[rows])


def _beside(name: str) -> bool:
    """Whether a function of the user's, or an annotation, bears a name of what stands beside training."""
    frame = python_frame(name)
    if frame is not None:
        return is_user_function(name) and _BESIDE.fullmatch(frame.function) is not None
    return _BESIDE.fullmatch(re.sub(r"[\s\d#]+$", "", name)) is not None


def _name(text: str) -> str:
    """A frame as `function of file`, an annotation without its numbers."""
    frame = python_frame(text)
    if frame is not None:
        return f"{frame.function} of {frame.file}"
    if text.startswith("<built-in"):
        found = re.match(r"<built-in (?:method|function) (\w+)", text)
        return found.group(1) if found else text
    return re.sub(r"\d+", "#", text)
