"""Python frames and input shapes of a detailed trace, laid into a light one of the same steps.

Recording stacks and shapes makes steps longer, unevenly: figures taken from such a trace blame the script for the
profiler. So a recording holds a light trace besides, which decides all times. Both show the same program: where the
operators of a step follow each other in the same order and nesting in both, each operator of the light trace has its
double in the detailed one, and everything that lay between two doubles there is laid between them here.

What has no double gets no frame of its own, only those that were open before and behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from trace_doctor.arrays import I32, I64
from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.names.event_names import step_number
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.args import ArgsReader
from trace_doctor.run import BORROWED, Cat, Run

LEAST = 0.5
"""Share of the operators in steps that must have a double: below, the traces do not show the same program."""
_DETAILS = ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs", "Call stack")
"""Arguments that tell of an operator's inputs and place, not of the moment."""


_RECORDER = re.compile(r"(?:.*/)?(?:trace_doctor/recording/|(?:sitecustomize|_trace_doctor_start)\.py\()")
"""frames that are not the program's"""


@dataclass(frozen=True)
class _Stretch:
    """The operators of one thread in one step, by start. `kinds`: numbers of their names, the same in both traces."""

    start: int
    end: int
    rows: I64
    kinds: I32


def lent(light: Run, detailed: Run) -> Run:
    """`light` with the frames of `detailed` and what its operators' arguments say of inputs; `light` itself where they
    do not show the same steps, or it has frames of its own."""
    ours, theirs = (Facts(Capture(r.rank, r)).get(Steps) for r in (light, detailed))
    if ours is None or theirs is None or light.is_cat(Cat.PYTHON).any():
        return light
    names = {name: number for number, name in enumerate(detailed.names)}
    translated = np.array([names.get(name, -1) for name in light.names], dtype=np.int32)
    program = detailed.is_cat(Cat.PYTHON) & ~detailed.is_named(lambda n: _RECORDER.match(n) is not None)
    pairs: list[_Pair] = []
    frames: list[_Frames] = []
    operators = 0
    for own_rows, other in _threads(light, detailed):
        models = list(_stretches(detailed, theirs, other, np.arange(len(detailed.names), dtype=np.int32)))
        stretches = list(_stretches(light, ours, own_rows, translated))
        python = np.flatnonzero(program & (detailed.thread == other))
        alike = [p for s in stretches if (p := _most_alike(s, models)) is not None]
        frames.append(_united([p.frames(light, detailed, python, own_rows) for p in alike]))
        pairs += alike
        operators += sum(len(s.rows) for s in stretches)
    matched = sum(p.head + p.tail for p in pairs)
    if not matched or matched < LEAST * operators:
        return light
    return _joined(light, detailed, frames, pairs)


def _threads(light: Run, detailed: Run) -> list[tuple[int, int]]:
    """(in the light trace, in the detailed one) of the threads that have frames: the same process's, by its ids."""
    ours = {(t.pid, t.tid): i for i, t in enumerate(light.threads)}
    with_frames = np.unique(detailed.thread[detailed.is_cat(Cat.PYTHON)]).tolist()
    keys = ((detailed.threads[i].pid, detailed.threads[i].tid, i) for i in with_frames)
    return [(ours[pid, tid], i) for pid, tid, i in keys if (pid, tid) in ours]


def _stretches(run: Run, steps: Steps, thread: int, kinds: I32) -> Iterator[_Stretch]:
    """Steps in which the thread runs an operator or annotation; the marks of the steps themselves are none."""
    marks = run.name_ids(lambda name: step_number(name) is not None)
    rows = np.flatnonzero(
        run.is_cat(Cat.CPU_OP, Cat.USER_ANNOTATION) & (run.thread == thread) & ~np.isin(run.name, marks)
    )
    for step in steps.steps:
        first, behind = np.searchsorted(run.ts[rows], [step.start, step.end])
        own_rows = rows[first:behind]
        if len(own_rows):
            yield _Stretch(step.start, step.end, own_rows, kinds[run.name[own_rows]])


@dataclass(frozen=True)
class _Frames:
    """Rows of the detailed trace as events of the light one."""

    rows: I64
    start: I64
    end: I64
    thread: I32


