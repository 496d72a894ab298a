"""Blame from traces: the columns of each rank, and the verdict over a job of several process groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.blame.columns import KINDS, JobColumns, StepColumns, rows_of
from trace_doctor.evidence.distributed.blame.delays import delays
from trace_doctor.evidence.distributed.blame.hosts import hosts_of
from trace_doctor.evidence.distributed.blame.model import enough_ranks, model
from trace_doctor.evidence.distributed.blame.verdicts import (
    DELAY,
    WORK,
    Blame,
    DelayLimits,
    WorkLimits,
    blame,
)
from trace_doctor.evidence.distributed.collectives import Collectives, kind_of
from trace_doctor.evidence.distributed.ranks import PARTS
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import clip, covered, holds, pairs, total, union
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.rank_summary import JobEvidence, Limits, RankSummary
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import IDLE_CAUSES, JobDelays

UNRECORDED = "unattributed"
"""the cause of idle time for which nothing recorded tells one"""
_NAMED = {"send": "send", "recv": "receive", "broadcast": "broadcast"}


class StepCollectives(Evidence, frozen=True):
    """The collectives in the steady steps of one rank. Raises NotCaptured where `Collectives` or `IdleLedger` does."""

    groups: tuple[str, ...]
    """process groups, as recorded"""
    named: tuple[tuple[int, ...], ...]
    """the ranks of each, empty where the file does not name all"""
    sizes: tuple[int, ...]
    """how many ranks each has; 0: not recorded"""
    columns: I64
    """rows × (position of the step, group, kind, sequence number, start, end, size, own time before, during, computes at its end), as
    `columns.Rows`"""
    steps: I64
    """steps × (index, begin, end, own time), ns"""
    parts: I64
    """steps × PARTS of `Ranks`, ns"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        collectives, spans = facts[Collectives], _steps(facts[Steps])
        compute, copies, idle, cause = _own(facts)
        caused = idle[cause != IDLE_CAUSES.index(UNRECORDED)]
        own = union(np.concatenate([compute, copies, caused]))
        arguments = facts.run.args(collectives.rows)
        found = [_described(key, args) for key, args in zip(collectives.keys, arguments, strict=True)]
        groups = list(dict.fromkeys(text for text, _, _ in found))
        sizes = dict.fromkeys(groups, 0)
        for (text, _, ranks), size in zip(found, collectives.group_size.tolist(), strict=True):
            sizes[text] = max(sizes[text], len(ranks) or size)
        named = {text: ranks for text, _, ranks in found}
        start, end = collectives.start, collectives.end
        begins = np.array([begin for _, begin, _ in spans], dtype=np.int64)
        ends = np.array([stop for _, _, stop in spans], dtype=np.int64)
        step = np.searchsorted(begins, start, side="right") - 1
        inside = (step >= 0) & (start < ends[np.maximum(step, 0)]) & ~collectives.set_up
        begin = begins[np.maximum(step, 0)]
        place = {text: n for n, text in enumerate(groups)}
        columns = np.stack(
            [
                step,
                np.array([place[text] for text, _, _ in found], dtype=np.int64),
                np.array([kind for _, kind, _ in found], dtype=np.int64),
                collectives.sequence,
                start,
                end,
                collectives.elements,
                covered(pairs(begin, np.maximum(start, begin)), own),
                covered(pairs(start, end), own),
                holds(compute, end),
            ],
            axis=1,
        )[inside]
        causes = range(len(IDLE_CAUSES))
        return cls(
            groups=tuple(groups),
            named=tuple(named[text] for text in groups),
            sizes=tuple(sizes[text] for text in groups),
            columns=columns.astype(np.int64),
            steps=np.array([(n, a, b, total(clip(own, a, b))) for n, a, b in spans], dtype=np.int64),
            parts=np.array(
                [
                    [total(clip(part, a, b)) for part in (compute, copies, *(idle[cause == n] for n in causes))]
                    for _, a, b in spans
                ],
                dtype=np.int64,
            ),
        )  # fmt: skip


def _steps(steps: Steps) -> list[tuple[int, int, int]]:
    """(index, begin, end) of the steady steps, as the device sees them."""
    low, high = steps.window
    spans = [(s.index, max(s.begun, low), min(s.done, high)) for s in steps.steady]
    return [span for span in spans if span[2] > span[1]] or [(0, low, high)]


def _own(facts: Facts) -> tuple[I64, I64, I64, np.ndarray]:
    """(compute, copies, idle pieces, their causes) of the device that works most."""
    parts = exposed(facts)
    device = max(parts, key=lambda each: total(parts[each][0]))
    ledger = facts[IdleLedger]
    rows = ledger.device == device
    return parts[device][0], parts[device][2], pairs(ledger.start[rows], ledger.end[rows]), ledger.cause[rows]


