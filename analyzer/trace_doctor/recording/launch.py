"""Runs a command so that its training processes are recorded, and says what came of it.

    recorded = record_command(["python", "train.py"], RecordOptions(folder=new_folder("logs")))

The command gets a few environment variables more (`_environment`) and nothing else: its arguments, working directory,
standard streams, terminal and signals are its own, and its exit code is passed on.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trace_doctor.errors import UsageError
from trace_doctor.files import check_folders, open_regular
from trace_doctor.recording import command_line, process_log, steps_csv, whole_files
from trace_doctor.recording.folder import RecordedStep, Recording, read, role_of
from trace_doctor.recording.options import (
    BOOTSTRAP,
    COMMAND_FILE,
    LINES_FILE,
    MOST_WINDOWS,
    OPTIONS_FILE,
    OPTIONS_VARIABLE,
    PLAN_FILE,
    RECORDING_FILE,
    TORCH_TRACE_FOLDER,
    RecordOptions,
    rank_file,
    rank_steps_file,
)
from trace_doctor.recording.plan import TRACED
from trace_doctor.recording.processes import OtherLoad
from trace_doctor.recording.recording_warnings import shortcomings, signal_name
from trace_doctor.recording.running import CommandOutcome, run
from trace_doctor.version import VERSION

SCHEMA = 1
OUTPUT_FILE = "output.log"
FULL = (errno.ENOSPC, errno.EDQUOT)
"""failures that a script is not to blame for, nor the recorder: the exit code stays the script's own"""
NOTHING_RECORDED = 125
"""exit code where the command did not fail and there is nothing to show for it; also of our own failures"""


@dataclass(frozen=True)
class Recorded:
    """What came of a recorded command."""

    folder: Path
    exit_code: int
    """the command's own, negative where signal -exit_code ended it, also behind a training that was stopped because enough is
    recorded; 0 where the command itself was ended;
    125 instead of 0 where nothing was recorded, unless the disk was full"""
    stopped_by_us: bool
    seconds: float
    """from start to end of the command"""
    recording: Recording | None
    """ranks with their phases, steps with times and losses; None where no process took a step"""
    warnings: tuple[str, ...]
    """what was not recorded and why, a line each"""
    received_signal: int | None = None
    """the signal that somebody sent us while the command ran, and that was handed on to it"""
    empty: bool = False
    """whether the command did not fail, and nothing was recorded all the same: no trace and no snapshot, or where none was
    asked for no step"""
    waited_for_cpu: Mapping[int, float] = field(default_factory=dict)
    """rank -> share of its time that its main thread was ready and waited for a CPU; empty where Linux does not say"""
    leftover_processes: int = 0
    """processes that the command left running, and that were ended because `leave_nothing` was asked for"""
    others: OtherLoad = OtherLoad()
    windows: tuple[Path, ...] = ()
    """the recordings of a trail (`every`), oldest first; empty where there is one"""

    @property
    def steps(self) -> Mapping[int, tuple[RecordedStep, ...]]:
        """By rank; empty where none was seen."""
        return self.recording.steps if self.recording else {}