@dataclass(frozen=True)
class _Pair:
    """A step of the light trace and the one of the detailed trace that is most like it."""

    stretch: _Stretch
    model: _Stretch
    head: int
    """so many operators from the beginning on are the same"""
    tail: int
    """and so many up to the end"""

    @property
    def doubles(self) -> tuple[I64, I64]:
        """Rows of the light trace, and of the detailed one, that are the same operator of the program."""
        ours, theirs = (
            np.concatenate([rows[: self.head], rows[len(rows) - self.tail :]])
            for rows in (self.stretch.rows, self.model.rows)
        )
        return ours, theirs

    def frames(self, light: Run, detailed: Run, python: I64, thread: int) -> _Frames:
        """The frames open in the model's step, between the same operators as there, cut at the borders of the step."""
        stretch, model = self.stretch, self.model
        rows = python[(detailed.ts[python] < model.end) & (detailed.end[python] > model.start)]
        start, end = detailed.ts[rows], detailed.end[rows]
        if self.head + self.tail < max(len(stretch.rows), len(model.rows)):
            before, behind = self._unknown(detailed)
            inside = (start >= before) & (start < behind)
            start = np.where(inside, behind, start)
            end = np.where((end > before) & (end <= behind), before, end)
        clock = _Clock(light, detailed, self)
        start, end = (clock(np.clip(t, model.start, model.end)) for t in (start, end))
        lasting = end > start
        return _Frames(
            rows[lasting], start[lasting], end[lasting], np.full(int(lasting.sum()), thread, dtype=np.int32)
        )

    def _unknown(self, detailed: Run) -> tuple[int, int]:
        """What lies between the head and the tail in the detailed trace: there a frame neither begins nor ends."""
        theirs = self.doubles[1]
        behind = int(detailed.ts[theirs[self.head]]) if self.tail else self.model.end
        ends = detailed.end[theirs[: self.head]]
        return int(ends[ends <= behind].max(initial=self.model.start)), behind


def _most_alike(stretch: _Stretch, models: Sequence[_Stretch]) -> _Pair | None:
    pairs = [_Pair(stretch, m, *_matched(stretch, m)) for m in models]
    best = max(pairs, key=lambda p: p.head + p.tail, default=None)
    return best if best is not None and best.head + best.tail else None


def _matched(stretch: _Stretch, model: _Stretch) -> tuple[int, int]:
    """How many operators from the beginning, and then from the end, are the same in both."""
    shorter = min(len(stretch.kinds), len(model.kinds))
    head = _same(stretch.kinds[:shorter], model.kinds[:shorter])
    remaining = shorter - head
    return head, _same(stretch.kinds[::-1][:remaining], model.kinds[::-1][:remaining])


def _same(one: I32, other: I32) -> int:
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if len(differ) else len(one)


def _united(steps: Sequence[_Frames]) -> _Frames:
    """The frames of all steps, one after another. What is open from one step into the next is one frame, not two."""
    last: dict[int, tuple[int, int]] = {}
    rows, start, end, thread = (
        np.concatenate([getattr(f, column) for f in steps] or [np.empty(0, dtype=kind)])
        for column, kind in (("rows", np.int64), ("start", np.int64), ("end", np.int64), ("thread", np.int32))
    )
    lasting = np.ones(len(rows), dtype=bool)
    borders = {int(f.end.max()) for f in steps if len(f.end)}
    for at in np.flatnonzero(np.isin(start, list(borders)) | np.isin(end, list(borders))).tolist():
        row, until = int(rows[at]), int(end[at])
        first, open_until = last.get(row, (at, -1))
        if open_until == start[at]:
            end[first], lasting[at] = until, False
        else:
            first = at
        last[row] = (first, until)
    return _Frames(rows[lasting], start[lasting], end[lasting], thread[lasting])


class _Clock:
    """From moments of a step of the detailed trace to those of the light one: starts and ends of doubles fall
    together, what lies between is stretched evenly."""

    def __init__(self, light: Run, detailed: Run, pair: _Pair) -> None:
        stretch, model = pair.stretch, pair.model
        ours, theirs = pair.doubles
        there = np.concatenate([[model.start, model.end], detailed.ts[theirs], detailed.end[theirs]])
        here = np.concatenate([[stretch.start, stretch.end], light.ts[ours], light.end[ours]])
        there, here = np.clip(there, model.start, model.end), np.clip(here, stretch.start, stretch.end)
        order = np.lexsort((here, there))
        self._from, self._to = model.start, stretch.start
        self._there = (there[order] - model.start).astype(np.float64)
        self._here = np.maximum.accumulate(here[order] - stretch.start).astype(np.float64)

    def __call__(self, moments: I64) -> I64:
        times = np.interp((moments - self._from).astype(np.float64), self._there, self._here)
        return np.rint(times).astype(np.int64) + self._to


