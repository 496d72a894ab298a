"""What a result shows of a job: the excess of each rank in each step, and the lag of its process groups."""

from __future__ import annotations

from math import ceil
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.distributed.blame.columns import END, F64, KINDS
from trace_doctor.evidence.distributed.blame.model import JobModel, StepModel
from trace_doctor.evidence.distributed.blame.verdicts import Blame, apart_from_batch
from trace_doctor.model.jobs import (
    MOST_GROUPS,
    MOST_NAMED,
    MOST_ROWS,
    MOST_STEPS,
    ExcessRow,
    GroupLag,
    JobDelays,
    JobRoot,
)

LEAST_ROWS = 64
"""fewer groups than that tell too little of where"""
MOST_UNREAD = 200
"""ranks to list that were not read"""


def delays(job: JobModel, found: Blame, world: int) -> JobDelays:
    """What a result shows of it. `world`: ranks of the job."""
    excess = excess_of(job, apart_from_batch(job) if found.batches else job.excess)
    most = np.nanmax(np.where(np.isnan(excess), -np.inf, excess), axis=1, initial=-np.inf)
    chosen = np.sort(np.argsort(-most, kind="stable")[:MOST_STEPS])
    read = set(job.job.ranks)
    unread = sorted({rank for group in job.job.groups for rank in group} - read)
    lags = group_lags(job)
    return JobDelays(
        world=world,
        read=len(read),
        unread=unread[:MOST_UNREAD],
        roots=_roots(job, found),
        gain_us=float(found.gain_ns) / 1e3,
        step_us=float(found.step_ns) / 1e3,
        slowdown=float(found.slowdown),
        slowdown_own=float(found.slowdown_own),
        slowdown_transfer=float(found.slowdown_transfer),
        unknown_clocks=len(found.unknown_clocks),
        steps=[job.steps[n].index for n in chosen.tolist()],
        of_steps=len(job.steps),
        rows=_rows(job, excess[chosen]),
        usual=_usual(job, found, excess),
        groups=lags[:MOST_GROUPS],
        of_groups=len(lags),
    )


def excess_of(job: JobModel, excess: F64) -> F64:
    """Steps × ranks: the excess, ns; not a number where a rank lacks the step or is alone in its role in it."""
    present = {step.index: step.present for step in job.job.steps}
    shown = np.full(excess.shape, np.nan)
    for n, step in enumerate(job.steps):
        have = present[step.index]
        others = np.bincount(job.role[have], minlength=int(job.role.max()) + 1)[job.role]
        told = have & (others > 1)
        shown[n][told] = excess[n][told]
    return shown


def _roots(job: JobModel, found: Blame) -> list[JobRoot]:
    read = set(job.job.ranks)
    own = [
        JobRoot(kind=root.kind, ranks=list(root.ranks), gain_us=float(root.gain_ns) / 1e3, steps=root.steps, cause=root.cause)
        for root in found.roots
    ]  # fmt: skip
    links = []
    for link in found.links:
        ranks = sorted({rank for n in link.groups for rank in job.job.groups[n]} & read)
        links.append(
            JobRoot(kind=link.kind, ranks=ranks, unread=list(link.unread), gain_us=float(link.gain_ns) / 1e3, steps=link.steps)
        )  # fmt: skip
    return own + links


def _rows(job: JobModel, excess: F64) -> list[ExcessRow]:
    """`excess`: of the steps to show."""
    rows, hosts = [], job.job.hosts
    for members in _together(job):
        own = excess[:, members]
        known = np.where(np.isnan(own), -np.inf, own)
        largest = known.max(axis=1)
        rows.append(
            ExcessRow(
                ranks=[job.job.ranks[n] for n in members],
                worst=job.job.ranks[members[int(known.max(axis=0).argmax())]],
                host=hosts[members[0]] if hosts and len({hosts[n] for n in members}) == 1 else "",
                excess_us=[round(value / 1e3) if np.isfinite(value) else None for value in largest.tolist()],
            )
        )
    return rows


def _together(job: JobModel) -> list[list[int]]:
    """The ranks of each row, by position: one; of too many ranks those of a host, else those of a process group of neighbors,
    which do the same, else neighbors."""
    ranks = job.job.ranks
    order = sorted(range(len(ranks)), key=lambda n: ranks[n])
    if len(ranks) <= MOST_ROWS:
        return [[n] for n in order]
    of_host: dict[str, list[int]] = {}
    for n in order if job.job.hosts else ():
        of_host.setdefault(job.job.hosts[n], []).append(n)
    if LEAST_ROWS <= len(of_host) <= MOST_ROWS:
        return list(of_host.values())
    position = {rank: n for n, rank in enumerate(ranks)}
    by_size: dict[int, dict[tuple[int, ...], None]] = {}
    for group in job.job.groups:
        if 1 < len(group) == group[-1] - group[0] + 1:
            by_size.setdefault(len(group), {})[group] = None
    for _, groups in sorted(by_size.items()):
        members = [[position[rank] for rank in group if rank in position] for group in groups]
        members = [each for each in members if each]
        if LEAST_ROWS <= len(members) <= MOST_ROWS and sorted(n for each in members for n in each) == sorted(
            order
        ):
            return members
    size = ceil(len(order) / MOST_ROWS)
    return [order[n : n + size] for n in range(0, len(order), size)]


