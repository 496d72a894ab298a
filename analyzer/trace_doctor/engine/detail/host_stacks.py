"""The host's time by Python stack, as a tree that a page can draw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model.detail import Frame, HostStacks
from trace_doctor.run import Cat

_DEEPEST = 120
"""Levels of the tree: a stack of a million frames is no picture, and no JSON"""
OTHER = "other"


class _Node:
    __slots__ = ("children", "ns")

    def __init__(self) -> None:
        self.ns = 0
        self.children: dict[int, _Node] = {}


def host_stacks_of(facts: Facts, most: int) -> HostStacks | None:
    """Of the main thread, at most `most` frames: the longest, the others of each caller added up. None without Python
    stacks."""
    threads, steps = facts.get(Threads), facts.get(Steps)
    if threads is None or steps is None:
        return None
    run, nesting, (first, last) = facts.run, facts[Nesting], steps.window
    rows = nesting.thread_rows(threads.main)
    rows = rows[run.cat[rows] == Cat.PYTHON]
    ns = np.minimum(run.end[rows], last) - np.maximum(run.ts[rows], first)
    rows, ns = rows[ns > 0], ns[ns > 0]
    if not len(rows):
        return None
    python = np.zeros(len(run), dtype=bool)
    python[rows] = True
    above = nesting.around(nesting.parent[rows], python)
    root, count = _Node(), 0
    nodes: dict[int, tuple[_Node, int]] = {-1: (root, 0)}
    for row, caller, own in zip(rows.tolist(), above.tolist(), ns.tolist(), strict=True):
        parent, depth = nodes[caller]
        if depth >= _DEEPEST:  # its time is its caller's
            nodes[row] = parent, depth
            continue
        name = int(run.name[row])
        if (node := parent.children.get(name)) is None:
            node = parent.children[name] = _Node()
            count += 1
        node.ns += own
        nodes[row] = node, depth + 1
    root.ns = sum(node.ns for node in root.children.values())
    least = _least(root, most)
    tree = _frame("all", root, run.names, least)
    return HostStacks(root=tree, shown=sum(1 for _ in _all(tree)) - 1, of=count)


def _least(root: _Node, most: int) -> int:
    """The time from which a frame is kept, so that no more than `most` are, "other" included."""
    times, waiting = [], list(root.children.values())
    while waiting:
        node = waiting.pop()
        times.append(node.ns)
        waiting += node.children.values()
    times.sort(reverse=True)
    kept = max(1, most // 2)  # each of them may have others below it
    return times[kept] + 1 if len(times) > kept else 0


def _frame(name: str, node: _Node, names: list[str], least: int) -> Frame:
    kept = sorted(
        ((child.ns, names[n], child) for n, child in node.children.items() if child.ns >= least),
        key=lambda one: (-one[0], one[1]),
    )
    children = [_frame(text, child, names, least) for _, text, child in kept]
    if rest := sum(child.ns for child in node.children.values() if child.ns < least):
        children.append(Frame(name=OTHER, value=rest / 1e3))
    return Frame(name=name, value=node.ns / 1e3, children=children)


def _all(frame: Frame) -> Iterator[Frame]:
    yield frame
    for child in frame.children:
        yield from _all(child)
