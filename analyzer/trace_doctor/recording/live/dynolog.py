"""Capture of processes that run already, through the dynolog daemon of their machine.

A PyTorch process that was started with `KINETO_USE_DAEMON=1` takes a configuration of Kineto from dynolog, records and writes the trace
itself. The daemon's port takes one message, a native int32 of its length and JSON, and answers alike (dynolog
`cli/src/commands/gputrace.rs`, `dynolog/src/rpc/SimpleJsonServer.cpp`).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_doctor.errors import UsageError
from trace_doctor.recording.live.server import is_loopback, why
from trace_doctor.sound_json import loads

PORT = 1778
_ALL = 0
"""in place of a process: all of them"""
_MOST_PROCESSES = 64
_LARGEST_ANSWER = 64 << 10
_LENGTH = struct.Struct("=i")


@dataclass(frozen=True)
class Triggered:
    """What the daemon says of a request."""

    pids: tuple[int, ...]
    """processes that record now"""
    matched: int
    """that the request was for"""


def trigger(
    host: str,
    port: int,
    pids: Sequence[int],
    log_file: str,
    *,
    seconds: float,
    steps: int | None = None,
    stacks: bool = True,
    remote: bool = False,
    patience: float = 10.0,
) -> Triggered:
    """Has processes (none: all that dynolog knows) record for so many seconds, or steps of an optimizer. Each writes to
    `log_file` with `_<pid>` before its suffix. `remote`: whether the daemon may be on another machine; `patience`: seconds until it
    counts as hung. Raises UsageError where nothing records."""
    if not log_file.isprintable():  # a line of its own would be another setting
        raise UsageError("the folder of the trace holds characters that do not print")
    lasts = (
        [f"PROFILE_START_TIME=0\nACTIVITIES_DURATION_MSECS={round(seconds * 1e3)}"] if steps is None
        else [f"PROFILE_START_ITERATION=0\nPROFILE_START_ITERATION_ROUNDUP=1\nACTIVITIES_ITERATIONS={steps}"]
    )  # fmt: skip
    flags = f"PROFILE_REPORT_INPUT_SHAPES=true\nPROFILE_WITH_STACK={str(stacks).lower()}"
    request = {
        "fn": "setKinetOnDemandRequest",
        "config": "\n".join([f"ACTIVITIES_LOG_FILE={log_file}", *lasts, flags]),
        "job_id": 0,
        "pids": list(pids) or [_ALL],
        "process_limit": _MOST_PROCESSES,
    }
    address = f"{host}:{port}"
    try:
        answer = _asked(host, port, request, remote, patience)
    except ConnectionRefusedError as error:
        raise UsageError(
            f"no dynolog answers at {address}: {why(error)}. attach needs the daemon with --enable_ipc_monitor and processes started "
            "with KINETO_USE_DAEMON=1; any others can only be recorded from their start: trace-doctor record -- python train.py"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"no dynolog answers at {address}: {why(error)}") from None
    triggered = _numbers(answer, "activityProfilersTriggered")
    matched = _numbers(answer, "processesMatched")
    if not matched:
        raise UsageError(
            f"dynolog at {address} knows no such process: it has to be started with KINETO_USE_DAEMON=1, and dynolog with "
            "--enable_ipc_monitor"
        )
    if not triggered:
        raise UsageError("nothing records: another capture of the process is in progress")
    return Triggered(tuple(triggered), len(matched))


def _numbers(answer: Any, name: str) -> list[int]:
    values = answer.get(name) if isinstance(answer, dict) else None
    pids = values if isinstance(values, list) else []
    return [n for n in pids if type(n) is int and 0 < n < 1 << 31][:_MOST_PROCESSES]


def _asked(host: str, port: int, request: dict[str, Any], remote: bool, patience: float) -> Any:
    """The answer. Raises OSError, TimeoutError after `patience` also for one that comes byte by byte, or ValueError."""
    end = time.monotonic() + patience
    with socket.create_connection((host, port), timeout=patience) as connection:
        if not remote and not is_loopback(str(connection.getpeername()[0]).partition("%")[0]):
            raise ValueError("it is another machine")
        message = json.dumps(request).encode()
        connection.sendall(_LENGTH.pack(len(message)) + message)
        (size,) = _LENGTH.unpack(_read(connection, _LENGTH.size, end))
        if not 0 < size <= _LARGEST_ANSWER:
            raise ValueError(f"its answer has {size} bytes")
        return loads(_read(connection, size, end))


def _read(connection: socket.socket, size: int, end: float) -> bytes:
    data = b""
    while len(data) < size:
        if (left := end - time.monotonic()) <= 0:
            raise TimeoutError
        connection.settimeout(left)
        if not (piece := connection.recv(size - len(data))):
            raise ValueError("the connection was closed")
        data += piece
    return data


@contextmanager
def place_for_traces() -> Iterator[Path]:
    """A folder of our own that is deleted in the end. Newer Kineto takes no other place from dynolog than one below /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="trace-doctor-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def collect(folder: Path, pids: Sequence[int], seconds: float, to: Path) -> list[Path]:
    """Moves the traces of the processes that are there within so many seconds. Kineto gives a file its name when it is whole."""
    end = time.monotonic() + seconds
    files = [folder / f"trace_{pid}.json" for pid in pids]
    while (
        not all(map(os.path.lexists, files)) and time.monotonic() < end
    ):  # what is no file never becomes one
        time.sleep(0.1)
    return [
        Path(shutil.move(path, to / path.name)) for path in files if path.is_file() and not path.is_symlink()
    ]
