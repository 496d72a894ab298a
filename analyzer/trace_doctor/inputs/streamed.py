"""Captures one after the other: each group is read in a child process, examined and dropped."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_doctor.engine import Examination, Sizes
from trace_doctor.errors import DamagedCapture, TraceDoctorError, UsageError
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.inputs.group_examination import (
    Answer,
    GroupExamination,
    Request,
    SecondRequest,
    ask_again,
    examine_group,
)
from trace_doctor.inputs.group_format import decode, encode
from trace_doctor.inputs.groups import CaptureGroup, groups_of
from trace_doctor.inputs.reading import AS_NEEDED, Reading
from trace_doctor.inputs.recorded import on_one_clock, with_launcher_warnings
from trace_doctor.inputs.scope import InputFiles
from trace_doctor.inputs.summaries import lost
from trace_doctor.loaders.discover import Discovery
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions
from trace_doctor.loading import executor as executors
from trace_doctor.loading.cluster import Cluster, WorkerLost
from trace_doctor.loading.doubtful_ranks import located
from trace_doctor.loading.executor import ChildEnded, ChildNotStarted, Contained, NoRoom
from trace_doctor.loading.load_files import BASE, NEED, size_of, weight_of
from trace_doctor.rule import Rule

log = logging.getLogger("trace_doctor")

MANY = 64
"""capture groups from which on captures are not kept in memory"""
NO_PANELS = "no zoomable panels: captures were read one after the other and are not kept in memory"
_TIMEOUT_S = 3600.0


class Streamed:
    """The captures of many ranks. What a group's process ends with is of that group alone: it is lost and listed."""

    def __init__(
        self,
        discovery: Discovery,
        paths: Sequence[str | Path],
        load: LoadOptions,
        options: Options,
        rank: int | None,
        reading: Reading = AS_NEEDED,
    ) -> None:
        self.groups = groups_of(discovery.found)
        self.files = InputFiles.of(discovery)
        self.facts: list[Facts] = []
        """none is held"""
        self.limits: list[str] = []
        """what could not be done, for the limits of the result"""
        self.discovery, self._paths = discovery, paths
        self._load, self._options, self._rank = load, options, rank
        self._summaries, self._scheduler = reading.summaries, reading.scheduler
        self._timeout_s, self._remote = reading.timeout_s, reading.remote
        self._width, self._memory = self._shares() if self._scheduler is None else (1, None)
        self._group_of: dict[tuple[int, str], CaptureGroup] = {}
        self._first_answers: dict[tuple[int, str], Answer] = {}
        self._request: Request | None = None

    def request(self, rules: Sequence[Rule]) -> Request:
        """What is asked of each capture, the same on each machine."""
        total = len(self.groups) if self._summaries is None else self._summaries.total(self.groups)
        count = 1 << (max(total, 1) - 1).bit_length()  # so that one more rank is no other request
        return Request(tuple(rules), Sizes.among(count, count), self._options, self._rank, self._memory)

    def examine(self, rules: Sequence[Rule], *, detail: bool, progress: Progress) -> list[Examination]:
        """Of every capture, by rank and path. `detail` is not collected: a page has no room for that of many ranks. Raises
        NoCaptures without any."""
        self.files, self.limits = InputFiles.of(self.discovery), []
        order = {group.name: number for number, group in enumerate(self.groups)}
        examined = sorted(self.examined(rules, progress), key=lambda pair: order[pair[0].name])
        for group, outcome in examined:
            self._note(group, outcome)
        if self._remote is not None:
            self._remote.compare()
        captures_by_rank = sorted(
            (c.examination for c in on_one_clock(examined)), key=lambda e: (e.rank, e.summary.path)
        )
        self.files.must_have(len(captures_by_rank), self._paths, self._rank)
        return with_launcher_warnings(captures_by_rank, self.files.recordings, self._group_of)

    def examined(
        self, rules: Sequence[Rule], progress: Progress
    ) -> Iterator[tuple[CaptureGroup, GroupExamination]]:
        """Every group, or those of a shard, with what is kept of it: from the store, or read now and written there. A group
        that is lost has its files as unread ones."""
        self._request = request = self.request(rules)
        summaries = self._summaries
        if summaries is not None:
            summaries.begin(request, self.groups)
        groups = self.groups if summaries is None else summaries.own
        unknown = []
        for group in groups:
            known = None if summaries is None else summaries.known(group, rules)
            if known is None:
                unknown.append(group)
            else:
                yield group, known
        progress.expect(sum(size_of(f.path) for g in unknown for f in g.files))
        for group, outcome in self._each(_examined, [(g, (g, request)) for g in unknown], progress):
            if summaries is not None:
                summaries.note(group, outcome)
            if self._scheduler is not None:  # of its processes no bytes are heard
                progress.read(sum(size_of(f.path) for f in group.files))
            yield (
                group,
                lost(group, outcome) if isinstance(outcome, TraceDoctorError) else decode(outcome, rules),
            )

    def _note(self, group: CaptureGroup, examined: GroupExamination) -> None:
        unread = dict(examined.unread)
        read = [f for f in group.files if f.display not in unread]
        self.files.add_read(read, located(examined.identities, read))
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
        changed = [n for n in by_group if self._summaries is not None and self._summaries.changed(groups[n])]
        names = [name for name in by_group if name not in changed]
        calls = [(groups[name], (groups[name], self._request, by_group[name])) for name in names]
        answers, unanswered = dict(self._first_answers), changed
        for group, outcome in self._each(_answered, calls, Progress()):
            results = [] if isinstance(outcome, TraceDoctorError) else pickle.loads(outcome)
            if not results:
                unanswered.append(group.name)
            for each, answer in zip(by_group[group.name], results, strict=bool(results)):
                answers[each.rank, each.path] = answer
        if unanswered:
            count = f"{len(unanswered)} capture{'s' if len(unanswered) > 1 else ''}"
            first = next(name for name in by_group if name in unanswered)
            self.limits.append(
                f"{count} could not be read again, so fixes are not replayed together: {first}"
            )
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
        calls: Sequence[tuple[CaptureGroup, tuple[Any, ...]]],
        progress: Progress,
    ) -> Iterator[tuple[CaptureGroup, Any]]:
        """Each group with what its call returns, or the error that its process ended with, as they end. Files at a URL are here
        from before its call until it has ended."""
        if not calls:
            return
        if (remote := self._remote) is None:
            yield from self._called(call, calls, progress)
            return
        unread: list[tuple[CaptureGroup, DamagedCapture]] = []

        def fetched() -> Iterator[tuple[CaptureGroup, tuple[Any, ...]]]:
            for group, arguments in calls:
                progress("reading", group.name)
                try:
                    remote.fetch(group)
                except DamagedCapture as error:
                    unread.append((group, error))
                else:
                    yield group, arguments

        for group, outcome in self._called(call, fetched(), progress):
            remote.drop(group)
            yield group, outcome
        yield from unread

    def _called(
        self,
        call: Callable[..., bytes],
        calls: Iterable[tuple[CaptureGroup, tuple[Any, ...]]],
        progress: Progress,
    ) -> Iterator[tuple[CaptureGroup, Any]]:
        """A call whose worker was killed is made again when no other is under way: the cause may have been another one."""
        lock = threading.Lock()

        def read(count: int) -> None:
            with lock:
                progress.read(count)

        with self._executor(read) as executor:
            pending: dict[Future[bytes], tuple[CaptureGroup, tuple[Any, ...]]] = {}
            again: list[tuple[CaptureGroup, tuple[Any, ...]]] = []
            for group, arguments in calls:
                with lock:
                    progress("reading", group.name)
                if executor is None:
                    yield _outcome(call, group, arguments, None)
                    continue
                pending[executor.submit(call, *arguments)] = group, arguments
                if len(pending) >= 2 * self._width:
                    yield from _ended(call, pending, again)
            while pending:
                yield from _ended(call, pending, again)
            for group, arguments in again:
                assert executor is not None
                yield _outcome(call, group, arguments, executor.submit(call, *arguments))

    @contextmanager
    def _executor(self, read: Callable[[int], None]) -> Iterator[Contained | Cluster | None]:
        sendable, timeout_s = _can_be_sent(self._request), self._timeout_s or _TIMEOUT_S
        if self._scheduler is not None:
            if not sendable:
                raise UsageError("--executor dask: a rule of the program itself cannot be sent to a worker")
            with Cluster(self._scheduler, timeout_s) as cluster:
                self._width = cluster.width
                cluster.check(self._request, os.path.abspath(self.groups[0].files[0].path.parent))
                yield cluster
            return
        if not executors.usable() or not sendable:
            if self._timeout_s is not None:
                raise UsageError(
                    "--rank-timeout: captures are read in this process here, which cannot be ended"
                )
            yield None
            return
        with Contained(self._width, read, timeout_s) as executor:
            yield executor


