"""One capture group: read, examined and dropped. What runs in a child process, and what it gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from trace_doctor.capture import Capture
from trace_doctor.engine import Examination, Sizes, examine, ownership, retime
from trace_doctor.engine.ownership import Owner
from trace_doctor.errors import TraceDoctorError
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.flight_recorder import FlightDump
from trace_doctor.inputs.groups import CaptureGroup
from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.loading import captures_of
from trace_doctor.loading.doubtful_ranks import FileIdentity, identity_of
from trace_doctor.loading.load_file import Content, load
from trace_doctor.model import OwnershipRow, WhatIf
from trace_doctor.recording import folder as recordings
from trace_doctor.rule import Rule

read_recording = lru_cache(maxsize=2)(recordings.read)
"""`recordings.read`, once for the ranks of a recording that follow one another"""


@dataclass(frozen=True)
class Request:
    """What is asked of each capture."""

    rules: tuple[Rule, ...]
    sizes: Sizes
    options: Options
    rank: int | None = None
    """the only one that is looked at"""
    memory: int | None = None
    """bytes that loading may take; None: as the loaders decide"""


@dataclass(frozen=True)
class ExaminedCapture:
    """What is kept of one capture."""

    examination: Examination
    ownership: tuple[OwnershipRow, ...]
    """where no finding owns any time of it"""


@dataclass(frozen=True)
class GroupExamination:
    """What is kept of a capture group."""

    captures: tuple[ExaminedCapture, ...]
    identities: tuple[FileIdentity, ...]
    """of the traces and snapshots that were read, of any rank"""
    unread: tuple[tuple[str, TraceDoctorError], ...] = ()
    """files that could not be read, as they are shown, each with its error"""
    spans: tuple[tuple[int, int], ...] = ()
    """the time that each trace and snapshot of a recording shows, ns"""


@dataclass(frozen=True)
class SecondRequest:
    """What is asked of a capture once all findings are known."""

    rank: int
    path: str
    removals: tuple[tuple[str, Removal], ...]
    """(id of the finding, what its fixes take out)"""
    owners: tuple[Owner, ...]
    """the gravest first"""


Answer = tuple[list[WhatIf], list[OwnershipRow]]


def examine_group(group: CaptureGroup, request: Request) -> GroupExamination:
    """Reads a group and examines its captures. What cannot be read is a value."""
    loaded, unread = _loaded(group, request.memory)
    captures = _captures(loaded, request)
    files = [(f, c) for f, c in loaded if not isinstance(c, CompileLog)]
    return GroupExamination(
        captures=tuple(_examined(capture, request) for capture in captures),
        identities=tuple(identity_of(f, c) for f, c in files),
        unread=tuple(unread),
        spans=tuple(
            c.span_ns
            for f, c in files
            if f.recording is not None and not isinstance(c, FlightDump) and c.span_ns is not None
        ),
    )


def _examined(capture: Capture, request: Request) -> ExaminedCapture:
    facts = Facts(capture, request.options)
    examination = examine(facts, request.rules, request.sizes)
    return ExaminedCapture(examination, tuple(ownership(facts, [])))


def ask_again(group: CaptureGroup, request: Request, asked: Sequence[SecondRequest]) -> list[Answer]:
    """Reads a group again, and answers what is asked of its captures; nothing where one of them is no longer there."""
    loaded, _ = _loaded(group, request.memory)
    captures = {(c.rank, c.path): Facts(c, request.options) for c in _captures(loaded, request)}
    if any((each.rank, each.path) not in captures for each in asked):
        return []
    return [
        (retime(facts, each.removals), ownership(facts, each.owners))
        for each in asked
        for facts in [captures[each.rank, each.path]]
    ]


def _loaded(
    group: CaptureGroup, memory: int | None
) -> tuple[list[tuple[CaptureFile, Content]], list[tuple[str, TraceDoctorError]]]:
    loaded, unread = [], []
    for file in group.files:
        try:
            loaded.append((file, load(file, memory, core_free=False)))
        except TraceDoctorError as error:
            unread.append((file.display, error.with_traceback(None)))
    return loaded, unread


def _captures(loaded: Sequence[tuple[CaptureFile, Content]], request: Request) -> list[Capture]:
    files = [
        (f, c)
        for f, c in loaded
        if request.rank is None or isinstance(c, CompileLog) or c.rank == request.rank
    ]
    return captures_of(files, read_recording, all_ranks=False)
