"""The analyzed window and the steps in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.names.engine_step_names import is_engine_step, step_of_label
from trace_doctor.evidence.names.event_names import is_step, step_number
from trace_doctor.evidence.trace.engine_marks import engine_marks_cross, engine_steps, without_requests
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.pieces import EVER, Span, pieces
from trace_doctor.evidence.trace.step_marks import (
    framework_marks,
    loader_marks,
    missing_marks,
    optimizer_marks,
    several_processes,
)
from trace_doctor.evidence.trace.warmup import leading_warmup
from trace_doctor.run import GPU_CATS, Cat, Run

Phase = Literal["steady", "warmup", "outside"]
Source = Literal["profiler_step", "loader", "optimizer", "engine", "marker", "none"]
Cut = tuple[Span, Source, list[Span], list[str]]
"""window, source, the steps on the host, their labels"""

COUNTED = "step (counted from 0)"
"""Heading of a column of steps that have no number in the capture."""
_SEVERAL = "their numbers fall or they overlap, as where a file holds several traces"
_NO_TIME = "none takes any time, up to the end of the GPU work that was launched before it"


class Step(Struct, frozen=True):
    """One step, [start, end) ns."""

    index: int
    """N of `ProfilerStep#N` where these numbers rise, else the position"""
    start: int
    end: int
    warmup: bool = False
    label: str = ""
    begun: int = 0
    """when the GPU work that was launched before the step was done, ns: what runs from here on is the step's own"""
    done: int = 0
    """when all that the step launched was done, and the host past it, ns"""

    @property
    def kind(self) -> str:
        """What an inference engine did in it (`engine_step_names.EngineKind`); "" of other programs."""
        named = step_of_label(self.label)
        return named.kind if named is not None else ""

    @property
    def dur(self) -> int:
        """Length, ns."""
        return self.end - self.start

    @property
    def pace(self) -> int:
        """ns from the completion of the previous step to that of this one, GPU work included: how long a step takes when
        the host runs ahead of the device and its marks are short."""
        return self.done - self.begun