def _ended(
    call: Callable[..., bytes],
    pending: dict[Future[bytes], tuple[CaptureGroup, tuple[Any, ...]]],
    again: list[tuple[CaptureGroup, tuple[Any, ...]]],
) -> Iterator[tuple[CaptureGroup, Any]]:
    """The calls that have ended, at least one; those whose worker was killed go to `again`."""
    done = wait(pending, return_when=FIRST_COMPLETED).done
    for future in [future for future in pending if future in done]:
        group, arguments = pending.pop(future)
        if isinstance(future.exception(), WorkerLost):
            again.append((group, arguments))
        else:
            yield _outcome(call, group, arguments, future)


def _outcome(
    call: Callable[..., bytes], group: CaptureGroup, arguments: tuple[Any, ...], future: Future[bytes] | None
) -> tuple[CaptureGroup, Any]:
    try:
        if future is not None:
            return group, future.result()
    except ChildEnded as how:
        return group, DamagedCapture(f"{group.name}: the process that read it {how}")
    except (ChildNotStarted, NoRoom) as why:
        log.info("%s: %s; it is read in this process", group.name, why)
    except RuntimeError as error:  # of our own code
        log.debug("%s", group.name, exc_info=True)
        return group, DamagedCapture(f"{group.name}: examining it failed: {error}")
    return group, call(*arguments)


def _examined(group: CaptureGroup, request: Request) -> bytes:
    """As bytes: arrays that are mapped, as those of a process are else, take a file descriptor for each capture."""
    return encode(examine_group(group, request))


def _answered(group: CaptureGroup, request: Request, asked: Sequence[SecondRequest]) -> bytes:
    return pickle.dumps(ask_again(group, request, asked), protocol=5)


def _can_be_sent(request: object) -> bool:
    """Rules that a program defines in itself cannot be."""
    try:
        pickle.dumps(request)
    except Exception:
        return False
    return True
