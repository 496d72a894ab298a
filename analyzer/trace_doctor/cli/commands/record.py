"""`trace-doctor record`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from trace_doctor.cli.console import Console
from trace_doctor.cli.options import Command
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.recording.launch import Recorded
    from trace_doctor.recording.options import RecordOptions

FAILED = 125
"""our own exit code, apart from those of scripts, as of `timeout`, `env` and `docker run`"""
_LEAST_EVERY = 50
"""steps: a recording takes some 30"""
_LONGEST_SECONDS = 86_400.0
"""of a server: a day"""
_SERVER_SECONDS = 5.0
"""of a server; some hundred steps, which is enough and already large"""
_TOLD_SGLANG = {"out", "max_steps", "no_stacks"}
"""what its own endpoint takes; vLLM has it in its configuration"""
_FOR_SERVERS = {"server", "allow_remote", "max_seconds", "quiet", "verbose"} | _TOLD_SGLANG
NO_SCRIPT = 2
"""what Python itself exits with where the script is not there"""


class Passing(Command):
    """A command that passes on the exit code of another: its own failures have one of their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if not isinstance(error, typer.Exit):  # that of --help
                error.exit_code = FAILED  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not isinstance(error, typer.Exit):
                error.exit_code = FAILED  # type: ignore[attr-defined]
            raise


@dataclass(frozen=True)
class _Console(Console):
    quiet: Annotated[
        int, typer.Option("--quiet", "-q", count=True, show_default=False, help="No summary.")
    ] = 0


TYPER = {"cls": Passing, "context_settings": {"allow_interspersed_args": False}}
"""how typer makes a command of it"""


def record(
    *,
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="What to run: python train.py --its --args, torchrun …"),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Instead of a command: capture a running vLLM or SGLang server by its own profiler, for "
            f"{_SERVER_SECONDS:g} seconds or --max-seconds.",
        ),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="The server may be on another machine.")
    ] = False,
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="Folder for recordings; each gets a new folder named by its time."),
    ] = "logs",
    at: Annotated[
        int, typer.Option(metavar="STEP", help="Step to begin with; those before it are only timed.")
    ] = 0,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            help="Record again after this number of steps, up to 20 times, each into its own folder. Light traces only; the "
            "script is not stopped.",
        ),
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Steps to record from there, warm-up included.")] = 400,
    max_seconds: Annotated[
        float, typer.Option(help="Seconds to record; a script that hangs is ended after them.")
    ] = 600.0,
    max_mb: Annotated[float, typer.Option(help="MB of traces and snapshots of each rank.")] = 200.0,
    timing_steps: Annotated[
        int,
        typer.Option(
            help="Steps to time without the profiler: periodic work shows if it comes twice in them."
        ),
    ] = 20,
    let_it_run: Annotated[
        bool, typer.Option("--let-it-run", help="Do not stop the script when enough is recorded.")
    ] = False,
    step_every: Annotated[
        int | None, typer.Option(help="Model calls per step, for scripts without an optimizer.")
    ] = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Run in a copy of the folder, as treat does: what the script writes is deleted with it.",
        ),
    ] = False,
    no_stacks: Annotated[
        bool, typer.Option("--no-stacks", help="Do not record Python stacks; findings then name no lines.")
    ] = False,
    kernel_lines: Annotated[
        bool,
        typer.Option(
            "--kernel-lines",
            help="Record the lines that compiled kernels are made from. Code in the compile cache is compiled again.",
        ),
    ] = False,
    console: _Console,
) -> None:
    """Run a training script unchanged and record it, or a running server. Exit code: the script's, 125 if recording failed or recorded nothing."""
    if server is not None or allow_remote:
        _record_server(context, console, server)
        return
    if not command:
        raise UsageError("a command is needed: trace-doctor record -- python train.py")
    if os.name == "nt":
        raise UsageError(
            "record needs Linux or macOS; trace_doctor.record() in the script works on Windows too"
        )
    from trace_doctor.files import written_since
    from trace_doctor.recording.launch import new_folder, record_command
    from trace_doctor.recording.options import RecordOptions
    from trace_doctor.recording.recording_warnings import loads_no_recorder
    from trace_doctor.recording.startable import missing_program, missing_script
    from trace_doctor.reporters.recording import render, why_empty

    if (script := missing_script(command, Path.cwd())) is not None:
        console.note(f"trace-doctor: {script}: no such file")
        raise typer.Exit(NO_SCRIPT)
    if (why := loads_no_recorder(command) or missing_program(command)) is not None:
        raise UsageError(why)
    try:
        options = RecordOptions(
            folder="", at=at, max_steps=max_steps, max_seconds=max_seconds, max_mb=max_mb, let_it_run=let_it_run,
            timing_steps=timing_steps, step_every=step_every, stacks=not no_stacks, lines=True,
            kernel_lines=kernel_lines,
        )  # fmt: skip
    except ValueError as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from None
    if every is not None:
        options = _trail(options, every, copy)
    options = replace(options, folder=new_folder(out))
    began = time.time_ns()
    run = _record_in_a_copy if copy else record_command
    recorded = run(command, options, say=lambda line: _tell(console, f"trace-doctor: {line}"))
    if not console.quiet:
        written = [] if copy else written_since(Path.cwd(), began, [Path(options.folder), *recorded.windows])
        _tell(console, *render(recorded, command, written))
    elif recorded.empty:
        _tell(console, f"trace-doctor: {why_empty(recorded)}")
    if recorded.exit_code < 0:
        _end_as(-recorded.exit_code)
    raise typer.Exit(recorded.exit_code)


