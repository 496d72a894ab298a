"""From files to captures: which of them are about the same run of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.timeline import MemoryTimeline
from trace_doctor.flight_recorder import FlightDump
from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.loading.frame_transfer import lent
from trace_doctor.loading.load_file import Content
from trace_doctor.recording import folder as recordings
from trace_doctor.recording.folder import Recording
from trace_doctor.run import Run
from trace_doctor.snapshot import Action, Snapshot

_LONGEST_NS = 7 * 86_400 * 10**9
"""No recording shows two moments further apart."""
_KINDS = ("run", "snapshot", "flight")
Files = Sequence[tuple[CaptureFile, Content]]


ReadRecording = Callable[[Path], Recording | None]


def captures_of(
    loaded: Files, read_recording: ReadRecording = recordings.read, *, all_ranks: bool = True
) -> list[Capture]:
    """The captures that the files make, by rank and path.

    Of a recording, all files of a rank are one capture. Of any other folder, a trace, a snapshot and a flight recorder dump of
    the same rank are, where there is no second one of any. `all_ranks`: whether these are all files of their recordings; else what the launcher
    alone says (`launcher_warnings`) is left to the caller.
    """
    recorded: dict[Path, list[tuple[CaptureFile, Content]]] = {}
    others: list[tuple[CaptureFile, Content]] = []
    for entry, content in loaded:
        if entry.recording is not None:
            recorded.setdefault(entry.recording, []).append((entry, content))
        else:
            others.append((entry, content))
    captures = _paired(others)
    for folder, files in recorded.items():
        captures += _of_recording(read_recording(folder), files, all_ranks)
    return sorted(captures, key=lambda c: (c.rank, c.path))


def _paired(loaded: Files) -> list[Capture]:
    logs = tuple(c for _, c in loaded if isinstance(c, CompileLog))
    by_place: dict[tuple[str, int], list[Capture]] = {}
    for entry, content in loaded:
        if not isinstance(content, CompileLog):
            own = by_place.setdefault((str(entry.path.parent), content.rank), [])
            if isinstance(content, Run):
                own.append(Capture(content.rank, run=content, torch_logs=logs))
            elif isinstance(content, Snapshot):
                own.append(Capture(content.rank, snapshot=content))
            else:
                own.append(Capture(content.rank, flight=content))
    return [capture for own in by_place.values() for capture in _together(own)]


def _together(own: list[Capture]) -> list[Capture]:
    """The files of a rank in one folder as one capture, where no two are of one kind; else each is one, by kind."""
    run, snapshot, flight = ([c for c in own if getattr(c, kind) is not None] for kind in _KINDS)
    if max(map(len, (run, snapshot, flight))) > 1:
        return [*run, *snapshot, *flight]
    one = own[0] if not run else run[0]
    return [
        replace(
            one,
            snapshot=snapshot[0].snapshot if snapshot else None,
            flight=flight[0].flight if flight else None,
        )
    ]


# -- a recording -------------------------------------------------------------------------------------------------


def _of_recording(recording: Recording | None, files: Files, all_ranks: bool) -> list[Capture]:
    """One capture for each rank, by the names of its files, with its flight recorder dump; of several dumps each is one."""
    by_rank: dict[int, dict[str, Run | Snapshot]] = {}
    dumps: dict[int, list[FlightDump]] = {}
    for entry, content in files:
        role = recordings.role_of(entry.path.name)
        if isinstance(content, FlightDump):
            dumps.setdefault(content.rank, []).append(content)
        elif role is not None and not isinstance(content, CompileLog):
            by_rank.setdefault(role[0], {})[role[1]] = content
    dump = {rank: own[0] for rank, own in dumps.items() if len(own) == 1}
    ranks = {*by_rank, *(recording.ranks if recording else ())}
    logs = _logs([c for _, c in files if isinstance(c, CompileLog)], recording, sorted(ranks))
    warnings = {rank: record.warnings for rank, record in recording.ranks.items()} if recording else {}
    if all_ranks and recording is not None:
        first = min([*by_rank, *dump], default=0)
        warnings[first] = (*launcher_warnings(recording), *warnings.get(first, ()))
    began = began_of(content.span_ns for mine in by_rank.values() for content in mine.values())
    captures = [
        replace(
            _rank(rank, by_rank.get(rank, {}), logs.get(rank, ()), recording),
            flight=dump.get(rank),
            warnings=warnings.get(rank, ()),
            began_ns=began,
        )
        for rank in dict.fromkeys((*by_rank, *dump))
    ]
    return captures + [Capture(d.rank, flight=d) for own in dumps.values() if len(own) > 1 for d in own]


def began_of(spans: Iterable[tuple[int, int] | None]) -> int | None:
    """The first moment that any of the files of a recording shows, ns. None where they have no clock in common: before
    torch 2.4 traces count from the start of the machine. `spans`: of each file, None where it shows no moment."""
    known = [span for span in spans if span is not None]
    first, last = min((s for s, _ in known), default=0), max((e for _, e in known), default=0)
    return first if known and last - first < _LONGEST_NS else None


def launcher_warnings(recording: Recording) -> tuple[str, ...]:
    """What no rank says but the launcher does: it belongs to the first rank that has a capture."""
    of_ranks = ((r.rank, w) for r in recording.ranks.values() for w in (*r.warnings, *r.impossible))
    of_files = {text for rank, w in of_ranks for text in (w, f"rank {rank}: {w}")}
    return tuple(w for w in recording.warnings if w not in of_files)


def _rank(
    rank: int, files: Mapping[str, Run | Snapshot], logs: tuple[CompileLog, ...], recording: Recording | None
) -> Capture:
    light, detailed = files.get("light"), files.get("detailed")
    runs = [r for r in (light, detailed) if isinstance(r, Run)]
    snapshots = _telling([s for s in files.values() if isinstance(s, Snapshot)])
    run = lent(*runs) if len(runs) == 2 else runs[0] if runs else None
    return Capture(
        rank=rank,
        run=run,
        snapshot=snapshots[0] if snapshots else None,
        torch_logs=logs,
        further=(*runs[1:], *snapshots[1:]),
        frames_from="" if run is None or run is runs[0] else runs[1].path,
        step_ms=recording.step_ms(rank) if recording else {},
        record=recording.ranks.get(rank) if recording else None,
        roles={content.path: role for role, content in files.items()},
    )


def _telling(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """The one that shows most first: a failed allocation, the highest peak, the longest history. All of them are of
    one process, so a later one has the history of an earlier one in it, as far as the record is long enough."""
    return sorted(
        snapshots,
        key=lambda s: (bool((s.action == Action.OOM).any()), _peak(s), len(s)),
        reverse=True,
    )


def _peak(snapshot: Snapshot) -> int:
    """Highest live bytes that its history shows, on any device; what lives at its end where it has none."""
    timeline = Facts(Capture(snapshot.rank, snapshot=snapshot)).get(MemoryTimeline)
    if timeline is not None:
        return max(h.peak_bytes for h in timeline.devices)
    return int(np.sum(snapshot.block_requested[snapshot.block_state > 0], initial=0))


def _logs(
    logs: Sequence[CompileLog], recording: Recording | None, ranks: Sequence[int]
) -> dict[int, tuple[CompileLog, ...]]:
    """The logs of each rank: by the process that wrote them, else by the rank they name; those of one rank alone that
    say neither are its own."""
    by_pid = {r.pid: r.rank for r in (recording.ranks.values() if recording else ()) if r.pid is not None}
    by_rank: dict[int, tuple[CompileLog, ...]] = {}
    for log in logs:
        rank = None if log.pid is None else by_pid.get(log.pid)
        if rank is None and (log.rank is not None or len(ranks) == 1):
            rank = ranks[0] if log.rank is None else log.rank
        if rank is not None:
            by_rank[rank] = (*by_rank.get(rank, ()), log)
    return by_rank
