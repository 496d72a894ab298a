"""The all-gathers by which FSDP brings parameters together."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Byte": 1, "Char": 1, "Float8_e4m3fn": 1}


class Gathers(Evidence, frozen=True):
    """Raises NotCaptured without FSDP or without collectives on the GPU."""

    steps: int
    """number of steady steps"""
    per_step: float
    """median number that a step launches"""
    ns: int
    """of all that the steady steps launch"""
    bytes: int | None
    """gathered by the largest one; None where the file does not say"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        if not facts[Parallelism].fsdp:
            raise NotCaptured("no FSDP in the trace")
        run, own, steps = facts.run, facts[Collectives], facts[Steps]
        is_gather = np.array([kind_of(name) == "all-gather" for name, _ in own.keys])
        rows = own.rows[is_gather & (run.cat[own.rows] == Cat.KERNEL)]
        step = steps.steady_at(facts[Launches].launched_at(rows))
        rows = rows[step >= 0]
        sizes = [size for args in run.args(rows) if (size := _bytes(args)) is not None]
        return cls(
            steps=steps.count,
            per_step=float(np.median(np.bincount(step[step >= 0], minlength=steps.count))),
            ns=int(run.dur[rows].sum()),
            bytes=max(sizes, default=None),
        )


def _bytes(args: dict[str, Any]) -> int | None:
    elements, width = count(args, "Out msg nelems"), _BYTES.get(str(args.get("dtype", "")))
    return elements * width if elements is not None and width else None
