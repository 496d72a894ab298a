"""Python frames and input shapes of a detailed trace, laid into a light one of the same steps.

Recording stacks and shapes makes steps longer, unevenly: figures taken from such a trace blame the script for the
profiler. So a recording holds a light trace besides, which decides all times. Both show the same program: where the
operators of a step follow each other in the same order and nesting in both, each operator of the light trace has its
double in the detailed one, and everything that lay between two doubles there is laid between them here.

What has no double gets no frame of its own, only those that were open before and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import structs

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.event_names import step_number
from trace_doctor.evidence.steps import Steps
from trace_doctor.loaders.kineto_args import ArgsReader
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.run import BORROWED, I32, I64, Capture, Cat, Run

LEAST = 0.5
"""Share of the operators in steps that must have a double: below, the traces do not show the same program."""
_GIVEN = ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs", "Call stack")
"""Arguments that tell of an operator's inputs and place, not of the moment."""


class Doubles(NamedTuple):
    """Rows of the light trace and of the detailed one that are the same operator of the program."""

    light: I64
    detailed: I64


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
    if light.is_cat(Cat.PYTHON).any():
        return light
    threads = _threads(light, detailed)
    steps = [Facts(Capture(r.rank, r)).get(Steps) for r in (light, detailed)]
    if steps[0] is None or steps[1] is None or not threads:
        return light
    names = {name: number for number, name in enumerate(detailed.names)}
    translated = np.array([names.get(name, -1) for name in light.names], dtype=np.int32)
    frames: list[_Frames] = []
    doubles: list[Doubles] = []
    operators = 0
    for ours, theirs in threads:
        models = list(_stretches(detailed, steps[1], theirs, np.arange(len(detailed.names), dtype=np.int32)))
        python = np.flatnonzero(detailed.is_cat(Cat.PYTHON) & (detailed.thread == theirs))
        for stretch in _stretches(light, steps[0], ours, translated):
            operators += len(stretch.rows)
            best = max(((_matched(stretch, m), m) for m in models), key=lambda f: sum(f[0]), default=None)
            if best is None or not sum(best[0]):
                continue
            (head, tail), model = best
            found = _doubles(stretch, model, head, tail)
            doubles.append(found)
            frames.append(_laid(light, detailed, stretch, model, found, python, ours, head, tail))
    known = sum(len(d.light) for d in doubles)
    if known < LEAST * operators or not known:
        return light
    return _joined(light, detailed, frames, doubles)


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
        mine = rows[first:behind]
        if len(mine):
            yield _Stretch(step.start, step.end, mine, kinds[run.name[mine]])


def _matched(stretch: _Stretch, model: _Stretch) -> tuple[int, int]:
    """How many operators from the beginning, and then from the end, are the same in both."""
    shorter = min(len(stretch.kinds), len(model.kinds))
    head = _same(stretch.kinds[:shorter], model.kinds[:shorter])
    left = shorter - head
    tail = _same(stretch.kinds[::-1][:left], model.kinds[::-1][:left])
    return head, tail


def _same(one: I32, other: I32) -> int:
    differ = np.flatnonzero(one != other)
    return int(differ[0]) if len(differ) else len(one)


def _doubles(stretch: _Stretch, model: _Stretch, head: int, tail: int) -> Doubles:
    def ends(rows: I64) -> I64:
        return np.concatenate([rows[:head], rows[len(rows) - tail :]])

    return Doubles(ends(stretch.rows), ends(model.rows))


@dataclass(frozen=True)
class _Frames:
    """Rows of the detailed trace as events of the light one."""

    rows: I64
    start: I64
    end: I64
    thread: int


def _laid(
    light: Run,
    detailed: Run,
    stretch: _Stretch,
    model: _Stretch,
    doubles: Doubles,
    python: I64,
    thread: int,
    head: int,
    tail: int,
) -> _Frames:
    """The frames open in the model's step, between the same operators as there, cut at the borders of the step."""
    clock = _Clock(light, detailed, stretch, model, doubles)
    rows = python[(detailed.ts[python] < model.end) & (detailed.end[python] > model.start)]
    start = np.clip(detailed.ts[rows], model.start, model.end)
    end = np.clip(detailed.end[rows], model.start, model.end)
    if head + tail < max(len(stretch.rows), len(model.rows)):
        # Between the operators that end the head and begin the tail nothing is known: a frame lasts up to there, or
        # over all of it.
        behind = int(detailed.ts[doubles.detailed[head]]) if tail else model.end
        ends = detailed.end[doubles.detailed[:head]]
        before = int(ends[ends <= behind].max(initial=model.start))
        inside = (start >= before) & (start < behind)
        start = np.where(inside, behind, start)
        end = np.where((end > before) & (end <= behind), before, end)
    start, end = clock(start), clock(end)
    kept = end > start
    return _Frames(rows[kept], start[kept], end[kept], thread)


