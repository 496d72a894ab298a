"""`trace-doctor attach`."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from trace_doctor.cli.console import Console
from trace_doctor.errors import UsageError, one_line

_TO_WRITE = 120.0
"""seconds that a process has to write its trace, after those in which it records"""


def attach(
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="PID|HOST[:PORT]",
            help="A process of this machine, or the dynolog of a machine: all its processes.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="Folder for captures; each gets a new folder named by its time."),
    ] = "logs",
    max_seconds: Annotated[float, typer.Option(help="Seconds to record.")] = 1.0,
    max_steps: Annotated[
        int | None, typer.Option(help="Record steps of the optimizer instead of seconds.", min=1)
    ] = None,
    no_stacks: Annotated[
        bool, typer.Option("--no-stacks", help="Do not record Python stacks; findings then name no lines.")
    ] = False,
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="The dynolog may be on another machine, where the traces stay."),
    ] = False,
    console: Console,
) -> None:
    """Capture processes that run already, through the dynolog daemon of their machine."""
    from trace_doctor.recording.launch import new_folder
    from trace_doctor.recording.live import dynolog
    from trace_doctor.recording.live.server import is_loopback
    from trace_doctor.reporters.recording import shown
    from trace_doctor.reporters.units import plural

    if os.name == "nt":
        raise UsageError("attach needs Linux or macOS")
    if not 0 < max_seconds <= 3600:
        raise UsageError("--max-seconds is above 0, and at most an hour")
    host, port, pids = _parsed(target)
    here = is_loopback(host)
    if not (here or allow_remote):
        raise UsageError(f"{one_line(host)} may be another machine; --allow-remote permits it")

    def triggered(log_file: str) -> dynolog.Triggered:
        answer = dynolog.trigger(
            host,
            port,
            pids,
            log_file,
            seconds=max_seconds,
            steps=max_steps,
            stacks=not no_stacks,
            remote=allow_remote,
        )
        lasts = plural(max_steps, "step") if max_steps else f"{max_seconds:g} s"
        console.hint(
            f"trace-doctor: {plural(len(answer.pids), 'process', 'processes')} of {answer.matched} record for {lasts}"
        )
        return answer

    if not here:
        base = f"/tmp/trace-doctor-{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}"
        files = [f"{base}_{pid}.json" for pid in triggered(f"{base}.json").pids]
        console.note(*(f"trace on {one_line(host)}: {file}" for file in files))
        return
    is_new = not os.path.lexists(out)
    folder = Path(new_folder(out))
    try:
        with dynolog.place_for_traces() as place:
            recording = triggered(f"{place}/trace.json").pids
            traces = dynolog.collect(place, recording, max_seconds + _TO_WRITE, folder)
        if missing := len(recording) - len(traces):
            console.note(
                f"trace-doctor: {plural(missing, 'process', 'processes')} wrote no trace to this machine's /tmp"
            )
        if not traces:
            raise UsageError("nothing was recorded")
        console.note(f"next: trace-doctor analyze {shlex.quote(shown(folder))}")
    finally:
        with suppress(OSError):  # what was recorded stays
            folder.rmdir()
            if is_new:
                folder.parent.rmdir()


def _parsed(target: str) -> tuple[str, int, list[int]]:
    """Host, port and processes; none are all. Raises UsageError."""
    from trace_doctor.recording.live.dynolog import PORT

    if target.isascii() and target.isdigit():
        if not 0 < int(target) < 1 << 31:
            raise UsageError(f"{target} is no process")
        return "127.0.0.1", PORT, [int(target)]
    host, colon, port = target.rpartition(":") if target.count(":") == 1 else (target, "", "")
    if (
        not host
        or "@" in host
        or not host.isprintable()
        or " " in host
        or (colon and not (port.isascii() and port.isdigit() and int(port) < 1 << 16))
    ):
        named = "the target" if "@" in target else repr(one_line(target))  # a password would stand before it
        raise UsageError(f"{named} is neither a process nor HOST:PORT")
    return host, int(port) if colon else PORT, []
