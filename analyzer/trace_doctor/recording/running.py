"""A command and all processes it starts: run, watched, bounded and, when it is time, ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.recording.options import RecordOptions


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    """negative: the signal that ended it"""
    stopped: bool
    """ended by us because it had enough time"""


def run(
    command: Sequence[str],
    options: RecordOptions,
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    output: Path | None,
    say: Callable[[str], None],
) -> Ended:
    """Runs the command to its end. Raises UsageError when it cannot be started."""
    try:
        process = subprocess.Popen(command, cwd=cwd, env=dict(env), stdout=output and output.open("wb"))
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror}") from None
    return Ended(process.wait(), stopped=False)