def _tell(console: Console, *lines: str) -> None:
    """Words about a script that runs or has run. Its code is passed on also where nobody can be told: on a full disk, or
    when the terminal is closed."""
    with suppress(OSError):
        console.note(*lines)


def _trail(options: RecordOptions, every: int, copy: bool) -> RecordOptions:
    """Each recording is alike, so that any two can be compared, and has the same part of the room, so that all ranks agree."""
    from trace_doctor.recording.options import MOST_WINDOWS

    if every < _LEAST_EVERY:
        raise UsageError(f"--every is at least {_LEAST_EVERY}: not {every}")
    if copy:
        raise UsageError("--every and --copy do not go together")
    return replace(
        options,
        every=every,
        phases=("warmup", "timing", "light"),
        max_steps=min(options.max_steps, every),
        max_mb=options.max_mb / MOST_WINDOWS,
        let_it_run=True,
        lines=False,
    )


def _record_server(context: typer.Context, console: Console, url: str | None) -> None:
    """Options that a server has no use for are refused: it would record something else than was asked for."""
    from trace_doctor.recording.launch import new_folder
    from trace_doctor.recording.live.server import parse_server, record_server
    from trace_doctor.reporters.recording import render_server

    given = {
        name for name in context.params
        if getattr(context.get_parameter_source(name), "name", "DEFAULT") == "COMMANDLINE"
    }  # fmt: skip
    if url is None:
        raise UsageError("--allow-remote is for --server URL")
    if without := sorted(given - _FOR_SERVERS):
        name = "a command" if "command" in without else f"--{without[0].replace('_', '-')}"
        raise UsageError(f"{name} and --server do not go together")
    values = context.params
    seconds = values["max_seconds"] if "max_seconds" in given else _SERVER_SECONDS
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise UsageError("--max-seconds is above 0, and at most a day")
    if values["max_steps"] < 1:
        raise UsageError("--max-steps is at least 1")
    server = parse_server(url, allow_remote=values["allow_remote"])
    if "out" in given and values["allow_remote"]:
        raise UsageError("--out is for a server on this machine: another one cannot write there")
    folder = Path(new_folder(values["out"])) if "out" in given else None
    capture = record_server(
        server,
        seconds=seconds,
        steps=values["max_steps"] if "max_steps" in given else None,
        stacks=not values["no_stacks"],
        folder=str(folder) if folder is not None else None,
        say=lambda line: console.note(f"trace-doctor: {line}"),
    )
    if capture.engine == "vLLM" and (ignored := sorted(given & _TOLD_SGLANG)):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        console.note(f"trace-doctor: vLLM ignores {names}: its own --profiler-config decides")
        if folder is not None:
            with suppress(
                OSError
            ):  # that of SGLang stays, though it is empty: it may write later, and fail where it is gone
                folder.rmdir()
            folder = None
    if not console.quiet:
        console.note(*render_server(capture, folder))


def _record_in_a_copy(
    command: Sequence[str], options: RecordOptions, *, say: Callable[[str], None]
) -> Recorded:
    """Records the command in a copy of the project that the working directory lies in. Raises UsageError where none can be
    made."""
    from trace_doctor.recording.launch import record_command
    from trace_doctor.reporters.treatment.words import changed_words
    from trace_doctor.treatment.installed import in_place
    from trace_doctor.treatment.scratch import Scratch

    here = Path.cwd()
    imports = in_place(command, here, os.environ)
    with Scratch(here, here, imports=imports) as scratch:
        scratch.import_from(imports)
        say("the command runs in a copy; what it writes there is deleted with it")
        for note in scratch.notes[1:]:
            say(note)
        scratch.writes(Path(options.folder))
        scratch.keep_writes(allow=False)
        scratch.prepare({})
        recorded = record_command(
            scratch.command(command, here),
            options,
            cwd=scratch.cwd,
            env=scratch.environment(os.environ),
            say=say,
            leave_nothing=True,
        )
        changes = scratch.changes()
    for line in [*scratch.leftovers(), *[changed_words(changes, len(changes))] * bool(changes)]:
        say(line)
    return recorded


def _end_as(number: int) -> NoReturn:
    """Ends by the signal that ended the script, so that whoever waits for us sees what it would have seen."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the script has left its own
    with suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    raise typer.Exit(128 + number)
