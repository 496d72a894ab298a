"""Who is to blame: ranks and hosts, else links, ranks that were not read, stages and batches."""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.distributed.blame.columns import F64
from trace_doctor.evidence.distributed.blame.model import JobModel, Timing, beyond_role

MOST_ROOTS = 6
OF_HOST = 0.7
"""share of the gain of a host from which on one of its ranks is the root"""
OF_USUAL = 0.5
"""part of its mean excess from which on a root counts in a step"""


class DelayLimits(Struct, frozen=True):
    """What ranks, hosts and links have to exceed. TD602 has them as thresholds, with their sources."""

    min_gain: float = 0.02
    """share of the step that all roots together must gain"""
    min_errors: float = 2.0
    """excess of a root over its standard error over the steps"""
    min_spreads: float = 5.0
    """excess in a step, over the spread of the role, from which on a rank is slow in it"""
    min_link: float = 0.03
    """share of the step that usual transfers must gain"""


class WorkLimits(Struct, frozen=True):
    """What stages and batches have to exceed. TD606 has them as thresholds, with their sources."""

    min_stage: float = 1.10
    """own time of a role over that of the median role"""
    min_deviation: float = 0.01
    """standard deviation of the own time of a rank over the steps, as a share of it"""
    min_correlation: float = 0.5
    """of these deviations within the ranks that share a batch"""


DELAY, WORK = DelayLimits(), WorkLimits()

Kind = Literal["rank", "host", "link", "unread member"]


class Root(Struct, frozen=True):
    """A rank or host whose own time delays the job."""

    kind: Kind
    ranks: tuple[int, ...]
    """numbers"""
    gain_ns: float
    """of a mean step, by this one on top of all others"""
    steps: int
    """in how many steps it is slow"""
    cause: str
    """the part of its time breakdown that exceeds its role's most; empty where none does"""
    errors: float
    """excess over its standard error over the steps; 0 of one step"""


class Link(Struct, frozen=True):
    """Process groups whose transfers take longer than those of other groups: one, or those of a rank that was not read."""

    kind: Kind
    groups: tuple[int, ...]
    gain_ns: float
    """of a mean step, with usual transfers in these groups alone"""
    steps: int
    """in how many the critical path shows it"""
    unread: tuple[int, ...] = ()
    """ranks of it that were not read: they may be late, or the transfer slow"""


class Stage(Struct, frozen=True):
    """Ranks of one role that have more own time than those of other roles."""

    ranks: tuple[int, ...]
    times: float
    """own time over that of the median role"""


class Batches(Struct, frozen=True):
    """Own time varies from step to step, alike on ranks that work on the same samples."""

    deviation: float
    """standard deviation of the own time of a rank over the steps, as a share of it"""
    correlation: float


class Blame(Struct, frozen=True):
    """The verdict over a job."""

    step_ns: float
    """mean step of the re-timed job"""
    steps: int
    roots: tuple[Root, ...]
    gain_ns: float
    """of a mean step, all roots together"""
    links: tuple[Link, ...]
    stage: Stage | None
    batches: Batches | None
    slowdown: float
    """step over that with usual own times and transfers (S)"""
    slowdown_own: float
    """the same with usual own times alone (S_own)"""
    slowdown_transfer: float
    """the same with usual transfers alone (S_transfer)"""
    unknown_clocks: tuple[int, ...]
    """ranks whose clock is not known"""


def blame(job: JobModel, delay: DelayLimits = DELAY, work: WorkLimits = WORK) -> Blame:
    """The verdict."""
    first, count = job.timing(), len(job.steps)
    uneven = batches(job, work)
    found, gain = roots(job, first, delay, apart_from_batch(job) if uneven else None)
    if gain <= 3 * job.clocks.residual:
        found, gain = [], 0.0
    return Blame(
        step_ns=first.total / count,
        steps=count,
        roots=tuple(found),
        gain_ns=gain,
        links=tuple(links(job, first, delay.min_link)) if not found else (),
        stage=stage(job, work.min_stage),
        batches=uneven,
        slowdown=first.total / max(job.total(own=True, transfer=True), 1),
        slowdown_own=first.total / max(job.total(own=True), 1),
        slowdown_transfer=first.total / max(job.total(transfer=True), 1),
        unknown_clocks=tuple(np.array(job.job.ranks)[~job.clocks.known].tolist()),
    )


