"""Which files an analysis read, which it did not, and what it has to say of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from trace_doctor.engine.coverage import RecordedRanks, Scope
from trace_doctor.errors import NoCaptures, TraceDoctorError
from trace_doctor.loaders.discover import CaptureFile, Discovery
from trace_doctor.loaders.kineto.meta import rank_in_name
from trace_doctor.loading.doubtful_ranks import FileIdentity, doubtful_ranks
from trace_doctor.model import Ignored
from trace_doctor.recording import folder as recordings


@dataclass
class InputFiles:
    """The files below the paths of an analysis, as far as they have been read."""

    recordings: Sequence[tuple[Path, str]]
    """folders that `record` wrote, each with how it is shown"""
    ignored: list[Ignored]
    read: list[CaptureFile] = field(default_factory=list)
    identities: list[FileIdentity] = field(default_factory=list)
    """of the traces and snapshots among them"""
    refused: TraceDoctorError | None = None
    """why the first file that was given by name could not be read"""

    @classmethod
    def of(cls, discovery: Discovery) -> InputFiles:
        """Nothing is read yet."""
        ignored = [Ignored(path=i.display, reason=i.reason, unread=i.unread) for i in discovery.ignored]
        return cls(discovery.recordings, ignored)

    def add_read(self, files: Sequence[CaptureFile], identities: Sequence[FileIdentity]) -> None:
        """Files that were read. A log may be of several groups."""
        known = {f.path for f in self.read if f.kind == "torch_trace"}
        self.read += [f for f in files if f.path not in known]
        self.identities += identities

    def add_unread(self, file: CaptureFile, error: TraceDoctorError) -> None:
        """A file that could not be read."""
        reason = str(error).removeprefix(f"{file.display}: ")
        ignored = Ignored(path=file.display, reason=reason, unread=True)
        if ignored not in self.ignored:
            self.ignored.append(ignored)
        if file.named and self.refused is None:
            self.refused = type(error)(f"{file.path}: {reason}")

    def must_have(self, captures: int, paths: Sequence[str | Path], rank: int | None) -> None:
        """Raises NoCaptures where there is no capture; the error of a file given by name where that is why."""
        self.ignored.sort(key=lambda i: i.path)
        if not self.read:
            raise self.refused or NoCaptures(self._nothing_readable(paths))
        if not captures:
            raise NoCaptures(
                self._nothing_readable(paths)
                if rank is None
                else f"no capture of rank {rank} below the paths given"
            )

    def _nothing_readable(self, paths: Sequence[str | Path]) -> str:
        where = ", ".join(str(p) for p in paths)
        reasons = "; ".join(
            f"{i.path}: {i.reason}" for i in sorted(self.ignored, key=lambda i: not i.unread)[:3]
        )
        return f"no readable capture in {where}" + (f" ({reasons})" if reasons else "")

    def scope(self, rank: int | None) -> Scope:
        """What an analysis of all ranks, or of one, has to say of what it was not made of."""
        ignored = [
            msgspec.structs.replace(
                i, unread=i.unread and (rank is None or rank_in_name(i.path) in (None, rank))
            )
            for i in self.ignored
        ]
        recorded = [self._recorded(folder, shown) for folder, shown in self.recordings]
        return Scope(ignored, recorded, rank, doubtful_ranks(self.identities, rank))

    def _recorded(self, folder: Path, shown: str) -> RecordedRanks:
        listed, unreadable = recordings.listed(folder)
        own_files = [f.path.name for f in self.read if f.recording == folder]
        ranks = {named[0] for name in own_files if (named := recordings.role_of(name)) is not None}
        summed_up = recordings.summed_up(folder)
        processes = {
            rank: {
                p
                for i in self.identities
                if (i.folder, i.role_rank) == (str(folder), rank)
                for p in i.processes
            }
            for rank in ranks
        }
        return RecordedRanks(
            shown,
            listed,
            ranks,
            unreadable,
            recordings.missing_captures(folder),
            sorted(ranks - set(summed_up)) if summed_up else [],
            recordings.contradictions(folder, processes),
        )
