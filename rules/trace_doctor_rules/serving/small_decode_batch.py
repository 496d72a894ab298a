"""TD706 small-decode-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_doctor import Claim, Context, Location, NotCaptured, Rule, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps
from trace_doctor.evidence.trace.recorded_operators import RecordedLaunches
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.serving._cases import engine
from trace_doctor_rules.serving._shared import decodes_of, must_show_a_habit

_ONE = [(0, 1)] * 12
_GROWING = [(0, 1)] * 6 + [(0, 4)] * 7


class SmallDecodeBatch(Rule):
    """Decode steps keep the GPU busy for few requests.

    What it does
    Finds decode steps that replay a CUDA graph, keep the GPU busy and hold few requests.

    Why is this bad
    A decode step reads the weights once, for one token of each request. Up to some hundred requests reading takes longer than
    computing, so more requests in a step cost little time, and each token costs less.

    Evidence
    Decode steps, of which most launch a graph and keep the GPU busy, with as many requests as the engine's annotation says.
    Where steps of different size were captured and their time grows with the requests, the rule is silent. Where names of
    steps do not count requests, or kernels of graphs are missing in the trace, it is skipped.

    How the saving is estimated
    There is none: a step does not get shorter.

    Fix
    Send more requests at the same time, or serve them with fewer replicas. For one request alone: speculative decoding, or
    weights of fewer bits.

    Fix safety
    Only shown: what the server is asked for is not in the capture.

    When to ignore
    In a mixture of experts more requests use more of the experts, and steps get longer up to a point. Or when only the
    latency of single requests counts, or there were no more of them while it was recorded.

    References
    https://docs.vllm.ai/en/latest/configuration/optimization.html
    https://jax-ml.github.io/scaling-book/inference/
    """

    code = "TD706"
    name = "small-decode-batch"
    title = "Decode steps hold few requests"
    needs = (EngineSteps, Moments)
    to_pass = (RecordedLaunches,)

    max_requests: int = threshold(
        4,
        "requests of the median decode step",
        unit="count",
        source="an H100 computes some 300 operations in the time in which it reads a byte: far more requests fit into a step",
    )
    min_busy: float = threshold(
        0.8,
        "time of decode steps in which the GPU works",
        unit="share",
        source="88 to 97% in public captures of one request; below, the host is the first thing to look at",
    )
    min_graphs: float = threshold(
        0.5, "decode steps that launch a CUDA graph", unit="share", source="most steps decide"
    )
    max_growth: float = threshold(
        0.5,
        "growth of the step's time over that of its requests, where several sizes were captured",
        source="below, twice as many requests take less than one and a half times as long",
    )

    VALID = [
        Valid("many requests", lambda: engine([(0, 16)] * 12, token_copy="none")),
        Valid("the host is the limit", lambda: engine(_ONE, between_us=2000)),
        Valid("most without graphs", lambda: engine([(0, 1)] * 4 + [(0, 4)] * 9, token_copy="none", graphs_up_to=1, kernel_us=40, host_us=2)),
        Valid("each request takes as long again", lambda: engine(_GROWING, token_copy="none", kernel_us=1, request_us=20)),
        Valid("two steps", lambda: engine(_ONE[:3], token_copy="none"), skipped="only 2 decode steps"),
        Valid("graphs whose kernels were not recorded", lambda: engine(_ONE, lost=True), skipped="kernels of CUDA graphs are missing"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "one request",
            lambda: engine(_ONE, token_copy="none"),
            message="Decode steps hold 1 request and take 1.2",
            severity="info",
            confidence="low",
            fixes=("concurrent",),
        ),
        Invalid(
            "four take as long as one",
            lambda: engine(_GROWING, token_copy="none"),
            message="4 requests take 1.0 times as long as 1.",
            confidence="high",
            shown="4 | 6",
        ),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine_steps = ctx[EngineSteps]
        decodes = decodes_of(engine_steps)
        must_show_a_habit(decodes)
        engine_steps.must_know_idle_time()
        sizes = [s.name.requests for s in decodes if s.name.requests is not None]
        if len(sizes) < len(decodes):
            raise NotCaptured("the names of steps do not say how many requests they have")
        usual, pace = float(np.median(sizes)), float(np.median([s.step.pace for s in decodes]))
        busy = sum(s.busy_ns for s in decodes) / max(sum(s.step.pace for s in decodes), 1)
        graphs = sum(s.graphs > 0 for s in decodes)
        growth = _growth(decodes)
        if (
            usual > self.max_requests
            or busy < self.min_busy
            or graphs < self.min_graphs * len(decodes)
            or (growth is not None and growth > self.max_growth)
        ):
            return
        yield Claim(
            message=(
                f"Decode steps hold {usual:g} request{'s' if usual != 1 else ''} and take {milliseconds(pace / 1e3)}, of which the "
                f"GPU works {busy:.0%}. {_more_cost_little(decodes)}"
            ),
            confidence="low" if growth is None else "high",
            severity="info",
            location=Location(device=engine_steps.device),
            evidence=[
                table(
                    "Decode steps by size",
                    {"requests": "count", "steps": "count", "median": "us", "per request": "us"},
                    [[n, len(some), us, us / max(n, 1)] for n, some, us in _by_size(decodes)],
                )
            ],
            spans=ctx[Moments].longest(
                [(s.step.begun, s.step.done) for s in decodes], "decode", engine_steps.device
            ),
            fixes=[techniques.more_requests("Record more requests at once: tokens per second rise, and steps take hardly longer")],
            key="decode",
        )  # fmt: skip


_Size = tuple[int, list[EngineStep], float]


def _by_size(decodes: Sequence[EngineStep]) -> list[_Size]:
    """(requests, the steps that hold so many, their median pace in us), the fewest requests first."""
    sizes = sorted({s.name.requests or 0 for s in decodes})
    alike = [(n, [s for s in decodes if s.name.requests == n]) for n in sizes]
    return [(n, some, float(np.median([s.step.pace for s in some])) / 1e3) for n, some in alike]


def _growth(decodes: Sequence[EngineStep]) -> float | None:
    """By how much longer steps of the most requests take than those of the fewest, over how many more requests they hold; None
    where all hold equally many."""
    (few, _, short), (many, _, long) = _extremes(decodes)
    return (long / short - 1) / (many / few - 1) if many > few > 0 and short else None


def _extremes(decodes: Sequence[EngineStep]) -> tuple[_Size, _Size]:
    sizes = _by_size(decodes)
    return sizes[0], sizes[-1]


def _more_cost_little(decodes: Sequence[EngineStep]) -> str:
    (few, _, short), (many, _, long) = _extremes(decodes)
    if many == few or not short:
        return "Such steps mostly read weights, which more requests share; steps with more were not captured."
    return f"More cost little: steps of {many} requests take {long / short:.1f} times as long as {few}."
