"""Which stretches of the main thread are host gaps: what names say of them, and the filters that each one passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.host.preemption import held_up
from trace_doctor.evidence.idle.data_loading import loader_mask
from trace_doctor.evidence.intervals import clip, covered, pairs, union
from trace_doctor.evidence.names.event_names import (
    is_collective,
    is_compile,
    is_launch,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import is_user_function, python_frame


class NamePattern(Struct, frozen=True):
    """What a name says of the stretch that bears it."""

    role: Literal["step", "elsewhere", "beside"]
    """`step`: an annotation of what a step is made of · `elsewhere`: it, and what lies in it, is the profiler's or another
    rule's · `beside`: a function of the user's or an annotation that stands beside training, whatever operators it runs"""
    called: str
    pattern: re.Pattern[str]
    """of the whole name; of `beside` of a frame's function, and of annotations without the number at their end"""


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:\w*_)?(?:{words})(?:_\w+)?", re.IGNORECASE)


NAMES = (
    NamePattern(
        "step",
        "a part of the step",
        re.compile(
            r"\W*(?:(?:\w*DataParallel\.)?forward|backward|loss|optimi[sz]er|train\w*|step|iteration|batch)\b.*",
            re.IGNORECASE,
        ),
    ),
    NamePattern(
        "elsewhere",
        "the profiler",
        re.compile(r"torch/profiler/.*|(?:.*/)?trace_doctor/recording/.*|.*\bprofiler\.py\(\d+\): .*"),
    ),
    NamePattern("elsewhere", "data loading", re.compile(r"torch/utils/data/.*")),
    NamePattern("elsewhere", "a wait", re.compile(r"<built-in .*(?:synchronize|acquire).*")),
    NamePattern(
        "beside", "evaluation", _words(r"evaluat(?:e|ion)|eval|validat(?:e|ion)|(?:compute_)?metrics")
    ),
    NamePattern(
        "beside",
        "saving",
        _words(r"checkpoint(?:ing)?|save(?:_(?:checkpoint|model|state|weights|snapshot|results|metrics))?"),
    ),
    NamePattern(
        "beside",
        "logging",
        _words(
            r"logging|visuali[sz]e|plot"
            r"|log_(?:metrics|stats|histograms?|scalars?|images?|loss(?:es)?|step|epoch|batch|progress|results|to)"
        ),
    ),
    # not `log_likelihood`: that is a logarithm
    NamePattern("beside", "logging", re.compile(r"_*log", re.IGNORECASE)),
)


def _has_role(role: str, text: str) -> bool:
    return any(name.role == role and name.pattern.fullmatch(text) for name in NAMES)


def is_step_part(name: str) -> bool:
    """Whether an annotation names what a step is made of."""
    return python_frame(name) is None and _has_role("step", name)


def is_elsewhere(name: str) -> bool:
    """Whether it is the profiler's, a wait, or of data loading."""
    return _has_role("elsewhere", name)


def is_beside(name: str) -> bool:
    """Whether a function of the user's, or an annotation, bears a name of what stands beside training."""
    frame = python_frame(name)
    if frame is None:
        return _has_role("beside", re.sub(r"[\s\d#]+$", "", name))
    return is_user_function(name) and _has_role("beside", frame.function)


class GapLimits(Struct, frozen=True):
    """What decides whether a stretch counts: the thresholds of the rule that asks."""

    gap_ns: int
    """the shortest stretch"""
    nameless_ns: int
    """the shortest idle time of a gap of a GPU that nothing names"""
    annotated_ns: int
    """the shortest with an annotation"""
    operator_share: float
    """of a stretch on a CPU alone that operators may take"""
    wrapped_share: float
    """of a library's frame that the user's function in it takes at least, for the frame to do no more than call it"""
    usual_share: float
    """of the cases of a name that must be long and quiet"""
    held_up_share: float
    """of a stretch in which the thread may stand still in code that usually works"""
    callee_share: float
    """of the cases of a name that stand still in the same callee: from here on that is its work"""


class Search(Struct, frozen=True):
    """Where stretches are sought, and by which limits."""

    facts: Facts
    thread: int
    limits: GapLimits

    @property
    def run(self) -> Run:
        """The trace that is searched."""
        return self.facts.run


def long_enough(search: Search, rows: I64) -> Bool:
    """Frames and annotations that last long enough."""
    least = np.where(search.run.cat[rows] == Cat.PYTHON, search.limits.gap_ns, search.limits.annotated_ns)
    return np.asarray(search.run.dur[rows] >= least)


def no_part_of_a_step(search: Search, rows: I64) -> Bool:
    """No marks of steps and optimizers, nothing that torch annotates, nothing that a step is made of."""
    return ~search.run.is_named(is_step, is_optimizer, is_torch_mark, is_step_part)[rows]


