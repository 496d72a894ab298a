"""Files that are not of the ranks that their names say: what counts as several ranks may be one."""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from trace_doctor.loaders.discover import CaptureFile
from trace_doctor.loaders.kineto.meta import rank_named
from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.loading.load_file import Content
from trace_doctor.recording import folder as recordings
from trace_doctor.run import Cat, Run

_MOST_NAMED = 4
_MOST_APART_NS = 120 * 10**9
"""Ranks make each step together, so their recordings overlap; clocks of machines that are set by the net differ by less."""


def doubtful_ranks(loaded: Sequence[tuple[CaptureFile, Content]], only: int | None = None) -> list[str]:
    """One line for each contradiction between the names of files and what they hold: a file of a recording that is of
    another rank or of another process, several ranks by name that are one by content, and copies of a file under other ranks. `only`: of a
    rank that was asked for, what concerns it."""
    captures = [
        (file, content, recordings.role_of(file.path.name) if file.recording is not None else None)
        for file, content in loaded
        if not isinstance(content, CompileLog)
    ]
    traces = [(file, content, role) for file, content, role in captures if isinstance(content, Run)]
    doubts: list[tuple[set[int], str]] = [
        ({role[0], run.rank}, f"{file.display} is of rank {role[0]} by its name, and holds rank {run.rank}")
        for file, run, role in traces
        if role is not None and _says_rank(run) and run.rank != role[0]
    ]
    doubts += _of_other_processes(
        ((file.recording, role[0]), file.display, run) for file, run, role in traces if role is not None
    )
    doubts += _of_other_jobs(
        (
            file.path.parent if role is None else file.recording,
            run.rank if role is None else role[0],
            file.display,
            run,
        )
        for file, run, role in traces
        if role is not None or _says_rank(run)
    )
    doubts += _one_by_content((file, run) for file, run, role in traces if role is None)
    doubts += _copies(
        [
            (file.path, file.display, content.rank if role is None else role[0])
            for file, content, role in captures
        ]
    )
    return [line for ranks, line in doubts if only is None or only in ranks]


def _of_other_processes(
    traces: Iterable[tuple[tuple[Path | None, int], str, Run]],
) -> list[tuple[set[int], str]]:
    """Of traces of one rank of one recording, which one process writes: the first is judged, and would hide another's faults."""
    first: dict[tuple[Path | None, int], tuple[str, set[str]]] = {}
    doubts = []
    for of, display, run in traces:
        threads = np.unique(run.thread[run.is_cat(Cat.CPU_OP)]).tolist()
        if processes := {run.threads[thread].pid for thread in threads}:
            other, theirs = first.setdefault(of, (display, processes))
            if not processes & theirs:
                doubts.append(({of[1]}, f"{display} and {other} are of different processes"))
    return doubts


def _of_other_jobs(traces: Iterable[tuple[Path | None, int, str, Run]]) -> list[tuple[set[int], str]]:
    """Of (folder, rank, how it is shown, trace): ranks of which no trace can be of the job of the folder's first rank."""
    folders: dict[tuple[Path | None, int], dict[int, list[tuple[str, Run]]]] = {}
    for folder, rank, display, run in traces:
        world = run.meta.get("distributedInfo", {}).get("world_size") or 0
        folders.setdefault((folder, world), {}).setdefault(rank, []).append((display, run))
    doubts = []
    for ranks in folders.values():
        first = ranks.pop(min(ranks))
        for rank, others in ranks.items():
            reasons = [_of_two_jobs(run, other) for _, run in first for _, other in others]
            if all(reasons):
                doubts.append(({rank}, f"{others[0][0]} is not of the job of {first[0][0]}: {reasons[0]}"))
    return doubts


def _of_two_jobs(one: Run, other: Run) -> str:
    """What two ranks of a job have in common and these two traces do not; empty where nothing speaks against it."""
    for what in ("backend", "nccl_version"):
        values = [run.meta.get("distributedInfo", {}).get(what) for run in (one, other)]
        if all(values) and values[0] != values[1]:
            return f"{what.replace('_', ' ')} {values[1]}, and {values[0]}"
    if not (one.base_ns and other.base_ns and len(one) and len(other)):
        return ""  # times of two machines, which need not have a clock in common
    apart = max(int(one.ts[0]) - int(other.end.max()), int(other.ts[0]) - int(one.end.max()))
    return f"recorded {apart / 60e9:,.0f} min apart" if apart > _MOST_APART_NS else ""


def _says_rank(run: Run) -> bool:
    return run.rank_how == "distributedInfo"


def _one_by_content(traces: Iterable[tuple[CaptureFile, Run]]) -> list[tuple[set[int], str]]:
    """Below one folder. A number that is no rank of the job (of a host, of an adapter) does not name one."""
    groups: dict[tuple[str, int], dict[int, str]] = {}
    for file, run in traces:
        world = run.meta.get("distributedInfo", {}).get("world_size") or 0
        name_rank = rank_named(file.display)
        if _says_rank(run) and name_rank is not None and name_rank[1] < world:
            groups.setdefault((name_rank[0], run.rank), {}).setdefault(name_rank[1], file.display)
    return [
        (
            {rank, *by_name},
            f"{_listed([by_name[n] for n in sorted(by_name)])} are of {len(by_name)} ranks by their names, "
            f"and each holds rank {rank}",
        )
        for (_, rank), by_name in groups.items()
        if len(by_name) > 1
    ]


def _copies(files: Sequence[tuple[Path, str, int]]) -> list[tuple[set[int], str]]:
    """Of (path, how it is shown, rank): files of different ranks with the same bytes."""
    by_size: dict[int, list[tuple[Path, str, int]]] = {}
    doubts = []
    for path, display, rank in files:
        try:
            alike = by_size.setdefault(path.stat().st_size, [])
            first = next((f for f in alike if filecmp.cmp(f[0], path, shallow=False)), None)
        except OSError:  # it was read, and is gone
            continue
        if first is None:
            alike.append((path, display, rank))
        elif first[2] != rank:
            doubts.append(({first[2], rank}, f"{display} is a copy of {first[1]}, and no other rank"))
    return doubts


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    text = ", ".join(names[:_MOST_NAMED])
    return f"{text} and {more} more" if more > 0 else text
