"""`trace_doctor.record`: for those who prefer two lines in their script to a command in front of it.

with trace_doctor.record("logs") as recording:
    for batch in loader:
        ...
        recording.step()
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from trace_doctor.errors import UsageError
from trace_doctor.recording import whole_files
from trace_doctor.recording.options import (
    COMMAND_FILE,
    OPTIONS_FILE,
    PLAN_FILE,
    RECORDING_FILE,
    RecordOptions,
)

log = logging.getLogger("trace_doctor")
_begins = threading.Lock()
"""two threads that begin at once share a recording, as two that begin one after the other do"""
_FOLDER_SECONDS = 60.0
"""the other ranks of a machine wait so long for the first one to make the folder"""

_VERDICT_SECONDS = 300.0
"""an analysis takes some seconds; other ranks may wait for this one meanwhile, in a collective that gives up after ten minutes"""
_RANKS_SECONDS = 10.0
"""rank 0 waits so long for the others of its machine to end"""


def record(folder: str | os.PathLike[str] = "logs", **options: Any) -> InsideRecording:
    """Records the steps inside the `with` block into a new folder `<folder>/<UTC time>/`.

    `options` are those of `RecordOptions`; `let_it_run` is True unless said otherwise: False leaves the script by
    SystemExit when enough is recorded. Under `trace-doctor record` the steps are those of `step()`, all else is as the
    command says. Raises ValueError for an option out of bounds, UsageError where no folder can be made.
    """
    return InsideRecording(folder, RecordOptions(folder="", **{"let_it_run": True, **options}))


class InsideRecording:
    """What `record` gives: a context manager whose `step()` is called behind each step."""

    def __init__(
        self, base: str | os.PathLike[str], options: RecordOptions, found_by: str = "step()"
    ) -> None:
        if options.every is not None:
            raise ValueError("every is for the command: trace-doctor record --every")
        self._base = base
        self._options = options
        self._found_by = found_by
        self._session: Any = None
        self._ours = False
        self._began = 0.0

    @property
    def folder(self) -> Path | None:
        """Of this recording; None outside of the `with` block, and for a rank that does not record."""
        return self._session.folder if self._session is not None else None

    @property
    def done(self) -> bool:
        """Whether enough is recorded: a script that trains only to be recorded can leave its loop."""
        return self._session is not None and bool(self._session.done)

    def __enter__(self) -> Self:
        import torch

        from trace_doctor.recording.agent import session

        self._began = time.monotonic()
        self._session, self._ours = None, False  # of the block before
        with _begins:
            running = session.current()
            if running is not None and not running.done and not running.passive:
                running.finder.uninstall()
                self._session = running
            else:
                self._start(torch)
        if self._session is not None:
            self._session.first_step()
        return self

    def _start(self, torch: Any) -> None:
        """A recorder that cannot be started is a warning: the training runs without it."""
        from trace_doctor.recording import process_log
        from trace_doctor.recording.agent import session

        before = session.current()
        try:
            if (options := self._with_folder()) is not None:
                self._session, self._ours = session.begin(torch, options, find_steps=False), True
        except UsageError:
            raise
        except Exception as error:
            begun = session.current()
            if begun is not None and begun is not before:
                begun.give_up(error)
            log.warning("the recorder failed and nothing is recorded: %s", process_log.told(error))

    def step(self) -> None:
        """A step is over. Raises nothing, but SystemExit where the script is to be stopped."""
        if self._session is not None:
            self._session.step_ended(self._found_by)

    @contextlib.contextmanager
    def quietly(self) -> Iterator[None]:
        """What fails in here, as what a framework says of its training can, switches the recorder off and goes no further."""
        try:
            yield
        except Exception as error:
            if self._session is not None:
                self._session.give_up(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if self._ours:
            self._session.leave(error)
            with contextlib.suppress(Exception):
                _sum_up(self._session.folder, time.monotonic() - self._began)
        return False

    def verdict(self) -> str:
        """The diagnosis of what was recorded, in a few sentences, made by another process; after the `with` block. Of several ranks,
        rank 0 has it, of all of them; where some have not ended within seconds or run on other machines, it has the command that
        analyzes them. "" for all other ranks, for a rank that did not record, and where another one began it."""
        import shlex
        import subprocess
        import sys

        from trace_doctor.recording.agent import ranks

        if not self._ours:
            return ""
        recorder, folder = self._session.recorder, self._session.folder
        rank, size = ranks.rank_and_size(sys.modules)
        if recorder is not None:
            rank, size = recorder.status.rank, recorder.status.manifest["world_size"]
        if rank != 0:
            return ""
        command = f"trace-doctor analyze {shlex.quote(str(folder))}"
        if recorder is None:
            return "nothing was recorded"
        if not _summed_up(folder):
            return f"not all {size} ranks have ended here; for the verdict: {command}"
        analyze = "import sys, trace_doctor; print(trace_doctor.analyze(sys.argv[1]).summary.verdict)"
        try:
            done = subprocess.run(
                [sys.executable, "-c", analyze, str(folder)],
                capture_output=True,
                text=True,
                timeout=_VERDICT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return f"no verdict; {command}"
        return done.stdout.strip()

    def _with_folder(self) -> RecordOptions | None:
        """The options with the folder of this job: the first rank of a machine makes it, the others find it."""
        import sys
        from dataclasses import replace

        from trace_doctor.recording.agent import ranks
        from trace_doctor.recording.command_line import masked
        from trace_doctor.recording.launch import new_folder

        rank, size = ranks.rank_and_size(sys.modules)
        if size == 1 or ranks.leads(rank):
            options = replace(self._options, folder=new_folder(self._base))
            own = _started(os.getpid())  # the parent of the other ranks, where the first one starts them
            options.write(Path(options.folder) / OPTIONS_FILE, job=_started(os.getppid()), process=own)
            whole_files.write(Path(options.folder) / COMMAND_FILE, masked(sys.orig_argv) + "\n")
            return options
        folder = _folder_of(_started(os.getppid()), Path(self._base))
        if folder is None:
            log.warning("rank %d is not recorded: the first rank of its job began no recording here", rank)
            return None
        return replace(self._options, folder=str(folder))


def _started(process: int) -> str:
    """Names a process, and no other one that gets its number later: the launcher of a job has one name for all its ranks."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        started = stat.rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return f"{process}:{started}:{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"


def _folder_of(job: str, base: Path) -> Path | None:
    """The newest recording below `base` that the first rank of this job has begun; None where none comes up in time."""
    until = time.monotonic() + _FOLDER_SECONDS
    while time.monotonic() < until:
        for options in sorted(base.glob(f"*/{OPTIONS_FILE}"), reverse=True):
            with contextlib.suppress(OSError, ValueError):
                said = json.loads(options.read_bytes())
                if job in (said.get("job"), said.get("process")):
                    return options.parent.absolute()
        time.sleep(0.05)
    return None


def _summed_up(folder: Path) -> bool:
    """Whether all ranks have ended and are in one table; waits for those of this machine, for some seconds."""
    until = time.monotonic() + _RANKS_SECONDS
    while (folder / OPTIONS_FILE).exists():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _sum_up(folder: Path, seconds: float) -> None:
    """By the last rank to end: the steps of all in one table, and what a launcher would say."""
    from trace_doctor.recording import steps_csv
    from trace_doctor.recording.folder import read
    from trace_doctor.recording.launch import manifest

    recording = read(folder)
    ranks = list(recording.ranks.values()) if recording else []
    if not ranks or any(not r.ended for r in ranks) or len(ranks) < (ranks[0].world_size or 1):
        return
    warnings = list(dict.fromkeys(warning for r in ranks for warning in r.warnings))
    temporary = whole_files.aside(folder / RECORDING_FILE)
    temporary.write_text(manifest([r.rank for r in ranks], warnings, seconds), encoding="utf-8")
    try:
        os.link(temporary, folder / RECORDING_FILE)
    except FileExistsError:  # another rank has ended at the same time
        return
    finally:
        temporary.unlink()
    steps_csv.join(folder, [r.rank for r in ranks])
    for name in (OPTIONS_FILE, PLAN_FILE):
        (folder / name).unlink(missing_ok=True)
