"""What is told of a copy before anything runs: what a run can still write, and what the copy lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trace_doctor.errors import printable
from trace_doctor.reporters.units import plural
from trace_doctor.treatment.copy.copying import CopyRecord
from trace_doctor.treatment.copy.removal import Leftover

_MOST_NAMES = 10
_WRITABLE = "a run can write there"
_COPIED = "copied when Python opens it for writing"


@dataclass(frozen=True)
class _Kind:
    text: str
    names: Sequence[str]
    hint: str = ""
    brief: str = ""
    """what stands for the names where they are many"""

    def line(self) -> str:
        """The text with the first names, or `brief` where there are more."""
        names = ", ".join(self.names[:_MOST_NAMES])
        if len(self.names) > _MOST_NAMES:
            names = self.brief or f"{names} and {len(self.names) - _MOST_NAMES} more"
            names += " (-v lists all)"
        return printable(f"{self.text}: {names}{self.hint}")


@dataclass(frozen=True)
class CopyNotes:
    """Lines about a copy. `beside` are the names around the project that are linked, by their folder; `blind_spots` links
    to folders that hold too much to be compared in the end."""

    record: CopyRecord
    worktree: bool
    beside: Mapping[str, Sequence[str]]
    blind_spots: Sequence[str]

    def notes(self) -> list[str]:
        """A line of bounded length for each kind."""
        kind = "git work tree" if self.worktree else "copy"
        files = plural(len(self.record.files), "file")
        headline = f"trials run in a {kind} of {files}; no edit reaches your own files without --apply"
        return [headline, *(kind.line() for kind in self._kinds() if kind.names)]

    def details(self) -> list[str]:
        """A line for each name."""
        return [printable(f"{kind.text}: {name}") for kind in self._kinds() for name in kind.names]

    def _kinds(self) -> list[_Kind]:
        record = self.record
        outward = [f"{name} -> {to}" for name, to in sorted(record.outward.items())]
        beside = [f"{folder.rstrip('/')}/{name}" for folder, names in self.beside.items() for name in names]
        counts = ", ".join(f"{len(names)} in {folder}" for folder, names in self.beside.items())
        return [
            _Kind(f"linked, {_COPIED}", sorted(record.shared_data), " (--copy-data copies data)"),
            _Kind(f"linked by --link, {_WRITABLE}", sorted(record.asked)),
            _Kind(f"not imported, linked, {_COPIED}", sorted(record.not_imported)),
            _Kind(f"links out of the project, {_COPIED}", outward),
            _Kind(f"linked next to the project, {_COPIED}", beside, brief=counts),
            _Kind("virtual environments, linked", sorted(record.environments)),
            _Kind("too many files to compare in the end", self.blind_spots),
            _Kind("left out, as what a run writes", sorted(record.left_out), " (--link NAME to have them)"),
            _Kind(
                "these name your project's own path, which leads to your own files",
                sorted(record.own_path_names),
            ),
            _Kind("not readable, left out", sorted(record.unreadable)),
            _Kind("pipes, sockets and devices, left out", sorted(record.special)),
            _Kind("changed while it was copied", sorted(record.unstable)),
        ]


def remains(folder: Path, leftovers: Sequence[Leftover], worktree: bool) -> list[str]:
    """What is left of a copy in the end, and how it is tidied up."""
    mounts = [str(folder / one.name) for one in leftovers if one.mounted]
    stuck = [f"{folder / one.name} ({one.why})" for one in leftovers if not one.mounted]
    then = f"delete {folder}" + (", then run `git worktree prune`" if worktree else "")
    kinds = [
        _Kind(
            "a run has mounted something in the copy, which is left",
            mounts,
            f"; unmount it before you {then}",
        ),
        _Kind("could not be deleted", stuck, f"; {then}"),
    ]
    return [kind.line().replace(" (-v lists all)", "") for kind in kinds if kind.names]
