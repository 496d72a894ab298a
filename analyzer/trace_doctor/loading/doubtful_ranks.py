"""Files that are not of the ranks that their names say: what counts as several ranks may be one."""

from __future__ import annotations

import filecmp
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.errors import one_line
from trace_doctor.files import open_regular
from trace_doctor.flight_recorder import FlightDump
from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.kineto.meta import rank_named
from trace_doctor.model import ranks_text
from trace_doctor.recording import folder as recordings
from trace_doctor.run import Cat, Run
from trace_doctor.snapshot import Snapshot

_MOST_NAMED = 4
_SAMPLE = 4096
"""Bytes in which two files that are no copies mostly differ"""
_LEAST_ALIKE = 1000
"""events: no two machines need the same time for each of so many"""
_COMMON = ("backend", "nccl_version")
_MOST_APART_NS = 120 * 10**9
"""Ranks make each step together, so their recordings overlap; clocks of machines that are set by the net differ by less."""


class FileIdentity(Struct, frozen=True):
    """What a trace, snapshot or dump says of whose it is: all that is compared between the files of a folder."""

    path: str
    display: str
    folder: str
    """that it lies in: of the files of a recording, the recording"""
    rank: int
    """by its content, else its name"""
    role_rank: int | None
    """by the name that it has in a recording; None for a file of none"""
    is_trace: bool
    says_rank: bool = False
    """whether the content names the rank; of a dump, whether its name does"""
    groups: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """of a dump: name, description and members of the process groups whose members it tells"""
    processes: tuple[str, ...] = ()
    """of a recording: those that called operators"""
    world: int = 0
    """ranks of the job; 0: not said"""
    versions: tuple[tuple[str, str], ...] = ()
    """(what, value) of what all ranks of a job have in common"""
    durations: str = ""
    """a digest of those of all events, in their order; empty for a few, which may be alike by chance"""
    span: tuple[int, int] | None = None
    """first start and last end of its events, ns since the epoch; None without either"""

    @property
    def named_rank(self) -> int:
        """The rank that its name in a recording says, else its own."""
        return self.rank if self.role_rank is None else self.role_rank


def identity_of(file: CaptureFile, content: Run | Snapshot | FlightDump) -> FileIdentity:
    """What is compared of a file that was read."""
    role = recordings.role_of(file.path.name) if file.recording is not None else None
    identity = FileIdentity(
        path=str(file.path),
        display=file.display,
        folder=_folder_of(file),
        rank=content.rank,
        role_rank=None if role is None else role[0],
        is_trace=isinstance(content, Run),
    )
    if isinstance(content, FlightDump):
        groups = tuple((*name, ranks) for name, ranks in content.groups.items() if ranks)
        return replace(identity, says_rank=not content.rank_assumed, groups=groups)
    if not isinstance(content, Run):
        return identity
    info = content.meta.get("distributedInfo", {})
    threads = [] if role is None else np.unique(content.thread[content.is_cat(Cat.CPU_OP)]).tolist()
    return replace(
        identity,
        says_rank=content.rank_how == "distributedInfo",
        processes=tuple(sorted({str(content.threads[thread].pid) for thread in threads})),
        world=info.get("world_size") or 0,
        durations=_digest(content),
        versions=tuple((what, str(info[what])) for what in _COMMON if info.get(what)),
        span=(int(content.ts[0]), int(content.end.max())) if content.base_ns and len(content) else None,
    )


def _digest(run: Run) -> str:
    return hashlib.sha256(run.dur.tobytes()).hexdigest() if len(run) >= _LEAST_ALIKE else ""


def located(identities: Sequence[FileIdentity], files: Sequence[CaptureFile]) -> list[FileIdentity]:
    """What was kept of files, with the places where they are now: those of a URL are elsewhere each time."""
    now = {f.display: f for f in files}
    return [
        replace(i, path=str(f.path), folder=_folder_of(f)) if (f := now.get(i.display)) is not None else i
        for i in identities
    ]


