"""Loads all files that an analysis asks for."""

from __future__ import annotations

import gc
import logging
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any

from trace_doctor.errors import TooLarge, TraceDoctorError
from trace_doctor.evidence.base import Facts
from trace_doctor.loaders import columns, kineto_decode, limits
from trace_doctor.loaders.cache import Draft
from trace_doctor.loaders.columns import Content
from trace_doctor.loaders.discover import Found
from trace_doctor.loaders.progress import Progress, listening
from trace_doctor.loaders.stream import GROWS
from trace_doctor.loading import single
from trace_doctor.loading.ways import Ways, available_cores
from trace_doctor.loading.workers import Broken, Job, Unable, able, run_jobs
from trace_doctor.run import Run

log = logging.getLogger("trace_doctor")

PER_WORKER = 128 << 20
"""Bytes of JSON that are worth a process: it takes 0.3 cpu seconds to start, these as much with the decoder in C, and four
times that without."""
NEED, BASE = 0.6, 120 << 20
"""Highest memory of a load: bytes per byte of JSON, and without any."""
MADE = 3
"""What an analysis makes of columns and keeps takes such a part of what it needs at its peak, at most."""


@dataclass(frozen=True)
class Loaded:
    """What became of one file: its columns, or the error to show for it."""

    found: Found
    outcome: Content | TraceDoctorError
    size: int = 0
    """bytes of the file"""
    cached: bool = False
    """it came from the cache"""
    kept: int | None = None
    """bytes of its entry in the cache"""
    key: Mapping[str, Any] | None = None
    """of its entry in the cache, where it has or gets one"""

    @property
    def count(self) -> int:
        return 0 if isinstance(self.outcome, TraceDoctorError) else len(self.outcome)

    @property
    def unit(self) -> str:
        return {"trace": "events", "snapshot": "allocator entries", "torch_trace": "records"}[self.found.kind]


def load_inputs(
    found: Sequence[Found], ways: Ways | None = None, progress: Progress | None = None
) -> list[Loaded]:
    """Every file, in the order given. What cannot be read is an outcome, not an error, and so is what does not fit into
    memory beside the files before it: what is made of their columns stays to the end of an analysis."""
    ways, progress = ways or Ways(), progress or Progress()
    if not all(f.kind == "trace" and f.recording is None for f in found):  # several may form one capture
        ways = replace(ways, prefetch=None)
    tasks = [_Task(f, ways) for f in found]
    for task in tasks:
        task.look_up()
    missing = [t for t in tasks if t.outcome is None]
    progress.expect(sum(t.size for t in missing))
    count = processes([t.weight for t in missing], ways) if able() else 1
    if count > 1:
        log.info("reading %d files in %d processes", len(missing), count)
        _in_processes(missing, count, progress)
    _load_here([t for t in missing if t.outcome is None], ways, progress)
    made = 0
    for task in tasks:
        more = task.need // MADE
        if made and not _fits(made + more, ways):
            task.crowd_out()
        else:
            made += more
    return [t.loaded() for t in tasks]


def _load_here(tasks: Sequence[_Task], ways: Ways, progress: Progress) -> None:
    """One after the other, with those that were read put away where the next does not fit beside them."""
    held: list[_Task] = []
    needed = 0
    for task in tasks:
        if not _fits(needed + int(NEED * task.weight), ways):
            _put_away(held)
            held, needed = [], 0
        task.load_here(progress)
        held.append(task)
        needed += task.need
    if not _fits(needed, ways):
        _put_away(held)


def _fits(need: int, ways: Ways) -> bool:
    return ways.memory is None or kineto_decode.BASE + need <= ways.memory


def _put_away(held: Sequence[_Task]) -> None:
    for task in held:
        task.put_away()
    gc.collect()  # columns and what was made of them refer to each other


