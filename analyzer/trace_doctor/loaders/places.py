"""The files that paths name: one by one, below folders, and by patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.errors import NothingRecorded, UsageError
from trace_doctor.loaders import graph_annotations, identify, provenance
from trace_doctor.loaders.sniff import (
    begins_as_capture,
    capture_inside,
    is_sealed,
    leads_to_kernel,
    may_be_capture,
)
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.options import ENVIRONMENT_FILE

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
MOST_UNENTERED = 1000
"""entries of such a folder, and of all below it, that are looked at to say whether captures lie there; a folder of more is
one of data, and files of other kinds in it are not searched for traces"""
_FILE_NAME = re.compile(r"\.(?:json|pickle|pkl)(?:\.gz)?$", re.I)
_COMPANIONS = frozenset({ENVIRONMENT_FILE})
"""Belongs beside a capture: nothing to speak of, unless it begins as a capture itself."""


@dataclass(frozen=True, slots=True)
class Candidate:
    path: Path
    root: Path
    """display paths are relative to it"""
    named: bool
    """given by name, not found by walking"""


@dataclass(frozen=True, slots=True)
class Place:
    """What lies at one place that was asked for: a file, a folder, or one match of a pattern."""

    place: Path
    candidates: list[Candidate]
    recordings: list[Path]
    """folders below it that `record` wrote"""
    unentered: list[Path]
    """folders below it that are not looked into, as hidden ones"""
    named: bool
    """given by name, not a match of a pattern"""


def as_path(path: object) -> Path:
    """Raises UsageError for what is no path, such as a list of paths."""
    if isinstance(path, str | os.PathLike):
        return Path(path)
    raise UsageError(
        f"a path is text or a Path, not a {type(path).__name__}; several paths are several arguments"
    )


def meant(path: Path) -> list[Path]:
    """The file or folder that a path names, or all that match it where it names none and is a pattern."""
    if _is_there(path) or not glob.has_magic(str(path)):
        return [path]
    return [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]


def places_of(path: Path, is_recording: Callable[[Path], bool]) -> list[Place]:
    """Where a path leads: its folder, its file, or what a pattern matches. Raises NothingRecorded for one that is not there."""
    if path.is_dir():
        return [_folder(path, path, named=True)]
    if _is_there(path):
        return [Place(path, [Candidate(path, path.parent, named=True)], [], [], named=True)]
    if glob.has_magic(str(path)):
        return list(_globbed(path, is_recording))
    raise NothingRecorded(f"{path}: no such file or folder")


def _folder(folder: Path, root: Path, *, named: bool) -> Place:
    recorded: list[Path] = []
    unentered: list[Path] = []
    files = [Candidate(path, root, named and path == folder) for path in _walk(folder, recorded, unentered)]
    return Place(folder, files, recorded, unentered, named)


def _is_there(path: Path) -> bool:
    """Also a link to nothing, and what lies where nobody may look."""
    try:
        os.lstat(path)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _globbed(pattern: Path, is_recording: Callable[[Path], bool]) -> Iterator[Place]:
    fixed = pattern.parts[: _first_magic(pattern)]
    root = Path(*fixed) if fixed else Path()
    matches = [*meant(pattern), *_closed(pattern)]
    if not matches:
        raise NothingRecorded(f"{pattern}: nothing matches this pattern")
    for path in matches:
        if path.is_dir() and not (path.is_symlink() and leads_to_kernel(path)):
            yield _folder(path, root, named=False)
        elif not _is_companion(path, in_recording=is_recording(path.parent)):
            yield Place(path, [Candidate(path, root, named=False)], [], [], named=False)


def _closed(pattern: Path) -> Iterator[Path]:
    """Folders on the way of a pattern that may not be read or entered: `glob` passes over them."""
    parts = pattern.parts
    for n in range(_first_magic(pattern), len(parts)):
        for folder in glob.iglob(str(Path(*parts[:n])), recursive=True) if n else ["."]:
            if os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK):
                yield Path(folder)


def _is_companion(path: Path, *, in_recording: bool) -> bool:
    named = path.name in _COMPANIONS or (in_recording and recordings.is_companion(path.name))
    return (
        (named and not begins_as_capture(path))
        or graph_annotations.is_companion(path)
        or provenance.is_companion(path)
    )


def _first_magic(pattern: Path) -> int:
    return next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))


def _walk(root: Path, recorded: list[Path], unentered: list[Path]) -> Iterator[Path]:
    """Candidate files below a folder; `recorded` takes the folders of recordings, `unentered` those that are not looked into. Links are followed, but no folder is entered twice; real entries come first."""
    visited: set[tuple[int, int]] = set()
    top = os.path.realpath(root)
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda e: (e.is_symlink(), e.name))
        except FileNotFoundError:
            continue
        except OSError:
            yield folder  # to be named among what cannot be read
            continue
        is_recording = any(recordings.is_manifest(entry.name) for entry in entries)
        searched = len(entries) <= MOST_UNENTERED
        if (status.st_dev, status.st_ino) in visited:
            if folder.is_symlink():  # by another name, which may be that of another rank
                yield from (
                    Path(e.path)
                    for e in entries
                    if not e.is_symlink() and _is_candidate(e, is_recording, searched)
                )
            continue
        visited.add((status.st_dev, status.st_ino))
        below: list[Path] = []
        recorded += [folder] * is_recording
        for entry in entries:
            try:
                if entry.is_symlink() and (leads_to_kernel(entry.path) or _leads_above(entry.path, top)):
                    yield Path(entry.path)  # to be named
                elif entry.is_dir():
                    if _FILE_NAME.search(entry.name) and identify.claims_capture(entry.name, b""):
                        yield Path(entry.path)  # in the place of a capture
                    (unentered if is_skipped(entry.name) else below).append(Path(entry.path))
                elif _is_candidate(entry, is_recording, searched):
                    yield Path(entry.path)
                elif not entry.is_file() and not entry.name.startswith("."):
                    yield Path(entry.path)  # no file: to be named
            except OSError:  # a link in a circle, or to where nobody may look
                yield Path(entry.path)
        folders += reversed(below)


def _leads_above(link: str, top: str) -> bool:
    """Whether a link leads to a folder that `top` lies in: behind it is more than was given, up to all files there are."""
    target = os.path.realpath(link)
    return target != top and top.startswith(os.path.join(target, ""))


def is_skipped(folder: str) -> bool:
    """Whether a folder of this name is not looked into: a virtual environment, a cache, version control."""
    return folder.startswith(".") or folder in _SKIPPED_FOLDERS


def _is_candidate(entry: os.DirEntry[str], is_recording: bool, searched: bool) -> bool:
    """Whether a file is worth a look inside; `searched`: one of another kind too, where it holds a trace. Raises OSError."""
    path = Path(entry.path)
    return (
        entry.is_file()
        and not _is_companion(path, in_recording=is_recording)
        and (
            may_be_capture(path)
            or identify.named_after_rank(entry.name)
            or (searched and (is_sealed(path) or bool(capture_inside(path))))
        )
    )
