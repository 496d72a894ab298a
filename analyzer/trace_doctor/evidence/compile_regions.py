"""`Torch-Compiled Region` events as a forest, each with the function that it runs.

A graph break nests: the rest of the function is compiled as a frame of its own and is called from inside the first
region (`0/0 ⊃ 1/0`), because a region spans the rewritten function. Separately compiled functions and regional blocks
are siblings, whatever their ids say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from trace_doctor.evidence.frames import Frame, python_frame
from trace_doctor.run import I64, Cat, Run

_REGION = re.compile(r"Torch-Compiled Region(?:: (\S+)/(\d+))?")
RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


@dataclass(frozen=True, slots=True)
class Region:
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
        return None if self.frame_id is None else f"{self.frame_id}/{self.recompile_id}"

    @property
    def resumes(self) -> Frame | None:
        """Where it goes on after a graph break: the broken function and the line; None if it is no continuation."""
        return resumed_at(self.frame)


@dataclass(frozen=True)
class Regions:
    all: tuple[Region, ...]
    """by thread, then start, outer before inner"""
    children: tuple[tuple[int, ...], ...]
    """aligned with `all`, by start"""

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(i for i, r in enumerate(self.all) if r.parent < 0)

    def below(self, at: int) -> list[int]:
        """The regions inside this one, itself not included."""
        found: list[int] = []
        open_ = list(self.children[at])
        while open_:
            found.append(open_.pop())
            open_ += self.children[found[-1]]
        return sorted(found)

    def named(self, logged: Mapping[str, Frame]) -> Regions:
        """With the functions of a log where the trace has no stacks, by compile id."""
        named = (r if r.frame else replace(r, frame=logged.get(r.compile_id or "")) for r in self.all)
        return Regions(tuple(named), self.children)


def resumed_at(frame: Frame | None) -> Frame | None:
    """The broken function and line that a continuation's name tells; None if the frame is no continuation."""
    found = RESUME.fullmatch(frame.function) if frame else None
    return Frame(frame.file, int(found.group(2)), found.group(1)) if found and frame else None


def is_region(name: str) -> bool:
    return _REGION.fullmatch(name) is not None


def read_regions(run: Run) -> Regions:
    """The regions of a trace."""
    rows = run.named(is_region, Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.OTHER)
    rows = rows[np.argsort(run.thread[rows], kind="stable")]
    frame_in = _own_frame(run, rows)
    made: list[Region] = []
    children: list[list[int]] = []
    open_: list[int] = []
    for row in rows.tolist():
        start, end, thread = int(run.ts[row]), int(run.end[row]), int(run.thread[row])
        while open_ and (made[open_[-1]].thread != thread or made[open_[-1]].end <= start):
            open_.pop()
        found = _REGION.fullmatch(run.text(row))
        assert found is not None
        parent = open_[-1] if open_ else -1
        region = Region(
            row=row,
            thread=thread,
            start=start,
            end=end,
            frame_id=found.group(1),
            recompile_id=int(found.group(2)) if found.group(2) else None,
            parent=parent,
            depth=made[parent].depth + 1 if open_ else 0,
            frame=frame_in(row),
        )
        if parent >= 0:
            children[parent].append(len(made))
        open_.append(len(made))
        made.append(region)
        children.append([])
    return Regions(tuple(made), tuple(tuple(c) for c in children))


def _own_frame(run: Run, rows: I64) -> Callable[[int], Frame | None]:
    """Looks up the Python function of a region: the first Python event that starts in it, if it fills most of it."""
    python = np.flatnonzero(run.is_cat(Cat.PYTHON))
    if not len(python) or not len(rows):
        return lambda row: None
    python = python[np.isin(run.thread[python], np.unique(run.thread[rows]))]
    by_thread = {int(t): python[run.thread[python] == t] for t in np.unique(run.thread[rows])}
    starts = {t: run.ts[some] for t, some in by_thread.items()}

    def frame(row: int) -> Frame | None:
        some = by_thread[int(run.thread[row])]
        at = int(np.searchsorted(starts[int(run.thread[row])], run.ts[row]))
        if at == len(some) or 2 * int(run.dur[some[at]]) < int(run.dur[row]):
            return None
        first = int(some[at])
        return python_frame(run.text(first)) if run.ts[first] < run.end[row] else None

    return frame
