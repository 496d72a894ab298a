"""Simulates the ranks of a job: who computes, meets and waits when. What a fault costs is the difference of two simulations.

A program is a list of operations per rank. Collectives run on streams of their own, in order; each begins on a rank when it is
launched and the stream is free, and ends on all when the last has begun and the transfer is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """`ns` of the rank's own time; `part`: compute, or why it idles."""

    ns: int
    part: str = "compute"


@dataclass(frozen=True)
class Communicate:
    """A collective: the ranks of `group` meet with the same `seq`. `wait`: the rank goes on only when it is over."""

    group: int
    kind: str
    seq: int
    transfer: int
    size: int
    wait: bool = True
    stream: int = 0


@dataclass(frozen=True)
class Await:
    """Goes on when a collective that was launched earlier is over."""

    group: int
    seq: int


@dataclass(frozen=True)
class Mark:
    """A step ends here."""


Operation = Work | Communicate | Await | Mark


@dataclass
class Timeline:
    """What one rank did, ns: all on the true clock."""

    work: list[tuple[int, int, str]] = field(default_factory=list)
    """start, end, part"""
    collectives: list[tuple[Communicate, int, int]] = field(default_factory=list)
    """with start and end"""
    steps: list[int] = field(default_factory=list)
    """when each ended"""
    begin: int = 0


class _Rank:
    def __init__(self, program: Sequence[Operation]) -> None:
        self.program, self.at, self.now = program, 0, 0
        self.waits_for: tuple[int, int] | None = None
        self.free: dict[int, int] = {}
        self.queue: dict[int, deque[tuple[Communicate, int]]] = {}
        self.timeline = Timeline()


def simulate(programs: Sequence[Sequence[Operation]], groups: Sequence[Sequence[int]]) -> list[Timeline]:
    """The timeline of each rank. `groups`: the ranks of each. Raises ValueError where ranks wait for one another forever."""
    ranks = [_Rank(program) for program in programs]
    arrivals: dict[tuple[int, int], dict[int, tuple[int, Communicate]]] = {}
    done: dict[tuple[int, int], int] = {}
    ready = deque(range(len(ranks)))

    def arrive(rank: int, what: Communicate, start: int) -> None:
        pending = [(rank, what, start)]
        while pending:
            r, op, at = pending.pop()
            key = op.group, op.seq
            came = arrivals.setdefault(key, {})
            came[r] = at, op
            if len(came) < len(groups[op.group]):
                continue
            end = max(began for began, _ in came.values()) + max(op.transfer, 1)
            done[key] = end
            for member, (began, own) in came.items():
                other = ranks[member]
                queue = other.queue[own.stream]
                queue.popleft()
                other.timeline.collectives.append((own, began, end))
                other.free[own.stream] = end
                if queue:
                    pending.append((member, queue[0][0], max(queue[0][1], end)))
                if other.waits_for == key:
                    other.waits_for, other.now = None, max(other.now, end)
                    ready.append(member)

    while ready:
        r = ready.popleft()
        rank = ranks[r]
        while rank.waits_for is None and rank.at < len(rank.program):
            op = rank.program[rank.at]
            rank.at += 1
            if isinstance(op, Work):
                if op.ns > 0:
                    rank.timeline.work.append((rank.now, rank.now + op.ns, op.part))
                    rank.now += op.ns
            elif isinstance(op, Mark):
                rank.timeline.steps.append(rank.now)
            elif isinstance(op, Await):
                _wait(rank, (op.group, op.seq), done)
            else:
                if op.wait:
                    rank.waits_for = op.group, op.seq
                queue = rank.queue.setdefault(op.stream, deque())
                queue.append((op, rank.now))
                if len(queue) == 1:
                    arrive(r, op, max(rank.now, rank.free.get(op.stream, 0)))
    if any(rank.at < len(rank.program) or rank.waits_for for rank in ranks):
        raise ValueError("ranks wait for one another")
    return [rank.timeline for rank in ranks]


def _wait(rank: _Rank, key: tuple[int, int], done: dict[tuple[int, int], int]) -> None:
    if key in done:
        rank.now = max(rank.now, done[key])
    else:
        rank.waits_for = key