def _usual(job: JobModel, found: Blame, excess: F64) -> list[int]:
    """The two ranks of the role of the first root whose excess is nearest to none."""
    if not found.roots:
        return []
    late = {rank for root in found.roots for rank in root.ranks}
    first = job.job.ranks.index(found.roots[0].ranks[0])
    away = np.abs(np.where(np.isnan(excess), np.inf, excess)).mean(axis=0)
    others = [n for n in np.flatnonzero(job.role == job.role[first]).tolist() if job.job.ranks[n] not in late]
    others = [n for n in others if np.isfinite(away[n])]
    return sorted(job.job.ranks[n] for n in sorted(others, key=lambda n: (away[n], job.job.ranks[n]))[:2])


class _Lags(Struct):
    """Sums over the steps. Arrays of groups; ns."""

    wait: F64
    """of all ranks"""
    count: I64
    """collectives"""
    transfer: F64
    usual: F64
    whole: Bool
    """whether all ranks were read of each collective"""
    kinds: list[set[int]]
    caused: dict[tuple[int, int], tuple[float, int]]
    """group and rank that arrived last -> what the others waited for it, in how many collectives"""

    @classmethod
    def none(cls, groups: int) -> Self:
        """Before the first step."""
        wait, transfer, usual = (np.zeros(groups) for _ in range(3))
        kinds: list[set[int]] = [set() for _ in range(groups)]
        whole = np.ones(groups, dtype=bool)
        return cls(wait, np.zeros(groups, dtype=np.int64), transfer, usual, whole, kinds, {})


def group_lags(job: JobModel) -> list[GroupLag]:
    """All process groups that were used, those that lag most first: by the wait of a rank and what transfers take beyond the usual."""
    sums = _Lags.none(len(job.job.groups))
    for step in job.steps:
        _add(sums, step, job)
    last: dict[int, tuple[float, int, int]] = {}
    for (group, rank), (ns, times) in sums.caused.items():
        if ns > 0:
            last[group] = max(last.get(group, (0.0, 0, 0)), (ns, -rank, times))
    position = {rank: n for n, rank in enumerate(job.job.ranks)}
    lags = []
    for n in np.flatnonzero(sums.count).tolist():
        members = [position[rank] for rank in job.job.groups[n] if rank in position]
        sure = bool(sums.whole[n] and job.clocks.known[members].all()) and len(members) > 1
        wait = float(sums.wait[n]) / max(len(members), 1)
        beyond = max(float(sums.transfer[n] - sums.usual[n]), 0.0)
        _, rank, times = last.get(n, (0.0, 0, 0)) if sure else (0.0, 0, 0)
        lag = GroupLag(
            ranks=list(job.job.groups[n][:MOST_NAMED]),
            size=int(job.job.members[n]),
            read=len(members),
            kinds=[KINDS[kind] for kind in sorted(sums.kinds[n])],
            wait_us=wait / len(job.steps) / 1e3 if sure else None,
            transfer=float(sums.transfer[n] / sums.usual[n]) if sure and sums.usual[n] else None,
            last=job.job.ranks[-rank] if times else None,
            last_in=times,
            collectives=int(sums.count[n]),
        )
        lags.append((wait + beyond if sure else -1.0, lag))
    return [lag for _, lag in sorted(lags, key=lambda each: -each[0])]


def _add(sums: _Lags, step: StepModel, job: JobModel) -> None:
    rows, nodes, ranks = step.rows, step.nodes, len(job.job.ranks)
    arrival = rows.start + job.clocks.add[rows.rank]
    wait = np.maximum(nodes.arrival[nodes.of] - arrival, 0).astype(np.float64)
    waited = np.bincount(nodes.of, weights=wait, minlength=nodes.count)
    latest = np.zeros(nodes.count, dtype=np.int64)
    at_last = np.flatnonzero(arrival == nodes.arrival[nodes.of])
    latest[nodes.of[at_last]] = rows.rank[at_last]
    used = np.flatnonzero((nodes.group >= 0) & (nodes.kind != END))
    group = nodes.group[used]
    np.add.at(sums.wait, group, waited[used])
    np.add.at(sums.count, group, 1)
    np.add.at(sums.transfer, group, step.transfer[used])
    np.add.at(sums.usual, group, step.usual_transfer[used])
    sums.whole[group[~nodes.whole[used]]] = False
    for n, kind in set(zip(group.tolist(), nodes.kind[used].tolist(), strict=True)):
        sums.kinds[n].add(kind)
    keys, of = np.unique(group * ranks + latest[used], return_inverse=True)
    caused = np.bincount(of, weights=waited[used]).tolist()
    for key, ns, times in zip(keys.tolist(), caused, np.bincount(of).tolist(), strict=True):
        before, often = sums.caused.get(divmod(key, ranks), (0.0, 0))
        sums.caused[divmod(key, ranks)] = (before + ns, often + times)
