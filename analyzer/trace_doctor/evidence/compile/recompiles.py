"""Compilation that happened while the trace was recorded, with the id of the code it made."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64
from trace_doctor.evidence.compile.compile_regions import Region, Regions
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame

_TIMED = re.compile(r"(.+) \(dynamo_timed\)")
# no compilation: recording a CUDA graph, and what Dynamo runs beside a compilation
_NOT_COMPILING = re.compile(r"CUDAGraphNode\.record|gc|.*cudagraph.*", re.IGNORECASE)
_COMPILE_ID = re.compile(r"\bcompile_id=(!?\d+/[\d/]+)")
# as torch 2.0 to 2.4 call it, and since
_OF_A_FRAME = re.compile(r"(?:_compile\.(?:<locals>\.)?)?compile_inner|_compile|entire_frame_compile|dynamo")


class Compilation(Struct, frozen=True):
    """One outermost stretch of compiling on one thread."""

    row: int
    thread: int
    start: int
    end: int
    what: str
    """the event, e.g. `_compile.compile_inner` or `backward._backward_impl`"""
    compile_id: str | None
    """`frame/recompile` of the code it makes; None where nothing says"""
    frame: Frame | None
    """the function compiled; `line` is its first"""
    changed: tuple[str, ...]
    """why the code at hand did not fit: PyTorch's own words (TORCH_TRACE), or input shapes that differ"""
    same_shapes: bool = False
    """shapes were recorded, and the inputs have those of the run before: something else changed"""

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.start

    @property
    def of_frame(self) -> bool:
        """Dynamo compiles a function (not the backward of one, nor a Triton kernel)."""
        return _OF_A_FRAME.fullmatch(self.what) is not None

    @property
    def recompile_id(self) -> int | None:
        """0 for the first compilation of a function, then 1, 2 …"""
        tail = (self.compile_id or "").rsplit("/", 1)[-1]
        return int(tail) if tail.isdigit() else None

    @property
    def frame_id(self) -> str | None:
        """The number of the function, the same for all its compilations; None where it is not known."""
        return self.compile_id.rsplit("/", 1)[0] if self.compile_id else None


def find_compilations(
    run: Run,
    nesting: Nesting,
    regions: Regions,
    logged_frames: Mapping[str, Frame],
    logged_reasons: Mapping[str, Sequence[str]],
) -> tuple[Compilation, ...]:
    """All outermost `… (dynamo_timed)` events, by start."""
    rows = nesting.outermost(run.named(_is_compiling, Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.OTHER))
    ids = _compile_ids(run, rows, regions)
    shapes = _InputShapes(run, nesting, regions)
    compilations = []
    for row in rows.tolist():
        match = _TIMED.fullmatch(run.text(row))
        assert match is not None
        compile_id = ids.get(row)
        region = shapes.first_run(compile_id, int(run.end[row])) if compile_id else None
        reasons = tuple(logged_reasons.get(compile_id or "", ()))
        unexplained = region if _OF_A_FRAME.fullmatch(match.group(1)) and not reasons else None
        inputs = shapes.compared(unexplained) if unexplained else None
        compilations.append(
            Compilation(
                row=row,
                thread=int(run.thread[row]),
                start=int(run.ts[row]),
                end=int(run.end[row]),
                what=match.group(1),
                compile_id=compile_id,
                frame=region.frame if region and region.frame else logged_frames.get(compile_id or ""),
                changed=reasons or inputs or (),
                same_shapes=inputs == (),
            )
        )
    return tuple(compilations)


def _is_compiling(name: str) -> bool:
    match = _TIMED.fullmatch(name)
    return match is not None and _NOT_COMPILING.fullmatch(match.group(1)) is None


def _compile_ids(run: Run, rows: I64, regions: Regions) -> dict[int, str]:
    """Row -> compile id: from the `…_data: compile_id=` annotation before or inside, else from the code run next."""
    data = run.named(lambda n: _COMPILE_ID.search(n) is not None)
    said_on = {int(t): data[run.thread[data] == t] for t in np.unique(run.thread[data])}
    run_on = _ByStart(regions, lambda r: r.thread if r.compile_id else None)
    by_row: dict[int, str] = {}
    behind: dict[int, int] = {}  # thread -> end of the compilation before
    for row in rows.tolist():
        thread, start, end = int(run.thread[row]), int(run.ts[row]), int(run.end[row])
        said_here = said_on.get(thread, data[:0])
        first, last = np.searchsorted(run.ts[said_here], [behind.get(thread, 0), end])
        near = said_here[first:last]
        behind[thread] = end
        if len(near):
            at = int(np.searchsorted(run.ts[near], start, side="right")) - 1
            match = _COMPILE_ID.search(run.text(int(near[max(at, 0)])))
            assert match is not None
            by_row[row] = match.group(1)
        elif _OF_A_FRAME.fullmatch(run.text(row).removesuffix(" (dynamo_timed)")):
            region = run_on.from_(thread, end)
            if region is not None and region.compile_id is not None:
                by_row[row] = region.compile_id
    return by_row


class _ByStart:
    """Regions that share a key (None has none), by start."""

    def __init__(self, regions: Regions, key: Callable[[Region], Hashable]) -> None:
        self._of: dict[Hashable, list[Region]] = {}
        for region in sorted(regions.all, key=lambda r: r.start):
            if (mark := key(region)) is not None:
                self._of.setdefault(mark, []).append(region)

    def from_(self, key: Hashable, moment: int) -> Region | None:
        """The first that starts at a moment (ns) or later."""
        some = self._of.get(key, [])
        at = bisect_left(some, moment, key=lambda r: r.start)
        return some[at] if at < len(some) else None

    def over_by(self, key: Hashable, moment: int) -> Region | None:
        """The last to start of those that have ended by a moment (ns)."""
        some = self._of.get(key, [])
        begun = bisect_right(some, moment, key=lambda r: r.start)
        return next((r for r in reversed(some[:begun]) if r.end <= moment), None)


class _InputShapes:
    """Shapes of a compiled function's inputs, where `record_shapes` put them on its first operator."""

    def __init__(self, run: Run, nesting: Nesting, regions: Regions) -> None:
        self._run, self._nesting = run, nesting
        self._by_code = _ByStart(regions, lambda r: r.compile_id)
        self._by_function = _ByStart(regions, lambda r: r.frame_id)

    def first_run(self, compile_id: str, behind: int) -> Region | None:
        """The first run of this code that starts after a moment (ns)."""
        return self._by_code.from_(compile_id, behind)

    def compared(self, region: Region) -> tuple[str, ...] | None:
        """How the inputs differ from those of the run before of the same function; None where nothing says."""
        before = self._by_function.over_by(region.frame_id, region.start)
        if before is None:
            return None
        old, new = self._inputs(before), self._inputs(region)
        if not old or len(old) != len(new):
            return None
        pairs = dict.fromkeys((was, now) for was, now in zip(old, new, strict=True) if was != now)
        return tuple(f"input of shape {was} became {now}" for was, now in pairs)

    def _inputs(self, region: Region) -> list[str]:
        rows = self._nesting.thread_rows(region.thread)
        first, behind = np.searchsorted(self._run.ts[rows], [region.start, region.end])
        inside = rows[first:behind]
        operators = inside[self._run.cat[inside] == Cat.CPU_OP]
        called = [r for r in operators.tolist() if self._run.text(r).startswith("CompiledFunction")][:1]
        for arguments in self._run.args(called):
            dims = arguments.get("Input Dims")
            return list(map(str, dims)) if isinstance(dims, list) else []
        return []
