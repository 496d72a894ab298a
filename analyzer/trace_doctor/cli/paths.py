"""What a command reads: taken from stdin, and never written over."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from trace_doctor.cli.outputs import Sink, is_output_of_ours
from trace_doctor.errors import TraceDoctorError, UsageError, unbroken
from trace_doctor.files import check_folders, check_link, is_of_system
from trace_doctor.git import is_git_folder
from trace_doctor.loaders import identify
from trace_doctor.loaders.places import meant
from trace_doctor.loaders.sniff import sniff
from trace_doctor.recording.options import (
    COMMAND_FILE,
    ENVIRONMENT_FILE,
    OPTIONS_FILE,
    PLAN_FILE,
    RECORDING_FILE,
    STEPS_FILE,
)

if TYPE_CHECKING:
    from trace_doctor.config import Config

_OF_A_RECORDING = (COMMAND_FILE, ENVIRONMENT_FILE, OPTIONS_FILE, PLAN_FILE, RECORDING_FILE, STEPS_FILE)
_OF_A_PROGRAM = (".py", ".pyi", ".ipynb", ".sh", ".toml", ".yaml", ".yml", ".cfg", ".ini")
_OF_A_STORE = (".td1", ".done")


@contextmanager
def captures(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths, with `-` replaced by a file that holds what stdin delivers: captures are not read in one pass. Raises
    NotACapture or DamagedCapture where its beginning shows that it is none, before all of it is taken."""
    if "-" not in paths:
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="trace-doctor-") as folder:
        piped = Path(folder) / "stdin"
        with piped.open("wb") as file:
            file.write(sys.stdin.buffer.read(identify.FAR))
            file.flush()
            sniff(piped, "stdin")
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield [str(piped) if path == "-" else path for path in paths]


def spare(sinks: Sequence[Sink], read: Iterable[str | Path | None], config: Config | None = None) -> None:
    """Raises UsageError where an output would take the place of what is read (captures, results, scripts, configuration, a
    baseline; of a folder what is read in it, of a pattern all that match it), or of any capture: nobody means that. A
    capture with its tracks is written again, but not among those that are read. `config`: the one that the command obeys,
    with its file and its source folder; its author need not be the user."""
    folders = config.folders if config is not None else {}
    named = [*read, *((config.file, config.settings.source or None) if config is not None else ())]
    inputs = [
        Path(os.path.realpath(place))
        for path in named
        if path is not None and path != "-"
        for place in meant(Path(path))
    ]
    same = {(state.st_dev, state.st_ino) for path in inputs if (state := _state(path)) is not None}
    for sink in sinks:
        if sink.path is None:
            continue
        if not sink.optional:  # before an hour of trials, not after it
            _check_place(sink.path)
            if (folder := folders.get(sink.option)) is not None:
                _check_named_by_file(sink, sink.path, folder)
        if not sink.path.is_file():
            continue
        path, state = Path(os.path.realpath(sink.path)), sink.path.stat()
        inside = any(folder in path.parents for folder in inputs)
        if (
            (state.st_dev, state.st_ino) in same
            or (inside and _is_read(path))
            or ((inside or sink.format != "perfetto") and _is_capture(path))
        ):
            raise UsageError(f"--{sink.option}: {sink.path} is read or is a capture; it is not overwritten")
    paths = [os.path.realpath(s.path) for s in sinks if s.path is not None and not s.path.is_char_device()]
    if len(set(paths)) < len(paths) or _meet_tracks(sinks):
        raise UsageError("--output: two formats cannot go to one file")


def apply_words(patch: Path, base: Path) -> str:
    """`apply with `git apply fix.patch``, as it works from the current folder: git leaves out without a word what lies beside that.
    `base`: the folder that the names in the patch are relative to."""
    here, arguments = Path.cwd().resolve(), ["git", "apply", str(patch)]
    if here != base:
        arguments = ["git", "-C", os.path.relpath(base, here), "apply", os.path.abspath(patch)]
    command = shlex.join(arguments)
    # a name that cannot be shown would be another in what is pasted
    return f"apply with `{command}`" if unbroken(command) == command else f"apply it with git from {base}"


def _meet_tracks(sinks: Sequence[Sink]) -> bool:
    """Whether another output has a name that the tracks of one trace of several may get."""
    from trace_doctor.exporters.perfetto import named

    others = [s.path for s in sinks if s.path is not None and s.format != "perfetto"]
    tracks = [named(s.path, "*") for s in sinks if s.path is not None and s.format == "perfetto"]
    return any(path.match(str(pattern)) for path in others for pattern in tracks)


def _check_place(path: Path) -> None:
    """Raises UsageError where nothing could be written, or nothing is to be. A link of the user's own need not be their doing: git
    makes those of a repository that somebody else wrote."""
    from trace_doctor.reporters.saved import is_patch_of_ours

    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    check_folders(path)
    if path.is_symlink() and not is_of_system(path):
        check_link(path)
        if path.is_file() and not (is_output_of_ours(path) or is_patch_of_ours(path)):
            raise UsageError(
                f"{path} is a link to {os.path.realpath(path)}, which is no output of ours: it is not overwritten"
            )
    if path.is_file() and _is_of_git(Path(os.path.realpath(path))) and not is_output_of_ours(path):
        raise UsageError(f"{path} is a file of git's own: it is not overwritten")


def _is_of_git(place: Path) -> bool:
    return any(up.name.lower() == ".git" or is_git_folder(up) for up in place.parents)


def _check_named_by_file(sink: Sink, path: Path, folder: Path) -> None:
    """Raises UsageError where an output that a configuration file names would be written outside of the file's folder and
    the working one, links followed, among what git runs and reads, or take the place of what is none of ours."""
    place = Path(os.path.realpath(path))
    if not any(place.is_relative_to(os.path.realpath(f)) for f in (folder, Path.cwd())):
        why = "outside of its folder"
    elif _is_of_git(place):
        why = "where git keeps its own"
    elif os.path.lexists(path) and not is_output_of_ours(path):
        why = "which is no output of ours, or was changed"
    else:
        return
    raise UsageError(
        f"{sink.option} of the configuration names {path}, {why}: it is not written; --{sink.option} can name it"
    )


def _state(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _is_read(path: Path) -> bool:
    """Scripts, configuration and what belongs to a recording: what a folder is given for, beside captures."""
    recorded = path.name in _OF_A_RECORDING or path.name.endswith((".recording.json", ".steps.csv"))
    return path.suffix in (*_OF_A_PROGRAM, *_OF_A_STORE) or (
        recorded and (path.parent / RECORDING_FILE).exists()
    )


def _is_capture(path: Path) -> bool:
    try:
        return bool(sniff(path, path.name))
    except (TraceDoctorError, OSError):
        return False
