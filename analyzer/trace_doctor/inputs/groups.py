"""Capture groups: the files that are read together, because only together they are one rank."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.recording import folder as recordings


@dataclass(frozen=True, slots=True)
class CaptureGroup:
    """All files of one rank of a folder; where their names do not tell the rank, of the folder."""

    name: str
    """the first of its files, as shown"""
    files: tuple[CaptureFile, ...]
    """with the logs that may be of its rank, which several groups can have"""

    @property
    def own(self) -> list[CaptureFile]:
        """Its traces, snapshots and dumps."""
        return [f for f in self.files if f.kind != "torch_trace"]


def groups_of(files: Sequence[CaptureFile]) -> list[CaptureGroup]:
    """The groups of the files, by their first file: of a recording its ranks, of another folder the ranks that names
    tell. A folder whose names do not tell all ranks is one group, but of traces alone each is: no other file belongs to it."""
    captures = [f for f in files if f.kind != "torch_trace"]
    others = [f for f in captures if _recorded_rank(f) is None]
    with_snapshot = {f.path.parent for f in others if f.kind != "trace"}
    unnamed = {f.path.parent for f in others if not f.rank_how}
    members: dict[tuple[Path, int | str], list[CaptureFile]] = {}
    for file in captures:
        members.setdefault(_key(file, with_snapshot & unnamed), []).append(file)
    logs = [f for f in files if f.kind == "torch_trace"]
    groups = [CaptureGroup(own[0].display, (*own, *_logs_of(own[0], logs))) for own in members.values()]
    used = {log.path for group in groups for log in group.files if log.kind == "torch_trace"}
    return [*groups, *(CaptureGroup(log.display, (log,)) for log in logs if log.path not in used)]


def _recorded_rank(file: CaptureFile) -> int | None:
    if file.recording is None:
        return None
    role = recordings.role_of(file.path.name)
    return role[0] if role is not None else file.rank if file.kind == "flight_recorder" else None


def _key(file: CaptureFile, undivided: Set[Path]) -> tuple[Path, int | str]:
    """`undivided`: folders in which only what the files hold tells which of them are of one rank."""
    folder, rank = file.path.parent, _recorded_rank(file)
    if rank is not None and file.recording is not None:
        return file.recording, rank
    if folder in undivided:
        return folder, ""
    return folder, file.rank if file.rank_how else file.path.name


def _logs_of(file: CaptureFile, logs: Sequence[CaptureFile]) -> list[CaptureFile]:
    """Of a recording the logs of the rank, and those that do not name one; elsewhere all that are of no recording."""
    rank = _recorded_rank(file)
    return [
        log
        for log in logs
        if log.recording == file.recording and (rank is None or not log.rank_how or log.rank == rank)
    ]