class _Clock:
    """From moments of a step of the detailed trace to those of the light one: starts and ends of doubles fall
    together, what lies between is stretched evenly."""

    def __init__(
        self, light: Run, detailed: Run, stretch: _Stretch, model: _Stretch, doubles: Doubles
    ) -> None:
        there = np.concatenate(
            [[model.start, model.end], detailed.ts[doubles.detailed], detailed.end[doubles.detailed]]
        )
        here = np.concatenate(
            [[stretch.start, stretch.end], light.ts[doubles.light], light.end[doubles.light]]
        )
        there, here = np.clip(there, model.start, model.end), np.clip(here, stretch.start, stretch.end)
        order = np.lexsort((here, there))
        self._from, self._to = model.start, stretch.start
        self._there = (there[order] - model.start).astype(np.float64)
        self._here = np.maximum.accumulate(here[order] - stretch.start).astype(np.float64)

    def __call__(self, moments: I64) -> I64:
        moved = np.interp((moments - self._from).astype(np.float64), self._there, self._here)
        return np.rint(moved).astype(np.int64) + self._to


def _joined(light: Run, detailed: Run, frames: list[_Frames], doubles: list[Doubles]) -> Run:
    """One run with the rows of both, in the order that runs have; frames come before the events they enclose."""
    rows = np.concatenate([f.rows for f in frames])
    start = np.concatenate([f.start for f in frames])
    dur = np.concatenate([f.end for f in frames]) - start
    threads = np.concatenate([np.full(len(f.rows), f.thread, dtype=np.int32) for f in frames])
    used, numbers = np.unique(detailed.name[rows], return_inverse=True)
    ts, lasts = np.concatenate([start, light.ts]), np.concatenate([dur, light.dur])
    order = np.lexsort((-lasts, ts))

    def column(theirs: npt.NDArray[Any], ours: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.concatenate([theirs.astype(ours.dtype), ours])[order]

    none = np.full(len(rows), -1)
    reader = None
    if light.read_args is not None and detailed.read_args is not None:
        pairs = Doubles(*(np.concatenate(side) for side in zip(*doubles, strict=True)))
        reader = _Arguments(light, detailed, pairs)
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
        names=[*light.names, *(detailed.names[n] for n in used.tolist())],
        recorded=structs.replace(
            light.recorded,
            **{f: True for f in ("shapes", "stacks", "modules") if getattr(detailed.recorded, f)},
        ),
        read_args=reader,
    )


class _Arguments(ArgsReader):
    """The light trace's arguments, with those of the double that tell of inputs; a frame's are the detailed trace's."""

    def __init__(self, light: Run, detailed: Run, doubles: Doubles) -> None:
        self._light, self._detailed = light.read_args, detailed.read_args
        self._doubles = dict(
            zip(light.offset[doubles.light].tolist(), detailed.offset[doubles.detailed].tolist(), strict=True)
        )

    def __call__(self, offsets: Iterable[int]) -> list[dict[str, Any]]:
        assert self._light is not None and self._detailed is not None
        wanted = list(offsets)
        own = [o for o in wanted if o > BORROWED]
        theirs = [BORROWED - o if o <= BORROWED else self._doubles.get(o) for o in wanted]
        said = dict(zip(own, self._light(own), strict=True))
        lent = (
            dict(zip(known, self._detailed(known), strict=True))
            if (known := [o for o in theirs if o is not None])
            else {}
        )
        found = []
        for offset, double in zip(wanted, theirs, strict=True):
            more = lent[double] if double is not None else {}
            if offset <= BORROWED:
                found.append(more)
            else:
                found.append({**{k: more[k] for k in _GIVEN if k in more}, **said[offset]})
        return found

    def stream(self) -> ByteStream:
        """The light trace, which the rows of this one lie in."""
        assert isinstance(self._light, ArgsReader)
        return self._light.stream()