def _joined(light: Run, detailed: Run, frames: Sequence[_Frames], pairs: Sequence[_Pair]) -> Run:
    """One run with the rows of both, in the order that runs have. What begins and ends together (small clocks do that)
    is ordered as in the detailed trace."""
    rows = np.concatenate([f.rows for f in frames])
    start = np.concatenate([f.start for f in frames])
    dur = np.concatenate([f.end for f in frames]) - start
    threads = np.concatenate([f.thread for f in frames])
    names, numbers = np.unique(detailed.name[rows], return_inverse=True)
    ts, lasts = np.concatenate([start, light.ts]), np.concatenate([dur, light.dur])
    order = np.lexsort((np.concatenate([rows, _places(light, pairs)]), -lasts, ts))

    def column(theirs: npt.NDArray[Any], ours: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([theirs.astype(ours.dtype), ours])[order]

    none = np.full(len(rows), -1)
    reader = None
    if light.read_args is not None and detailed.read_args is not None:
        reader = _Arguments(light, detailed, [p.doubles for p in pairs])
    return replace(
        light,
        ts=ts[order],
        dur=lasts[order],
        name=column(len(light.names) + numbers, light.name),
        cat=column(detailed.cat[rows], light.cat),
        thread=column(threads, light.thread),
        device=column(none, light.device),
        stream=column(none, light.stream),
        correlation=column(none, light.correlation),
        external_id=column(none, light.external_id),
        offset=column(BORROWED - detailed.offset[rows], light.offset),
        names=[*light.names, *(detailed.names[n] for n in names.tolist())],
        recorded=structs.replace(
            light.recorded,
            **{f: True for f in ("shapes", "stacks", "modules") if getattr(detailed.recorded, f)},
        ),
        read_args=reader,
    )


def _places(light: Run, pairs: Sequence[_Pair]) -> I64:
    """For each row of the light trace that of its double in the detailed one; without a double, as the row before."""
    place = np.full(len(light), -1, dtype=np.int64)
    for pair in pairs:
        ours, theirs = pair.doubles
        place[ours] = theirs
    indices = np.where(place >= 0, np.arange(len(light)), 0)
    return place[np.maximum.accumulate(indices)] if len(light) else place


class _Arguments(ArgsReader):
    """The light trace's arguments, with those of the double that tell of inputs; a frame's are the detailed trace's."""

    def __init__(self, light: Run, detailed: Run, doubles: Sequence[tuple[I64, I64]]) -> None:
        self._light, self._detailed = light.read_args, detailed.read_args
        self._doubles: dict[int, int] = {}
        for ours, theirs in doubles:
            self._doubles.update(
                zip(light.offset[ours].tolist(), detailed.offset[theirs].tolist(), strict=True)
            )

    def __call__(self, offsets: Iterable[int]) -> list[dict[str, Any]]:
        assert self._light is not None and self._detailed is not None
        requested = list(offsets)
        own = [o for o in requested if o > BORROWED]
        theirs = [BORROWED - o if o <= BORROWED else self._doubles.get(o) for o in requested]
        by_offset = dict(zip(own, self._light(own), strict=True))
        lent = (
            dict(zip(known, self._detailed(known), strict=True))
            if (known := [o for o in theirs if o is not None])
            else {}
        )
        arguments = []
        for offset, double in zip(requested, theirs, strict=True):
            more = lent[double] if double is not None else {}
            if offset <= BORROWED:
                arguments.append(more)
            else:
                arguments.append({**{k: more[k] for k in _DETAILS if k in more}, **by_offset[offset]})
        return arguments

    def pieces(self) -> Iterator[bytes]:
        """The light trace, which the rows of this one lie in."""
        assert isinstance(self._light, ArgsReader)
        return self._light.pieces()
