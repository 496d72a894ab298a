"""TD703 blocking-token-copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Context, NotCaptured, Rule, threshold
from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.serving.engine_idle import EngineIdle
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.host._host_device_sync_evidence import SyncSite, SyncSites
from trace_doctor_rules.serving._cases import DECODES, engine, generate
from trace_doctor_rules.serving._shared import confidence, cost, decodes_of, idle_of, must_show_a_habit

_LONG_FACTOR = 10.0
"""as TD201's `long_factor`"""


class BlockingTokenCopy(Rule):
    """Each step ends with a copy to the host for which the host waits.

    What it does
    Finds operators that copy from the GPU and block the host in at least half of the decode steps, and adds up the time for
    which the GPU idles because the next step is launched only then.

    Why is this bad
    `tokens.tolist()` or `.item()` waits until all work of the stream is done. Only then can the host prepare the next step,
    and the GPU idles meanwhile.

    Evidence
    A blocking copy to the host, or a stream synchronization in the operator that made it, and idle time of the GPU that is
    charged to it. A copy to pinned memory with `cudaEventSynchronize` is no part of it. Neither is a call while which the GPU
    works on, if the next launch still comes in time.

    How the saving is estimated
    An upper bound: all idle time of decode steps, and of the steps right after them: without the wait, the host does the rest of its work while
    the GPU is busy, too.

    Fix
    Overlap scheduling with the GPU's work. In code of your own, copy to pinned memory and wait for an event.

    Fix safety
    Only shown: it is an option of the server, or its code.

    When to ignore
    When the next step needs the token on the host, as with some structured outputs.

    References
    https://github.com/vllm-project/vllm/pull/22760
    """

    code = "TD703"
    name = "blocking-token-copy"
    title = "Token copies block the host every step"
    about = ("sync",)
    needs = (Steps, EngineSteps, EngineIdle, SyncSites, Moments)
    to_pass = (RecordedOperators,)

    min_share: float = threshold(
        0.03,
        "idle time charged to these calls in decode steps",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_steps: float = threshold(
        0.5,
        "decode steps in which a call blocks",
        unit="share",
        source="most steps decide: tokens are read in each of them",
    )

    VALID = [
        Valid("pinned memory and an event", lambda: engine(between_us=300)),
        Valid("the next step is launched in time", lambda: engine(token_copy="stream", between_us=1), thresholds={"min_share": 0.2}),
        Valid("one step, behind which nothing was recorded", lambda: engine(DECODES[:2], token_copy="stream"), skipped="only 1 decode step"),
        Valid("in every third step", lambda: engine(token_copy="third", between_us=300)),
        Valid("graphs whose kernels were not recorded", lambda: engine(token_copy="stream", between_us=300, lost=True), skipped="kernels of CUDA graphs are missing"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "generate() of transformers",
            lambda: generate(token_copy="stream", between_us=300),
            fixes=("pinned",),
        ),
        Invalid(
            "tokens.item() in each step",
            lambda: engine(token_copy="stream", between_us=300),
            message="aten::item blocks the host in 11 of 11 decode steps",
            confidence="high",
            fixes=("--async-scheduling", "pinned"),
        ),
        Invalid(
            "with stacks",
            lambda: engine(token_copy="stream", between_us=300, stacks=True),
            confidence="medium",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine_steps, idle, steps = ctx[EngineSteps], ctx[EngineIdle], ctx[Steps]
        decodes = decodes_of(engine_steps)
        decoding = engine_steps.mask(decodes)
        sites = [
            (site, len(at), np.isin(idle.sync_row, site.rows) & decoding[idle.step])
            for site in ctx[SyncSites].sites(_LONG_FACTOR)
            if site.kind in ("item", "to_host")
            and len(at := _steps_of(site, engine_steps, idle, decoding)) >= self.min_steps * len(decodes)
        ]
        held: Bool = (
            np.logical_or.reduce([mine for *_, mine in sites])
            if sites
            else np.zeros(len(idle.step), dtype=bool)
        )
        waits = cost(idle.us(held), steps)
        if waits.share < self.min_share:
            if lost := ctx[SyncSites].lost:
                raise NotCaptured(lost, "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]")
            must_show_a_habit(decodes)
            return
        pieces, count = idle.pieces(held), max(count for _, count, _ in sites)
        yield Claim(
            message=(
                f"{_names([site for site, *_ in sites])} the host in {count} of {len(decodes)} decode steps. The GPU "
                f"idles {milliseconds(idle.us(held) / len(decodes))} per decode step because the next step is launched only then."
            ),
            confidence=confidence(count, engine_steps),
            saving=cost(idle_of(engine_steps, decodes), steps).saving(
                "all idle time of decode steps, and of the steps right after them"
            ),
            location=location(sites[0][0].site, device=engine_steps.device),
            evidence=[
                table(
                    "Blocking copies in decode steps",
                    {"call": "code", "steps": "count", "GPU idle per decode step": "us"},
                    [[site.name, count, idle.us(mine) / len(decodes)] for site, count, mine in sites],
                )
            ],
            spans=ctx[Moments].longest(spans_of(pieces), "idle after a copy", device=engine_steps.device),
            fixes=[
                *([] if engine_steps.is_generate else [techniques.schedule_ahead(_VERIFY)]),
                techniques.copy_tokens_behind(_VERIFY),
            ],
            owned=spans_of(pieces),
            key=sites[0][0].name,
        )


_VERIFY = "Record the same load again: TD703 is gone and steps are shorter"


def _steps_of(site: SyncSite, engine_steps: EngineSteps, idle: EngineIdle, decoding: Bool) -> I64:
    """The decode steps in which it blocks."""
    at = np.unique(engine_steps.place_of(idle.run.ts[list(site.rows)]))
    at = at[at >= 0]
    return np.asarray(at[decoding[at]])


def _names(sites: Sequence[SyncSite]) -> str:
    more = f" and {len(sites) - 1} more block" if len(sites) > 1 else " blocks"
    return f"{sites[0].name}{more}"