def roots(
    job: JobModel, first: Timing, limits: DelayLimits, apart: F64 | None = None
) -> tuple[list[Root], float]:
    """Ranks and hosts with most excess on the critical path, one after another; and what all together gain of a step, ns. The excess
    on the path is no cost: with it gone, another path may be nearly as long. Two ranks that are slow alike gain only together.
    `apart`: steps × ranks, the excess beyond that of a rank's batch, ns, where batches are uneven: a rank that is no slower than its
    role gains more than that, for it has a shorter batch then."""
    excess = job.excess if apart is None else apart
    count, total = len(job.steps), first.total
    most = np.full(excess.shape[1], total) if apart is None else np.maximum(excess.sum(axis=0), 0)
    mended: list[int] = []
    refused = set(np.flatnonzero(most < limits.min_gain / 2 * total).tolist())
    accepted: Accepted = []
    timing = first
    for _ in range(2 * MOST_ROOTS):
        if len(accepted) == MOST_ROOTS:
            break
        candidate = _candidate(job, timing, mended, refused)
        if candidate is None:
            break
        kind, ranks, after = _rank_or_host(job, candidate, mended, timing.total)
        if not any(is_slow(job, rank, limits, excess) for rank in ranks):
            refused.add(candidate)
            continue
        accepted.append((kind, ranks, (timing.total - after) / count))
        mended += ranks
        timing = job.timing(mended)
    accepted = _needed(job, accepted, limits.min_gain / 2 * total)
    mended = [rank for _, ranks, _ in accepted for rank in ranks]
    gain = min(total - job.total(mended), float(most[mended].sum())) / count
    if not accepted or gain * count < limits.min_gain * total:
        return [], 0.0
    numbers = job.job.ranks
    return [
        Root(
            kind, tuple(numbers[rank] for rank in ranks), min(alone, float(most[list(ranks)].sum()) / count),
            _slow_steps(excess, ranks), _cause(job, ranks), standard_errors(excess[:, list(ranks)].sum(axis=1)),
        )
        for kind, ranks, alone in accepted
    ], gain  # fmt: skip


Accepted = list[tuple[Kind, tuple[int, ...], float]]


def _needed(job: JobModel, accepted: Accepted, least: float) -> Accepted:
    """Without those that add less than `least` ns to the gain of the others, and with what each adds to it, ns of a mean step."""
    while accepted:
        every = [rank for _, ranks, _ in accepted for rank in ranks]
        mended = job.total(every)
        parts = [
            job.total([rank for rank in every if rank not in ranks]) - mended for _, ranks, _ in accepted
        ]
        fewest = int(np.argmin(parts))
        if parts[fewest] >= least or len(accepted) == 1:
            return [
                (kind, ranks, part / len(job.steps))
                for (kind, ranks, _), part in zip(accepted, parts, strict=True)
            ]
        accepted = accepted[:fewest] + accepted[fewest + 1 :]
    return []


def _candidate(job: JobModel, timing: Timing, mended: list[int], refused: set[int]) -> int | None:
    excess = timing.rank_excess.sum(axis=0)
    excess[[*mended, *refused]] = 0
    rank = int(excess.argmax())
    return rank if excess[rank] > 0.001 * timing.total else None


def _rank_or_host(
    job: JobModel, rank: int, mended: list[int], total: float
) -> tuple[Kind, tuple[int, ...], float]:
    alone = job.total([*mended, rank])
    hosts = job.job.hosts
    of_host = (
        [n for n, host in enumerate(hosts) if host == hosts[rank] and n not in mended] if hosts else [rank]
    )
    if len(of_host) < 2 or len(set(hosts)) < 2:
        return "rank", (rank,), alone
    together = job.total([*mended, *of_host])
    if total - alone >= OF_HOST * (total - together):
        return "rank", (rank,), alone
    return "host", tuple(of_host), together


def standard_errors(values: F64) -> float:
    """Mean over its standard error; 0 of one value."""
    if len(values) < 2:
        return 0.0
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    return float(values.mean()) / error if error else float("inf") * float(np.sign(values.mean()) or 0)


def is_slow(job: JobModel, rank: int, limits: DelayLimits, excess: F64) -> bool:
    """Whether its excess is more than chance: in every step, or far beyond its role in two of them. Of one step, beyond its role in it."""
    far = _far_from_role(job, rank, excess, limits.min_spreads)
    if len(excess) < 3:
        return bool(far.all())
    return standard_errors(excess[:, rank]) >= limits.min_errors or bool(far.sum() >= 2)


def _far_from_role(job: JobModel, rank: int, excess: F64, spreads: float) -> np.ndarray:
    """Per step whether the rank is further from its role than the others of it by far."""
    others = np.flatnonzero((job.role == job.role[rank]) & (np.arange(len(job.role)) != rank))
    spread = 1.4826 * np.median(np.abs(excess[:, others]), axis=1) if len(others) > 1 else np.inf
    least = 0.01 * job.own.max(axis=1)
    return np.asarray(excess[:, rank] >= np.maximum(spreads * spread, least))


