"""What rules about inference engines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from trace_doctor import Confidence, NotCaptured, Saving
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps
from trace_doctor.evidence.trace.steps import Steps

_LONGER = "record the server for some hundred steps under load"
FEW = 3
"""so many steps of a kind and more show a habit"""


class Cost(NamedTuple):
    """Idle time of the steady steps, in all their time."""

    us_per_step: float
    share: float

    def saving(self, how: str) -> Saving:
        """As a bound: what takes its place still takes time."""
        return Saving(time_us_per_step=self.us_per_step, share_of_step=self.share, basis="bound", how=how)


def cost(us: float, steps: Steps) -> Cost:
    """`us`: in all steady steps together."""
    per_step = us / steps.count
    return Cost(per_step, min(per_step * 1e3 / max(steps.step_ns, 1), 1.0))


def idle_of(engine: EngineSteps, some: Sequence[EngineStep]) -> float:
    """us in which the device idles in these steps and in those right after them, whose begin they delay: a change of what the host does
    in them cannot save more, while the device does the same work."""
    mine = engine.mask(some)
    mine[1:] |= mine[:-1].copy()
    idle = np.array([step.step.pace - step.busy_ns for step in engine.steps], dtype=np.int64)
    return float(idle[mine].clip(0).sum()) / 1e3


def decodes_of(engine: EngineSteps) -> tuple[EngineStep, ...]:
    """The decode steps. Raises NotCaptured where none was captured."""
    decodes = engine.of("decode")
    if not decodes:
        raise NotCaptured("no decode step in the trace", _LONGER)
    return decodes


def must_show_a_habit(steps: Sequence[EngineStep], kind: str = "decode step") -> None:
    """Raises NotCaptured where so few steps of a kind were captured that finding nothing says nothing."""
    if len(steps) < FEW:
        raise NotCaptured(f"only {len(steps)} {kind}{'s' if len(steps) != 1 else ''} in the trace", _LONGER)


def confidence(steps: int, engine: EngineSteps) -> Confidence:
    """With stacks the host takes longer than without; few steps may be chance."""
    return "low" if steps < FEW else "medium" if engine.stacks else "high"