class Steps(Evidence, frozen=True):
    """Raises NotCaptured when the trace holds no operator, annotation, runtime or GPU event."""

    window: Span
    """[start, end) ns"""
    source: Source
    steps: tuple[Step, ...]
    """in time order, warm-up included; empty without a source"""
    outside: tuple[Span, ...]
    """what of the window no step covers"""
    doubt: str = ""
    """why marks of steps that are there are not believed, and there is no source"""
    no_request: str = ""
    """what an inference engine did instead of serving requests, where it marks that alone; "" otherwise"""
    not_judged: str = ""
    """what else was recorded: a file may hold pieces that were recorded apart, and the window lies in one of them"""

    @property
    def steady(self) -> tuple[Step, ...]:
        """The steps that shares and savings are about; all of them when nothing steady remains."""
        return tuple(s for s in self.steps if not s.warmup)

    @property
    def count(self) -> int:
        """Number of steady steps, 1 without a source."""
        return len(self.steady) or 1

    @property
    def heading(self) -> str:
        """Of a column with the `index` of steps: whether the trace numbers them, or they are counted here."""
        return "ProfilerStep#" if self.source == "profiler_step" else COUNTED

    @property
    def of_server(self) -> bool:
        """Whether a server marks them, and not `generate()` or a pipeline in a script."""
        return self.source == "engine" and bool(self.steps) and is_engine_step(self.steps[0].label)

    @property
    def alike(self) -> int:
        """Number of steady steps of the kind that has most: how often the same was seen."""
        return max(Counter(s.kind for s in self.steady).values(), default=1)

    @property
    def step_ns(self) -> int:
        """Mean steady step; the window without a source. All that is said per step, or as a share of it, goes by this one:
        what a few long steps cost is in it, and parts of a step sum to it."""
        if not self.steps:
            return self.window[1] - self.window[0]
        return sum(s.pace for s in self.steady) // self.count

    @property
    def median_ns(self) -> int:
        """Median pace of the steady steps, to compare recordings by; the window without a source."""
        return int(np.median([s.pace for s in self.steady])) if self.steps else self.step_ns

    @property
    def longest_of_all(self) -> Step | None:
        """The steady step that takes longer than all others together, of three of its kind at least: shares of the mean step
        are its."""
        longest = max(self.steady, key=lambda s: s.pace, default=None)
        like = [s.pace for s in self.steady if longest is not None and s.kind == longest.kind]
        return longest if len(like) > 2 and 2 * max(like) > sum(like) else None

    def spans(self, phase: Phase) -> list[Span]:
        """The stretches of the window of this phase, one per step. Without a source all of it is steady."""
        if not self.steps:
            return [self.window] if phase == "steady" else []
        if phase == "outside":
            return list(self.outside)
        return [(s.start, s.end) for s in self.steps if s.warmup == (phase == "warmup")]

    def on_device(self, phase: Phase) -> list[Span]:
        """The same stretches as a device sees them: each from the completion of the work launched before a step to that of
        its own. Work that the host had launched before the first step (a backlog) is outside, and what the last one
        launched is its own. They tile the window too."""
        if not self.steps:
            return self.spans(phase)
        start, end = self.window
        if phase == "outside":
            edges = _between(self.window, [(s.begun, s.done) for s in self.steps])
        else:
            edges = [(s.begun, s.done) for s in self.steps if s.warmup == (phase == "warmup")]
        return [(max(a, start), min(b, end)) for a, b in edges if min(b, end) > max(a, start)]

    def steady_at(self, moments: I64) -> I64:
        """The place in `spans("steady")` of the one that holds each of these moments (ns); -1: none does."""
        edges = np.array(self.spans("steady"), dtype=np.int64).reshape(-1, 2)
        at = np.searchsorted(edges[:, 0], moments, side="right") - 1
        inside = (at >= 0) & (moments < np.append(edges[:, 1], 0)[at])
        return np.where(inside, at, -1)

    def is_steady(self, moments: I64) -> Bool:
        """Which of these moments (ns) lie in a steady step."""
        return np.asarray(self.steady_at(moments) >= 0)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, marks = facts.run, _profiler_marks(facts)
        parts = pieces(run, marks, [step_number(run.text(m)) for m in marks])
        cuts = [_cut(facts, piece) for piece in parts if _work_in(run, piece).any()] or [_cut(facts, EVER)]
        numbered = any(source == "profiler_step" for _, source, _, _ in cuts)
        doubt = several_processes(facts) or (_several_series(run, marks) if numbered else "")
        if not doubt and any(source == "engine" for _, source, _, _ in cuts) and engine_marks_cross(facts):
            doubt = _SEVERAL
        if doubt:
            return cls._without(facts, doubt)
        cut, more = _chosen(cuts, facts.options.steps)
        steps = cls._of(facts, cut)
        missing = (
            missing_marks(run, marks, [(s.start, s.end) for s in steps.steps])
            if steps.source == "profiler_step"
            else ""
        )
        reasons = [_not_judged(steps, parts) if more else "", missing]
        steps = replace(steps, not_judged=", and ".join(filter(None, reasons)))
        return steps if not steps.steps or steps.median_ns else cls._without(facts, _NO_TIME)

    @classmethod
    def _without(cls, facts: Facts, doubt: str) -> Self:
        if facts.options.steps is not None:
            raise NotCaptured(f"no step can be selected: {doubt}", "call prof.step() after each step")
        return cls(_extent(facts.run), "none", (), (), doubt=doubt)

    @classmethod
    def _of(cls, facts: Facts, cut: Cut) -> Self:
        run = facts.run
        window, source, cut_out, labels = cut
        numbers = [n for label in labels if (n := step_number(label)) is not None]
        rising = len(numbers) == len(labels) and all(a < b for a, b in pairwise(numbers))
        indices = numbers if rising else range(len(labels))
        steps = [
            Step(i, start, end, label=label)
            for i, (start, end), label in zip(indices, cut_out, labels, strict=True)
        ]
        if source == "profiler_step":
            steps = _without_remainder(run, steps, facts[Launches])
        if run.damage.truncated:
            steps = before_the_cut(run, steps) or steps
        spans = np.array([(s.start, s.end) for s in steps], dtype=np.int64).reshape(-1, 2)
        done = facts[Launches].completions(spans)
        warm = leading_warmup(facts, spans, done[:, 1] - done[:, 0], [s.kind for s in steps])
        warm = 0 if warm == len(steps) else warm  # where no step is steady all of them count
        steps = [
            replace(s, warmup=i < warm, begun=begun, done=done)
            for i, (s, (begun, done)) in enumerate(zip(steps, done.tolist(), strict=True))
        ]
        if facts.options.steps is not None:
            steps, window = _selected(steps, facts.options.steps)
            if all(s.warmup for s in steps):
                steps = [replace(s, warmup=False) for s in steps]
        outside = tuple(_between(window, [_span(s) for s in steps]))
        no_request = without_requests(facts, window) if source != "engine" else ""
        return cls(window, source, tuple(steps), outside, no_request=no_request)


