"""Which ranks are late, and how far their waits lie from those of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from trace_doctor import Cell, Table, Unit
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor_rules._shared import table
from trace_doctor_rules.comms._straggler_evidence import lateness

TWO_VALUES = 7.0
"""the spread of two values is itself uncertain: their mean must be so many times as many standard errors away as that of
many values to be as sure (Student's t of one degree of freedom: 14 for 2)"""


def late_ranks(ranked_collectives: RankedCollectives, min_caused: float) -> list[int]:
    """Positions of the ranks that wait least and together cause enough of the waiting: up to half of all ranks, cut
    where the waits rise most. Empty where no such half does."""
    order = np.argsort(ranked_collectives.wait_ns, kind="stable")
    half = len(order) // 2
    caused = np.array(ranked_collectives.caused_ns)
    enough = caused[order[:half]].cumsum() >= min_caused * caused.sum()
    if not enough.any() or not caused.any():
        return []
    rises = np.diff(np.array(ranked_collectives.wait_ns)[order[: half + 1]])
    return sorted(order[: int(np.where(enough, rises, -1).argmax()) + 1].tolist())


def standard_errors(ranked_collectives: RankedCollectives, late: list[int], others: list[int]) -> float:
    """How far the wait of the others is above that of the stragglers: its mean over its standard error. With two steps either they
    or the collectives may show it: where ranks meet often, they may be late to the same one of each step."""
    excess, when = [], []
    for match in ranked_collectives.matches:
        early = np.isin(match.members, others)
        if early.all() or not early.any():
            continue
        excess.append(match.wait[early].mean(axis=0) - match.wait[~early].mean(axis=0))
        when.append(match.end.max(axis=0))
    if not excess:
        return 0.0
    values, at = np.concatenate(excess), np.concatenate(when)
    borders = [s.done for s in ranked_collectives.members[late[0]][Steps].steady[:-1]]
    if not borders:
        return errors(values)
    steps = np.bincount(np.searchsorted(borders, at), weights=values, minlength=len(borders) + 1)
    return errors(steps) if len(borders) > 1 else max(errors(steps) / TWO_VALUES, errors(values))


def steps_late(ranked: RankedCollectives, late: list[int], others: list[int]) -> float:
    """The share of all waiting that lies in steps in which each straggler waits at most half as long as each other rank; of the
    straggler of which it is least. Small where another rank is last in each step."""
    borders = [s.done for s in ranked.members[late[0]][Steps].steady[:-1]]
    waits = np.zeros((len(ranked.ranks), len(borders) + 1), dtype=np.int64)
    for match in ranked.matches:
        step = np.searchsorted(borders, match.end.max(axis=0))
        for member, wait in zip(match.members.tolist(), match.wait, strict=True):
            np.add.at(waits[member], step, wait)
    is_late = 2 * waits[late] <= waits[others].min(axis=0)
    return float((is_late * waits.sum(axis=0)).sum(axis=1).min() / max(waits.sum(), 1))


def errors(values: npt.NDArray[np.number]) -> float:
    """Mean over its standard error."""
    if len(values) < 2:
        return 0.0
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()) / error if error else float("inf")


def waits_table(ranked: RankedCollectives, alone: Mapping[int, float]) -> Table:
    """`alone`: the stragglers (positions), and the wait that ends with each of them alone."""
    late, caused = lateness(ranked), ranked.caused_ns
    everything = max(sum(caused), 1)
    worst_first = sorted(range(len(caused)), key=lambda i: (i not in alone, -caused[i]))
    columns: dict[str, tuple[Unit, Sequence[Cell]]] = {
        "rank": ("count", ranked.ranks),
        "wait": ("us", [ns / 1e3 for ns in ranked.wait_ns]),
        "of it before the first step": (
            "us",
            [ns / 1e3 for ns in late.before_ns] if any(late.before_ns) else (),
        ),
        "transfer": ("us", [ns / 1e3 for ns in ranked.transfer_ns]),
        "wait or transfer": ("us", [ns / 1e3 for ns in ranked.untold_ns] if any(ranked.untold_ns) else ()),
        "share of wait caused": ("share", [ns / everything for ns in caused]),
        "last to": ("count", [rank.last_to for rank in late.ranks]),
        "by up to": ("us", [rank.longest_ns / 1e3 for rank in late.ranks]),
        "straggler": ("text", ["yes" if i in alone else "" for i in range(len(caused))] if alone else ()),
        "waited for it alone": (
            "us",
            [alone[i] / 1e3 if i in alone else None for i in range(len(caused))] if alone else (),
        ),
    }
    shown = {name: column for name, column in columns.items() if column[1]}
    return table(
        "Exposed collectives per steady step and rank",
        {name: unit for name, (unit, _) in shown.items()},
        [[cells[i] for _, cells in shown.values()] for i in worst_first],
    )


def the_others(count: int) -> str:
    """The subject of what they wait."""
    return "The other waits" if count == 1 else "Each of the others waits at least"


def best_alone(collectives: RankedCollectives, alone: Mapping[int, float]) -> str:
    """What the straggler saves that saves most alone, where others stay late."""
    if len(alone) < 2:
        return ""
    best = max(alone, key=lambda i: alone[i])
    if milliseconds(alone[best] / 1e3) == milliseconds(0):
        return ", of it nothing for one of them alone"
    return f", of it {milliseconds(alone[best] / 1e3)} for rank {collectives.ranks[best]} alone"
