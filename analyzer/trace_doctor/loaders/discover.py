"""Finds captures below paths: folders, files and globs. Looks into files, because names say little."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath

from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, NothingRecorded, UsageError
from trace_doctor.files import OutsideError, open_regular
from trace_doctor.loaders import graph_annotations, identify, packed, provenance
from trace_doctor.loaders.kineto.meta import rank_in_name
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.model.captures import NO_CAPTURE_BELOW
from trace_doctor.recording import folder as recordings
from trace_doctor.recording import whole_files
from trace_doctor.recording.options import ENVIRONMENT_FILE, TORCH_TRACE_FOLDER

# Names worth a look inside when walking a folder; a file given by name is always looked into.
_CANDIDATE = re.compile(
    r"\.(?:json|pickle|pkl|pftrace|zst)(?:\.gz|\.zst|\.tmp)*$|\.(?:json|pickle|pkl|pt\.trace)[^a-z0-9]"
    r"|dedicated_log_torch_trace|tfevents",
    re.I,
)
# Looked into as well, but of no interest when they are something else: logs, files without a suffix. Of any other file
# the first bytes decide whether it is.
_POSSIBLE = re.compile(r"^[^.]+$|\.(?:log|jsonl|trace|raw|gz|tmp)$", re.I)
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages"})
_MOST_UNENTERED = 1000
"""entries of such a folder, and of all below it, that are looked at to say whether captures lie there; a folder of more is
one of data, and files of other kinds in it are not searched for traces"""
_FILE_NAME = re.compile(r"\.(?:json|pickle|pkl)(?:\.gz)?$", re.I)
_NUMBER = re.compile(r"\d+")
_KERNEL = re.compile(r"/(?:proc|sys|dev(?!/shm/))(?:/|$)")
"""what the kernel makes up: no capture is there, however it got a link in a folder of captures"""
_COMPANIONS = frozenset({ENVIRONMENT_FILE})
"""Belongs beside a capture: nothing to speak of, unless it begins as a capture itself."""


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A capture to load. `rank_how` is "" where neither the file nor its folders name a rank."""

    path: Path
    display: str
    """with forward slashes, relative to the input root"""
    kind: identify.Kind
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
    unread: bool = False
    """a capture that was met and not read: its name or its first bytes say that it is one, or it is no regular file"""


