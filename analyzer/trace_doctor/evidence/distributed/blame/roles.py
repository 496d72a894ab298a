"""Which ranks do the same work, and how long it takes them and their transfers as a rule."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.distributed.blame.columns import END, F64, RECEIVE, SEND, Rows, classes, medians
from trace_doctor.evidence.distributed.blame.gates import Gates
from trace_doctor.evidence.distributed.blame.nodes import Nodes

FIRST = 4
"""kinds of collectives by which ranks of one group show that they do the same"""


def roles(rows: Rows, groups: tuple[tuple[int, ...], ...], numbers: tuple[int, ...]) -> I64:
    """Per rank the number of its role: ranks that groups join, if these are neither of all ranks nor point to point, and their
    members begin with the same kinds of collectives. `numbers`: of the ranks that were read."""
    position = {number: n for n, number in enumerate(numbers)}
    everyone = {number for group in groups for number in group}
    first = _first_kinds(rows, len(numbers))
    point = set(rows.group[(rows.kind == SEND) | (rows.kind == RECEIVE)].tolist())
    role = list(range(len(numbers)))

    def root(rank: int) -> int:
        while role[rank] != rank:
            role[rank] = rank = role[role[rank]]
        return rank

    joined = False
    for n in np.unique(rows.group[rows.group >= 0]).tolist():
        members = [position[number] for number in groups[n] if number in position]
        if n in point or len(groups[n]) >= len(everyone) or len(members) < 2:
            continue
        if len({first[member] for member in members if first[member]}) == 1:
            joined = True
            for member in members[1:]:
                role[root(member)] = root(members[0])
    if not joined:
        return np.array(classes(*np.array([[hash(f) % (1 << 30) for f in first]], dtype=np.int64))[0])
    return np.array([root(rank) for rank in range(len(numbers))], dtype=np.int64)


def _first_kinds(rows: Rows, ranks: int) -> list[tuple[int, ...]]:
    kinds: list[tuple[int, ...]] = [()] * ranks
    borders = np.searchsorted(rows.rank, np.arange(ranks + 1))
    for rank in range(ranks):
        own = rows.kind[borders[rank] : min(borders[rank] + FIRST, borders[rank + 1])]
        kinds[rank] = tuple(own[own != END].tolist())
    return kinds


class Own(Struct, frozen=True):
    """Own time between a gate and a row, by row, ns."""

    after: F64
    """that the end of the gate must come before"""
    since: F64
    """from the begin of the gate on this rank"""


def own_times(rows: Rows, gate: Gates, role: I64) -> tuple[Own, Own]:
    """As recorded, and as usual: the median of the role at the same place."""
    of, count = classes(role[rows.rank], gate.place)
    return Own(gate.after.astype(np.float64), gate.since.astype(np.float64)), Own(
        medians(gate.after, of, count)[of], medians(gate.since, of, count)[of]
    )


def usual_transfer(found: Nodes, members: I64) -> F64:
    """Of each node the median transfer of those of its kind, bytes and number of ranks, ns. What was read of in part says
    nothing: its last rank may be one that was not read."""
    size = np.append(members, 1)[found.group]
    of, count = classes(found.kind, found.size, size)
    whole = np.flatnonzero(found.whole)
    usual = medians(found.transfer[whole], of[whole], count)
    have = np.bincount(of[whole], minlength=count) > 0
    return np.asarray(np.where(have[of], usual[of], found.transfer))
