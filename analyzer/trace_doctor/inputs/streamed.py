"""Captures one after the other: each group is read in a child process, examined and dropped."""

from __future__ import annotations

import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_doctor.engine import Examination, Sizes
from trace_doctor.errors import DamagedCapture, TraceDoctorError
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.inputs.group_examination import (
    Answer,
    GroupExamination,
    Request,
    SecondRequest,
    ask_again,
    examine_group,
)
from trace_doctor.inputs.groups import CaptureGroup, groups_of
from trace_doctor.inputs.recorded import on_one_clock, with_launcher_warnings
from trace_doctor.inputs.scope import InputFiles
from trace_doctor.loaders.discover import Discovery
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions
from trace_doctor.loading import executor as executors
from trace_doctor.loading.executor import ChildEnded, ChildNotStarted, Contained, NoRoom
from trace_doctor.loading.load_files import BASE, NEED, size_of, weight_of
from trace_doctor.rule import Rule

log = logging.getLogger("trace_doctor")

MANY = 64
"""capture groups from which on captures are not kept in memory"""
NO_PANELS = f"from {MANY} ranks on no zoomable panels: their captures are not kept in memory"
TIMEOUT_S = 3600.0
"""of one group: whatever takes longer is lost, and the others go on"""


class Streamed:
    """The captures of many ranks. What a group's process ends with is of that group alone: it is lost and listed."""

    def __init__(
        self,
        discovery: Discovery,
        paths: Sequence[str | Path],
        load: LoadOptions,
        options: Options,
        rank: int | None,
    ) -> None:
        self.groups = groups_of(discovery.found)
        self.files = InputFiles.of(discovery)
        self.facts: list[Facts] = []
        """none is held"""
        self._discovery, self._paths = discovery, paths
        self._load, self._options, self._rank = load, options, rank
        self._width, self._memory = self._shares()
        self._group_of: dict[tuple[int, str], CaptureGroup] = {}
        self._first_answers: dict[tuple[int, str], Answer] = {}
        self._request: Request | None = None

    def examine(self, rules: Sequence[Rule], *, detail: bool, progress: Progress) -> list[Examination]:
        """Of every capture, by rank and path. `detail` is not collected: a page has no room for that of many ranks. Raises
        NoCaptures without any."""
        captures = len(self.groups)
        self._request = Request(
            rules=tuple(rules),
            sizes=Sizes.among(captures, captures),
            options=self._options,
            rank=self._rank,
            memory=self._memory,
        )
        progress.expect(sum(size_of(f.path) for g in self.groups for f in g.files))
        self.files = InputFiles.of(self._discovery)
        examined = []
        for group, outcome in self._each(_examined, ((g, (g, self._request)) for g in self.groups), progress):
            if isinstance(outcome, TraceDoctorError):
                outcome = GroupExamination((), (), tuple((f.display, outcome) for f in group.own))
            self._note(group, outcome)
            examined.append((group, outcome))
        captures_by_rank = sorted(
            (c.examination.with_rules(rules) for c in on_one_clock(examined)),
            key=lambda e: (e.rank, e.summary.path),
        )
        self.files.must_have(len(captures_by_rank), self._paths, self._rank)
        return with_launcher_warnings(captures_by_rank, self.files.recordings, self._group_of)

    def _note(self, group: CaptureGroup, examined: GroupExamination) -> None:
        unread = dict(examined.unread)
        self.files.add_read([f for f in group.files if f.display not in unread], examined.identities)
        for file in group.files:
            if file.display in unread:
                self.files.add_unread(file, unread[file.display])
        for capture in examined.captures:
            key = capture.examination.rank, capture.examination.summary.path
            self._group_of[key] = group
            self._first_answers[key] = [], list(capture.ownership)

    def ask_again(self, asked: Sequence[SecondRequest]) -> list[Answer]:
        """Answers in the order of what is asked. A capture of which no finding speaks is not read again."""
        assert self._request is not None
        by_group: dict[str, list[SecondRequest]] = {}
        for each in asked:
            if each.removals or each.owners:
                by_group.setdefault(self._group_of[each.rank, each.path].name, []).append(each)
        groups = {g.name: g for g in self.groups}
        calls = ((groups[name], (groups[name], self._request, own)) for name, own in by_group.items())
        answers = dict(self._first_answers)
        for group, result in self._each(_answered, calls, Progress()):
            if isinstance(result, TraceDoctorError):
                log.warning("%s; its findings are not replayed together", result)
                continue
            for each, answer in zip(by_group[group.name], result, strict=True):
                answers[each.rank, each.path] = answer
        return [answers[each.rank, each.path] for each in asked]

    # -- processes ---------------------------------------------------------------------------------------------

    def _shares(self) -> tuple[int, int | None]:
        """How many processes, and the bytes of memory that each may take."""
        needs = sorted((BASE + int(NEED * sum(map(weight_of, g.files))) for g in self.groups), reverse=True)
        memory, width = self._load.memory, max(1, min(self._load.processes, len(self.groups)))
        while width > 1 and memory is not None and sum(needs[:width]) > memory:
            width -= 1
        return width, memory and memory // width

    def _each(
        self,
        call: Callable[..., bytes],
        calls: Iterator[tuple[CaptureGroup, tuple[Any, ...]]],
        progress: Progress,
    ) -> Iterator[tuple[CaptureGroup, Any]]:
        """Each group with what its call returns, or the error that its process ended with, in the order of the calls."""
        lock = threading.Lock()

        def read(count: int) -> None:
            with lock:
                progress.read(count)

        with self._executor(read) as executor:
            waiting: deque[tuple[CaptureGroup, tuple[Any, ...], Future[bytes] | None]] = deque()
            for group, arguments in calls:
                with lock:
                    progress("reading", group.name)
                future = executor.submit(call, *arguments) if executor is not None else None
                waiting.append((group, arguments, future))
                if len(waiting) >= 2 * self._width or executor is None:
                    yield _outcome(call, *waiting.popleft())
            while waiting:
                yield _outcome(call, *waiting.popleft())

    @contextmanager
    def _executor(self, read: Callable[[int], None]) -> Iterator[Contained | None]:
        if not executors.usable() or not _can_be_sent(self._request):
            yield None
            return
        with Contained(self._width, read, TIMEOUT_S) as executor:
            yield executor


def _outcome(
    call: Callable[..., bytes], group: CaptureGroup, arguments: tuple[Any, ...], future: Future[bytes] | None
) -> tuple[CaptureGroup, Any]:
    try:
        if future is not None:
            return group, pickle.loads(future.result())
    except ChildEnded as how:
        return group, DamagedCapture(f"{group.name}: the process that read it {how}")
    except (ChildNotStarted, NoRoom) as why:
        log.info("%s: %s; it is read in this process", group.name, why)
    except RuntimeError as error:  # of our own code
        log.debug("%s", group.name, exc_info=True)
        return group, DamagedCapture(f"{group.name}: examining it failed: {error}")
    return group, pickle.loads(call(*arguments))


def _examined(group: CaptureGroup, request: Request) -> bytes:
    """As bytes: arrays that are mapped, as those of a process are else, take a file descriptor for each capture."""
    return pickle.dumps(examine_group(group, request), protocol=5)


def _answered(group: CaptureGroup, request: Request, asked: Sequence[SecondRequest]) -> bytes:
    return pickle.dumps(ask_again(group, request, asked), protocol=5)


def _can_be_sent(request: object) -> bool:
    """Rules that a program defines in itself cannot be."""
    try:
        pickle.dumps(request)
    except Exception:
        return False
    return True