def new_folder(base: str | os.PathLike[str] = "logs") -> str:
    """A new folder below `base`, named by the time (UTC); its absolute path. Raises UsageError where none can be made."""
    if (
        not os.fspath(base) or not os.fspath(base).isprintable()
    ):  # torch writes to another path than that of such a name
        raise UsageError("--out is empty, or holds characters that do not print")
    check_folders(Path(base) / "new")
    name = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    for attempt in range(100):
        folder = Path(base, name if not attempt else f"{name}-{attempt + 1}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if folder.is_dir():  # another recording began in the same second
                continue
            raise UsageError(f"cannot make {folder}: a file is in the way") from None
        except OSError as error:
            raise UsageError(f"cannot make {folder}: {error.strerror}") from None
        return str(folder.absolute())
    raise UsageError(f"cannot make a new folder below {base}")


def record_command(
    command: Sequence[str],
    options: RecordOptions,
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    quiet_output: bool = False,
    say: Callable[[str], None] | None = None,
    leave_nothing: bool = False,
    most_seconds: float = math.inf,
    tick: Callable[[], None] = lambda: None,
) -> Recorded:
    """Runs `command` to its end and records it into `options.folder`, which exists.

    `env` replaces the whole environment (default: this one). `quiet_output` sends what the command prints to a file
    `output.log` in the folder. `leave_nothing` ends what the command has left running when it ended by itself. After `most_seconds` it is ended whatever it does. `say` gets the lines for the person at the terminal while the command runs; `tick` is called meanwhile.
    Raises UsageError when the command cannot be started.
    """
    folder = Path(options.folder)
    try:
        whole_files.hold(folder)
        options.write(folder / OPTIONS_FILE)
        (folder / process_log.PRESENCE_FILE).write_bytes(b"")
        if options.lines:
            (folder / LINES_FILE).write_bytes(b"")
        whole_files.write(folder / COMMAND_FILE, command_line.masked(command, cwd) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write a recording to {folder}: {error.strerror or error}") from None
    try:
        outcome = run(
            command,
            options,
            cwd=cwd,
            env=_environment(os.environ if env is None else env, folder / OPTIONS_FILE),
            output=folder / OUTPUT_FILE if quiet_output else None,
            say=say or (lambda line: None),
            leave_nothing=leave_nothing,
            most_seconds=most_seconds,
            tick=tick,
        )
    except UsageError:  # nothing ran
        for name in (OPTIONS_FILE, COMMAND_FILE, LINES_FILE, OUTPUT_FILE, process_log.PRESENCE_FILE):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is more in it
            folder.rmdir()
        raise
    try:
        _mask_compile_logs(folder, command, os.environ if env is None else env)
        return _sum_up(command, options, outcome)
    except (
        OSError
    ) as error:  # the script took the folder away or put another in its place: its own end still counts
        return _not_summed_up(command, options, outcome, error)


def _not_summed_up(
    command: Sequence[str], options: RecordOptions, outcome: CommandOutcome, error: OSError
) -> Recorded:
    """What came of a command whose recording could not be finished; of a full disk it says what is missing, and frees what is of
    no use any more."""
    folder = Path(options.folder)
    code = 0 if outcome.why is not None else outcome.exit_code
    is_full = error.errno in FULL
    recording, missing = None, list[str]()
    if is_full:
        recording, said = read(folder), process_log.heard(folder)
        missing = shortcomings(command, options, outcome, recording, said, outcome.why is not None)
        _clear(folder)
        with suppress(OSError):
            text = manifest(list(recording.ranks) if recording else [], missing, outcome.seconds)
            whole_files.write(folder / RECORDING_FILE, text)
    return Recorded(
        folder=folder,
        exit_code=code if is_full else code or NOTHING_RECORDED,
        stopped_by_us=outcome.why is not None,
        seconds=round(outcome.seconds, 3),
        recording=recording,
        warnings=(f"the recording could not be finished: {error.strerror or error}", *missing),
        received_signal=outcome.received_signal,
        empty=not code,
        leftover_processes=outcome.leftover_processes,
    )


def _clear(folder: Path) -> None:
    """What only the processes of the command needed."""
    for name in (OPTIONS_FILE, PLAN_FILE, process_log.PRESENCE_FILE):
        (folder / name).unlink(missing_ok=True)


def _environment(environment: Mapping[str, str], options_file: Path) -> dict[str, str]:
    """The command's environment: the recorder's folder first on PYTHONPATH, and where its options are; and the profiler's
    library does not write about each of its starts into what the script prints."""
    paths = [str(BOOTSTRAP), *filter(None, [environment.get("PYTHONPATH")])]
    return {
        "KINETO_LOG_LEVEL": "6",
        **environment,
        "PYTHONPATH": os.pathsep.join(paths),
        OPTIONS_VARIABLE: str(options_file),
    }


def _mask_compile_logs(folder: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
    """torch writes the strings that a compiled function was given into its guards: those that the command line hides go."""
    logs = folder / TORCH_TRACE_FOLDER
    if logs.is_symlink() or not logs.is_dir():
        return
    for log in [path for path in logs.iterdir() if path.is_file() and not path.is_symlink()]:
        with open_regular(log, follow=False) as file:
            text = file.read().decode("utf-8", "surrogateescape")
        masked = command_line.lines_without_secrets(text, command, environment)
        if masked != text:
            with whole_files.replacing(log) as temporary:
                temporary.write_bytes(masked.encode("utf-8", "surrogateescape"))


def _sum_up(command: Sequence[str], options: RecordOptions, outcome: CommandOutcome) -> Recorded:
    folder = Path(options.folder)
    whole_files.check(folder)
    recording = read(folder)
    steps_csv.join(folder, list(recording.ranks) if recording else [])
    enough = recording is not None and all(r.ended == "enough" for r in recording.ranks.values())
    stopped = outcome.why is not None or (enough and not options.let_it_run)
    # ranks that we ask to stop end with 0: what fails has failed by itself
    code = 0 if outcome.why is not None else outcome.exit_code
    empty = code == 0 and _is_empty(folder, options, recording)
    heard = process_log.heard(folder)
    warnings = tuple(shortcomings(command, options, outcome, recording, heard, stopped))
    is_full = any(os.strerror(number) in line for number in FULL for line in warnings)
    code = NOTHING_RECORDED if empty and not is_full else code
    recorded = Recorded(
        folder=folder,
        exit_code=code,
        stopped_by_us=stopped,
        seconds=round(outcome.seconds, 3),
        recording=recording,
        warnings=warnings,
        received_signal=outcome.received_signal,
        empty=empty,
        waited_for_cpu=outcome.waited,
        leftover_processes=outcome.leftover_processes,
        others=outcome.others,
    )
    text = manifest(
        list(recording.ranks) if recording else [],
        recorded.warnings,
        recorded.seconds,
        exit_code=shell_code(code),
        signal=signal_name(-code) if code < 0 else None,
        stopped_by_us=stopped,
        waited_for_cpu=dict(outcome.waited),
        other_load=asdict(outcome.others),
    )
    whole_files.write(folder / RECORDING_FILE, text)
    whole_files.check(folder)
    _clear(folder)
    return replace(recorded, windows=_sum_up_windows(options, outcome))


def _sum_up_windows(options: RecordOptions, outcome: CommandOutcome) -> tuple[Path, ...]:
    """Makes a recording of each folder that a trail has, as of the first one."""
    first = Path(options.folder)
    folders = [Path(options.window(n).folder) for n in range(1, MOST_WINDOWS if options.every else 0)]
    folders = [folder for folder in folders if folder.is_dir() and not folder.is_symlink()]
    for folder in folders:
        whole_files.hold(folder)
        recording = read(folder)
        ranks = list(recording.ranks) if recording else []
        if _is_unused(folder, recording):
            _discard(folder, ranks)
            continue
        steps_csv.join(folder, ranks)
        whole_files.write(folder / COMMAND_FILE, (first / COMMAND_FILE).read_text(encoding="utf-8"))
        whole_files.write(folder / RECORDING_FILE, manifest(ranks, [], outcome.seconds))
        _clear(folder)
    folders = [folder for folder in folders if folder.is_dir()]
    return (first, *folders) if folders else ()


def _is_unused(folder: Path, recording: Recording | None) -> bool:
    """Whether no step came after it was opened: it was the script's last moment, or a rank's."""
    steps = recording is not None and any(recording.steps.values())
    return not steps and not any(role_of(path.name) for path in folder.iterdir())


def _discard(folder: Path, ranks: Sequence[int]) -> None:
    for rank in ranks:
        for name in (rank_file(rank), rank_steps_file(rank)):
            (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # something else is there
        folder.rmdir()


def _is_empty(folder: Path, options: RecordOptions, recording: Recording | None) -> bool:
    if set(options.phases) & {*TRACED, "memory"}:
        return not any(role_of(path.name) and path.stat().st_size for path in folder.iterdir())
    return recording is None or not any(recording.steps.values())


def manifest(ranks: Sequence[int], warnings: Sequence[str], seconds: float, **of_a_command: Any) -> str:
    """What `recording.json` says; a recording from inside a script knows nothing of a command."""
    content = {
        "schema": SCHEMA,
        "version": VERSION,
        "exit_code": None,
        "signal": None,
        "stopped_by_us": False,
        "seconds": round(seconds, 3),
        "ranks": sorted(ranks),
        "warnings": list(warnings),
    }
    return json.dumps(content | of_a_command, indent=2) + "\n"


def shell_code(code: int) -> int:
    """The exit code as a shell tells it: 128 and the number of the signal where one ended the command."""
    return 128 - code if code < 0 else code