def _described(key: tuple[str, str], args: dict[str, Any]) -> tuple[str, int, tuple[int, ...]]:
    """(process group, kind, its ranks) of a collective. Two ranks that send and receive are a group of their own."""
    name, group = key
    called = str(args.get("Collective name", "")).lower()
    kind = _NAMED.get(called) or kind_of(called.replace("_", "") or name)
    if kind not in KINDS and not called:
        kind = kind_of(name)
    number = KINDS.index(kind) if kind in KINDS else KINDS.index("other")
    ends = count(args, "Src Rank"), count(args, "Dst Rank")
    if kind in ("send", "receive") and ends[0] is not None and ends[1] is not None:
        return f"{ends[0]} to {ends[1]}", number, (ends[0], ends[1])
    return group, number, _ranks(args.get("Process Group Ranks"))


def _ranks(text: Any) -> tuple[int, ...]:
    """The ranks of a list as the profiler writes it; empty where it is cut off."""
    try:
        ranks = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return ()
    if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return ()
    return tuple(sorted(ranks))


class JobBlame(JobEvidence, frozen=True):
    """Who costs a job of several process groups how much of its step. Raises NotCaptured for a job whose ranks all meet in one group:
    there the others wait for whom comes last."""

    of_each = (StepCollectives,)

    verdict: Blame
    groups: tuple[tuple[int, ...], ...]
    """the ranks of the process groups"""
    ranks: tuple[int, ...]
    """that were read"""
    world: int
    """ranks of the job"""
    delays: JobDelays
    """what the result shows of it"""

    @property
    def delayed(self) -> bool:
        """Whether somebody is to blame."""
        return bool(self.verdict.roots or self.verdict.links)

    @classmethod
    def build_with(cls, ranks: Sequence[RankSummary], limits: Limits) -> Self:
        """By `DelayLimits` and `WorkLimits`."""
        members = [m for m in ranks if m.get(StepCollectives) is not None]
        if len(members) < 2:
            raise NotCaptured("the collectives of one rank only", "record all ranks of the job")
        job = _job(members)
        if not has_several_groups(job):
            raise NotCaptured("all ranks meet in one process group", None)
        if not any(enough_ranks(step.present) for step in job.steps):
            raise NotCaptured("no step of enough ranks", "record the same steps on every rank")
        world = max(job.world, *(m.world or 0 for m in members))
        made = model(job)
        delay, work = limits.get(DelayLimits, DELAY), limits.get(WorkLimits, WORK)
        assert isinstance(delay, DelayLimits) and isinstance(work, WorkLimits)
        verdict = blame(made, delay, work)
        return cls(verdict, job.groups, job.ranks, world, delays(made, verdict, world))


def has_several_groups(job: JobColumns) -> bool:
    """Whether ranks meet in groups that are not of all of them."""
    read = set(job.ranks)
    together = {frozenset(read & set(group)) for group in job.groups}
    together = {group for group in together if len(group) > 1}
    return len(together) > 1


class _Groups(Struct):
    """The process groups of all ranks: those of one name and of the same ranks are one."""

    place: dict[tuple[str, tuple[int, ...]], int]
    users: list[set[int]]
    sizes: list[int]


def _job(members: Sequence[RankSummary]) -> JobColumns:
    known = _Groups({}, [], [])
    indexes: dict[int, list[tuple[int, int]]] = {}
    own_groups: list[I64] = []
    for position, member in enumerate(members):
        own = member[StepCollectives]
        own_groups.append(_numbers(own, member.rank, known))
        for n, index in enumerate(own.steps[:, 0].tolist()):
            indexes.setdefault(index, []).append((position, n))
    groups = [
        ranks or tuple(sorted(users)) for (_, ranks), users in zip(known.place, known.users, strict=True)
    ]
    steps = [_step(index, members, own_groups, at) for index, at in sorted(indexes.items())]
    hosts = hosts_of([m.path for m in members])
    return JobColumns(steps, tuple(m.rank for m in members), tuple(groups), PARTS, hosts, tuple(known.sizes))


def _numbers(own: StepCollectives, rank: int, known: _Groups) -> I64:
    numbers = []
    for text, ranks, size in zip(own.groups, own.named, own.sizes, strict=True):
        n = known.place.setdefault((text, ranks), len(known.users))
        if n == len(known.users):
            known.users.append(set())
            known.sizes.append(0)
        known.users[n].add(rank)
        known.sizes[n] = max(known.sizes[n], size)
        numbers.append(n)
    return np.array(numbers, dtype=np.int64)


def _step(
    index: int, members: Sequence[RankSummary], groups: Sequence[I64], at: Sequence[tuple[int, int]]
) -> StepColumns:
    """`at`: positions of the ranks that have the step, and its place in each."""
    present: Bool = np.zeros(len(members), dtype=bool)
    of_rank = np.zeros((len(members), 4), dtype=np.int64)
    parts = np.zeros((len(members), len(PARTS)))
    tables = [np.zeros((0, 10), dtype=np.int64)]
    for position, n in at:
        own = members[position][StepCollectives]
        present[position], of_rank[position], parts[position] = True, own.steps[n], own.parts[n]
        table = own.columns[own.columns[:, 0] == n]
        rank = np.full(len(table), position)
        tables.append(np.column_stack([rank, groups[position][table[:, 1]], table[:, 2:]]))
    table = np.concatenate(tables)
    rows = rows_of(table)
    return StepColumns(index, rows, present, of_rank[:, 1], of_rank[:, 2], of_rank[:, 3], parts)
