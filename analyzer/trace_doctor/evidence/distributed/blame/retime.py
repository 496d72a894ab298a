"""When everything would happen with other own times and transfers, and the path that decides how long it takes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.evidence.distributed.blame.columns import END, F64, Rows
from trace_doctor.evidence.distributed.blame.gates import Gates
from trace_doctor.evidence.distributed.blame.nodes import Nodes
from trace_doctor.evidence.distributed.blame.roles import Own


class Graph(Struct, frozen=True):
    """The nodes of a step in an order in which each comes after its gates. Rows are ordered by it."""

    rows: I64
    """rows by level and node"""
    first: I64
    """of each node in this order its first row; one more at the end"""
    nodes: I64
    levels: I64
    """borders of the levels in `nodes`"""
    gate: I64
    """of each of `rows` the node of its gate; nodes + rank: the begin of the rank's step"""
    second: I64
    row: I64
    """of each of `rows` its gate; rows + rank: the begin of the rank's step"""
    ends: I64
    """per rank: the node of the end of its step, -1 where it has none"""


def graph(rows: Rows, found: Nodes, gate: Gates, ranks: int) -> Graph:
    """`ranks`: how many there are."""
    begin = found.count + rows.rank
    first = np.where(gate.gate >= 0, found.of[gate.gate], begin)
    second = np.where(gate.second >= 0, found.of[gate.second], first)
    level = _levels(found, first, second)
    order = np.lexsort((np.arange(len(rows.rank)), found.of, level[found.of]))
    nodes = np.argsort(level, kind="stable")
    size = np.bincount(found.of, minlength=found.count)[nodes]
    ends = np.full(ranks, -1)
    of_rank = rows.kind == END
    ends[rows.rank[of_rank]] = found.of[of_rank]
    borders = np.searchsorted(level[nodes], np.arange(int(level.max(initial=0)) + 2))
    row = np.where(gate.gate >= 0, gate.gate, len(rows.rank) + rows.rank)
    return Graph(
        rows=order,
        first=np.append(0, np.cumsum(size)),
        nodes=nodes,
        levels=borders,
        gate=first[order],
        second=second[order],
        row=row[order],
        ends=ends,
    )


def _levels(found: Nodes, *gates: I64) -> I64:
    """Of each node how many come before it, one after another."""
    edges = [np.stack([gate, found.of])[:, gate < found.count] for gate in gates]
    before, after = np.unique(np.concatenate(edges, axis=1), axis=1) if len(edges) else ([], [])
    left = np.bincount(after, minlength=found.count)
    start = np.searchsorted(before, np.arange(found.count + 1))
    level = np.zeros(found.count, dtype=np.int64)
    now, depth = np.flatnonzero(left == 0), 0
    while len(now):
        level[now] = depth
        count = start[now + 1] - start[now]
        at = np.repeat(start[now] - np.cumsum(count) + count, count) + np.arange(count.sum())
        reached = after[at]
        np.subtract.at(left, reached, 1)
        reached = np.unique(reached)
        now, depth = reached[left[reached] == 0], depth + 1
    return level


class Times(Struct, frozen=True):
    """ns from the begin of the first rank's first step."""

    over: F64
    """when each node is over, then when each rank's step begins"""
    arrival: F64
    """when the rank of each row arrives, then when each rank's step begins"""


def retime(graph: Graph, own: Own, transfer: F64, begin: F64) -> Times:
    """A rank arrives its own time after its gate is over, and its own time after it arrived at the gate: compute may go on beside a
    collective. The collective is over when the last has arrived and the transfer is done. `begin`: by rank."""
    over = np.concatenate([np.zeros(len(transfer)), begin])
    arrival = np.concatenate([np.zeros(len(graph.rows)), begin])
    after, since = own.after[graph.rows], own.since[graph.rows]
    for low, high in zip(graph.levels[:-1].tolist(), graph.levels[1:].tolist(), strict=True):
        a, b = graph.first[low], graph.first[high]
        ready = np.maximum(over[graph.gate[a:b]], over[graph.second[a:b]]) + after[a:b]
        ready = np.maximum(ready, arrival[graph.row[a:b]] + since[a:b])
        arrival[graph.rows[a:b]] = ready
        nodes = graph.nodes[low:high]
        over[nodes] = np.maximum.reduceat(ready, graph.first[low:high] - a) + transfer[nodes]
    return Times(over, arrival)


def step_ends(graph: Graph, times: Times, begin: F64) -> F64:
    """Per rank when its step ends, ns; where it has none, when it began."""
    return np.asarray(np.where(graph.ends >= 0, times.over[graph.ends], begin))


class Path(Struct, frozen=True):
    """What decides when a rank's step ends, from there backwards."""

    rows: I64
    after: Bool
    """of each of the rows: whether it follows on the end of its gate, not on its begin"""
    nodes: I64
    rank: int
    """at the begin of whose step it starts"""


def path(graph: Graph, own: Own, times: Times, rank: int) -> Path:
    """The path that ends with this rank's step."""
    count = len(graph.rows)
    nodes = len(times.over) - (len(times.arrival) - count)
    place, at = np.empty(nodes, dtype=np.int64), np.empty(count, dtype=np.int64)
    place[graph.nodes], at[graph.rows] = np.arange(nodes), np.arange(count)
    rows: list[int] = []
    after: list[bool] = []
    passed: list[int] = []

    def last_of(node: int) -> int:
        members = graph.rows[graph.first[place[node]] : graph.first[place[node] + 1]]
        passed.append(node)
        return int(members[np.argmax(times.arrival[members])])

    row = last_of(int(graph.ends[rank]))
    while row < count:
        one, two = int(graph.gate[at[row]]), int(graph.second[at[row]])
        gate = one if times.over[one] >= times.over[two] else two
        on_end = times.over[gate] + own.after[row] >= times.arrival[row]
        rows.append(row)
        after.append(bool(on_end))
        begin = int(graph.row[at[row]])
        row = last_of(gate) if on_end and gate < nodes else begin
    return Path(np.array(rows), np.array(after), np.array(passed), row - count)
