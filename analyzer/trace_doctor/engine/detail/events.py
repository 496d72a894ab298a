"""What the timeline of a page shows of a capture: the events of its window, as many as a page has room for."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed.ranked_collectives import RankedCollectives
from trace_doctor.evidence.names.event_names import is_module
from trace_doctor.evidence.rank_summary import RankSummary, ranks_of_jobs
from trace_doctor.evidence.trace.gpu_timeline import COMM, COPY, work_kinds
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.model import Result, Span
from trace_doctor.model.events import MOST_DEPTH, EventKind, Events, Track
from trace_doctor.run import GPU_CATS, Cat, Run
from trace_doctor.user_frames import is_user_function

ROOM = 2_500_000
"""Bytes of the events of all captures, packed as a page holds them"""
_PER_EVENT = 9
"""Bytes of an event, packed, at least: what is tried first"""
_LONGEST_NAME = 400
_MOST_TRACKS = 64
_MOST_FRAMES = 6
_KINDS: tuple[EventKind, ...] = get_args(EventKind)
_OF_CATEGORY: dict[Cat, EventKind] = {
    Cat.CPU_OP: "operator",
    Cat.RUNTIME: "call",
    Cat.DRIVER: "call",
    Cat.USER_ANNOTATION: "annotation",
    Cat.PYTHON: "python",
    Cat.OVERHEAD: "profiler",
}


def with_events(result: Result, captures: Sequence[tuple[int, Facts]], room: int = ROOM) -> Result:
    """The result with what its page shows of each capture; `captures` with their numbers in `Result.inputs`."""
    details = [] if result.detail is UNSET else result.detail
    traced = {number: facts for number, facts in captures if facts.get(Steps) is not None}
    each, clocks = room // max(1, len(traced)), _clocks(traced)
    return replace(
        result,
        detail=[
            replace(d, events=events_of(traced[d.input], _spans(result, d.input), each, clocks.get(d.input)))
            if d.input in traced
            else d
            for d in details
        ],
    )


def _clocks(traced: Mapping[int, Facts]) -> dict[int, float]:
    """By how much the clock of each capture is ahead of its job's first rank, us, where that is known."""
    ranks = ranks_of_jobs([RankSummary.of(facts, RankedCollectives.of_each) for facts in traced.values()])
    clocks = {}
    for number, rank in zip(traced, ranks, strict=True):
        ranked = rank.get(RankedCollectives)
        clock = dict(zip(ranked.ranks, ranked.clock_ns, strict=True)).get(rank.rank) if ranked else None
        if clock is not None:
            clocks[number] = clock / 1e3
    return clocks


def _spans(result: Result, number: int) -> list[Span]:
    return [span for finding in result.findings if finding.input == number for span in finding.spans]


def events_of(facts: Facts, spans: Sequence[Span], room: int, clock_us: float | None = None) -> Events:
    """All that fits into `room` bytes of a page: what overlaps `spans` first, then the longest; Python functions
    of libraries last. `clock_us`: as in `Events`. Raises NotCaptured without a trace."""
    chosen = _Choice(facts, spans)
    most = room // _PER_EVENT
    while True:
        events = replace(chosen.first(most), clock_us=clock_us)
        size = len(zlib.compress(msgspec.json.encode(events), 6)) * 4 // 3
        if size <= room or not events.shown:
            return events
        most = min(most, events.shown) * room * 9 // (size * 10)