def _cut(facts: Facts, piece: Span) -> Cut:
    marked = _from_profiler_steps(facts, piece)
    count = 0 if marked is None else len(marked[2])
    engine, labels = engine_steps(facts, piece, may_infer=count < 2)
    if engine and len(engine) >= count:
        return _extent(facts.run, piece), "engine", engine, labels
    return marked or _from_marks(facts, piece)


def _chosen(cuts: Sequence[Cut], requested: tuple[int, int] | None) -> tuple[Cut, bool]:
    """Of pieces that were recorded apart the one with most of the wanted steps, then with most steps, then the longest, then
    the last; and whether others hold something that was wanted."""

    def size(cut: Cut) -> tuple[int, int, int]:
        (start, end), _, _, labels = cut
        inside = [
            n
            for n in map(step_number, labels)
            if requested and n is not None and requested[0] <= n < requested[1]
        ]
        return len(inside), len(labels), end - start

    best = max(reversed(cuts), key=size)
    others = [cut for cut in cuts if cut is not best]
    return best, any(size(cut)[0] for cut in others) if requested and size(best)[0] else bool(others)


def _not_judged(steps: Steps, parts: Sequence[Span]) -> str:
    apart = sum(after[0] - before[1] for before, after in pairwise(parts))
    which = f"steps {steps.steps[0].index} to {steps.steps[-1].index}" if steps.steps else "one of them"
    return (
        f"{len(parts)} pieces that were recorded apart, with {two_figures(apart / 1e3)} between them that were not "
        f"captured: only {which} {'were' if steps.steps else 'was'} judged"
    )


def _from_profiler_steps(facts: Facts, piece: Span) -> Cut | None:
    """Steps tile the window from mark to mark; the last ends with its mark or with the GPU work launched in the window.
    Marks that hold no work, where all of it lies beside them, are no steps."""
    run, marks = facts.run, _profiler_marks(facts)
    marks = marks[_inside(run, marks, piece)]
    if not len(marks):
        return None
    start, end = int(run.ts[marks[0]]), int(run.end[marks].max())
    end = max(end, facts[Launches].done((start, end)))
    if not _worked(run, (start, end)) and _worked(run, _extent(run, piece)):
        return None  # no step() in the loop, or a mark that lost its start
    return (
        (start, end),
        "profiler_step",
        [*pairwise([*run.ts[marks].tolist(), end])],
        [run.text(m) for m in marks],
    )


def _profiler_marks(facts: Facts) -> I64:
    """Marks of the profiler on the thread that has most of them, in time order, one for each moment. The loop may run on
    another."""
    run = facts.run
    marks = run.named(is_step, Cat.USER_ANNOTATION, Cat.CPU_OP)
    if len(marks):
        marks = marks[run.thread[marks] == np.bincount(run.thread[marks]).argmax()]
    return np.asarray(marks[np.unique(run.ts[marks], return_index=True)[1]])


def _several_series(run: Run, marks: I64) -> str:
    """Why these marks cannot be steps of one run, if they cannot. Rounding lets sound ones overlap a little."""
    numbers = np.array([step_number(run.text(m)) or 0 for m in marks])
    overlap = run.end[marks][:-1] - run.ts[marks][1:]
    return _SEVERAL if (np.diff(numbers) < 0).any() or (overlap * 10 > run.dur[marks][:-1]).any() else ""


