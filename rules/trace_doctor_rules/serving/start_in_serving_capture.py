"""TD705 start-in-serving-capture."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Location, Rule, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import total
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of


def _start(share: float = 0.5, *, mark: str = "capture_8_DECODE", steps: int = 12) -> RunBuilder:
    """Steps, of which this share of ten serves nobody; the first is in no count."""
    b = RunBuilder()
    for n in range(12 - steps, 12):
        with b.annotation(mark if 0 < n <= 10 * share else "step[DECODE bs=8]"), b.op("aten::mm"):
            b.launch(500)
            b.sync()
    return b


class StartInServingCapture(Rule):
    """The capture holds dummy steps or captures of CUDA graphs.

    What it does
    Adds up the time of steps that serve no request, as the engine's annotations name them.

    Why is this bad
    An engine warms up and captures graphs at its start. Ranks without requests run dummy steps with the others. Neither says
    how fast requests are served, and totals of the capture mix both.

    Evidence
    Annotations of dummy or idle steps and of graph captures between the steps of the engine. They are no part of any step. A file in which
    they are all that the engine marks shows no serving: rules about training are not applied to it, and it cannot be judged.

    How the saving is estimated
    There is none: this is about the capture.

    Fix
    Start the profiler when the server answers requests. Dummy steps in the middle: spread requests over all ranks.

    Fix safety
    Only shown.

    When to ignore
    When the start of the server is what you want to see.

    References
    https://docs.vllm.ai/en/latest/contributing/profiling.html
    """

    code = "TD705"
    name = "start-in-serving-capture"
    title = "Capture includes steps that serve no request"
    needs = (Steps, Moments)
    wants = (EngineSteps,)

    min_share: float = threshold(
        0.1, "time of these steps in the window", unit="share", source="less changes no total by much"
    )

    VALID = [
        Valid("requests only", lambda: _start(0)),
        Valid("one dummy step", lambda: _start(0.1), thresholds={"min_share": 0.2}),
    ]
    INVALID = [
        Invalid("graphs are captured", _start, message="take 42% of the window", severity="info"),
        Invalid("dummy steps", lambda: _start(mark="step[IDLE bs=0]")),
        Invalid(
            "graphs are captured, and nothing else",
            lambda: _start(1.1, steps=11),
            severity="info",
            message="In this file an inference engine captured CUDA graphs, and served no request.",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        if no_request := ctx[Steps].no_request:
            yield _only_start(no_request)
            return
        engine_steps = ctx[EngineSteps]
        start, end = engine_steps.window
        length = total(engine_steps.other)
        if length < self.min_share * (end - start):
            return
        yield Claim(
            message=(
                f"Dummy steps and graph captures take {length / (end - start):.0%} of the window "
                f"({milliseconds(length / 1e3)}). They serve no request."
            ),
            confidence="high",
            severity="info",
            location=Location(device=engine_steps.device if engine_steps.device >= 0 else None),
            spans=ctx[Moments].longest(
                spans_of(engine_steps.other), "no serving", device=engine_steps.device
            ),
            fixes=[techniques.record_after_warm_up("The new capture holds steps with requests only")],
            key="start",
        )


def _only_start(no_request: str) -> Claim:
    return Claim(
        message=f"In this file {no_request}. It does not show how fast requests are served.",
        confidence="high",
        severity="info",
        fixes=[techniques.record_after_warm_up("The new capture holds steps with requests")],
        key="start",
    )
