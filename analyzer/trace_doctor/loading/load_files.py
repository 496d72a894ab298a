"""Loads all files that an analysis asks for: in processes where these pay, within the memory that all may take together."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trace_doctor import memory_limit
from trace_doctor.errors import DamagedCapture, TooLarge, TraceDoctorError
from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.kineto import decode
from trace_doctor.loaders.progress import Progress, listening
from trace_doctor.loaders.stream import GROWS
from trace_doctor.loading import executor as executors
from trace_doctor.loading import load_file, mapped_arrays
from trace_doctor.loading.executor import ChildEnded, ChildNotStarted, Contained, NoRoom
from trace_doctor.loading.load_file import Content
from trace_doctor.run import Run

log = logging.getLogger("trace_doctor")

PER_PROCESS = 128 << 20
"""Bytes of JSON that are worth a process: it takes 0.3 cpu seconds to start, these as much with the decoder in C, and four
times that without."""
NEED, BASE = 0.6, 120 << 20
"""Highest memory of a load: bytes per byte of JSON, and without any."""
_KEPT_PART = 3
"""What an analysis makes of columns and keeps takes such a part of what it needs at its peak, at most."""


def available_cores() -> int:
    """Cores this process may use: its affinity, and its control group's share of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # another system, or "max"
        pass
    return max(cores, 1)


@dataclass(frozen=True)
class LoadOptions:
    """As it stands: in this process, one file after another."""

    processes: int = 1
    """at most"""
    memory: int | None = None
    """bytes that all of them together may take; None: as the loaders decide"""


@dataclass(frozen=True)
class Loaded:
    """What became of one file: its columns, or the error to show for it."""

    found: CaptureFile
    outcome: Content | TraceDoctorError


def load_inputs(
    found: Sequence[CaptureFile], options: LoadOptions | None = None, progress: Progress | None = None
) -> list[Loaded]:
    """Every file, in the order given. What cannot be read is an outcome, not an error, and so is what does not fit into
    memory beside the files before it: what is made of their columns stays to the end of an analysis."""
    options, progress = options or LoadOptions(), progress or Progress()
    files = [_File(f, size_of(f.path)) for f in found]
    progress.expect(sum(f.size for f in files))
    count = processes([f.weight for f in files], options) if executors.usable() else 1
    if count > 1:
        log.info("reading %d files in %d processes", len(files), count)
        _load_in_processes(files, count, options, progress)
    _load_here([f for f in files if f.outcome is None], options, progress)
    kept_bytes = 0
    for file in files:
        more = file.need // _KEPT_PART
        if kept_bytes and not _fits(kept_bytes + more, options):
            file.outcome = _crowded_out(file, options)
        else:
            kept_bytes += more
    return [Loaded(f.found, f.loaded) for f in files]


@dataclass
class _File:
    found: CaptureFile
    size: int
    """bytes"""
    outcome: Content | TraceDoctorError | None = field(default=None)

    @property
    def weight(self) -> int:
        """About how many bytes of JSON it holds."""
        return weight_of(self.found)

    @property
    def need(self) -> int:
        """About how many bytes an analysis of its columns takes at its peak, beside what any takes."""
        if not isinstance(self.outcome, Run):
            return 0
        texts = sum(map(len, self.outcome.names)) + decode.PER_ID * len(self.outcome.names)
        return decode.PER_EVENT * len(self.outcome) + texts

    @property
    def loaded(self) -> Content | TraceDoctorError:
        """What came of it, once it has been loaded: the content, or the error to report."""
        assert self.outcome is not None
        return self.outcome


def processes(weights: Sequence[int], options: LoadOptions) -> int:
    """How many processes pay for files of so many bytes of JSON and fit into memory; 1: better here."""
    count = min(options.processes, len(weights), sum(weights) // PER_PROCESS)
    needs = sorted((BASE + int(NEED * w) for w in weights), reverse=True)
    while count > 1 and options.memory is not None and sum(needs[:count]) > options.memory:
        count -= 1
    return max(count, 1)


def _load_in_processes(files: Sequence[_File], count: int, options: LoadOptions, progress: Progress) -> None:
    """The largest first. Files that no process could finish are left without outcome."""
    memory = options.memory and options.memory // count
    lock = threading.Lock()  # calls are heard of from several threads

    def read(size: int) -> None:
        with lock:
            progress.read(size)

    with Contained(count, read) as executor:
        order = sorted(files, key=lambda f: -f.weight)
        calls = [
            executor.submit(load_file.load_derived, f.found, memory, core_free=available_cores() > count)
            for f in order
        ]
        for file, call in zip(order, calls, strict=True):
            with lock:
                progress("reading", file.found.display)
            try:
                file.outcome = call.result()
            except TraceDoctorError as error:
                file.outcome = error
            except ChildEnded as how:
                file.outcome = DamagedCapture(f"{file.found.display}: the process that read it {how}")
            except (ChildNotStarted, NoRoom) as why:
                log.info("%s: %s; it is read in this process", file.found.display, why)


def _load_here(files: Sequence[_File], options: LoadOptions, progress: Progress) -> None:
    """One after the other, with those that were read put away where the next does not fit beside them."""
    loaded: list[_File] = []
    need = 0
    for file in files:
        if not _fits(need + int(NEED * file.weight), options):
            _put_away(loaded)
            loaded, need = [], 0
        file.outcome = _outcome(file, options, progress)
        loaded.append(file)
        need += file.need
    if not _fits(need, options):
        _put_away(loaded)


def _outcome(file: _File, options: LoadOptions, progress: Progress) -> Content | TraceDoctorError:
    progress("reading", file.found.display)
    started = time.perf_counter()
    report = _ProgressOfFile(progress)
    try:
        with listening(report.read):
            return load_file.load(file.found, options.memory)
    except TraceDoctorError as error:
        return error
    finally:
        report.read(file.size - report.count)  # not every loader tells
        seconds = time.perf_counter() - started
        log.info("%s: %.1f MB in %.2f s", file.found.display, file.size / 1e6, seconds)


class _ProgressOfFile:
    """Counts what progress was told of."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.count = 0

    def read(self, count: int) -> None:
        """`count` more bytes of the file."""
        self.count += count
        self._progress.read(count)


def _fits(need: int, options: LoadOptions) -> bool:
    return options.memory is None or decode.BASE + need <= options.memory


def _put_away(loaded: Sequence[_File]) -> None:
    """Has columns mapped from files without a name, as those that another process has read: the system can take their
    memory back."""
    for file in loaded:
        if not isinstance(file.outcome, Run):
            continue
        load_file.derive(file.outcome)
        try:
            with mapped_arrays.write(file.outcome) as columns:
                file.outcome = mapped_arrays.read(columns)
        except OSError as error:
            log.info("%s: the columns stay in memory: %s", file.found.display, error)
    gc.collect()  # columns and what was made of them refer to each other


def _crowded_out(file: _File, options: LoadOptions) -> TooLarge:
    limit = memory_limit.text(options.memory or 0)
    return TooLarge(
        f"{file.found.display}: with the files before it, analyzing it needs more than {limit} of memory (--max-memory)"
    )


def weight_of(file: CaptureFile) -> int:
    """About how many bytes of JSON a file holds."""
    return size_of(file.path) * (GROWS if file.path.suffix in (".gz", ".zst", ".pftrace") else 1)


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it is gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