def _from_marks(facts: Facts, piece: Span) -> Cut:
    """The window is the extent of all work; marks of one kind cut steps out of it. Only whole steps count."""
    run = facts.run
    window = _extent(run, piece)
    finders: tuple[tuple[Source, Callable[[Facts], I64]], ...] = (
        ("loader", loader_marks),
        ("optimizer", optimizer_marks),
        ("marker", framework_marks),
    )
    for source, find in finders:
        marks = find(facts)
        marks = marks[_inside(run, marks, piece)]
        if len(marks) >= 2:
            closes = source == "optimizer"
            borders = (run.end if closes else run.ts)[marks].tolist()
            if _computes(run, facts[Launches], (borders[0], borders[-1])):
                spans = [*pairwise(borders)]
                return window, source, spans, [run.text(m) for m in (marks[1:] if closes else marks[:-1])]
    return window, "none", [], []


def _computes(run: Run, launches: Launches, span: Span) -> bool:
    """Whether a kernel is launched in the span, or in none at all: two fetched batches with nothing between are no step."""
    at = run.ts[launches.launch[(launches.launch >= 0) & (run.cat[run.gpu] == Cat.KERNEL)]]
    return not len(at) or bool(((at >= span[0]) & (at < span[1])).any())


def _inside(run: Run, rows: I64, piece: Span) -> Bool:
    return np.asarray((run.ts[rows] >= piece[0]) & (run.ts[rows] < piece[1]))


def _extent(run: Run, piece: Span = EVER) -> Span:
    """From the first to the last operator, annotation, runtime or GPU event of the piece."""
    work = _work_in(run, piece)
    if not work.any():
        raise NotCaptured(
            "no operator, annotation, runtime or GPU event in the trace",
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
        )
    return int(run.ts[work].min()), int(run.end[work].max())


def _work_in(run: Run, piece: Span) -> Bool:
    work = run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.RUNTIME, Cat.DRIVER, *GPU_CATS)
    return np.asarray(work & (run.ts >= piece[0]) & (run.ts < piece[1]))


def _without_remainder(run: Run, steps: list[Step], launches: Launches) -> list[Step]:
    """Without a last mark that holds no work: what is left between the last step() and the end of the profile."""
    if len(steps) < 2 or _worked(run, _span(steps[-1])) or not _worked(run, _span(steps[-2])):
        return steps
    last = steps[-2]
    end = max(last.end, min(launches.done((last.start, last.end)), steps[-1].end))
    return [*steps[:-2], replace(last, end=end)]


def before_the_cut(run: Run, steps: Sequence[Step]) -> list[Step]:
    """Of a file that ends early the steps before the one in which its operators and calls end: what that one and later ones
    lack is lost, and no idle time. Marks may reach further, for they are written by kind."""
    work = run.ts[run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER)]
    return [step for step in steps if len(work) and step.end <= work[-1]]


def _span(step: Step) -> Span:
    return step.start, step.end


def _worked(run: Run, span: Span) -> bool:
    """Whether an operator or runtime call starts in the span."""
    first, behind = np.searchsorted(run.ts, span)
    return bool(run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER)[first:behind].any())


def _selected(steps: list[Step], requested: tuple[int, int]) -> tuple[list[Step], Span]:
    """The steps with first <= index < last, and the window that they span, with all that they launched."""
    chosen = [s for s in steps if requested[0] <= s.index < requested[1]]
    if not chosen:
        there = f"steps {steps[0].index} to {steps[-1].index}" if steps else "no steps"
        raise NotCaptured(f"the trace has {there}, not {requested[0]}:{requested[1]}")
    return chosen, (chosen[0].start, max(chosen[-1].end, chosen[-1].done))


def _between(window: Span, steps: Sequence[Span]) -> list[Span]:
    """What of the window lies before, between and after the steps; nothing without any."""
    if not steps:
        return []
    ends, starts = [window[0], *(end for _, end in steps)], [*(start for start, _ in steps), window[1]]
    return [(a, b) for a, b in zip(ends, starts, strict=True) if b > a]