class _Choice:
    """The events of the window in the order in which they are chosen."""

    def __init__(self, facts: Facts, spans: Sequence[Span]) -> None:
        self.run = run = facts.run
        self.window = facts[Steps].window
        self.nesting, self.launches = facts[Nesting], facts[Launches]
        self.threads = facts.get(Threads)
        host = self.nesting.depth >= 0
        self.user: Bool = run.is_named(is_user_function) & run.is_cat(Cat.PYTHON)
        self.library: Bool = run.is_cat(Cat.PYTHON) & ~self.user & ~run.is_named(is_module)
        here = (run.end >= self.window[0]) & (run.ts < self.window[1])
        rows = np.flatnonzero(here & (host | run.is_cat(*GPU_CATS)))
        library = self.library[rows]
        accused = self._overlap(rows, spans) & ~library
        order = np.lexsort((-run.dur[rows], library, ~accused))
        self.rows: I64 = rows[order]
        self.accused = int(accused.sum())
        self.track_of = _tracks(run, self.library)

    def _overlap(self, rows: I64, spans: Sequence[Span]) -> Bool:
        matches = np.zeros(len(rows), dtype=bool)
        for span in spans:
            start = self.run.base_ns + round(span.ts_us * 1e3)
            end = start + round(span.dur_us * 1e3)
            matches |= (self.run.ts[rows] < max(end, start + 1)) & (self.run.end[rows] > start)
        return matches

    def first(self, most: int) -> Events:
        """The first so many of them."""
        run, candidates = self.run, self.rows[:most]
        depth = self._depth(candidates)
        tracks = self._busiest(candidates)
        shown = np.isin(self.track_of[candidates], tracks) & (depth[candidates] < MOST_DEPTH)
        rows = np.sort(candidates[shown])
        totals = np.bincount(self.track_of[self.rows], minlength=int(self.track_of.max(initial=0)) + 1)
        per_track = [rows[self.track_of[rows] == t] for t in tracks]
        numbers = np.full(len(run) + 1, -1, dtype=np.int64)  # the last, place -1, is of what is not known
        numbers[np.concatenate([*per_track, np.zeros(0, dtype=np.int64)])] = np.arange(len(rows))
        names = _Names(run)
        stacks = _Stacks(self, names)
        made = []
        for track, own in zip(tracks, per_track, strict=True):
            gpu = bool(len(own)) and run.device[own[0]] >= 0
            call = self._call_of(own) if gpu else np.full(len(own), -1, dtype=np.int64)
            depths = depth[own]
            made.append(
                Track(
                    label=self._label(int(own[0])),
                    device=int(run.device[own[0]]),
                    start=np.diff(run.ts[own], prepend=self.window[0]).tolist(),
                    dur=run.dur[own].tolist(),
                    name=names.of(own),
                    depth=depths.tolist() if depths.any() else [],
                    launch=numbers[call].tolist() if gpu else [],
                    operator=names.of(self._operator(call)) if gpu else [],
                    stack=stacks.of(np.where(call >= 0, call, -1) if gpu else own),
                    of=int(totals[track]),
                )
            )
        return Events(
            start_us=(self.window[0] - run.base_ns) / 1e3,
            epoch_us=self.window[0] / 1e3,
            dur_us=(self.window[1] - self.window[0]) / 1e3,
            names=names.texts,
            kinds=names.kinds,
            stacks=stacks.stacks,
            tracks=made,
            shown=len(rows),
            of=len(self.rows),
            accused_shown=int(shown[: self.accused].sum()),
            accused_of=self.accused,
        )

    def _depth(self, chosen: I64) -> I64:
        """How many of the chosen events are around each row, Python functions of libraries and the others each among
        themselves."""
        nesting, mask = self.nesting, np.zeros((len(self.run), 2), dtype=bool)
        mask[chosen, self.library[chosen].astype(np.int64)] = True
        depth = np.zeros((len(self.run), 2), dtype=np.int64)
        host = np.flatnonzero(nesting.depth > 0)
        host = host[np.argsort(nesting.depth[host], kind="stable")]
        for rows in np.split(host, np.flatnonzero(np.diff(nesting.depth[host])) + 1):
            above = nesting.parent[rows]
            depth[rows] = depth[above] + mask[above]
        return np.where(self.library, depth[:, 1], depth[:, 0])

    def _busiest(self, chosen: I64) -> list[int]:
        """The tracks with the most chosen events: devices by number, then the threads of the loop, then others."""
        tracks, counts = np.unique(self.track_of[chosen], return_counts=True)
        kept = tracks[np.argsort(-counts, kind="stable")[:_MOST_TRACKS]].tolist()
        first = {t: int(chosen[np.argmax(self.track_of[chosen] == t)]) for t in kept}

        def place(track: int) -> tuple[int, int, int, bool, int]:
            row = first[track]
            device, thread = int(self.run.device[row]), int(self.run.thread[row])
            main = self.threads is not None and thread == self.threads.main
            autograd = self.threads is not None and thread in self.threads.autograd
            if device >= 0:
                return (0, device, int(self.run.stream[row]), False, track)
            return (1, 0 if main else 1 if autograd else 2, thread, bool(self.library[row]), track)

        return sorted(kept, key=place)

    def _label(self, row: int) -> str:
        run = self.run
        if run.device[row] >= 0:
            return f"stream {int(run.stream[row])}"
        of_library = ", library Python" if self.library[row] else ""
        thread = run.threads[int(run.thread[row])]
        if self.threads is not None and int(run.thread[row]) == self.threads.main:
            return f"main thread {thread.tid}{of_library}"
        if self.threads is not None and int(run.thread[row]) in self.threads.autograd:
            return f"autograd thread {thread.tid}{of_library}"
        return (thread.label or f"thread {thread.tid}")[:80] + of_library

    def _call_of(self, gpu_rows: I64) -> I64:
        return self.launches.launch[np.searchsorted(self.run.gpu, gpu_rows)].astype(np.int64)

    def _operator(self, calls: I64) -> I64:
        """The innermost operator around each call, -1 where there is none."""
        return self.nesting.around(calls, self.run.is_cat(Cat.CPU_OP))

    def user_frames(self, rows: I64) -> I64:
        """Rows of the user's functions around each, innermost first: rows × _MOST_FRAMES, -1 where there is no more."""
        around = np.full((len(rows), _MOST_FRAMES), -1, dtype=np.int64)
        row = rows
        for n in range(_MOST_FRAMES):
            around[:, n] = row = self.nesting.around(row, self.user)
            row = at_rows(self.nesting.parent, row, -1)
        return around


