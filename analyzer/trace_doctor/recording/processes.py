"""The processes that a command has started, wherever they went: sessions of their own, or orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def started_with(variable: str, value: str, root: int) -> list[int]:
    """Process ids of `root` (while it runs) and of all that inherited this environment variable with this value.

    An inherited variable finds what parents no longer tell: torchrun puts its workers into sessions of their own, and
    orphans belong to init. Where there is no /proc, the descendants of `root`.
    """
    if not sys.platform.startswith("linux"):
        return _descendants(root)
    mark = f"{variable}={value}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # it ended meanwhile, or belongs to somebody else
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found if root in found or not alive(root) else [root, *found]


def _descendants(root: int) -> list[int]:
    asked = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False)
    pairs = [tuple(map(int, line.split())) for line in asked.stdout.splitlines() if len(line.split()) == 2]
    found = [root] if alive(root) else []
    members = {root}
    for _ in pairs:
        new = [pid for pid, parent in pairs if parent in members and pid not in members]
        if not new:
            break
        members.update(new)
        found += new
    return found


def alive(pid: int) -> bool:
    """Whether the process is there: running, stopped, or a zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def waited_for_cpu(pid: int) -> float | None:
    """Seconds that the main thread of the process was ready to run, and another ran in its place; None where Linux does
    not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def send(number: signal.Signals, pids: list[int]) -> None:
    """Sends the signal to each; one that is stopped is continued, so that it can act on it."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)
            if number not in (signal.SIGKILL, signal.SIGCONT):
                os.kill(pid, signal.SIGCONT)