def within_one_step(search: Search, rows: I64) -> Bool:
    """Which hold no whole step: what does is the loop itself, and quiet where something in it takes most of the time."""
    start, end = np.array(search.facts[Steps].spans("steady"), dtype=np.int64).reshape(-1, 2).T
    behind = np.searchsorted(start, search.run.ts[rows])  # the first step that begins no earlier
    return np.asarray(search.run.end[rows] < np.append(end, np.iinfo(np.int64).max)[behind])


def launches_nothing(search: Search, rows: I64) -> Bool:
    """Which hold no launch of a kernel; without GPU work, next to no operators, unless the name stands beside training."""
    facts, run = search.facts, search.run
    launch = facts[Launches].launch
    if len(run.gpu):
        kernels = launch[(run.cat[run.gpu] == Cat.KERNEL) & (launch >= 0)]
        starts = np.sort(run.ts[np.union1d(kernels, run.named(is_launch, Cat.RUNTIME, Cat.DRIVER))])
        return np.asarray(np.searchsorted(starts, run.end[rows]) == np.searchsorted(starts, run.ts[rows]))
    operators = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~run.is_named(is_torch_mark))
    cover = union(clip(pairs(run.ts[operators], run.end[operators]), *facts[Steps].window))
    working = covered(pairs(run.ts[rows], run.end[rows]), cover)
    return (working <= search.limits.operator_share * run.dur[rows]) | run.is_named(is_beside)[rows]


def meets_no_other_rank(search: Search, rows: I64) -> Bool:
    """Which have no collective in them: there the thread waits for other ranks."""
    nesting = search.facts[Nesting]
    around = {above for row in collectives(search).tolist() for above in nesting.ancestors(row)}
    return ~np.isin(rows, list(around))


def wraps_no_function(search: Search, rows: I64) -> Bool:
    """Which are no frames of a library that only call a function of the user's (decorators, hooks): that is the name."""
    run, nesting = search.run, search.facts[Nesting]
    frames = run.is_cat(Cat.PYTHON)
    user = run.is_named(is_user_function) & frames
    of_library = frames & ~user
    around = {
        above
        for row in rows[user[rows]].tolist()
        for above in nesting.ancestors(row)
        if of_library[above] and run.dur[row] >= search.limits.wrapped_share * run.dur[above]
    }
    return ~np.isin(rows, list(around))


def usually_long_and_quiet(search: Search, rows: I64) -> Bool:
    """Which bear a name that is long and quiet in half of the cases: else it is work that the machine held up. The cases
    in the trace that lent its frames count as well."""
    run, capture = search.run, search.facts.capture
    alike = run.by_name.rows(np.unique(run.name[rows]).tolist())
    cases = np.bincount(run.name[alike[run.thread[alike] == search.thread]], minlength=len(run.names))
    quiet = np.bincount(run.name[rows], minlength=len(run.names))
    for other in capture.further:
        if isinstance(other, Run) and other.path == capture.frames_from:
            there = Search(
                Facts(Capture(capture.rank, other), search.facts.options), search.thread, search.limits
            )
            number = {name: n for n, name in enumerate(other.names)}
            for name in np.unique(run.name[rows]).tolist():
                same = np.flatnonzero(other.name == number.get(run.names[name], -1))
                cases[name] += len(same)
                long = same[other.dur[same] >= search.limits.gap_ns]
                quiet[name] += int(launches_nothing(there, long).sum())
    return np.asarray((quiet >= search.limits.usual_share * cases)[run.name[rows]])


def of_no_other_rule(search: Search, rows: I64) -> Bool:
    """Which are, and lie in, no wait for data, no compilation, and nothing of the profiler's."""
    away = loader_mask(search.run, search.facts.options) | search.run.is_named(is_compile, is_elsewhere)
    return ~away[rows] & ~search.facts[Nesting].inside(rows, away)


def not_preempted(search: Search, rows: I64) -> Bool:
    """Which do not mostly stand still in code that usually works."""
    limits = search.limits
    stalled = held_up(
        search.run, search.facts[Nesting], rows, search.thread, limits.gap_ns, limits.callee_share
    )
    return stalled <= limits.held_up_share * search.run.dur[rows]


FILTERS: tuple[Callable[[Search, I64], Bool], ...] = (
    long_enough,
    no_part_of_a_step,
    within_one_step,
    launches_nothing,
    meets_no_other_rank,
    wraps_no_function,
    usually_long_and_quiet,
    of_no_other_rule,
    not_preempted,
)
"""each asked of the rows that those before it left"""


def stretches(search: Search) -> I64:
    """The outermost frames and annotations of the thread that all filters leave, and that begin in a steady step."""
    run = search.run
    rows = np.flatnonzero(run.is_cat(Cat.PYTHON, Cat.USER_ANNOTATION) & (run.thread == search.thread))
    for counts in FILTERS:
        rows = rows[counts(search, rows)]
    rows = search.facts[Nesting].outermost(rows)
    return rows[search.facts[Steps].is_steady(run.ts[rows])]


def collectives(search: Search) -> I64:
    """What the thread does together with other ranks."""
    rows = search.run.named(is_collective, Cat.CPU_OP)
    return np.asarray(rows[search.run.thread[rows] == search.thread])
