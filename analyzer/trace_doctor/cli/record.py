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
from typer.core import TyperCommand

from trace_doctor.cli.console import Console
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.recording.launch import Recorded
    from trace_doctor.recording.options import RecordOptions

FAILED = 125
"""our own exit code, apart from those of scripts, as of `timeout`, `env` and `docker run`"""
NO_SCRIPT = 2
"""what Python itself exits with where the script is not there"""


class Passing(TyperCommand):
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
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What to run: python train.py --its --args, torchrun …"),
    ],
    out: Annotated[
        str,
        typer.Option(metavar="DIR", help="Folder for recordings; each gets a new folder named by its time."),
    ] = "logs",
    at: Annotated[
        int, typer.Option(metavar="STEP", help="Step to begin with; those before it are only timed.")
    ] = 0,
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
    """Run a training script unchanged and record it. Exit code: the script's, 125 if recording failed or recorded nothing."""
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
    if not out or not out.isprintable():  # torch writes to another path than that of such a name
        raise UsageError("--out is empty, or holds characters that do not print")
    options = replace(options, folder=new_folder(out))
    began = time.time_ns()
    run = _record_in_a_copy if copy else record_command
    recorded = run(command, options, say=lambda line: console.note(f"trace-doctor: {line}"))
    if not console.quiet:
        written = [] if copy else written_since(Path.cwd(), began, [Path(options.folder)])
        console.note(*render(recorded, command, written))
    elif recorded.empty:
        console.note(f"trace-doctor: {why_empty(recorded)}")
    if recorded.exit_code < 0:
        _end_as(-recorded.exit_code)
    raise typer.Exit(recorded.exit_code)


def _record_in_a_copy(
    command: Sequence[str], options: RecordOptions, *, say: Callable[[str], None]
) -> Recorded:
    """Records the command in a copy of the project that the working directory lies in. Raises UsageError where none can be
    made."""
    from trace_doctor.recording.launch import record_command
    from trace_doctor.reporters.treatment_words import changed_words
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
