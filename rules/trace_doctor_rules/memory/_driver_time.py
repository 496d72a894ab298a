"""What the allocator's calls to the driver cost in the steady steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trace_doctor import Claim, Context, Saving, Span
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.memory.allocator import DriverCalls
from trace_doctor.evidence.replay.what_if import Removal, Replay
from trace_doctor.evidence.trace.spans import Moments


@dataclass(frozen=True)
class Cost:
    """What the driver calls cost in the steady steps of a trace; nothing without one."""

    saving: Saving | None = None
    removal: Removal | None = None
    spans: Sequence[Span] = ()
    owned: Sequence[tuple[int, int]] = ()

    def added_to(self, claim: Claim) -> Claim:
        """The claim with what the calls cost: a warning where no trace tells."""
        return replace(
            claim,
            severity=None if self.saving else "warning",
            saving=self.saving,
            spans=self.spans,
            removal=self.removal,
            owned=claim.owned or self.owned,
        )


def cost_of(ctx: Context, calls: DriverCalls | None) -> Cost:
    """By the replay of the steady steps without these calls."""
    replay, moments, idle = ctx.get(Replay), ctx.get(Moments), ctx.get(IdleLedger)
    if calls is None or replay is None:
        return Cost()
    steady = calls.within(*replay.window)
    if not len(steady):
        return Cost()
    removal = steady.removal()
    outcome = replay.without(removal)
    took = steady.end - steady.start
    per_step = float(took.sum()) / 1e3 / replay.count
    saving = Saving(
        time_us_per_step=outcome.saved_us_per_step,
        share_of_step=outcome.share_of_step,
        basis=outcome.basis,
        how=f"without {len(steady)} driver calls ({per_step:,.0f} µs per step); {outcome.how}",
    )
    longest = np.argsort(-took, kind="stable")[:20]
    return Cost(
        saving=saving,
        removal=removal,
        spans=[moments.span(int(steady.start[i]), int(steady.end[i]), steady.name[i]) for i in longest]
        if moments
        else [],
        owned=[(int(a), int(b)) for a, b in idle.pieces("allocator")] if idle is not None else [],
    )