def _tracks(run: Run, library: Bool) -> I64:
    """A number for each row: of its stream where it ran on a device, else of its thread and of whether it is a Python
    function of a library, which have rows of their own: they would push operators out of sight."""
    gpu = run.device >= 0
    keys = np.stack([np.where(gpu, run.device, -1), np.where(gpu, run.stream, run.thread), library], axis=1)
    if not len(keys):
        return np.zeros(0, dtype=np.int64)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


class _Names:
    """Names with their kinds, each once, in the order in which they are met."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.texts: list[str] = []
        self.kinds: list[EventKind] = []
        self._known: dict[tuple[str, EventKind], int] = {}
        kinds = np.full(len(run), _KINDS.index("operator"), dtype=np.int64)
        for cat, kind in _OF_CATEGORY.items():
            kinds[run.is_cat(cat)] = _KINDS.index(kind)
        work = work_kinds(run)
        kinds[run.gpu] = np.where(
            work == COMM,
            _KINDS.index("comm"),
            np.where(work == COPY, _KINDS.index("copy"), _KINDS.index("compute")),
        )
        self._kind = kinds

    def of(self, rows: I64) -> list[int]:
        """The number of each row's name, -1 where the row is."""
        keys = np.where(rows >= 0, self.run.name[rows] * len(_KINDS) + self._kind[rows], -1).astype(np.int64)
        distinct, which = np.unique(keys, return_inverse=True)
        numbers = [self._number(key) for key in distinct.tolist()]
        return np.array(numbers, dtype=np.int64)[which].tolist() if len(rows) else []

    def _number(self, key: int) -> int:
        if key < 0:
            return -1
        text, kind = self.run.names[key // len(_KINDS)], _KINDS[key % len(_KINDS)]
        cut = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
        if (cut, kind) not in self._known:
            self._known[cut, kind] = len(self.texts)
            self.texts.append(cut)
            self.kinds.append(kind)
        return self._known[cut, kind]


class _Stacks:
    """User stacks, each once."""

    def __init__(self, choice: _Choice, names: _Names) -> None:
        self.choice, self.names = choice, names
        self.stacks: list[list[int]] = []
        self._known: dict[tuple[int, ...], int] = {}

    def of(self, rows: I64) -> list[int]:
        """The number of the stack around each row; none where no row has one."""
        if not self.choice.user.any() or not len(rows):
            return []
        frames = self.choice.user_frames(rows)
        named = np.array(self.names.of(frames.reshape(-1)), dtype=np.int64).reshape(frames.shape)
        distinct, which = np.unique(named, axis=0, return_inverse=True)
        numbers = [self._number(tuple(n for n in stack if n >= 0)) for stack in distinct.tolist()]
        found: list[int] = np.array(numbers, dtype=np.int64)[which.reshape(-1)].tolist()
        return found if any(n >= 0 for n in numbers) else []

    def _number(self, stack: tuple[int, ...]) -> int:
        if not stack:
            return -1
        if stack not in self._known:
            self._known[stack] = len(self.stacks)
            self.stacks.append(list(stack))
        return self._known[stack]
