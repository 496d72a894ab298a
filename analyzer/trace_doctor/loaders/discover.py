"""Finds captures below paths: folders, files and globs. Looks into files, because names say little."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePath

from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, NothingRecorded, UsageError
from trace_doctor.loaders import identify
from trace_doctor.loaders.kineto.meta import rank_in_name
from trace_doctor.loaders.places import MOST_UNENTERED, Candidate, Place, as_path, places_of
from trace_doctor.loaders.sniff import CANDIDATE, Refused, begins_as_capture, look, unfinished, within
from trace_doctor.model.captures import NO_CAPTURE_BELOW
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.options import TORCH_TRACE_FOLDER

_NUMBER = re.compile(r"\d+")


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


def discover(paths: Sequence[str | Path], *, strict: bool = True) -> Discovery:
    """Every trace, snapshot and TORCH_TRACE log below `paths`, in a fixed order, each file once.

    Raises UsageError for an empty path and for what is no path, NotACapture or DamagedCapture for a file that was given by name and is none; where others can be read and
    `strict` is not set, only for one that nobody takes for a capture. NoCaptures when nothing is found, saying what was
    looked for.
    """
    if "" in paths:
        raise UsageError("one of the paths is empty: no file and no folder is named")
    is_recording = cache(recordings.is_recording)  # lists the folder: once, not for each of its files
    places = [place for path in paths for place in places_of(as_path(path), is_recording)]
    all_candidates = [c for place in places for c in place.candidates]
    candidates = _distinct(all_candidates)
    displays = _displays(candidates)
    captures: list[CaptureFile] = []
    refused: list[tuple[Candidate, str, Refused]] = []
    for candidate, display in zip(candidates, displays, strict=True):
        name = str(candidate.path) if candidate.named else display
        unread = None if candidate.named else unfinished(candidate.path, name) or within(candidate.path, name)
        kind = unread or look(candidate.path, name)
        if not isinstance(kind, Refused):
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
    candidate: Candidate, display: str, kind: identify.Kind, is_recording: Callable[[Path], bool]
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
    refused: Sequence[tuple[Candidate, str, Refused]], captures: Sequence[CaptureFile]
) -> list[Ignored]:
    """Those worth a word. A file that is named as a capture beside it but for numbers is taken for one as well."""
    alike = {_without_numbers(f.display) for f in captures if f.kind != "torch_trace"}
    listed = []
    for candidate, display, file in refused:
        name = str(candidate.path) if candidate.named else display
        unread = file.unread or candidate.named or _without_numbers(display) in alike
        of_interest = CANDIDATE.search(candidate.path.name) or identify.named_after_rank(candidate.path.name)
        if unread or file.sealed or isinstance(file.error, DamagedCapture) or of_interest:
            listed.append(Ignored(display, str(file.error).removeprefix(f"{name}: "), unread))
    return listed


def _other_ranks(candidates: Sequence[Candidate], captures: Sequence[CaptureFile]) -> Iterator[Ignored]:
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


def _empty(places: Sequence[Place], real_paths: Set[str]) -> Iterator[Ignored]:
    """Folders that were asked for and hold no capture, where others do."""
    for place in places:
        if place.place.is_dir() and not any(os.path.realpath(c.path) in real_paths for c in place.candidates):
            why = NO_CAPTURE_BELOW if place.named else "a folder that a pattern matches, without a capture"
            yield Ignored(_text(os.path.normpath(place.place)), why, unread=True)


def _unentered(places: Sequence[Place]) -> Iterator[Ignored]:
    """Folders that are not looked into, where captures lie there, or so much that it is not known."""
    own = {os.path.realpath(place.place) for place in places}
    folders = {os.path.realpath(f): f for place in places for f in place.unentered}
    for real, folder in folders.items():
        if real not in own and (why := _holds_captures(folder)):
            yield Ignored(_text(os.path.normpath(folder)), f"{why}; name it to have it read")


def _holds_captures(folder: Path) -> str:
    """What lies in a folder that is not looked into, as far as a short look tells: empty where it is nothing of interest."""
    budget = MOST_UNENTERED
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
                    elif entry.is_file() and begins_as_capture(Path(entry.path)):
                        return f"not looked into, and {_text(entry.name)} there begins as a capture does"
        except OSError:
            continue
    return ""


def _recordings(places: Sequence[Place], captures: Sequence[CaptureFile]) -> tuple[tuple[Path, str], ...]:
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


def _distinct(candidates: list[Candidate]) -> list[Candidate]:
    """Each file once, at its first mention; the mention by name counts."""
    named_paths = {os.path.realpath(c.path) for c in candidates if c.named}
    distinct: dict[str, Candidate] = {}
    for c in candidates:
        real = os.path.realpath(c.path)
        if c.named or real not in named_paths:
            distinct.setdefault(real, c)
    return list(distinct.values())


def _displays(candidates: list[Candidate]) -> list[str]:
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
