"""The waits for the next batch: where the training loop asked a loader for data, and what the loader is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts, Options
from trace_doctor.evidence.intervals import (
    NOTHING,
    holds,
    intersect,
    intervals,
    pairs,
    subtract,
    total,
    union,
)
from trace_doctor.evidence.names.event_names import is_backward, is_launch, is_loader
from trace_doctor.evidence.trace.nesting import Nesting, nest
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import Frame, python_frame

LoaderKind = Literal["in_process", "workers", "pipe", "other"]
"""num_workers=0 · worker processes · a DataPipe · another iterator, or one that the settings name"""

_PARTS = (
    (
        "starting workers",
        re.compile(
            r".*dataloader\.py\(\d+\): (?:__init__|_reset|_get_iterator|__iter__)|.*popen_\w+\.py\(.*"
        ),
    ),
    ("pinning memory", re.compile(r".*_utils/pin_memory\.py\(\d+\): pin_memory")),
    (
        "collating",
        re.compile(r".*_utils/collate\.py\(\d+\): (?:default_)?collate.*|.*: collate_fn|.*: \w*[Cc]ollat\w*"),
    ),
    (
        "waiting for workers",
        re.compile(r".*dataloader\.py\(\d+\): (?:_try_get_data|_get_data)|.*queues?\.py\(\d+\): get"),
    ),
    ("reading and transforming samples", re.compile(r".*_utils/fetch\.py\(\d+\): fetch|.*: __getitems?__")),
)
"""frames of torch/utils/data inside the wait, most specific first"""
_LIBRARY = re.compile(
    r"(?:.*/)?(?:nvidia/dali/plugin/|ffcv/loader/|torchdata/nodes/|petastorm/|tensorflow/python/data/)\S*\(\d+\): __next__"
)
"""frames of loaders that are no torch.utils.data.DataLoader"""
_ANNOTATED = re.compile(
    r"\W*(?:data[ _-]?load(?:ing|er)?|load(?:ing)?[ _-]?(?:the[ _-])?(?:next[ _-])?(?:data|batch|samples?)"
    r"|(?:get|fetch|next)[ _-]?(?:the[ _-])?(?:next[ _-])?(?:data|batch)|data[ _-]?(?:fetch|wait|time)(?:ing)?"
    r"|wait(?:ing)?[ _-]for[ _-](?:the[ _-])?data|(?:data)?loader(?:[ _-]?next)?"
    r"|(?:fetch|load)ing|batch[ _-]?(?:load|fetch)(?:ing)?)(?:[ _-]?\d+)?\W*",
    re.IGNORECASE,
)
"""names that people give to the part of a loop that gets its batch"""
_PIPELINE = re.compile(r"(?:.*[\\/])?transformers[\\/]pipelines[\\/].*")
_FUNCTION = re.compile(r".+\(\d+\): .+")
_CHUNKS = re.compile(r"(?:.*[\\/])?transformers[\\/]pipelines[\\/].*: preprocess")
"""the generator of a `transformers.ChunkPipeline`: what it yields until it ends are the chunks of one input"""
ALIKE = 0.2
"""calls that differ by less from their median are taken to do the same: of five on one image, 3%"""
_BY_INDEX = re.compile(r".*: __getitems?__")
_ONE_BY_ONE = re.compile(r"(?!.*torch/utils/data/).*: __(?:iter|next)__")


class RepeatedCalls(Struct, frozen=True):
    """A function that one input is given to several times, with the same calls below it and in about the same time."""

    function: Frame
    inputs: int
    spans: tuple[tuple[int, int], ...]
    """(start, end) ns of all calls but the first of each input, by start"""

    @property
    def times(self) -> int:
        """Calls in all."""
        return len(self.spans) + self.inputs


class DataLoading(Evidence, frozen=True):
    """Raises NotCaptured when the capture shows no loader at all."""

    rows: I64
    """the waits on the main thread, outermost, by start"""
    kinds: tuple[LoaderKind, ...]
    """aligned with `rows`"""
    thread: int
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, main = facts.run, facts[Threads].main
        rows = np.flatnonzero(loader_mask(run, facts.options) & (run.thread == main))
        rows = facts[Nesting].outermost(rows)
        if not len(rows):
            raise NotCaptured(
                "no wait for a data loader in the trace",
                "iterate a torch.utils.data.DataLoader inside the profile; name other loaders by the settings "
                "loader_frames (with with_stack=True) or loader_annotations",
            )
        return cls(rows, tuple(loader_kind(run.text(int(r))) for r in rows), main, run)

    def waits(self, spans: Iterable[tuple[int, int]]) -> I64:
        """The waits that begin in the spans, as raw (start, end) ns."""
        at = self.run.ts[self.rows]
        inside = holds(intervals(spans), at)
        return pairs(at[inside], self.run.end[self.rows][inside])

    def parts(self, spans: Iterable[tuple[int, int]]) -> dict[str, int]:
        """What the waits within the spans were spent on, ns, as far as stacks show it: each moment goes to the most
        specific frame. Empty without stacks."""
        run = self.run
        unexplained = intersect(union(pairs(run.ts[self.rows], run.end[self.rows])), intervals(spans))
        frames = run.is_cat(Cat.PYTHON) & (run.thread == self.thread)
        by_part: dict[str, int] = {}
        for part, pattern in _PARTS:
            chosen = frames & run.is_named(lambda n, p=pattern: p.fullmatch(n) is not None)  # type: ignore[misc]
            cover = union(pairs(run.ts[chosen], run.end[chosen])) if chosen.any() else NOTHING
            if spent := total(intersect(unexplained, cover)):
                by_part[part] = spent
                unexplained = subtract(unexplained, cover)
        if by_part and (rest := total(unexplained)):
            by_part["the rest of the loader"] = rest
        return by_part

    def functions(self, spans: Iterable[tuple[int, int]]) -> dict[str, int]:
        """Python function -> ns within the waits of the spans that it did not spend in other Python functions; what is built in
        belongs to its caller. Empty without stacks."""
        run = self.run
        within = intersect(union(pairs(run.ts[self.rows], run.end[self.rows])), intervals(spans))
        rows = np.flatnonzero(run.is_cat(Cat.PYTHON) & (run.thread == self.thread))
        rows = rows[holds(within, run.ts[rows])]
        rows = rows[[_FUNCTION.fullmatch(run.text(row)) is not None for row in rows.tolist()]]
        rows = rows[np.lexsort((-run.dur[rows], run.ts[rows]))]
        above, _ = nest(run.ts[rows], run.end[rows])
        own = run.dur[rows].copy()
        np.subtract.at(own, above[above >= 0], run.dur[rows][above >= 0])
        by_name: dict[str, int] = {}
        for row, ns in zip(rows.tolist(), own.tolist(), strict=True):
            by_name[run.text(row)] = by_name.get(run.text(row), 0) + max(ns, 0)
        return by_name

    def repeated(self, spans: Iterable[tuple[int, int]]) -> RepeatedCalls | None:
        """What a pipeline does again for each chunk of an input, within the waits of the spans; None without stacks.

        A generator's frame has the line where it stands: the first one where its function begins, later where it goes on.
        """
        run = self.run
        within = intersect(union(pairs(run.ts[self.rows], run.end[self.rows])), intervals(spans))
        rows = np.flatnonzero(run.is_cat(Cat.PYTHON) & (run.thread == self.thread))
        rows = rows[holds(within, run.ts[rows])]
        rows = rows[np.lexsort((-run.dur[rows], run.ts[rows]))]
        is_generator = run.is_named(lambda name: _CHUNKS.fullmatch(name) is not None)[rows]
        above, _ = nest(run.ts[rows], run.end[rows])
        longest: dict[int, int] = {}  # at its end a generator is called once more, for nothing: that has none
        for below in np.flatnonzero((above >= 0) & is_generator[np.maximum(above, 0)]).tolist():
            rival = longest.get(int(above[below]))
            if _FUNCTION.fullmatch(run.text(int(rows[below]))) and (
                rival is None or run.dur[rows[below]] > run.dur[rows[rival]]
            ):
                longest[int(above[below])] = below
        calls = list(longest.values())
        frames = [f for at in longest if (f := python_frame(run.text(int(rows[at])))) is not None]
        begins = min((frame.line for frame in frames), default=0)
        first = np.array([frame.line == begins for frame in frames], dtype=bool)
        if not first.any() or first.all() or len({self._below(rows, call) for call in calls}) != 1:
            return None
        called = rows[calls]
        if (abs(run.dur[called] / np.median(run.dur[called]) - 1) > ALIKE).any():
            return None
        function = python_frame(run.text(int(called[0])))
        assert function is not None
        again = tuple((int(run.ts[r]), int(run.end[r])) for r in called[~first].tolist())
        return RepeatedCalls(function, int(first.sum()), again)

    def _below(self, rows: I64, call: int) -> tuple[str, ...]:
        """The functions of one call, in order; what is built in differs by its address."""
        end = np.searchsorted(self.run.ts[rows], self.run.end[rows[call]])
        names = (self.run.text(int(r)) for r in rows[call:end])
        return tuple(name for name in names if _FUNCTION.fullmatch(name))

    @property
    def indexed(self) -> bool:
        """Whether stacks show that samples are taken by their number: then it is no IterableDataset."""
        return self._runs(_BY_INDEX) and not self._runs(_ONE_BY_ONE)

    @property
    def of_a_pipeline(self) -> bool:
        """Whether stacks show that what is loaded is the preprocessing of a `transformers` pipeline."""
        return self._runs(_PIPELINE)

    def _runs(self, frames: re.Pattern[str]) -> bool:
        """Whether such a Python frame begins inside of the loader."""
        run = self.run
        inside = run.is_cat(Cat.PYTHON) & (run.thread == self.thread)
        rows = np.flatnonzero(inside & run.is_named(lambda name: frames.fullmatch(name) is not None))
        return bool(holds(union(pairs(run.ts[self.rows], run.end[self.rows])), run.ts[rows]).any())


def loader_mask(run: Run, options: Options) -> Bool:
    """The rows that are a wait for data: torch's own marks, loaders of other libraries, what the settings name, and
    annotations that say so by their name, with no such mark in them, no kernel launched and no backward."""

    def named(parts: tuple[str, ...]) -> Bool:
        return run.is_named(lambda n: any(p in n for p in parts))

    notes = run.is_cat(Cat.USER_ANNOTATION, Cat.CPU_OP)
    mask = run.is_named(is_loader) & notes
    mask |= run.is_named(lambda n: _LIBRARY.fullmatch(n) is not None) & run.is_cat(Cat.PYTHON)
    annotated = np.flatnonzero(run.is_named(lambda n: _ANNOTATED.fullmatch(n) is not None) & notes)
    if len(annotated):
        away = mask | run.is_named(is_launch, is_backward)
        marks = np.sort(run.ts[away])
        mask[
            annotated[np.searchsorted(marks, run.end[annotated]) == np.searchsorted(marks, run.ts[annotated])]
        ] = True
    if options.loader_annotations:
        mask |= named(options.loader_annotations) & notes
    if options.loader_frames:
        mask |= named(options.loader_frames) & run.is_cat(Cat.PYTHON)
    return mask


def loader_kind(name: str) -> LoaderKind:
    """What a loader's event name proves: the iterator class says whether there are workers."""
    if "SingleProcess" in name:  # of torch, and of torchdata's loaders with a state
        return "in_process"
    if "MultiProcessing" in name:
        return "workers"
    return "pipe" if "DataPipe" in name else "other"
