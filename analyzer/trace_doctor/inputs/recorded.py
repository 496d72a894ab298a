"""What the ranks of a recording have in common, put together from what is kept of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from trace_doctor.engine import Examination
from trace_doctor.inputs.group_examination import ExaminedCapture, GroupExamination, read_recording
from trace_doctor.inputs.groups import CaptureGroup
from trace_doctor.loading.captures import began_of, launcher_warnings
from trace_doctor.model import Input


def on_one_clock(groups: Sequence[tuple[CaptureGroup, GroupExamination]]) -> list[ExaminedCapture]:
    """All captures, those of a recording with the seconds since its first rank began: each was examined by itself."""
    spans: dict[Path, list[tuple[int, int]]] = {}
    for group, examined in groups:
        if (recording := group.files[0].recording) is not None:
            spans.setdefault(recording, []).extend(examined.spans)
    captures: list[ExaminedCapture] = []
    for group, examined in groups:
        own, all_ranks = began_of(examined.spans), began_of(spans.get(group.files[0].recording or Path(), ()))
        if own is None or own == all_ranks:
            captures += examined.captures
        else:
            later = None if all_ranks is None else (own - all_ranks) / 1e9
            captures += [_moved(capture, later) for capture in examined.captures]
    return captures


def _moved(capture: ExaminedCapture, later: float | None) -> ExaminedCapture:
    inputs = tuple(
        structs.replace(file, seconds=_later(file.seconds, later))
        for file in capture.examination.display.inputs
    )
    return replace(capture, examination=_with_inputs(capture.examination, inputs))


def _later(seconds: tuple[float, float] | None, later: float | None) -> tuple[float, float] | None:
    return None if seconds is None or later is None else (seconds[0] + later, seconds[1] + later)


def with_launcher_warnings(
    examinations: Sequence[Examination],
    recordings: Sequence[tuple[Path, str]],
    group_of: Mapping[tuple[int, str], CaptureGroup],
) -> list[Examination]:
    """What no rank says but the launcher does, with the first capture of each recording. `examinations`: by rank."""
    warnings = {
        folder: launcher_warnings(recording)
        for folder, _ in recordings
        if (recording := read_recording(folder)) is not None
    }
    complete = []
    for e in examinations:
        said = warnings.pop(group_of[e.rank, e.summary.path].files[0].recording or Path(), ())
        first, *others = e.display.inputs
        if said:
            first = structs.replace(first, warnings=[*first.warnings, *said])
        complete.append(_with_inputs(e, (first, *others)) if said else e)
    return complete


def _with_inputs(examination: Examination, inputs: tuple[Input, ...]) -> Examination:
    return replace(examination, display=structs.replace(examination.display, inputs=inputs))