def apart_from_batch(job: JobModel) -> F64:
    """The excess of each rank as if all batches were as long: what those who share a batch have in common is no fault of one of them.
    How long a batch is, the others that share it show."""
    apart = job.excess - job.excess.mean(axis=0)
    groups = max(_sharing(job), key=lambda each: _correlation(apart, each), default=[])
    usual = job.own - job.excess
    share = np.where((job.own > 0) & (usual > 0), job.own / np.maximum(usual, 1), 1)
    length = np.ones_like(share)
    for members in groups:
        for rank in members.tolist():
            length[:, rank] = np.median(share[:, members[members != rank]], axis=1)
    return beyond_role(job.own / length, job.own > 0, job.role)


def _slow_steps(excess: F64, ranks: tuple[int, ...]) -> int:
    own = excess[:, list(ranks)].sum(axis=1)
    return int((own >= OF_USUAL * max(own.mean(), 0)).sum())


def _cause(job: JobModel, ranks: tuple[int, ...]) -> str:
    """By the excess of the step time breakdown over that of the role."""
    chosen = {step.index for step in job.steps}
    parts = np.sum([step.parts for step in job.job.steps if step.index in chosen], axis=0)
    others = np.flatnonzero(
        (job.role == job.role[ranks[0]]) & ~np.isin(np.arange(len(job.role)), np.array(ranks))
    )
    if not len(others) or not len(job.job.parts):
        return ""
    more = parts[list(ranks)].mean(axis=0) - np.median(parts[others], axis=0)
    return job.job.parts[int(more.argmax())] if more.max() > 0 else ""


def links(job: JobModel, timing: Timing, min_gain: float) -> list[Link]:
    """Groups with transfers of more than usual length on the critical path, in two steps at least. Groups of ranks that were not
    read stand for these ranks. `min_gain`: share of the step."""
    count, read = len(job.steps), set(job.job.ranks)
    least = min_gain * timing.total / count
    suspects: dict[tuple[int, ...], list[int]] = {}
    for n, group in enumerate(job.job.groups):
        unread = tuple(rank for rank in group if rank not in read)
        suspects.setdefault(unread or (-1 - n,), []).append(n)
    found = []
    for who, groups in suspects.items():
        excess = timing.group_excess[:, groups].sum(axis=1)
        often = int((excess >= least).sum())
        if excess.mean() < least or often < min(2, count):
            continue
        gain = (timing.total - job.total(groups=groups)) / count
        if gain >= least:
            found.append(
                Link(
                    "unread member" if who[0] >= 0 else "link",
                    tuple(groups),
                    gain,
                    often,
                    who if who[0] >= 0 else (),
                )
            )
    return sorted(found, key=lambda link: -link.gain_ns)


def stage(job: JobModel, times: float) -> Stage | None:
    """The role with most own time, where that is more than so many times that of the median role."""
    names, of = np.unique(job.role, return_inverse=True)
    if len(names) < 2:
        return None
    own = job.own.mean(axis=0)
    usual = np.array([np.median(own[of == n]) for n in range(len(names))])
    worst, middle = int(usual.argmax()), float(np.median(usual)) if len(usual) > 2 else float(usual.min())
    if usual[worst] <= times * middle:
        return None
    return Stage(tuple(np.array(job.job.ranks)[of == worst].tolist()), float(usual[worst]) / middle)


def batches(job: JobModel, limits: WorkLimits) -> Batches | None:
    """Deviations of own time from that of the role, step by step: alike within a group that shares its samples?"""
    if len(job.steps) < 2:
        return None
    own = job.own
    usual = own.mean(axis=0)
    apart = job.excess - job.excess.mean(axis=0)
    deviation = float(np.median(apart.std(axis=0, ddof=1) / np.maximum(usual, 1)))
    if deviation < limits.min_deviation:
        return None
    correlation = max((_correlation(apart, group) for group in _sharing(job)), default=0.0)
    return Batches(deviation, correlation) if correlation >= limits.min_correlation else None


def _sharing(job: JobModel) -> list[list[I64]]:
    """The groups of ranks by how many ranks they have: those with one number are of one kind of parallelism."""
    position = {number: n for n, number in enumerate(job.job.ranks)}
    by_size: dict[tuple[int, int], list[I64]] = {}
    for group in dict.fromkeys(job.job.groups):
        members = [position[rank] for rank in group if rank in position]
        if 1 < len(members) < len(position):
            apart = group[1] - group[0]
            by_size.setdefault((len(group), apart), []).append(np.array(members, dtype=np.int64))
    return list(by_size.values())


def _correlation(apart: F64, groups: list[I64]) -> float:
    """Mean product of the deviations of two ranks of one group over the mean square."""
    products, squares = 0.0, 0.0
    for members in groups:
        values = apart[:, members]
        square = (values**2).sum()
        products += float((values.sum(axis=1) ** 2).sum() - square)
        squares += float(square) * (len(members) - 1)
    return products / squares if squares else 0.0
