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

_VERDICT_SECONDS = 600.0
"""an analysis of what one rank records takes some seconds"""


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
        """The diagnosis of what was recorded, in a few sentences, made by another process; after the `with` block. Of several ranks the
        command that analyzes all, as others may not have ended. "" for a rank that did not record, and where another one began it."""
        import shlex
        import subprocess
        import sys

        from trace_doctor.recording.folder import read

        if not self._ours:
            return ""
        folder = self._session.folder
        recording = read(folder)
        if recording is None or any((rank.world_size or 1) > 1 for rank in recording.ranks.values()):
            return f"trace-doctor analyze {shlex.quote(str(folder))}"
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
            return f"no verdict; trace-doctor analyze {shlex.quote(str(folder))}"
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
            options.write(Path(options.folder) / OPTIONS_FILE, job=_job())
            whole_files.write(Path(options.folder) / COMMAND_FILE, masked(sys.orig_argv) + "\n")
            return options
        folder = _folder_of(_job(), Path(self._base))
        return replace(self._options, folder=str(folder)) if folder else None


def _job() -> str:
    """The same for all processes that one launcher has started on this machine, and for no others."""
    parent = os.getppid()
    try:
        started = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return f"{parent}:{started}:{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"


def _folder_of(job: str, base: Path) -> Path | None:
    """The newest recording below `base` that the first rank of this job has begun; None where none comes up in time."""
    until = time.monotonic() + _FOLDER_SECONDS
    while time.monotonic() < until:
        for options in sorted(base.glob(f"*/{OPTIONS_FILE}"), reverse=True):
            with contextlib.suppress(OSError, ValueError):
                if json.loads(options.read_bytes()).get("job") == job:
                    return options.parent.absolute()
        time.sleep(0.05)
    return None


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
