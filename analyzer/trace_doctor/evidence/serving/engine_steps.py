"""The steps of an inference engine by kind, each with what it launched, and the time in which it served nobody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import NOTHING, covered, intervals, subtract, total
from trace_doctor.evidence.names.engine_step_names import (
    GENERATE_DECODE,
    GENERATE_PREFILL,
    SERVING_KINDS,
    EngineStepName,
    ServingKind,
    step_of_label,
)
from trace_doctor.evidence.names.event_names import is_graph_launch, is_launch
from trace_doctor.evidence.trace.engine_marks import engine_marks, step_of_mark
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Step, Steps
from trace_doctor.model import EngineRow
from trace_doctor.run import Cat, Run

MOST_LOST = 0.1
"""share of graph launches without their kernels: with more of them the time in which the GPU idled is not known. In the sound
public captures of vLLM and SGLang none is."""
_FULL = 0.5
"""of the kernels that steps of this kind and number of graphs usually have: replays of one graph have equally many"""


class EngineStep(Struct, frozen=True):
    """One steady step of an engine."""

    step: Step
    name: EngineStepName
    launches: int
    """calls that launched a kernel"""
    graphs: int
    """calls that launched a graph"""
    kernels: int
    """that these calls launched, as far as they were recorded"""
    busy_ns: int
    """of its pace, in which the device worked"""
    recorded: bool
    """whether the kernels of all its graphs are there"""


class EngineSteps(Evidence, frozen=True):
    """Raises NotCaptured where no inference engine marks its steps."""

    steps: tuple[EngineStep, ...]
    """the steady ones, in time order"""
    device: int
    """that works most; -1 where no GPU work was recorded"""
    waiting: I64
    """when the server waited for requests, on that device: a set of intervals, ns"""
    other: I64
    """when it ran dummy steps or captured graphs: the same"""
    window: tuple[int, int]
    stacks: bool = False
    """whether Python stacks were recorded, which make the host slower"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        steps = facts[Steps]
        if steps.source != "engine":
            raise NotCaptured(steps.no_request or "no step of an inference engine in the trace")
        timeline = facts.get(GpuTimeline)
        device, busy = -1, np.empty((0, 2), dtype=np.int64)
        if timeline is not None:
            device = max(timeline.devices, key=lambda d: total(timeline.busy(d)))
            busy = timeline.busy(device)
        waiting, other = _between_steps(facts, steps)
        return cls(
            _steps(facts, steps.steady, busy),
            device,
            waiting,
            other,
            steps.window,
            bool(facts.run.is_cat(Cat.PYTHON).any()),
        )

    def of(self, *kinds: str) -> tuple[EngineStep, ...]:
        """The steps of these kinds."""
        return tuple(step for step in self.steps if step.name.kind in kinds)

    @property
    def is_generate(self) -> bool:
        """Whether these are forwards of `generate()`, and not of a server."""
        return bool(self.steps) and self.steps[0].step.label in (GENERATE_PREFILL, GENERATE_DECODE)

    def mask(self, some: Sequence[EngineStep]) -> Bool:
        """Mask of these of its steps."""
        begins = {step.step.start for step in some}
        return np.array([step.step.start in begins for step in self.steps], dtype=bool)

    def place_of(self, moments: I64) -> I64:
        """The position of the step in which the host was at each moment (ns); -1: in none."""
        return _step_of(moments, _spans([s.step for s in self.steps]))

    @cached_property
    def lost_replays(self) -> str:
        """Why the idle time is not known: kernels of graphs that were launched are not in the trace. Empty where they are."""
        with_graphs = [step for step in self.steps if step.graphs]
        lost = sum(not step.recorded for step in with_graphs)
        if not with_graphs or lost <= MOST_LOST * len(with_graphs):
            return ""
        return f"kernels of CUDA graphs are missing in {lost} of {len(with_graphs)} steps that launch one"

    def must_know_idle_time(self) -> None:
        """Raises NotCaptured where no GPU work, or not all of it, was recorded."""
        if self.device < 0:
            raise NotCaptured(
                "no GPU work of the engine's steps",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        if self.lost_replays:
            raise NotCaptured(
                self.lost_replays, "record fewer steps, without stacks, so that no event is dropped"
            )

    def rows(self) -> list[EngineRow]:
        """A row for each kind of step, the longest together first, and for the time in which none ran."""
        length = max(self.window[1] - self.window[0], 1)
        kinds = [k for k in SERVING_KINDS if self.of(k)]
        rows = [
            _row(kind, self.of(kind), length, on_gpu=self.device >= 0 and not self.lost_replays)
            for kind in kinds
        ]
        rows.sort(key=lambda row: -row.share)
        rows += [_without_steps("waiting", self.waiting, length)] if len(self.waiting) else []
        rows += [_without_steps("dummy", self.other, length)] if len(self.other) else []
        return rows


def _without_steps(kind: Literal["waiting", "dummy"], spans: I64, length: int) -> EngineRow:
    each = spans[:, 1] - spans[:, 0]
    return EngineRow(
        rank=0,
        kind=kind,
        count=len(spans),
        median_us=float(np.median(each)) / 1e3,
        share=total(spans) / length,
    )


def _row(kind: ServingKind, steps: Sequence[EngineStep], length: int, *, on_gpu: bool) -> EngineRow:
    pace = [step.step.pace for step in steps]
    requests = [n for step in steps if (n := step.name.requests) is not None]
    tokens = [step.name.tokens for step in steps if step.name.tokens is not None]
    return EngineRow(
        rank=0,
        kind=kind,
        count=len(steps),
        requests=float(np.median(requests)) if requests else None,
        tokens=float(np.median(tokens)) if tokens else None,
        median_us=float(np.median(pace)) / 1e3,
        share=min(sum(pace) / length, 1.0),
        busy_share=min(sum(step.busy_ns for step in steps) / max(sum(pace), 1), 1.0) if on_gpu else None,
        with_graph=sum(step.graphs > 0 for step in steps),
    )


def _steps(facts: Facts, steady: Sequence[Step], busy: I64) -> tuple[EngineStep, ...]:
    run, launches = facts.run, facts[Launches]
    spans = _spans(steady)
    calls = np.flatnonzero(run.is_cat(Cat.RUNTIME, Cat.DRIVER) & run.is_named(is_launch))
    graph = np.isin(run.name[calls], run.name_ids(is_graph_launch))
    at = _step_of(run.ts[calls], spans)
    kernels = run.gpu[(run.cat[run.gpu] == Cat.KERNEL) & (launches.launch >= 0)]
    count = np.bincount(_step_of(launches.launched_at(kernels), spans) + 1, minlength=len(spans) + 1)[1:]
    launched = launches.first_work(calls) >= 0
    single = np.bincount(at[~graph & launched] + 1, minlength=len(spans) + 1)[1:]
    graphs = np.bincount(at[graph] + 1, minlength=len(spans) + 1)[1:]
    replayed = np.bincount(at[graph & launched] + 1, minlength=len(spans) + 1)[1:]
    names = [step_of_label(s.label) or EngineStepName("other") for s in steady]
    full = _full([name.kind for name in names], graphs, count)
    worked = covered(np.array([(s.begun, s.done) for s in steady], dtype=np.int64).reshape(-1, 2), busy)
    return tuple(
        EngineStep(
            step, names[n], int(single[n]), int(graphs[n]), int(count[n]), int(worked[n]), bool(full[n] and replayed[n] == graphs[n])
        )
        for n, step in enumerate(steady)
    )  # fmt: skip


def _spans(steps: Sequence[Step]) -> I64:
    return np.array([(s.start, s.end) for s in steps], dtype=np.int64).reshape(-1, 2)


def _step_of(moments: I64, spans: I64) -> I64:
    """The place of the span that holds each moment, -1 where none does."""
    at = np.searchsorted(spans[:, 0], moments, side="right") - 1
    return np.where((at >= 0) & (moments < np.append(spans[:, 1], 0)[at]), at, -1)


def _full(kinds: Sequence[str], graphs: I64, kernels: I64) -> Bool:
    """Of each step whether it has about as many kernels as steps of its kind with as many graphs have."""
    full = np.ones(len(kinds), dtype=bool)
    like: dict[tuple[str, int], list[int]] = {}
    for n, key in enumerate(zip(kinds, graphs.tolist(), strict=True)):
        like.setdefault(key, []).append(n)
    for places in like.values():
        full[places] = kernels[places] >= _FULL * kernels[places].max()
    return full


def _between_steps(facts: Facts, steps: Steps) -> tuple[I64, I64]:
    """What lies between steps as the device sees it: waits for requests, and what is marked as no serving."""
    run: Run = facts.run
    marks = engine_marks(facts)
    if not len(marks):
        return NOTHING, NOTHING  # between two calls of generate() nobody waits for requests
    idle_marks = [
        m for m in marks.tolist() if (name := step_of_mark(run.text(m))) and name.kind not in SERVING_KINDS
    ]
    inner = [
        (a, b)
        for a, b in steps.on_device("outside")
        if a >= steps.steps[0].done and b <= steps.steps[-1].begun
    ]
    starts = run.ts[np.array(idle_marks, dtype=np.int64)]
    other = [span for span in inner if ((starts >= span[0]) & (starts < span[1])).any()]
    return subtract(intervals(inner), intervals(other)), intervals(other)
