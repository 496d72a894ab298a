"""Finds captures below paths: folders, files and globs. Looks into files, because names say little."""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, NothingRecorded
from trace_doctor.loaders import identify
from trace_doctor.loaders.meta import rank_in_name
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.options import ENVIRONMENT_FILE, TORCH_TRACE_FOLDER
from trace_doctor.regex import regex

Kind = Literal["trace", "snapshot", "torch_trace"]

# Names worth a look inside when walking a folder; a file given by name is always looked into.
_CANDIDATE = regex(
    r"\.(?:json|pickle|pkl|zst)(?:\.gz|\.zst|\.tmp)*$|\.json\.|dedicated_log_torch_trace|tfevents", re.I
)
# Looked into as well, but of no interest when they are something else: logs, files without a suffix.
_POSSIBLE = regex(r"^[^.]+$|\.(?:log|jsonl|trace|raw|gz|tmp)$", re.I)
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_COMPANIONS = frozenset({ENVIRONMENT_FILE})
"""Belongs beside a capture: no capture itself, and nothing to speak of."""


@dataclass(frozen=True, slots=True)
class Found:
    """A capture to load. `rank_how` is "" where neither the file nor its folders name a rank."""

    path: Path
    display: str
    """with forward slashes, relative to the input root"""
    kind: Kind
    rank: int = 0
    rank_how: str = ""
    named: bool = False
    """given by name, not found by walking: a failure to read it is an error"""
    recording: Path | None = None
    """the folder that `record` wrote, of which this file is a part"""


@dataclass(frozen=True, slots=True)
class Ignored:
    display: str
    reason: str
    """what the file is: half a sentence"""


