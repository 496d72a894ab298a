"""`Torch-Compiled Region` events as a forest, each with the function that it runs.

A graph break nests: the rest of the function is compiled as a frame of its own and is called from inside the first
region (`0/0 ⊃ 1/0`), because a region spans the rewritten function. Separately compiled functions and regional blocks
are siblings, whatever their ids say. What a running graph calls (a custom operator whose body is compiled, say) is no piece
of the function around it, and stands by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import I64
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, python_frame

CALLS = ("CompiledFunction", "## Call CompiledFxGraph", "CompiledFxGraph")
_REGION = re.compile(r"Torch-Compiled Region(?:: (\S+)/(\d{1,9}))?")
RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d{1,9})")


class Region(Struct, frozen=True, array_like=True):
    """One run of compiled code. `parent` and `children` are positions in the list of regions."""

    row: int
    thread: int
    start: int
    end: int
    frame_id: str | None
    """Dynamo's number of the function; None before torch 2.5"""
    recompile_id: int | None
    parent: int
    depth: int
    frame: Frame | None
    """the function it runs, from the Python event inside or a TORCH_TRACE log"""

    @property
    def compile_id(self) -> str | None:
        """`0/1`, as logs of torch write it; None where the name has no number."""
        return None if self.frame_id is None else f"{self.frame_id}/{self.recompile_id}"

    @property
    def resumes(self) -> Frame | None:
        """Where it goes on after a graph break: the broken function and the line; None if it is no continuation."""
        return resumed_at(self.frame)


class Regions(Struct, frozen=True, array_like=True):
    all: tuple[Region, ...]
    """by thread, then start, outer before inner"""
    children: tuple[tuple[int, ...], ...]
    """aligned with `all`, by start"""

    @property
    def roots(self) -> tuple[int, ...]:
        """Indices of the regions that lie in no other."""
        return tuple(i for i, r in enumerate(self.all) if r.parent < 0)

    def below(self, at: int) -> list[int]:
        """The regions inside this one, itself not included."""
        inner: list[int] = []
        open_ = list(self.children[at])
        while open_:
            inner.append(open_.pop())
            open_ += self.children[inner[-1]]
        return sorted(inner)

    def named(self, logged: Mapping[str, Frame]) -> Regions:
        """With the functions of a log where the trace has no stacks, by compile id."""
        named = (r if r.frame else replace(r, frame=logged.get(r.compile_id or "")) for r in self.all)
        return Regions(tuple(named), self.children)


@lru_cache(maxsize=4096)
def resumed_at(frame: Frame | None) -> Frame | None:
    """The broken function and line that a continuation's name tells; None if the frame is no continuation."""
    match = RESUME.fullmatch(frame.function) if frame else None
    return Frame(frame.file, int(match.group(2)), match.group(1)) if match and frame else None


def is_region(name: str) -> bool:
    """Whether an event of this name is a call of compiled code."""
    return _REGION.fullmatch(name) is not None


def read_regions(run: Run, nesting: Nesting) -> Regions:
    """The regions of a trace."""
    rows = run.named(is_region, Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.OTHER)
    rows = rows[np.argsort(run.thread[rows], kind="stable")]
    ids = {int(n): _ids(run.names[n]) for n in np.unique(run.name[rows])}
    regions: list[Region] = []
    children: list[list[int]] = []
    open_: list[int] = []
    in_graph = _Between(run, nesting)
    for row, thread, start, end, name, first in zip(
        rows.tolist(),
        run.thread[rows].tolist(),
        run.ts[rows].tolist(),
        run.end[rows].tolist(),
        run.name[rows].tolist(),
        _own_functions(run, rows).tolist(),
        strict=True,
    ):
        while open_ and (regions[open_[-1]].thread != thread or regions[open_[-1]].end <= start):
            open_.pop()
        parent = open_[-1] if open_ and not in_graph(row, regions[open_[-1]].row) else -1
        region = Region(
            row=row,
            thread=thread,
            start=start,
            end=end,
            frame_id=ids[name][0],
            recompile_id=ids[name][1],
            parent=parent,
            depth=regions[parent].depth + 1 if parent >= 0 else 0,
            frame=python_frame(run.names[first]) if first >= 0 else None,
        )
        if parent >= 0:
            children[parent].append(len(regions))
        open_.append(len(regions))
        regions.append(region)
        children.append([])
    return Regions(tuple(regions), tuple(tuple(c) for c in children))


class _Between:
    """Whether a running graph or an operator lies between an event and one around it."""

    def __init__(self, run: Run, nesting: Nesting) -> None:
        self._graph = run.is_named(lambda n: n.startswith(CALLS)) & ~run.is_cat(Cat.PYTHON)
        self._graph |= run.is_named(lambda n: "::" in n) & run.is_cat(Cat.CPU_OP)
        self._parent = nesting.parent

    def __call__(self, row: int, outer: int) -> bool:
        above = int(self._parent[row])
        while above >= 0 and above != outer:
            if self._graph[above]:
                return True
            above = int(self._parent[above])
        return False


def _ids(name: str) -> tuple[str | None, int | None]:
    """Numbers of the function and of its compilation."""
    match = _REGION.fullmatch(name)
    assert match is not None
    return match.group(1), int(match.group(2)) if match.group(2) else None


def _own_functions(run: Run, rows: I64) -> I64:
    """The name of each region's Python function: of the first Python event that starts in it, if that fills most of
    it; else -1."""
    python = np.flatnonzero(run.is_cat(Cat.PYTHON))
    begun = np.searchsorted(run.ts, run.ts[rows])
    functions = np.full(len(rows), -1, dtype=np.int64)
    for thread in np.unique(run.thread[rows]) if len(python) else ():
        here, some = np.flatnonzero(run.thread[rows] == thread), python[run.thread[python] == thread]
        at = np.searchsorted(some, begun[here])
        here, first = here[at < len(some)], some[at[at < len(some)]]
        own = (run.ts[first] < run.end[rows[here]]) & (2 * run.dur[first] >= run.dur[rows[here]])
        functions[here[own]] = run.name[first[own]]
    return functions
