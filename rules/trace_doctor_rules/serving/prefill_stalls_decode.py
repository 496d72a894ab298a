"""TD704 prefill-stalls-decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

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

_DECODES = [(0, 8)] * 4
_LONG = [*_DECODES, (10_000, 8), *[(0, 9)] * 4]
_MOST_ROWS = 10


class _Stall(Struct, frozen=True):
    """Steps with prefills, one after the other, between two decode steps."""

    steps: tuple[EngineStep, ...]
    decoding: int
    """requests that wait for their next token"""

    @property
    def ns(self) -> int:
        return sum(s.step.pace for s in self.steps)

    @property
    def tokens(self) -> int | None:
        known = [s.name.tokens for s in self.steps if s.name.tokens is not None]
        return sum(known) if known else None

    @property
    def span(self) -> tuple[int, int]:
        return self.steps[0].step.begun, self.steps[-1].step.done


class PrefillStallsDecode(Rule):
    """Requests that are being decoded wait while prompts of others are computed.

    What it does
    Finds steps with prefills, one after the other, between two decode steps of the same requests, and compares their time with
    that of a decode step.

    Why is this bad
    No request gets a token meanwhile: the output of all of them stands still. The slowest tokens are what users notice.

    Evidence
    A decode step, then steps with prefills that take 100 ms or more and ten decode steps or more, then a decode step with more
    requests than those have that were prefilled: the others waited. Where the names of steps do not count requests, the rule
    is skipped.

    How the saving is estimated
    There is none: smaller chunks take as long together. The stall gets shorter, and the first tokens come later.

    Fix
    Compute prompts in chunks, together with decodes. A chunk is the longest time that a decode waits.

    Fix safety
    Only shown: it is an option of the server, and a trade-off.

    When to ignore
    When only the throughput counts, as in offline batches.

    References
    https://docs.vllm.ai/en/latest/configuration/optimization.html#chunked-prefill
    https://arxiv.org/abs/2403.02310
    """

    code = "TD704"
    name = "prefill-stalls-decode"
    title = "Prefill steps stall decoding"
    needs = (EngineSteps, Moments)
    to_pass = (RecordedLaunches,)

    min_stall_us: float = threshold(
        100_000.0,
        "steps with prefills between two decode steps",
        unit="us",
        source="200 to 320 ms in sglang#31395; a tenth of a second is seen as a pause",
    )
    min_ratio: float = threshold(
        10.0, "such a stall in decode steps", source="where decodes take as long, chunks help little"
    )

    VALID = [
        Valid("a short prefill", lambda: engine([*_DECODES, (2000, 8), *[(0, 9)] * 4])),
        Valid("decodes that take nearly as long", lambda: engine(_LONG, kernel_us=1500)),
        Valid("all requests are new behind it", lambda: engine([*_DECODES, (10_000, 8), *[(0, 1)] * 4])),
        Valid("before the first decode", lambda: engine([(10_000, 8), *[(0, 1)] * 4])),
        Valid("one decode step, and nothing around it", lambda: engine([(0, 8)]), skipped="only 1 decode step"),
        Valid("prefills alone", lambda: engine([(10_000, 0)] * 4), skipped="no decode step"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "a prompt of 10,000 tokens in one step",
            lambda: engine(_LONG),
            message="stall decoding for up to 120 ms, once",
            fixes=("--chunked-prefill-size",),
            severity="warning",
        ),
        Invalid("with decodes in the same step", lambda: engine(_LONG, mixed=True), message="8 requests"),
        Invalid("in two steps", lambda: engine([*_DECODES, (5000, 8), (5000, 8), *[(0, 10)] * 4]), shown="10000"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine_steps = ctx[EngineSteps]
        decodes = decodes_of(engine_steps)
        engine_steps.must_know_idle_time()
        usual = float(np.median([s.step.pace for s in decodes]))
        stalls = [
            stall
            for stall in _stalls(engine_steps.steps)
            if stall.ns >= self.min_stall_us * 1e3 and stall.ns >= self.min_ratio * usual
        ]
        if not stalls:
            if any(s.name.requests is None for s in engine_steps.of("prefill", "mixed", "decode")):
                raise NotCaptured("the names of steps do not say how many requests they have")
            must_show_a_habit(decodes)
            return
        stalls.sort(key=lambda s: -s.ns)
        worst = stalls[0]
        yield Claim(
            message=(
                f"Steps with prefills stall decoding for up to {milliseconds(worst.ns / 1e3)}, {_times(len(stalls))}. "
                f"{worst.decoding} requests wait meanwhile; a decode step takes {milliseconds(usual / 1e3)}."
            ),
            confidence="high",
            severity="warning",
            location=Location(device=engine_steps.device if engine_steps.device >= 0 else None),
            evidence=[
                table(
                    "Stalls of decoding",
                    {"stall": "us", "steps": "count", "tokens": "count", "requests waiting": "count"},
                    [[s.ns / 1e3, len(s.steps), s.tokens, s.decoding] for s in stalls],
                    most=_MOST_ROWS,
                )
            ],
            spans=ctx[Moments].longest([s.span for s in stalls], "prefill", device=engine_steps.device),
            fixes=[techniques.smaller_prefills("Record the same load again: the longest stall is shorter")],
            key="prefill",
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _stalls(steps: Sequence[EngineStep]) -> Iterator[_Stall]:
    """Runs of steps with prefills between two decode steps, of which some requests were decoded before."""
    before: EngineStep | None = None
    run: list[EngineStep] = []
    for step in steps:
        if run and run[-1].step.end != step.step.start:
            before, run = None, []  # the server waited: nothing was decoded
        if step.name.kind in ("prefill", "mixed"):
            run.append(step)
            continue
        if step.name.kind == "decode" and before is not None and run:
            new = sum(s.name.prefills or 0 for s in run)
            waiting = min((step.name.requests or 0) - new, before.name.requests or 0)
            if waiting > 0:
                yield _Stall(tuple(run), waiting)
        before, run = (step if step.name.kind == "decode" else None), []
