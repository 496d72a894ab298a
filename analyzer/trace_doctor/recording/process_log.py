"""Which processes the recorder was in: one line each, so that a recording without steps can say why it has none.

Standard library only: the first two words are said inside the user's processes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

_OUR_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
PRESENCE_FILE = "processes.jsonl"
STARTED, TORCH, FAILED, SECOND, TOO_OLD, STAYS = "started", "torch", "failed", "second", "too old", "stays"
"""the recorder is there; torch was imported; the recorder failed; the process trains, but another is recorded already; its
Python cannot run the recorder; enough is recorded, and the command is to be ended, as the process cannot leave by itself"""
_LEAST_TORCH = (2, 1)


def say(folder: str, event: str, why: str = "") -> None:
    """Adds a line of this process, where the launcher has made the file. A single write to a file opened for appending:
    lines of processes do not mix. Never raises: a recording without it is still one."""
    line = json.dumps({"pid": os.getpid(), "event": event, "why": why[:500]}) + "\n"
    try:
        file = os.open(os.path.join(folder, PRESENCE_FILE), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError:
        pass


def is_kept(folder: str) -> bool:
    """Whether there is a launcher that listens."""
    return os.path.exists(os.path.join(folder, PRESENCE_FILE))


def kind_of(error: BaseException) -> str:
    """The nearest type of an exception that Python or torch itself defines: the name of any other is the script's, and can
    hold its secrets, as an exception's text can."""
    for kind in type(error).__mro__:
        module, name = kind.__module__, kind.__name__
        if module.partition(".")[0] in ("builtins", "torch") and (
            getattr(sys.modules.get(module), name, None) is kind
        ):
            return name
    return "BaseException"


def told(error: BaseException) -> str:
    """What a recording says of its own failure: the kind, what the system says of it, and the place in the recorder. Nothing
    else that is written of an exception may come from outside."""
    number = error.errno if isinstance(error, OSError) else None
    words = f": {os.strerror(number)}" if isinstance(number, int) and number else ""
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_OUR_FOLDER) and os.path.isfile(file):
            place = f" at {file[len(_OUR_FOLDER) :]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return f"{kind_of(error)}{words}{place}{_old_torch()}"


def _old_torch() -> str:
    """Says so where torch is older than any that the recorder is tried with; of its version the numbers alone."""
    version = re.match(r"(\d{1,2})\.(\d{1,3})\b", str(getattr(sys.modules.get("torch"), "__version__", "")))
    if version is None or (int(version[1]), int(version[2])) >= _LEAST_TORCH:
        return ""
    return f": torch {version[0]} is too old, {'.'.join(map(str, _LEAST_TORCH))} or later is needed"


def heard(folder: Path) -> dict[int, dict[str, str]]:
    """Process id -> what happened in it -> why."""
    by_process: dict[int, dict[str, str]] = {}
    try:
        lines = (folder / PRESENCE_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return by_process
    for line in lines:
        try:
            one = json.loads(line)
            by_process.setdefault(int(one["pid"]), {})[str(one["event"])] = str(one["why"])
        except (ValueError, KeyError, TypeError):
            continue
    return by_process