def _folder_of(file: CaptureFile) -> str:
    is_recorded = file.recording is not None and recordings.role_of(file.path.name) is not None
    return str(file.recording if is_recorded else file.path.parent)


def doubtful_ranks(files: Sequence[FileIdentity], only: int | None = None) -> list[str]:
    """One line for each contradiction between the names of files and what they hold: a file of a recording that is of
    another rank or of another process, several ranks by name that are one by content, and copies of a file under other ranks. `only`: of a
    rank that was asked for, what concerns it."""
    traces = [f for f in files if f.is_trace]
    doubts: list[tuple[set[int], str]] = [
        ({f.role_rank, f.rank}, f"{f.display} is of rank {f.role_rank} by its name, and holds rank {f.rank}")
        for f in traces
        if f.role_rank is not None and f.says_rank and f.rank != f.role_rank
    ]
    doubts += _of_other_processes([f for f in traces if f.role_rank is not None])
    doubts += _of_other_sizes([f for f in traces if f.says_rank and f.world])
    doubts += _of_other_jobs([f for f in traces if f.role_rank is not None or f.says_rank])
    doubts += _one_by_content([f for f in traces if f.role_rank is None])
    doubts += _of_other_groups([f for f in files if f.groups])
    doubts += _copies(files)
    return [line for ranks, line in doubts if only is None or only in ranks]


def _of_other_processes(traces: Iterable[FileIdentity]) -> list[tuple[set[int], str]]:
    """Of traces of one rank of one recording, which one process writes: the first is judged, and would hide another's faults."""
    first: dict[tuple[str, int], FileIdentity] = {}
    doubts = []
    for trace in traces:
        if trace.processes:
            other = first.setdefault((trace.folder, trace.named_rank), trace)
            if not set(trace.processes) & set(other.processes):
                doubts.append(
                    ({trace.named_rank}, f"{trace.display} and {other.display} are of different processes")
                )
    return doubts


def _of_other_sizes(traces: Sequence[FileIdentity]) -> list[tuple[set[int], str]]:
    """Ranks that their own job cannot have, and those of a folder that are of a smaller job alone: they do not complete the
    largest one, as which they would count."""
    doubts = [
        ({f.rank}, f"{f.display} is of rank {f.rank}, and says that its job has {_ranks(f.world)}")
        for f in traces
        if f.rank >= f.world
    ]
    folders: dict[str, dict[int, list[FileIdentity]]] = {}
    for trace in traces:
        if trace.rank < trace.world:
            folders.setdefault(trace.folder, {}).setdefault(trace.rank, []).append(trace)
    for ranks in folders.values():
        largest = [max(own, key=lambda f: f.world) for own in ranks.values()]
        job = max(largest, key=lambda f: f.world)
        doubts += [
            (
                set(),  # of one rank alone it says nothing
                f"{f.display} says that its job has {_ranks(f.world)}, {job.display} that it has {_ranks(job.world)}",
            )
            for f in largest
            if f.world != job.world
        ]
    return doubts


def _ranks(count: int) -> str:
    return f"{count:,} rank{'s' if count > 1 else ''}"


def _of_other_jobs(traces: Iterable[FileIdentity]) -> list[tuple[set[int], str]]:
    """Ranks of which no trace can be of the job of the folder's first rank."""
    folders: dict[tuple[str, int], dict[int, list[FileIdentity]]] = {}
    for trace in traces:
        folders.setdefault((trace.folder, trace.world), {}).setdefault(trace.named_rank, []).append(trace)
    doubts = []
    for ranks in folders.values():
        first = ranks.pop(min(ranks))
        for rank, others in ranks.items():
            reasons = [_of_two_jobs(one, other) for one in first for other in others]
            if all(reasons):
                doubts.append(
                    ({rank}, f"{others[0].display} is not of the job of {first[0].display}: {reasons[0]}")
                )
    return doubts


