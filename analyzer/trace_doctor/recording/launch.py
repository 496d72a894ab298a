"""Runs a command so that its training processes are recorded, and says what came of it.

    recorded = record_command(["python", "train.py"], RecordOptions(folder=new_folder("logs")))

The command gets two environment variables more and nothing else: its arguments, working directory, standard streams,
terminal and signals are its own, and its exit code is passed on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_doctor import __version__
from trace_doctor.errors import UsageError
from trace_doctor.recording import command_line, steps
from trace_doctor.recording.options import (
    BOOTSTRAP,
    COMMAND_FILE,
    OPTIONS_FILE,
    OPTIONS_VARIABLE,
    PLAN_FILE,
    RECORDING_FILE,
    RecordOptions,
)
from trace_doctor.recording.running import Ended, run
from trace_doctor.recording.steps import Step

SCHEMA = 1


@dataclass(frozen=True)
class Recorded:
    """What came of a recorded command."""

    folder: Path
    exit_code: int
    """the command's own, negative where signal -exit_code ended it; 0 where it was stopped because enough is recorded"""
    stopped_by_us: bool
    seconds: float
    """from start to end of the command"""
    steps: tuple[Step, ...]
    """of all ranks, in order of rank and step; empty where none was seen"""
    ranks: Mapping[int, Mapping[str, Any]]
    """rank -> what its process said of its recording (`rank<N>.recording.json`)"""
    warnings: tuple[str, ...]
    """what was not recorded and why, a line each"""


def new_folder(base: str | os.PathLike[str] = "logs") -> str:
    """A new folder below `base`, named by the time (UTC); its absolute path. Raises UsageError where none can be made."""
    name = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    for attempt in range(100):
        folder = Path(base, name if not attempt else f"{name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():  # another recording began in the same second
                continue
            raise UsageError(f"cannot make {folder}: a file is in the way") from None
        except OSError as error:
            raise UsageError(f"cannot make {folder}: {error.strerror}") from None
        return str(folder.absolute())
    raise UsageError(f"cannot make a new folder below {base}")


def record_command(
    command: Sequence[str],
    options: RecordOptions,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    quiet_output: bool = False,
    say: Callable[[str], None] | None = None,
) -> Recorded:
    """Runs `command` to its end and records it into `options.folder`, which exists.

    `env` replaces the whole environment (default: this one). `quiet_output` sends what the command prints to a file
    `output.log` in the folder. `say` gets the lines for the person at the terminal while the command runs.
    Raises UsageError when the command cannot be started.
    """
    folder = Path(options.folder)
    options.write(folder / OPTIONS_FILE)
    (folder / COMMAND_FILE).write_text(command_line.masked(command) + "\n", encoding="utf-8")
    began = time.monotonic()
    ended = run(
        command,
        options,
        cwd=cwd,
        env=_environment(os.environ if env is None else env, folder / OPTIONS_FILE),
        output=folder / "output.log" if quiet_output else None,
        say=say or (lambda line: None),
    )
    return _sum_up(folder, ended, time.monotonic() - began)


def _environment(given: Mapping[str, str], options_file: Path) -> dict[str, str]:
    """The command's environment: the recorder's folder first on PYTHONPATH, and where its options are."""
    paths = [str(BOOTSTRAP), *filter(None, [given.get("PYTHONPATH")])]
    return {**given, "PYTHONPATH": os.pathsep.join(paths), OPTIONS_VARIABLE: str(options_file)}


def _sum_up(folder: Path, ended: Ended, seconds: float) -> Recorded:
    ranks = _said_by_ranks(folder)
    enough = ended.stopped or (bool(ranks) and all(r.get("ended") == "enough" for r in ranks.values()))
    recorded = Recorded(
        folder=folder,
        exit_code=0 if enough else ended.exit_code,
        stopped_by_us=enough,
        seconds=round(seconds, 3),
        steps=steps.gather(folder),
        ranks=ranks,
        warnings=(),
    )
    said = {
        "schema": SCHEMA,
        "version": __version__,
        "exit_code": max(recorded.exit_code, 0),
        "signal": -recorded.exit_code if recorded.exit_code < 0 else None,
        "stopped_by_us": recorded.stopped_by_us,
        "seconds": recorded.seconds,
        "ranks": sorted(ranks),
        "warnings": list(recorded.warnings),
    }
    (folder / RECORDING_FILE).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    for name in (OPTIONS_FILE, PLAN_FILE):
        (folder / name).unlink(missing_ok=True)
    return recorded


def _said_by_ranks(folder: Path) -> dict[int, dict[str, Any]]:
    said = {}
    for path in folder.glob("rank*.recording.json"):
        try:
            one = json.loads(path.read_bytes())
            said[int(path.name[len("rank") : -len(".recording.json")])] = dict(one)
        except (OSError, ValueError, TypeError):
            continue
    return dict(sorted(said.items()))
