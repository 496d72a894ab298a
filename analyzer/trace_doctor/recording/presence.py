"""Which processes the recorder was in: one line each, so that a recording without steps can say why it has none.

Standard library only: the first two words are said inside the user's processes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

PRESENCE_FILE = "processes.jsonl"
STARTED, TORCH = "started", "torch"
"""the recorder is there; torch was imported"""


def say(folder: str, event: str, **detail: Any) -> None:
    """Adds a line of this process. A single write to a file opened for appending: lines of processes do not mix.
    Never raises: a recording without it is still one."""
    line = json.dumps({"pid": os.getpid(), "event": event, **detail}) + "\n"
    try:
        file = os.open(os.path.join(folder, PRESENCE_FILE), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
    except OSError:
        pass


def heard(folder: Path) -> dict[int, set[str]]:
    """pid -> what it said."""
    said: dict[int, set[str]] = {}
    try:
        lines = (folder / PRESENCE_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return said
    for line in lines:
        try:
            one = json.loads(line)
            said.setdefault(int(one["pid"]), set()).add(str(one["event"]))
        except (ValueError, KeyError, TypeError):
            continue
    return said
