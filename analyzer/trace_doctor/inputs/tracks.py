"""Traces written again with causes and findings as tracks, for other tools."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trace_doctor.engine.tracks import tracks_of
from trace_doctor.errors import UsageError
from trace_doctor.evidence.base import Facts
from trace_doctor.exporters.perfetto import targets, write
from trace_doctor.files import replacing
from trace_doctor.loaders.kineto.args import ArgsReader
from trace_doctor.model import Result


def write_tracks(path: Path, traces: Sequence[tuple[int, Facts]], result: Result) -> None:
    """The traces again with their tracks, each written whole or not at all. `traces`: (number of the input, trace)."""
    if not traces:
        raise UsageError("perfetto: a trace is needed, snapshots alone have no clock of a profiler")
    files = targets(path, [f.rank for _, f in traces])
    if len(files) > 1 and (there := next(filter(os.path.lexists, files), None)) is not None:
        raise UsageError(f"perfetto: {there} is there already, and was not named: it is not overwritten")
    for target, (number, facts) in zip(files, traces, strict=True):
        run = facts.run
        offsets, source = run.offset[run.offset >= 0], run.read_args
        if not len(offsets) or not isinstance(source, ArgsReader):
            raise UsageError(f"perfetto: {run.path} holds no event")
        findings = [f for f in result.findings if f.input == number]
        with replacing(target) as file:
            write(
                file,
                source.pieces(),
                int(offsets.min()),
                tracks_of(facts),
                findings,
                packed=target.name.endswith(".gz"),
            )
