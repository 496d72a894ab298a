"""Which processes the recorder was in: one line each, so that a recording without steps can say why it has none.

Standard library only: the first two words are said inside the user's processes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

PRESENCE_FILE = "processes.jsonl"
STARTED, TORCH, FAILED, SECOND = "started", "torch", "failed", "second"
"""the recorder is there; torch was imported; the recorder failed; the process trains, but another is recorded already"""


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
