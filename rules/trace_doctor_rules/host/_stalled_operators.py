"""Operators of a CPU that stood still, as something else had the processor: what TD203 says of them, and its cases."""

from __future__ import annotations

from trace_doctor import Claim, Context
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.host.host_gaps import HostGaps
from trace_doctor.evidence.host.stalled_operators import StalledOperators
from trace_doctor.evidence.intervals import intervals
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice, spans_of


def _stands_still(
    us: float = 30_000, *, at: int = 30, every: bool = False, shapes: bool = True
) -> RunBuilder:
    """Without a GPU; steps of four products of 1 ms, of which one takes long: once, or in each step."""
    b = RunBuilder(gpu=None, shapes=shapes)
    for n in b.steps(12):
        for m in range(4):
            b.run_op("aten::mm", host_us=us if 4 * n + m == at or (every and m == 2) else 1000, dims=[[8, 8]])
    return b


NOT_STALLED = [
    Valid("an operator takes long in each step", lambda: _stands_still(every=True, at=-1)),
    Valid("the first of its like takes long", lambda: _stands_still(at=0)),
    Valid("an operator takes five times as long", lambda: _stands_still(5000)),
    Valid("an operator takes twelve times as long, which is a tenth of the run", lambda: _stands_still(5800, at=30), thresholds={"stalled_factor": 5.0}),
]  # fmt: skip
STALLED = [
    Invalid("an operator loses the processor once", _stands_still, message="aten::mm took 30 ms, similar calls 1 ms", severity="info", saving_us=2400, fixes=("nothing else runs",)),
    Invalid("the same without shapes", lambda: _stands_still(shapes=False), message="aten::mm took 30 ms", severity="info"),
]  # fmt: skip

RECORD_ALONE = advice(
    "Record again while nothing else runs",
    "# other programs on these cores: top, or nproc and the limits of the container; what swaps: free -m\n"
    "# more threads than cores: torch.set_num_threads(n), OMP_NUM_THREADS=n",
    "",
    "Record the same steps again: no operator takes ten times as long as similar calls",
)


def stalled_claim(ctx: Context, factor: float, least_ns: int, min_share: float) -> Claim | None:
    """All of them as one: those of `least_ns` and more that took `factor` times as long as nine in ten of their like, where
    that is at least `min_share` of the step."""
    operators = ctx.get(StalledOperators)
    stalled = operators.longer(factor, least_ns) if operators else []
    spans = spans_of(intervals((s.start, s.end) for s in stalled))
    least = max(min_share * ctx[HostGaps].length, 1)
    if operators is None or sum(end - start for start, end in spans) < least:
        return None
    outcome = ctx[Replay].without(
        Removal(host_spans=tuple((operators.thread, start, end) for start, end in spans))
    )
    worst = max(stalled, key=lambda s: s.own_ns)
    more = f" So did {len(stalled) - 1} more." if len(stalled) > 1 else ""
    return Claim(
        message=(
            f"{worst.name} took {two_figures(worst.took_ns / 1e3)}, similar calls {two_figures(worst.usual_ns / 1e3)}: it was "
            f"likely preempted.{more}"
        ),
        confidence="low",
        severity="info",
        saving=outcome.saving(),
        location=location(None, ts_us=ctx[Moments].ts_us(worst.start)),
        spans=ctx[Moments].longest(spans, "longer than similar calls"),
        fixes=[RECORD_ALONE],
        owned=spans,
        key="operators that stand still",
    )