@dataclass(frozen=True, slots=True)
class Discovery:
    found: tuple[Found, ...]
    ignored: tuple[Ignored, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path
    root: Path
    """display paths are relative to it"""
    named: bool
    """given by name, not found by walking"""


def discover(paths: Sequence[str | Path]) -> Discovery:
    """Every trace, snapshot and TORCH_TRACE log below `paths`, in a fixed order, each file once.

    Raises NotACapture or DamagedCapture for a file that was given by name and is none; NoCaptures when nothing is
    found, saying what was looked for.
    """
    candidates = _distinct([c for given in paths for c in _candidates(Path(given))])
    displays = _displays(candidates)
    found: list[Found] = []
    ignored: list[Ignored] = []
    for candidate, display in zip(candidates, displays, strict=True):
        try:
            kind = sniff(candidate.path, str(candidate.path) if candidate.named else display)
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"
            if candidate.named:
                raise DamagedCapture(f"{candidate.path}: {problem}") from error
            ignored.append(Ignored(display, problem))
        except (NotACapture, DamagedCapture) as refused:
            if candidate.named:
                raise
            if _CANDIDATE.search(candidate.path.name):
                ignored.append(Ignored(display, str(refused).removeprefix(f"{display}: ")))
        else:
            rank = rank_in_name(display)
            found.append(
                Found(
                    candidate.path,
                    display,
                    kind,
                    rank or 0,
                    "" if rank is None else "file name",
                    candidate.named,
                    _recording(candidate.path, kind),
                )
            )
    if not found:
        raise _nothing(paths, len(ignored))
    return Discovery(tuple(found), tuple(ignored))


def _recording(path: Path, kind: Kind) -> Path | None:
    """The recording that a capture belongs to: by its name, in a folder that says it is one."""
    if kind == "torch_trace":
        folder = path.parent.parent if path.parent.name == TORCH_TRACE_FOLDER else path.parent
    elif recordings.role_of(path.name):
        folder = path.parent
    else:
        return None
    return folder if recordings.is_recording(folder) else None


def sniff(path: Path, display: str) -> Kind:
    """What a file is, from its first bytes. Raises NotACapture or DamagedCapture with one line, or OSError."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        os.scandir(path).close()  # raises: a folder is asked for only where it cannot be read
    if not stat.S_ISREG(status.st_mode):
        raise NotACapture(f"{display}: not a regular file")
    # What the kernel makes up on reading has no size, and reading it can take for ever.
    if not status.st_size:
        raise DamagedCapture(f"{display}: the file is empty")
    stream = ByteStream(path)
    start = stream.head(identify.HEAD)
    if not start.strip(b"\0 \t\r\n"):
        raise DamagedCapture(f"{display}: {stream.problem or 'the file is empty'}")
    found = identify.kind(start)
    if found is None and identify.is_chrome_trace(start):
        found = identify.kind(
            stream.head(identify.FAR)
        )  # marks of PyTorch may come after thousands of others
    if found is None:
        raise NotACapture(identify.refusal(display, start))
    return found


# -- the files ---------------------------------------------------------------------------------------------------


def _candidates(given: Path) -> Iterator[_Candidate]:
    if given.is_dir():
        for path in _walk(given):
            yield _Candidate(path, given, named=path == given)
    elif given.exists():
        yield _Candidate(given, given.parent, named=True)
    elif glob.has_magic(str(given)):
        yield from _globbed(given)
    else:
        raise NothingRecorded(f"{given}: no such file or folder")


def _globbed(pattern: Path) -> Iterator[_Candidate]:
    fixed = pattern.parts[: _first_magic(pattern)]
    root = Path(*fixed) if fixed else Path()
    matches = sorted(glob.glob(str(pattern), recursive=True))
    if not matches:
        raise NothingRecorded(f"{pattern}: nothing matches this pattern")
    for match in matches:
        path = Path(match)
        for file in _walk(path) if path.is_dir() else [path]:
            yield _Candidate(file, root, named=False)


def _first_magic(pattern: Path) -> int:
    return next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))


def _walk(root: Path) -> Iterator[Path]:
    """Candidate files below a folder. Links are followed, but no folder is entered twice; real entries come first."""
    seen: set[tuple[int, int]] = set()
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda e: (e.is_symlink(), e.name))
        except PermissionError:
            yield folder  # to be named among what cannot be read
            continue
        except OSError:
            continue
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        below = []
        recorded = any(recordings.is_manifest(entry.name) for entry in entries)
        for entry in entries:
            try:
                if entry.is_dir():
                    if not entry.name.startswith(".") and entry.name not in _SKIPPED_FOLDERS:
                        below.append(Path(entry.path))
                elif entry.name in _COMPANIONS or (recorded and recordings.is_companion(entry.name)):
                    continue
                elif entry.is_file() and (_CANDIDATE.search(entry.name) or _POSSIBLE.search(entry.name)):
                    yield Path(entry.path)
            except OSError:
                continue
        folders += reversed(below)


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Each file once, at its first mention; the mention by name counts."""
    named = {os.path.realpath(c.path) for c in candidates if c.named}
    kept: dict[str, _Candidate] = {}
    for c in candidates:
        real = os.path.realpath(c.path)
        if c.named or real not in named:
            kept.setdefault(real, c)
    return list(kept.values())


def _displays(candidates: list[_Candidate]) -> list[str]:
    """The shortest of three forms that tells all files apart: below its root, with the root's name, below what all
    roots have in common."""
    short = [_relative(c.path, c.root) for c in candidates]
    if len(set(short)) == len(short):
        return short
    roots = [Path(os.path.abspath(c.root)) for c in candidates]
    longer = [f"{root.name}/{name}" for root, name in zip(roots, short, strict=True)]
    if len(set(longer)) == len(longer):
        return longer
    common = Path(os.path.commonpath([str(r) for r in roots]))
    return [_relative(root / name, common) for root, name in zip(roots, short, strict=True)]


def _relative(path: Path, root: Path) -> str:
    """As valid text: names of files may be any bytes."""
    shown = Path(os.path.relpath(os.path.abspath(path), os.path.abspath(root))).as_posix()
    return os.fsencode(shown).decode("utf-8", "replace")


def _nothing(paths: Sequence[str | Path], ignored: int) -> NoCaptures:
    where = ", ".join(str(p) for p in paths) or "."
    count = "1 other file was" if ignored == 1 else f"{ignored} other files were"
    others = f" ({count} ignored)" if ignored else ""
    recording = next((r for p in paths if (r := recordings.read(Path(p)))), None)
    if recording is not None:
        why = dict.fromkeys([*recording.warnings, *(w for r in recording.ranks.values() for w in r.warnings)])
        return NoCaptures(f"no capture in the recording {where}{others}{': ' if why else ''}{'; '.join(why)}")
    return NothingRecorded(
        f"no capture below {where}{others}: looked for profiler traces (*.json, *.json.gz), memory snapshots "
        "(*.pickle, *.pkl) and TORCH_TRACE logs. Record one with torch.profiler.profile(..., on_trace_ready="
        "tensorboard_trace_handler('./logs')), or torch.cuda.memory._dump_snapshot('snapshot.pickle'); "
        "`trace-doctor capture` prints the lines."
    )
