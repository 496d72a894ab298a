"""The command line: typer only, no logic. Each command is a module of `commands`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback

from trace_doctor.cli.process import interrupted, leave_stdout, prepare, say, tell

_COMPLETION = "_TRACE_DOCTOR_COMPLETE"
"""variable by which a shell asks for words, in typer"""


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
    """One command, as `sys.argv` has it. Errors are one line on stderr and exit code 2, or the one that a command gives its
    failures. Ends with SystemExit."""
    prepare()
    code = 2
    try:
        from trace_doctor.cli.app import COMMANDS, application
        from trace_doctor.errors import NothingRecorded, TraceDoctorError, one_line
        from trace_doctor.memory_limit import ran_out
    except KeyboardInterrupt:  # the imports take a moment
        interrupted()
    try:
        application(*(name for name in sys.argv[1:2] if name in COMMANDS))(prog_name="trace-doctor")
    except TraceDoctorError as error:
        code = _code_of(error)
        recording = " (trace-doctor record -- python train.py makes a recording)"
        tell(one_line(str(error) + (recording if isinstance(error, NothingRecorded) else "")))
    except KeyboardInterrupt:
        interrupted()
    except (
        OSError
    ) as error:  # each place that reads or writes a file says so; what is left is the output, mostly
        _trace_back()
        code = _code_of(error)
        leave_stdout()
        where = f"{error.filename}: " if error.filename else "cannot go on: "
        no_folder = isinstance(error, FileNotFoundError) and not error.filename  # as os.getcwd() raises
        tell(one_line(f"{where}{'the working folder is gone' if no_folder else error.strerror or error}"))
    except Exception as error:
        _if_told_to_end(error)
        if ran_out(error):
            tell("out of memory (--max-memory sets how much to use)")
            sys.exit(_code_of(error))
        _trace_back()
        if os.environ.get(_COMPLETION) and isinstance(error, KeyError | ValueError):
            tell(f"{_COMPLETION} is for the shell, which sets more with it that is not there: unset it")
            sys.exit(2)
        code = _code_of(error)
        cause = f"{type(error).__name__}: {one_line(str(error))}"
        tell(f"internal error: {cause} (run with -vv for the traceback)")
    sys.exit(code)


def _code_of(error: Exception) -> int:
    code = getattr(error, "exit_code", 2)
    return code if isinstance(code, int) else 2


def _if_told_to_end(error: BaseException) -> None:
    """Until Python 3.12 what a signal raises in a `__set_name__`, as while modules are imported, comes as a RuntimeError."""
    cause = error.__cause__
    if isinstance(cause, KeyboardInterrupt):
        interrupted()
    if isinstance(cause, SystemExit):
        raise cause


def _trace_back() -> None:
    """Shows it where -vv asks for it. The interpreter would end with 1 behind it, a verdict of `check`."""
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        with contextlib.suppress(OSError):
            say(*traceback.format_exc().rstrip().split("\n"))