@dataclass(frozen=True, slots=True)
class Discovery:
    found: tuple[CaptureFile, ...]
    ignored: tuple[Ignored, ...] = ()
    recordings: tuple[tuple[Path, str], ...] = ()
    """folders that `record` wrote, each with how it is shown; those without any capture as well"""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A file that holds no capture that can be read."""

    error: NotACapture | DamagedCapture
    unread: bool
    sealed: bool = False
    """nobody knows what it holds: it is listed, and no capture was met"""


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path
    root: Path
    """display paths are relative to it"""
    named: bool
    """given by name, not found by walking"""


@dataclass(frozen=True, slots=True)
class _Place:
    """What lies at one place that was asked for: a file, a folder, or one match of a pattern."""

    place: Path
    candidates: list[_Candidate]
    recordings: list[Path]
    """folders below it that `record` wrote"""
    unentered: list[Path]
    """folders below it that are not looked into, as hidden ones"""
    named: bool
    """given by name, not a match of a pattern"""


def discover(paths: Sequence[str | Path], *, strict: bool = True) -> Discovery:
    """Every trace, snapshot and TORCH_TRACE log below `paths`, in a fixed order, each file once.

    Raises UsageError for an empty path and for what is no path, NotACapture or DamagedCapture for a file that was given by name and is none; where others can be read and
    `strict` is not set, only for one that nobody takes for a capture. NoCaptures when nothing is found, saying what was
    looked for.
    """
    if "" in paths:
        raise UsageError("one of the paths is empty: no file and no folder is named")
    is_recording = cache(recordings.is_recording)  # lists the folder: once, not for each of its files
    places = [place for path in paths for place in _places(as_path(path), is_recording)]
    all_candidates = [c for place in places for c in place.candidates]
    candidates = _distinct(all_candidates)
    displays = _displays(candidates)
    captures: list[CaptureFile] = []
    refused: list[tuple[_Candidate, str, _Refused]] = []
    for candidate, display in zip(candidates, displays, strict=True):
        name = str(candidate.path) if candidate.named else display
        unread = (
            None if candidate.named else _unfinished(candidate.path, name) or _within(candidate.path, name)
        )
        kind = unread or _look(candidate.path, name)
        if not isinstance(kind, _Refused):
            captures.append(_capture_file(candidate, display, kind, is_recording))
        elif candidate.named and (strict or (not kind.unread and isinstance(kind.error, NotACapture))):
            raise kind.error
        else:
            refused.append((candidate, display, kind))
    captures = _dumps_with_traces(captures)
    if not captures:
        if error := next((r.error for c, _, r in refused if c.named), None):
            raise error
        raise _nothing(paths, _ignored(refused, captures), list(_unentered(places)))
    real_paths = {os.path.realpath(c.path) for c, _, r in refused if r.unread} | {
        os.path.realpath(f.path) for f in captures
    }
    ignored = [
        *_ignored(refused, captures),
        *_other_ranks(all_candidates, captures),
        *_empty(places, real_paths),
        *_unentered(places),
    ]
    return Discovery(tuple(captures), tuple(ignored), _recordings(places, captures))


def _capture_file(
    candidate: _Candidate, display: str, kind: identify.Kind, is_recording: Callable[[Path], bool]
) -> CaptureFile:
    rank = rank_in_name(display)
    if rank is None and kind == "flight_recorder":
        rank = identify.rank_of_dump(candidate.path.name)
    return CaptureFile(
        candidate.path,
        display,
        kind,
        rank or 0,
        "" if rank is None else "file name",
        candidate.named,
        _recording(candidate.path, kind, is_recording),
    )


def _ignored(
    refused: Sequence[tuple[_Candidate, str, _Refused]], captures: Sequence[CaptureFile]
) -> list[Ignored]:
    """Those worth a word. A file that is named as a capture beside it but for numbers is taken for one as well."""
    alike = {_without_numbers(f.display) for f in captures if f.kind != "torch_trace"}
    listed = []
    for candidate, display, file in refused:
        name = str(candidate.path) if candidate.named else display
        unread = file.unread or candidate.named or _without_numbers(display) in alike
        of_interest = _CANDIDATE.search(candidate.path.name) or identify.named_after_rank(candidate.path.name)
        if unread or file.sealed or isinstance(file.error, DamagedCapture) or of_interest:
            listed.append(Ignored(display, str(file.error).removeprefix(f"{name}: "), unread))
    return listed


def _other_ranks(candidates: Sequence[_Candidate], captures: Sequence[CaptureFile]) -> Iterator[Ignored]:
    """Links to a capture that was read, under the name of another rank: that one was not read."""
    read = {os.path.realpath(f.path): f for f in captures}
    seen = {f.path for f in captures}
    for candidate in candidates:
        capture = read.get(os.path.realpath(candidate.path))
        if capture is None or candidate.path in seen:
            continue
        seen.add(candidate.path)
        rank = rank_in_name(display := _relative(candidate.path, candidate.root))
        if rank is not None and capture.rank_how and rank != capture.rank:
            yield Ignored(display, f"a link to {capture.display}, which is another rank", unread=True)


def _without_numbers(display: str) -> str:
    return _NUMBER.sub("0", display)


def _empty(places: Sequence[_Place], real_paths: Set[str]) -> Iterator[Ignored]:
    """Folders that were asked for and hold no capture, where others do."""
    for place in places:
        if place.place.is_dir() and not any(os.path.realpath(c.path) in real_paths for c in place.candidates):
            why = NO_CAPTURE_BELOW if place.named else "a folder that a pattern matches, without a capture"
            yield Ignored(_text(os.path.normpath(place.place)), why, unread=True)


def _unentered(places: Sequence[_Place]) -> Iterator[Ignored]:
    """Folders that are not looked into, where captures lie there, or so much that it is not known."""
    own = {os.path.realpath(place.place) for place in places}
    folders = {os.path.realpath(f): f for place in places for f in place.unentered}
    for real, folder in folders.items():
        if real not in own and (why := _holds_captures(folder)):
            yield Ignored(_text(os.path.normpath(folder)), f"{why}; name it to have it read")


def _holds_captures(folder: Path) -> str:
    """What lies in a folder that is not looked into, as far as a short look tells: empty where it is nothing of interest."""
    budget = _MOST_UNENTERED
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    budget -= 1
                    if budget < 0:
                        return "not looked into, and too much lies there to say whether captures do"
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif entry.is_file() and _begins_as_capture(Path(entry.path)):
                        return f"not looked into, and {_text(entry.name)} there begins as a capture does"
        except OSError:
            continue
    return ""


def _recordings(places: Sequence[_Place], captures: Sequence[CaptureFile]) -> tuple[tuple[Path, str], ...]:
    folders: dict[Path, str] = {}
    for f in sorted(captures, key=lambda f: f.kind == "torch_trace"):  # which lie in a folder of their own
        if f.recording is not None:
            folders.setdefault(f.recording, _text(PurePath(f.display).parent.as_posix()))
    walked = [folder for place in places for folder in place.recordings]
    real_folders = {os.path.realpath(folder) for folder in folders}
    return (
        *folders.items(),
        *(
            (f, _text(os.path.normpath(f)))
            for f in dict.fromkeys(walked)
            if os.path.realpath(f) not in real_folders
        ),
    )


def _text(path: str) -> str:
    """A path as valid text: names of files may be any bytes."""
    return os.fsencode(path).decode("utf-8", "replace")


def _recording(path: Path, kind: identify.Kind, is_recording: Callable[[Path], bool]) -> Path | None:
    """The recording that a capture belongs to: by its name, in a folder that says it is one. A dump whose name has its rank may lie
    in a folder of its own there."""
    if kind == "flight_recorder":
        folders = (path.parent, path.parent.parent) if identify.rank_of_dump(path.name) is not None else ()
        return next(filter(is_recording, folders), None)
    if kind == "torch_trace":
        folder = path.parent.parent if path.parent.name == TORCH_TRACE_FOLDER else path.parent
    elif recordings.role_of(path.name):
        folder = path.parent
    else:
        return None
    return folder if is_recording(folder) else None


def _dumps_with_traces(captures: Sequence[CaptureFile]) -> list[CaptureFile]:
    """Dumps belong to their recording if anything else of it is there: alone they do not tell what its ranks did."""
    recorded = {f.recording for f in captures if f.kind in ("trace", "snapshot")}
    return [
        f if f.kind != "flight_recorder" or f.recording in recorded else replace(f, recording=None)
        for f in captures
    ]


def sniff(path: Path, display: str) -> identify.Kind:
    """What a file is, from its first bytes. Raises NotACapture or DamagedCapture with one line."""
    kind = _look(path, display)
    if isinstance(kind, _Refused):
        raise kind.error
    return kind


def _unfinished(path: Path, display: str) -> _Refused | None:
    """What a recorder was killed over is told by its name alone: a trace that is cut reads well as far as it goes."""
    name = whole_files.was_to_be(path.name)
    if name is None:
        return None
    line = f"{display}: {name} was not finished, its process was killed meanwhile; this can be deleted"
    return _Refused(DamagedCapture(line), unread=recordings.role_of(name) is not None)


def _within(path: Path, display: str) -> _Refused | None:
    """A file of another kind that holds a capture, whose name and first bytes do not say so."""
    if _may_be_capture(path) or not (held := _held(path)):
        return None
    return _Refused(NotACapture(f"{display}: {held}"), unread=True)


def _look(path: Path, display: str) -> identify.Kind | _Refused:
    try:
        status = os.stat(path)
        if path.is_symlink() and _leads_to_kernel(path):
            why = f"{display}: a link to {os.path.realpath(path)}, where no capture is"
            return _Refused(NotACapture(why), unread=True)
        if stat.S_ISDIR(status.st_mode):
            os.scandir(path).close()  # raises: a folder is asked for only where it cannot be read
        if not stat.S_ISREG(status.st_mode):
            return _Refused(NotACapture(f"{display}: not a regular file"), unread=True)
        # What the kernel makes up has no size.
        stream = ByteStream(path) if status.st_size else None
        start = stream.head(identify.HEAD) if stream else b""
        kind = "torch_trace" if provenance.is_sources(path) and start else identify.kind(start)
        if kind is None and stream and identify.is_chrome_trace(start):
            # marks of PyTorch may come after thousands of others
            kind = identify.kind(stream.head(identify.FAR))
        if kind is None and stream and packed.is_packed(start):
            start = stream.head(packed.LOOKED_AT)
    except OutsideError:  # nor is its name the business of who asked
        raise UsageError(
            "a path that was checked has become a way out of the folders that may be read"
        ) from None
    except OSError as error:
        problem = (
            "a link to nothing" if _leads_nowhere(path) else f"cannot be read ({error.strerror or error})"
        )
        there = os.path.lexists(path) or error.errno == errno.ENAMETOOLONG
        unread = identify.claims_capture(path.name, b"") or there > os.path.isfile(path)
        return _Refused(DamagedCapture(f"{display}: {problem}"), unread)
    if kind is not None:
        return kind
    claims = identify.claims_capture(path.name, start, lambda: stream is not None and _is_other(stream))
    if why := identify.nothing_in(start):
        problem = stream.problem if stream else ""
        return _Refused(DamagedCapture(f"{display}: {problem or why}"), claims)
    if identify.holds_capture(start):
        return _Refused(NotACapture(f"{display}: an archive that holds a capture; unpack it first"), True)
    if not claims and (held := _held(path)):
        return _Refused(NotACapture(f"{display}: {held}"), True)
    return _Refused(NotACapture(identify.refusal(display, start)), claims, identify.is_sealed(start))


def _begins_as_capture(path: Path) -> bool:
    """Whether a file whose name says nothing begins as a capture does."""
    try:
        if not path.stat().st_size:
            return False  # what the kernel makes up on reading has no size, and reading it can take for ever
        with open_regular(path) as file:
            start = file.read(600)
        if not identify.may_begin(start):
            return False
        head = ByteStream(path).head(identify.HEAD)
        if packed.is_packed(head):
            return identify.holds_capture(ByteStream(path).head(packed.LOOKED_AT))
        return identify.begins_as_capture(head)
    except OSError:
        return False


def _is_sealed(path: Path) -> bool:
    try:
        if not path.stat().st_size:
            return False
        with open_regular(path) as file:
            return identify.is_sealed(file.read(8))
    except OSError:
        return False


def _held(path: Path) -> str:
    """The capture that a file of another kind holds: half a sentence; "" for none."""
    try:
        if not path.stat().st_size:
            return ""
        start = ByteStream(path).head(identify.WITHIN)  # of what a packed file is, no piece in it
    except OSError:
        return ""
    if identify.trace_within(start):
        how = "name it to have it read" if identify.kind(start[: identify.HEAD]) else "extract it first"
        return f"a trace inside a file of another kind; {how}"
    if identify.packed_within(start):
        return "a capture, compressed or encoded, inside a file of another kind; extract it first"
    return ""


def _may_be_capture(path: Path) -> bool:
    """Whether a file says by its name or its first bytes that it may be a capture."""
    return (
        _CANDIDATE.search(path.name) is not None
        or _POSSIBLE.search(path.name) is not None
        or whole_files.was_to_be(path.name) is not None
        or identify.claims_capture(path.name, b"")
        or _begins_as_capture(path)
    )


def _is_other(stream: ByteStream) -> bool:
    """Whether the file holds sound data: plain data in a pickle, or JSON. Of JSON that is long, the beginning tells."""
    try:
        data = stream.head(identify.FAR)
    except OSError:
        return False
    whole = len(data) < identify.FAR
    if stream.problem or stream.trailing or not data:
        return False
    if not identify.is_pickle(data):
        return identify.is_json(data, whole=whole)
    from trace_doctor.loaders.snapshot.unpickle import is_another_pickle

    return whole and is_another_pickle(data)


def _leads_to_kernel(path: str | Path) -> bool:
    return _KERNEL.match(os.path.realpath(path)) is not None


def _leads_nowhere(path: Path) -> bool:
    return os.path.islink(path) and not os.path.exists(path)


# -- the files ---------------------------------------------------------------------------------------------------


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


def _places(path: Path, is_recording: Callable[[Path], bool]) -> list[_Place]:
    if path.is_dir():
        return [_folder(path, path, named=True)]
    if _is_there(path):
        return [_Place(path, [_Candidate(path, path.parent, named=True)], [], [], named=True)]
    if glob.has_magic(str(path)):
        return list(_globbed(path, is_recording))
    raise NothingRecorded(f"{path}: no such file or folder")


def _folder(folder: Path, root: Path, *, named: bool) -> _Place:
    recorded: list[Path] = []
    unentered: list[Path] = []
    files = [_Candidate(path, root, named and path == folder) for path in _walk(folder, recorded, unentered)]
    return _Place(folder, files, recorded, unentered, named)


def _is_there(path: Path) -> bool:
    """Also a link to nothing, and what lies where nobody may look."""
    try:
        os.lstat(path)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _globbed(pattern: Path, is_recording: Callable[[Path], bool]) -> Iterator[_Place]:
    fixed = pattern.parts[: _first_magic(pattern)]
    root = Path(*fixed) if fixed else Path()
    matches = [*meant(pattern), *_closed(pattern)]
    if not matches:
        raise NothingRecorded(f"{pattern}: nothing matches this pattern")
    for path in matches:
        if path.is_dir() and not (path.is_symlink() and _leads_to_kernel(path)):
            yield _folder(path, root, named=False)
        elif not _is_companion(path, in_recording=is_recording(path.parent)):
            yield _Place(path, [_Candidate(path, root, named=False)], [], [], named=False)


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
        (named and not _begins_as_capture(path))
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
        searched = len(entries) <= _MOST_UNENTERED
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
                if entry.is_symlink() and (_leads_to_kernel(entry.path) or _leads_above(entry.path, top)):
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
            _may_be_capture(path)
            or identify.named_after_rank(entry.name)
            or (searched and (_is_sealed(path) or bool(_held(path))))
        )
    )


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Each file once, at its first mention; the mention by name counts."""
    named_paths = {os.path.realpath(c.path) for c in candidates if c.named}
    distinct: dict[str, _Candidate] = {}
    for c in candidates:
        real = os.path.realpath(c.path)
        if c.named or real not in named_paths:
            distinct.setdefault(real, c)
    return list(distinct.values())


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
    return _text(Path(os.path.relpath(os.path.abspath(path), os.path.abspath(root))).as_posix())