def keep_evidence(files: Sequence[Loaded], everything: Iterable[Facts], ways: Ways) -> None:
    """Keeps what an analysis made of these files for the next, where it made anything new."""
    cache = ways.cache
    if cache is None or not ways.keep:
        return
    for facts in everything:
        file = next((f for f in files if f.outcome is facts.capture.run and f.key is not None), None)
        made = facts.kept() if file is not None else {}
        known = facts.run.earlier.keys() if file is not None and file.cached else ()
        if file is None or file.key is None or made.keys() <= set(known):
            continue
        try:
            cache.keep_evidence(file.found.path, file.key, made)
        except (OSError, ValueError) as error:
            log.info("%s: evidence is not kept: %s", file.found.display, error)


def processes(weights: Sequence[int], ways: Ways) -> int:
    """How many processes pay for files of so many bytes of JSON and fit into memory; 1: better here."""
    count = min(ways.jobs, len(weights), sum(weights) // PER_WORKER)
    needs = sorted((BASE + int(NEED * w) for w in weights), reverse=True)
    while count > 1 and ways.memory is not None and sum(needs[:count]) > ways.memory:
        count -= 1
    return max(count, 1)


def _in_processes(tasks: Sequence[_Task], count: int, progress: Progress) -> None:
    """The largest first. Tasks that no process could finish are left without outcome."""
    order = sorted(tasks, key=lambda t: -t.weight)
    with ExitStack() as files:
        try:
            run_jobs([partial(t.job, files, count, progress) for t in order], count, progress)
        except Unable as why:
            log.info("%s; going on in this one", why)


def _nameless() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise Unable(f"no temporary file ({error.strerror})") from error


class _Task:
    """One file on its way."""

    def __init__(self, found: Found, ways: Ways) -> None:
        self.found = found
        self.ways = ways
        self.outcome: Content | TraceDoctorError | None = None
        self.cached = False
        self.seen = 0
        self.key: dict[str, Any] | None = None
        self.earlier: Mapping[str, columns.Array] = {}
        try:
            self.size = found.path.stat().st_size
        except OSError:
            self.size = 0

    @property
    def weight(self) -> int:
        return self.size * (GROWS if self.found.path.suffix == ".gz" else 1)

    def look_up(self) -> None:
        """Takes the columns from the cache where it has them."""
        cache = self.ways.cache
        if cache is None or self.found.kind == "torch_trace":  # small, and read in no time
            return
        try:
            self.key = cache.key(self.found.path)
        except OSError:
            return
        content = cache.find(self.found.path, self.key)
        if content is not None:
            self.outcome, self.cached = single.placed(content, self.found), True
            self.earlier = cache.find_evidence(self.found.path, self.key)
            log.info("%s: columns taken from the cache", self.found.display)

    def read(self, progress: Progress, count: int) -> None:
        """So many more bytes of this file have been read."""
        self.seen += count
        progress.read(count)

    @property
    def need(self) -> int:
        """About how many bytes an analysis of its columns takes at its peak, beside what any takes."""
        if not isinstance(self.outcome, Run):
            return 0
        texts = sum(map(len, self.outcome.names)) + kineto_decode.PER_ID * len(self.outcome.names)
        return kineto_decode.PER_EVENT * len(self.outcome) + texts

    def crowd_out(self) -> None:
        limit = limits.text(self.ways.memory or 0)
        self.outcome = TooLarge(
            f"{self.found.display}: with the files before it, analysing it needs more than {limit} of memory "
            "(--max-memory)"
        )

    def put_away(self) -> None:
        """Has the columns mapped from a file without a name, as those that another process has read: the system can take
        their memory back."""
        if not isinstance(self.outcome, Run):
            return
        single.derive(self.outcome)
        try:
            with _nameless() as file:
                columns.write(file, self.outcome, {})
                self.outcome = single.placed(columns.read(file, {}), self.found)
        except (Unable, OSError, ValueError) as error:
            log.info("%s: the columns stay in memory: %s", self.found.display, error)

    def load_here(self, progress: Progress) -> None:
        progress("reading", self.found.display)
        started = time.perf_counter()
        try:
            with listening(partial(self.read, progress)):
                content = single.load(self.found, self.ways.memory)
        except TraceDoctorError as error:
            self.outcome = error
            return
        finally:
            progress.read(self.size - self.seen)  # not every loader tells
        seconds = time.perf_counter() - started
        log.info("%s: %.1f MB in %.2f s", self.found.display, self.size / 1e6, seconds)
        self.outcome = content
        if self.keeps:
            single.derive(content)
            self._keep(content)

    @property
    def keeps(self) -> bool:
        return self.ways.keep and self.key is not None

    def job(self, files: ExitStack, count: int, progress: Progress) -> Job:
        """This file as a job for one of so many processes: its columns go to the cache, or to a file without a name."""
        draft = self._draft() if self.keeps else None
        target = files.enter_context(draft).file if draft else files.enter_context(_nameless())
        prefetched = files.enter_context(_nameless()) if self.ways.prefetch else None
        memory = self.ways.memory and self.ways.memory // count
        return Job(
            self.found, target, self.ways.prefetch, prefetched, self.key or {}, memory, available_cores() > count,
            read=partial(self.read, progress), finish=partial(self._finish, progress, target, prefetched, draft),
        )  # fmt: skip

    def _finish(
        self,
        progress: Progress,
        target: IO[bytes],
        prefetched: IO[bytes] | None,
        draft: Draft | None,
        error: Exception | None,
    ) -> None:
        progress.read(self.size - self.seen)
        if isinstance(error, TraceDoctorError):
            self.outcome = error
        elif isinstance(error, Broken):
            raise RuntimeError(f"{self.found.display}: {str(error).splitlines()[-1]}") from error
        elif error is not None:  # no room for the columns: it is read again, here
            log.info("%s: %s", self.found.display, error)
            self.ways = replace(self.ways, keep=False)
        else:
            self.outcome = single.placed(columns.read(target, self.key or {}), self.found)
            if prefetched is not None:
                with suppress(columns.Unusable, OSError):
                    self.earlier = columns.read_arrays(prefetched, self.key or {})[1]
            if draft is not None:
                self._commit(draft)

    def _keep(self, content: Content) -> None:
        draft = self._draft()
        if draft is None:
            return
        with draft:
            try:
                columns.write(draft.file, content, self.key or {})
            except (OSError, ValueError) as error:
                self._not_kept(error)
            else:
                self._commit(draft)

    def _draft(self) -> Draft | None:
        assert self.ways.cache is not None
        try:
            return self.ways.cache.draft(self.found.path)
        except OSError as error:
            self._not_kept(error)
            return None

    def _commit(self, draft: Draft) -> None:
        """Unless the file is another by now than when its key was made."""
        assert self.ways.cache is not None
        try:
            same = self.ways.cache.key(self.found.path) == self.key
        except OSError:  # gone
            return
        try:
            if same:
                draft.commit()
        except OSError as error:
            self._not_kept(error)

    def _not_kept(self, error: Exception) -> None:
        assert self.ways.cache is not None
        if isinstance(error, OSError):
            warning = self.ways.cache.unwritable(error)
            if warning:
                self.ways.warn(warning)
        else:
            log.info("%s: not kept: %s", self.found.display, error)

    def loaded(self) -> Loaded:
        assert self.outcome is not None
        outcome = self.outcome
        if not isinstance(outcome, TraceDoctorError):
            outcome = single.described(outcome, self.found.path)
        if isinstance(outcome, Run):
            outcome.earlier.update(self.earlier)
        return Loaded(self.found, outcome, self.size, self.cached, self._kept(), self.key)

    def _kept(self) -> int | None:
        if self.key is None or not (self.cached or self.ways.keep):
            return None
        assert self.ways.cache is not None
        try:
            return self.ways.cache.entry(self.found.path).stat().st_size
        except OSError:
            return None
