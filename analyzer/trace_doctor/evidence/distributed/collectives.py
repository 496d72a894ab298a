"""The collectives of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import (
    clip,
    holds,
    intersect,
    intervals,
    pairs,
    subtract,
    union,
)
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.names.event_names import is_collective_kernel, is_host_collective
from trace_doctor.evidence.rank_summary import RankSummary
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.run import Cat

FIRST_USE = 0.5
"""one collective that takes this much of all communication of the steady steps, and several times as long as any other, is
the set-up of a communicator, not a steady cost"""
SEVERAL = 3
GAP_NS = 100_000
"""a launch takes no longer: in more time between two collectives the rank waits for something of its own"""
_KINDS = {
    "dispatch": "expert dispatch",
    "combine": "expert combine",
    "crossdevice": "all-reduce",
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": "send and receive",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""part of a name, without underscores -> what people call the collective"""
Key = tuple[str, str]
"""name of the kernel or host event, process group where the file names it"""


class Collectives(Evidence, frozen=True):
    """GPU collectives of the capture, else those of gloo and MPI on the host. Raises NotCaptured where there is none."""

    rows: I64
    """by start"""
    keys: tuple[Key, ...]
    """aligned with `rows`: equal for collectives that can stand for one another"""
    sequence: I64
    """aligned with `rows`: the number that all ranks give to one collective, -1 where the file holds none"""
    elements: I64
    """aligned with `rows`: how many a rank puts in, -1 where the file holds none"""
    group_size: I64
    """aligned with `rows`: ranks of the process group, -1 where the file holds none"""
    start: I64
    end: I64
    alone: I64
    """when a collective ran in the window and no compute beside it: a set"""
    lasting: I64
    """the part of `alone` that comes back: in steady steps, without the set-up of a communicator"""
    set_up: Bool
    """aligned with `rows`: which sets up a communicator"""
    gaps: I64
    """when nothing ran in short gaps between collectives: a set"""
    compute: bool
    """whether the capture holds any compute that could run beside them: of a file cut down to collectives nobody knows"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        rows = run.named(is_collective_kernel, Cat.KERNEL)
        if not len(rows):
            rows = run.named(is_host_collective, Cat.CPU_OP, Cat.USER_ANNOTATION)
        rows = rows[run.dur[rows] > 0]
        if not len(rows):
            raise NotCaptured("no collective in the trace")
        arguments = run.args(rows)
        window, steady = facts[Steps].window, intervals(facts[Steps].on_device("steady"))
        start, end = run.ts[rows], run.end[rows]
        compute = union(np.concatenate([parts[0] for parts in exposed(facts).values()]))
        alone = subtract(clip(union(pairs(start, end)), *window), compute)
        set_up = _set_up(end - start, holds(steady, start))
        lasting = intersect(alone, steady)
        return cls(
            rows=rows,
            keys=tuple(
                (run.text(row), _group(args)) for row, args in zip(rows.tolist(), arguments, strict=True)
            ),
            sequence=_numbers(arguments, "Seq"),
            elements=_numbers(arguments, "In msg nelems"),
            group_size=_numbers(arguments, "Group size"),
            start=start,
            end=end,
            alone=alone,
            lasting=subtract(lasting, union(pairs(start[set_up], end[set_up]))),
            set_up=set_up,
            gaps=subtract(_gaps(union(pairs(start, end))), compute),
            compute=len(compute) > 0,
        )


def _gaps(collectives: I64) -> I64:
    gaps = pairs(collectives[:-1, 1], collectives[1:, 0])
    return gaps[gaps[:, 1] - gaps[:, 0] <= GAP_NS]


def _set_up(length: I64, steady: Bool) -> Bool:
    """Which of the collectives sets up a communicator: the longest of the steady steps, where it stands out."""
    setup = np.zeros(len(length), dtype=bool)
    if steady.sum() > 1:
        longest = int(np.argmax(np.where(steady, length, -1)))
        others = np.delete(length, longest)[np.delete(steady, longest)]
        setup[longest] = length[longest] >= max(FIRST_USE * length[steady].sum(), SEVERAL * others.max())
    return setup


def kind_of(name: str) -> str:
    """What people call it: `all-reduce`; the collective as recorded where its name does not say."""
    plain = name.replace("(anonymous namespace)", "").partition("(")[0].replace("_", "").lower()
    return next((word for part, word in _KINDS.items() if part in plain), "collectives")


def _group(args: dict[str, Any]) -> str:
    """Groups of one name have other ranks each, where every rank names its own alike."""
    return " ".join(str(args[name]) for name in ("Process Group Name", "Process Group Ranks") if name in args)


def _numbers(arguments: list[dict[str, Any]], name: str) -> I64:
    numbers = (count(args, name) for args in arguments)
    return np.array([-1 if number is None else number for number in numbers], dtype=np.int64)


def how_to_record_others(ranks: Sequence[RankSummary]) -> str | None:
    """For rules that compare ranks; None where the captures show a job of one process, which has no others."""
    unknown = (
        "Collectives" not in ranks[0].evidence if ranks else True
    )  # no rule that was chosen looked for them
    if len(ranks) == 1 and (ranks[0].world or 1) == 1 and not unknown and ranks[0].get(Collectives) is None:
        return None
    return "record the same steps on every rank and analyze the folder with all traces"
