"""A few captures, all in memory at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trace_doctor.capture import Capture
from trace_doctor.engine import Examination, Sizes, examine, ownership, retime
from trace_doctor.errors import TraceDoctorError
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.inputs.group_examination import Answer, SecondRequest
from trace_doctor.inputs.scope import InputFiles
from trace_doctor.loaders.discover import CaptureFile, Discovery
from trace_doctor.loaders.progress import Progress
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.loading import LoadOptions, captures_of, load_inputs
from trace_doctor.loading.doubtful_ranks import identity_of
from trace_doctor.loading.load_file import Content
from trace_doctor.rule import Rule


def read_files(
    discovery: Discovery, load: LoadOptions | None, progress: Progress | None
) -> tuple[InputFiles, list[tuple[CaptureFile, Content]]]:
    """What became of the files, and the content of each that could be read."""
    files = InputFiles.of(discovery)
    contents = []
    for loaded in load_inputs(discovery.found, load, progress):
        found, outcome = loaded.found, loaded.outcome
        if isinstance(outcome, TraceDoctorError):
            files.add_unread(found, outcome)
            continue
        contents.append((found, outcome))
        files.add_read([found], [] if isinstance(outcome, CompileLog) else [identity_of(found, outcome)])
    return files, contents


def held_captures(
    files: InputFiles,
    contents: Sequence[tuple[CaptureFile, Content]],
    paths: Sequence[str | Path],
    rank: int | None,
) -> list[Capture]:
    """What the files make, of all ranks or of one. Raises NoCaptures where that is nothing."""
    if rank is not None:
        contents = [(f, c) for f, c in contents if isinstance(c, CompileLog) or c.rank == rank]
    captures = captures_of(contents)
    files.must_have(len(captures), paths, rank)
    return captures


class Held:
    """Captures that stay in memory, so that they can be shown closer and written again. Raises NoCaptures without any."""

    limits: Sequence[str] = ()

    def __init__(
        self,
        discovery: Discovery,
        paths: Sequence[str | Path],
        load: LoadOptions,
        options: Options,
        rank: int | None,
        progress: Progress,
    ) -> None:
        self.files, contents = read_files(discovery, load, progress)
        self.facts = [Facts(c, options) for c in held_captures(self.files, contents, paths, rank)]

    def examine(self, rules: Sequence[Rule], *, detail: bool, progress: Progress) -> list[Examination]:
        """Of every capture, by rank and path. `detail`: with what a page shows closer."""
        traces = sum(f.capture.run is not None for f in self.facts)
        sizes = Sizes.among(len(self.facts), traces, detail=detail)
        return [examine(f, rules, sizes, progress) for f in self.facts]

    def ask_again(self, asked: Sequence[SecondRequest]) -> list[Answer]:
        """Of every capture, in their order."""
        return [
            (retime(facts, each.removals), ownership(facts, each.owners))
            for facts, each in zip(self.facts, asked, strict=True)
        ]
