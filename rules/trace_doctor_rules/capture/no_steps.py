"""TD001 no-steps."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Rule
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice


def _kernels(b: RunBuilder) -> None:
    b.run_op("aten::mm", 100)


def _marked() -> RunBuilder:
    b = RunBuilder()
    for _ in b.steps(3):
        _kernels(b)
    return b


def _optimizer_only() -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        _kernels(b)
        with b.optimizer_step():
            b.wait(10)
    return b


def _unmarked() -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        _kernels(b)
    return b


def _graph_capture() -> RunBuilder:
    b = RunBuilder()
    with b.annotation("capture_8_DECODE"):
        _kernels(b)
    return b


_SCHEDULE = """with torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=5, repeat=1),
    on_trace_ready=torch.profiler.tensorboard_trace_handler("./logs"),
) as prof:
    for batch in loader:
        train_step(batch)
        prof.step()"""


class NoSteps(Rule):
    """The capture does not say where a step begins.

    What it does
    Says so when no profiler step, data loader, optimizer or framework mark cuts the capture into steps.

    Why is this bad
    Everything is measured over the whole window then: warm-up is mixed with steady work, costs are per window instead of
    per step, and what happens once cannot be told from what happens in every step.

    Evidence
    No `ProfilerStep#`, and fewer than two waits of a data loader, optimizer steps or framework marks.

    How the saving is estimated
    There is none: this is about the capture.

    Fix
    Call `prof.step()` at the end of each step, with a schedule of one warm-up and at least three active steps.
    `repeat=1`: without it the profiler starts again and overwrites what it wrote.

    Fix safety
    Only shown: it concerns the code that records.

    When to ignore
    When the capture is of a single call on purpose.

    References
    https://docs.pytorch.org/docs/stable/profiler.html#torch.profiler.schedule
    """

    code = "TD001"
    name = "no-steps"
    title = "No step markers in the capture"
    needs = (Steps,)

    VALID = [
        Valid("profiler steps", _marked),
        Valid("optimizer steps", _optimizer_only),
        Valid("an engine captures graphs: it has no step to mark", _graph_capture),
    ]
    INVALID = [Invalid("no mark at all", _unmarked, severity="info", message="analyzed as one step")]

    def check(self, ctx: Context) -> Iterator[Claim]:
        steps = ctx[Steps]
        if steps.source != "none" or steps.no_request:
            return
        start, end = steps.window
        yield Claim(
            message=f"The capture has no step markers: the {milliseconds((end - start) / 1e3)} window is analyzed as one step.",
            confidence="high",
            severity="info",
            fixes=[
                advice(
                    "Call prof.step() after each step",
                    _SCHEDULE,
                    "",
                    "The new trace holds ProfilerStep# markers",
                )
            ],
            key="steps",
        )
