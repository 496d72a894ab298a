"""TD702 gap-between-steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_doctor import NOTE_FROM, Cell, Claim, Context, Location, NotCaptured, Rule, Table, Unit, threshold
from trace_doctor.arrays import Bool
from trace_doctor.evidence.distributed.ranks import listed
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.serving.engine_idle import EngineIdle
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.serving._cases import DECODES, engine, generate
from trace_doctor_rules.serving._shared import confidence, cost, decodes_of, must_show_a_habit

_MOST_EVENTS, _MOST_FUNCTIONS = 8, 3
_PREFILLS = [(500, 0)] * 6
_WORTH_SAYING = 0.1
"""share of these gaps from which on a kind of step is named"""
_SOME_NEW = [(0, 8)] * 6 + [(0, 9)] * 6


class GapBetweenSteps(Rule):
    """The GPU waits for the engine between two steps.

    What it does
    Adds up the time in which the GPU idles from the last kernel of a step to the first kernel of the step after it.

    Why is this bad
    Scheduling, preparing the inputs and handling the last tokens take the host milliseconds. Without overlap the GPU idles
    meanwhile, before every token and every prompt.

    Evidence
    Idle time of the GPU between steps, of which the host is the reason. All requests of a decode step were in the batch
    before, so the server cannot have waited for one. Before a prefill it can: that gap counts only where Python stacks were
    recorded, and show that the server did not wait. Idle time behind a launch that has returned is left out: something else
    holds the queue. Where kernels of graphs are missing in the trace, the rule is skipped.

    How the saving is estimated
    An upper bound: these gaps. With Python stacks recorded they are longer than without.

    Fix
    Let the engine prepare the next step while the GPU works on this one.

    Fix safety
    Only shown: it is an option of the server.

    When to ignore
    When the capture was recorded with Python stacks, and the steps are much shorter without.

    References
    https://docs.vllm.ai/en/latest/configuration/optimization.html
    https://docs.sglang.ai/advanced_features/server_arguments.html
    """

    code = "TD702"
    name = "gap-between-steps"
    title = "GPU idles between engine steps"
    about = ("python", "dispatch", "launch")
    needs = (Steps, EngineSteps, EngineIdle, Moments)
    yields_to = ("TD703", "TD707")
    costs_host_time = True

    min_share: float = threshold(
        0.05,
        "idle between steps",
        unit="share",
        source="2 ms of some 20 in sglang#5593, 5 to 13 ms in vllm#6854; about 1% with scheduling overlapped",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("the host prepares the next step meanwhile", lambda: engine(token_copy="none", between_us=500, kernel_us=40)),
        Valid("a short gap", lambda: engine(between_us=300), thresholds={"min_share": 0.6}),
        Valid("the server waits for new requests", lambda: engine(_SOME_NEW, pause_us=50_000)),
        Valid("a queue that stands still", lambda: engine(token_copy="none", stall_us=9000)),
        Valid("graphs whose kernels were not recorded", lambda: engine(between_us=2000, lost=True), skipped="kernels of CUDA graphs are missing"),
        Valid("one step, before which nothing was recorded", lambda: engine(DECODES[:2], between_us=2000), skipped="only 1 engine step"),
        Valid("prefills alone, between which the server may have waited", lambda: engine(_PREFILLS, between_us=2000), skipped="no decode step"),
        Valid("stacks show that it did", lambda: engine(_PREFILLS, between_us=2000, stacks=True, between=("queue.py", "get"))),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "two milliseconds of scheduling",
            lambda: engine(between_us=2000),
            message="before 10 of 11 decode steps",
            confidence="high",
            saving_us=2010 * 10 / 11,
            fixes=("--async-scheduling",),
        ),
        Invalid("of which stacks say the function", lambda: engine(between_us=2000, stacks=True), confidence="medium", message="meanwhile (mostly schedule()).", shown="schedule"),
        Invalid("the same requests wait", lambda: engine(pause_us=50_000), message="before 10 of 11"),
        Invalid("generate() of transformers", lambda: generate(between_us=2000), message="before 9 of 9", fixes=('cache_implementation="static"',)),
        Invalid(
            "before prefills, as stacks show",
            lambda: engine(_PREFILLS, between_us=2000, stacks=True),
            message="before 4 of 5 prefill steps (2.01 ms on average)",
            shown="schedule",
        ),
        Invalid("scheduling launches a kernel", lambda: engine(between_us=2000, prepares=True), saving_us=2010 * 10 / 11, tolerance=0.01),
        Invalid("before prefills and decodes", lambda: engine(_PREFILLS + _SOME_NEW, between_us=2000, stacks=True), message=" of 6 prefill steps (2.01 ms on average)", shown="schedule | 2000.0 | 2000.0"),
        Invalid("two steps", lambda: engine(DECODES[:3], between_us=2000), confidence="low"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine_steps, idle, steps = ctx[EngineSteps], ctx[EngineIdle], ctx[Steps]
        judged = _never_waited(engine_steps)
        before = engine_steps.mask(judged)[idle.step] & idle.between
        gaps = cost(idle.us(before), steps)
        if gaps.share < self.min_share:
            others = idle.between & ~engine_steps.mask(judged)[idle.step]
            if cost(idle.us(others), steps).share >= self.min_share:
                raise NotCaptured("whether the server waited for requests before prefills", "with_stack=True")
            must_show_a_habit(judged, "engine step")
            return
        pieces, count = idle.pieces(before), len(np.unique(idle.step[before]))
        doubt = (
            " Stacks were recorded, so gaps are shorter without the profiler." if engine_steps.stacks else ""
        )
        yield Claim(
            message=(
                f"The GPU idles {_by_kind(engine_steps, idle, judged, before)}. "
                f"The host schedules, prepares inputs and handles tokens meanwhile{_mostly(idle, before)}.{doubt}"
            ),
            confidence=confidence(count, engine_steps),
            saving=gaps.saving("the idle time between the last kernel of a step and the first of the step after it"),
            location=Location(device=engine_steps.device),
            evidence=[
                _host_activity(engine_steps, idle, before)
            ],
            spans=ctx[Moments].longest(spans_of(pieces), "gap between steps", device=engine_steps.device),
            fixes=[(techniques.static_cache if engine_steps.is_generate else techniques.schedule_ahead)(_VERIFY)],
            owned=spans_of(pieces),
            key="gap",
        )  # fmt: skip


_VERIFY = "Record the same load again: gaps are shorter"


def _host_activity(engine_steps: EngineSteps, idle: EngineIdle, before: Bool) -> Table:
    """By kind of the step behind the gap: those before prefills are longer than those before decodes."""
    kinds: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(engine_steps.steps[n].name.kind for n in np.unique(idle.step[before]).tolist()):
        mine = before & engine_steps.mask(engine_steps.of(kind))[idle.step]
        gaps = len(np.unique(idle.step[mine]))
        kinds[kind] = {name: us / gaps for name, us in idle.by_host_event(mine)}
    rows: list[list[Cell]] = [
        [name, *(own.get(name) for own in kinds.values())] for name, _ in idle.by_host_event(before)
    ]
    columns: dict[str, Unit] = {
        "host": "code",
        **dict.fromkeys((f"before {kind} steps" for kind in kinds), "us"),
    }
    return table("Host activity while the GPU idles, per gap", columns, rows, most=_MOST_EVENTS)


def _never_waited(engine_steps: EngineSteps) -> tuple[EngineStep, ...]:
    """The steps before which the server cannot have waited for a request, or would be seen to. Raises NotCaptured without any."""
    if engine_steps.stacks and (seen := engine_steps.of("decode", "prefill", "mixed")):
        return seen
    return decodes_of(engine_steps)


def _mostly(idle: EngineIdle, before: Bool) -> str:
    """` (mostly f, g and h)`: the functions that take most of it, where stacks say so."""
    least = _WORTH_SAYING * idle.us(before)
    functions = [
        name.rsplit("): ", 1)[1] for name, us in idle.by_host_event(before) if us >= least and "): " in name
    ]
    return f" (mostly {listed([f'{name}()' for name in functions[:_MOST_FUNCTIONS]])})" if functions else ""


def _by_kind(engine_steps: EngineSteps, idle: EngineIdle, judged: Sequence[EngineStep], before: Bool) -> str:
    """`before 7 of 8 prefill steps (6.2 ms on average) and 7 of 7 decode steps (0.1 ms)`, the longest together first."""
    found: list[tuple[float, str]] = []
    for kind in dict.fromkeys(step.name.kind for step in judged):
        some = engine_steps.of(kind)
        mine = before & engine_steps.mask(some)[idle.step]
        if count := len(np.unique(idle.step[mine])):
            us = idle.us(mine)
            found.append((us, f"{count} of {len(some)} {kind} steps ({milliseconds(us / count)}"))
    found.sort(reverse=True)
    least = _WORTH_SAYING * sum(us for us, _ in found)
    return f"before {' on average) and '.join(text for us, text in found if us >= least)} on average)"
