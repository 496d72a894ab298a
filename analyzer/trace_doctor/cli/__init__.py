"""The command line: typer only, no logic. One module per command."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

from trace_doctor import tuning
from trace_doctor.cli.endings import interrupted, leave_stdout, tell


def main() -> None:
    """Entry point of `trace-doctor`: `run` as a process of its own, which ends at once when that is done. Taking the
    modules and columns apart one by one before would be a tenth of a short run."""
    try:
        run()
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise  # a text to be shown
        with contextlib.suppress(OSError, ValueError):  # the interpreter says what is wrong with a stream
            sys.stdout.flush()
            with contextlib.suppress(OSError, ValueError):  # nobody can be told
                sys.stderr.flush()
            os._exit(ended.code or 0)
        raise


def run() -> None:
    """One command, as `sys.argv` has it. Deliberate errors are one line on stderr and exit code 2. Ends with SystemExit."""
    _unwind_when_ended()
    _open_what_is_closed()
    tuning.tune()
    try:
        from trace_doctor.cli.app import HOMES, application
        from trace_doctor.cli.common import verbosity
        from trace_doctor.errors import TraceDoctorError, one_line
    except KeyboardInterrupt:  # the imports take a moment
        interrupted()

    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character is no reason to fail
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        application(*(name for name in sys.argv[1:2] if name in HOMES))(prog_name="trace-doctor")
    except TraceDoctorError as error:
        tell(one_line(str(error) + next_step(error)))
        sys.exit(2)
    except MemoryError:
        tell("out of memory (--max-memory sets how much to use)")
        sys.exit(2)
    except KeyboardInterrupt:
        interrupted()
    except (
        OSError
    ) as error:  # each place that reads or writes a file says so; what is left is the output, mostly
        if verbosity() >= 2:
            raise
        leave_stdout()
        where = f"{error.filename}: " if error.filename else "cannot go on: "
        tell(one_line(f"{where}{error.strerror or error}"))
        sys.exit(2)
    except Exception as error:
        if verbosity() >= 2:
            raise
        said = f"{type(error).__name__}: {one_line(str(error))}"
        tell(f"internal error: {said} (run with -vv for the traceback)")
        sys.exit(2)


def next_step(error: Exception) -> str:
    """The command that helps where an error has one."""
    from trace_doctor.errors import NothingRecorded

    made = " (trace-doctor record -- python train.py makes a recording)"
    return made if isinstance(error, NothingRecorded) else ""


def _open_what_is_closed() -> None:
    """Started with `>&-`, the next file that is opened would take the place of the standard output."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _unwind_when_ended() -> None:
    """SIGTERM and SIGHUP end the program as Ctrl-C does: nothing half-written is left, and no process."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup: ignored, and stays so
            signal.signal(number, leave)
