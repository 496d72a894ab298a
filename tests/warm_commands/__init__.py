"""`trace-doctor` as a process of its own, without the third of a second that an interpreter takes to import it.

`warm()` begins a command for `subprocess`. A small client (`client.py`) hands its arguments, environment,
working folder and streams to a server (`server.py`, one per process of pytest), which has the modules imported
and nothing run, and forks. What such a fork cannot have is left to a fresh interpreter: another `PYTHON…` variable, another
encoding, limit, umask or ignored signal, a stream that is closed.

A fresh interpreter (`FRESH`) is for tests of what a fork does not show: imports, the order of sets, which the server
has drawn once for all, process groups and terminals, and processes that are killed.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MAIN = "from trace_doctor.cli import main; main()"
FRESH = (sys.executable, "-c", MAIN)
_HERE = Path(__file__).parent


@functools.cache
def warm() -> tuple[str, ...]:
    """The words that begin a command line. The first call of a process starts the server, which ends with it."""
    if not hasattr(os, "pidfd_open"):
        return FRESH
    folder = tempfile.mkdtemp(prefix="warm-")
    place, client = f"{folder}/socket", _HERE / "client.py"
    server = subprocess.Popen(
        [sys.executable, "-c", (_HERE / "server.py").read_text(encoding="utf-8"), place, str(client)],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert server.stdin and server.stdout
    assert server.stdout.readline() == b"ready\n", "the server of warm processes did not start"

    def end() -> None:
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return (sys.executable, "-IS", str(client), place)