def _nothing(
    paths: Sequence[str | Path], ignored: Sequence[Ignored], unentered: Sequence[Ignored]
) -> NoCaptures:
    where = ", ".join(str(p) for p in paths) or "."
    unread = [f"{i.display}: {i.reason}" for i in ignored if i.unread]
    if unread:
        more = f" and {len(unread) - 3} more" if len(unread) > 3 else ""
        return NoCaptures(f"no readable capture in {where} ({'; '.join(unread[:3])}{more})")
    count = "1 other file was" if len(ignored) == 1 else f"{len(ignored)} other files were"
    others = f" ({count} ignored)" if ignored else ""
    if unentered:
        others += f" ({unentered[0].display}: {unentered[0].reason})"
    recording = next((r for p in paths if (r := recordings.read(Path(p)))), None)
    if recording is not None:
        why = dict.fromkeys([*recording.warnings, *(w for r in recording.ranks.values() for w in r.warnings)])
        return NoCaptures(f"no capture in the recording {where}{others}{': ' if why else ''}{'; '.join(why)}")
    return NothingRecorded(
        f"no capture below {where}{others}: looked for profiler traces (*.json, *.json.gz, *.pftrace), memory snapshots "
        "(*.pickle, *.pkl), flight recorder dumps and TORCH_TRACE logs. Record one with torch.profiler.profile(..., on_trace_ready="
        "tensorboard_trace_handler('./logs')), or torch.cuda.memory._dump_snapshot('snapshot.pickle'); "
        "`trace-doctor capture` prints the lines."
    )
