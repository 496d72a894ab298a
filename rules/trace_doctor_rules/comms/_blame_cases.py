"""Jobs of several process groups: what `straggler` and `rank_imbalance` say of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules.comms._straggler_cases import all_reduce

EVEN = (0.0, 0.0, 0.0, 0.0, 0.0)
IN_TURN = (0.0, 200.0, -200.0, 300.0, -300.0)
_SHAPES = {
    "copies": ((0, 2), (1, 3)),
    "stages": ((0, 1, 2, 3),),
}
"""Whom a rank meets after its tensor-parallel group, (0, 1) or (2, 3)"""


def in_groups(
    *more_us: Sequence[float], transfer_us: float = 60.0, then: str = "copies"
) -> tuple[RunBuilder, ...]:
    """Four ranks that compute for 5 ms per step, each by so much more, one step after another. Then they meet in their tensor-parallel
    groups, whose transfers take 60 us, those of the first `transfer_us`. Then they meet in others: `then`."""
    ranks = tuple(RunBuilder(rank=r, world_size=4) for r in range(4))
    for n in range(5):
        with ExitStack() as step:
            for b, more in zip(ranks, more_us, strict=True):
                step.enter_context(b.step())
                b.loader(10)
                with b.op("aten::mm"):
                    b.launch(5000 + more[n])
            _meet(ranks, (0, 1), transfer_us, 1 << 20)
            _meet(ranks, (2, 3), 60.0, 1 << 20)
            for members in _SHAPES[then]:
                _meet(ranks, members, 200.0, 1 << 24)
            for b in ranks:
                b.sync()
    return ranks


def _meet(ranks: Sequence[RunBuilder], members: Sequence[int], us: float, elements: int) -> None:
    told: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Group size": len(members),
        "Process Group Name": str(members),
        "Process Group Ranks": str([*members]),
    }
    all_reduce([ranks[r] for r in members], us, **told)


DELAYS_VALID = [
    Valid("several groups: a rank that costs little", lambda: in_groups(EVEN, (60.0,) * 5, EVEN, EVEN)),
    Valid("several groups: a rank slow in one step", lambda: in_groups(EVEN, (0, 0, 900, 0, 0), EVEN, EVEN)),
    Valid(
        "several groups: another rank is slow in each step",
        lambda: in_groups(IN_TURN, IN_TURN[1:] + IN_TURN[:1], IN_TURN[2:] + IN_TURN[:2], IN_TURN[3:] + IN_TURN[:3]),
    ),
    Valid("several groups: transfers a little longer", lambda: in_groups(EVEN, EVEN, EVEN, EVEN, transfer_us=160.0)),
]  # fmt: skip
DELAYS_INVALID = [
    Invalid(
        "several groups: a rank that is slow",
        lambda: in_groups(EVEN, (500.0,) * 5, EVEN, EVEN),
        saving_us=500,
        message="Rank 1 delays all 4 ranks by 0.500 ms",
        confidence="medium",
    ),
    Invalid(
        "several groups: a slow link",
        lambda: in_groups(EVEN, EVEN, EVEN, EVEN, transfer_us=500.0),
        saving_us=440,
        message="for slow transfers between ranks 0 and 1",
    ),
]
WORK_VALID = [
    Valid("several groups: even", lambda: in_groups(EVEN, EVEN, EVEN, EVEN, then="stages")),
    Valid("a stage with a little more work", lambda: in_groups(EVEN, EVEN, (300.0,) * 5, (300.0,) * 5, then="stages")),
    Valid(
        "steps that vary little, alike on ranks that share a batch",
        lambda: in_groups(*((0.0, 40.0, 0.0, 40.0, 0.0),) * 2, EVEN, EVEN),
    ),
    Valid("ranks that vary on their own", lambda: in_groups(IN_TURN, IN_TURN[::-1], IN_TURN[1:] + IN_TURN[:1], EVEN)),
]  # fmt: skip
WORK_INVALID = [
    Invalid(
        "a stage with more work",
        lambda: in_groups(EVEN, EVEN, (1500.0,) * 5, (1500.0,) * 5, then="stages"),
        message="Ranks 2 and 3 have 1.30 times the work",
        severity="info",
    ),
    Invalid(
        "uneven batches",
        lambda: in_groups(IN_TURN, IN_TURN, EVEN, EVEN),
        message="alike on ranks that share a batch",
        severity="info",
    ),
]