def _of_two_jobs(one: FileIdentity, other: FileIdentity) -> str:
    """What two ranks of a job have in common and these two traces do not; empty where nothing speaks against it."""
    theirs = dict(other.versions)
    for what, own in one.versions:
        if what in theirs and theirs[what] != own:
            return f"{what.replace('_', ' ')} {theirs[what]}, and {own}"
    if one.span is None or other.span is None:
        return ""  # times of two machines, which need not have a clock in common
    apart = max(one.span[0] - other.span[1], other.span[0] - one.span[1])
    return f"recorded {apart / 60e9:,.0f} min apart" if apart > _MOST_APART_NS else ""


def _of_other_groups(dumps: Sequence[FileIdentity]) -> list[tuple[set[int], str]]:
    """Dumps of ranks that are in no group of theirs, and process groups that two dumps give other members. Disjoint groups of
    one name are no contradiction: a name is given again to other ranks."""
    doubts = []
    first: dict[tuple[str, str, str, int], tuple[FileIdentity, tuple[int, ...]]] = {}
    for dump in dumps:
        members = sorted({rank for *_, ranks in dump.groups for rank in ranks})
        if dump.says_rank and dump.rank not in members:
            groups = f"its process groups have {ranks_text(members)} only"
            doubts.append(({dump.rank}, f"{dump.display} is of rank {dump.rank} by its name, and {groups}"))
        for name, description, ranks in dump.groups:
            told = [first.setdefault((dump.folder, name, description, r), (dump, ranks)) for r in ranks]
            other = next((one for one, theirs in told if theirs != ranks), None)
            if other is not None:
                which = f"other ranks in process group {one_line(description or name)}"
                line = f"{dump.display} has {which} than {other.display}: a part of another job"
                doubts.append(({dump.rank, other.rank}, line))
                break
    return doubts


def _one_by_content(traces: Iterable[FileIdentity]) -> list[tuple[set[int], str]]:
    """Below one folder. A number that is no rank of the job (of a host, of an adapter) does not name one."""
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for trace in traces:
        name_rank = rank_named(trace.display)
        if trace.says_rank and name_rank is not None and name_rank[1] < trace.world:
            groups.setdefault((name_rank[0], trace.rank), {}).setdefault(name_rank[1], trace.display)
    return [
        (
            {rank, *by_name},
            f"{_listed([by_name[n] for n in sorted(by_name)])} are of {len(by_name)} ranks by their names, "
            f"and each holds rank {rank}",
        )
        for (_, rank), by_name in groups.items()
        if len(by_name) > 1
    ]


def _copies(files: Sequence[FileIdentity]) -> list[tuple[set[int], str]]:
    """Files of different ranks with the same bytes, or traces in which everything takes the same time."""
    by_sample: dict[tuple[int, bytes], list[FileIdentity]] = {}
    by_durations: dict[str, FileIdentity] = {}
    doubts: list[tuple[set[int], str]] = []
    for file in files:
        try:
            alike = by_sample.setdefault(_sample(Path(file.path)), [])
            first = next((f for f in alike if filecmp.cmp(f.path, file.path, shallow=False)), None)
        except OSError:  # it was read, and is gone
            continue
        if first is None:
            alike.append(file)
            other = by_durations.setdefault(file.durations, file) if file.durations else file
            if other.named_rank != file.named_rank:
                what = "every event takes as long: one recording, and no two ranks"
                doubts.append(
                    ({other.named_rank, file.named_rank}, f"in {file.display} and {other.display} {what}")
                )
        elif first.named_rank != file.named_rank:
            ranks = {first.named_rank, file.named_rank}
            doubts.append((ranks, f"{file.display} is a copy of {first.display}, and no other rank"))
    return doubts


def _sample(path: Path) -> tuple[int, bytes]:
    """Size and some bytes from the middle: traces of one job are often of one size. Raises OSError."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(size // 2)
        return size, file.read(_SAMPLE)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    text = ", ".join(names[:_MOST_NAMED])
    return f"{text} and {more} more" if more > 0 else text
