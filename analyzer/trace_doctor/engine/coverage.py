"""Whether all of what was given and recorded was looked at: the ranks of the job, and traces that hold enough to be judged."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.engine.implausible import implausible
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.memory.timeline import MemoryTimeline
from trace_doctor.evidence.rank_summary import RankSummary
from trace_doctor.evidence.trace.steps import Steps, before_the_cut
from trace_doctor.model import Ignored, Ranks
from trace_doctor.run import GPU_CATS, Cat
from trace_doctor.snapshot import Snapshot

LEAST_EVENTS = 10
"""operators, runtime calls and GPU events in the window: fewer are the rest of a file, not a piece of training, however many
steps are marked over them"""
LEAST_ENTRIES = 20
"""of the allocation history of a snapshot: the smallest of a sound one that is known, of one forward, has 57"""
_MOST_OUT_OF_ORDER = 0.1
"""of the entries of a snapshot: in none of 39 public ones one is earlier than the entry before it"""
LEAST_SHARE = 0.1
"""of what the other ranks of the job have in their windows, as their median: ranks make the same steps, and where they share the
work of a step unevenly, none has so little of it"""
LEAST_STEPS = 0.5
"""of those of the other ranks, as their median: ranks make their steps together, so what has fewer was cut"""
MOST_OUTWEIGHED = 10
"""times all other steady steps together: all that is a share of the step is of that one, and the others were not looked at. In 120
public captures and the samples none takes more than once that."""
_MOST_NAMED, _MOST_RANKS = 8, 10**6
_WORK = (Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER, *GPU_CATS)


@dataclass(frozen=True)
class RecordedRanks:
    """A recording below the paths, and of which of its ranks a capture was read."""

    folder: str
    """as it is shown"""
    ranks: Sequence[int]
    ranks_read: Set[int]
    unreadable: Sequence[str] = ()
    """names of manifests that cannot be read"""
    absent_captures: Sequence[tuple[int, str]] = ()
    """rank and name of captures that were written and are there no more"""
    unlisted: Sequence[int] = ()
    """ranks of which captures were read, and which the recording does not list among those that it has"""
    contradictions: Sequence[tuple[int, str]] = ()
    """rank, and what its manifest says that others of the files do not"""


@dataclass(frozen=True)
class Scope:
    """What an analysis was given beside the captures that were read."""

    ignored: Sequence[Ignored] = ()
    recorded: Sequence[RecordedRanks] = ()
    rank: int | None = None
    """the only one that was asked for"""
    doubtful: Sequence[str] = ()
    """one line for each contradiction about which rank a file is of"""


def ranks_of(summaries: Sequence[RankSummary], scope: Scope) -> Ranks:
    """Of several jobs the one with the most ranks counts."""
    ranks = sorted({s.rank for s in summaries})
    worlds = [s.world for s in summaries if s.world is not None]
    world = max(worlds, default=None)
    note = ""
    if world is not None and len(ranks) < world:
        note = f"{len(ranks)} of {world} ranks"
        if len(ranks) == 1:
            note += "; rules over several ranks did not run"
    recorded_ranks = sorted({rank for recording in scope.recorded for rank in recording.ranks})
    return Ranks(read=ranks, world=world, recorded=recorded_ranks, note=note)


def incomplete(shortages: Sequence[tuple[RankSummary, str]], scope: Scope) -> list[str]:
    """One line for each reason why this is not a diagnosis of all there is. `shortages`: every capture that was examined,
    with why it tells nothing."""
    unread = [file for file in scope.ignored if file.unread]
    reasons = [file.why_unread for file in unread[:_MOST_NAMED]]
    if (more := len(unread) - len(reasons)) > 0:
        reasons.append(f"{more} more capture{'s were' if more > 1 else ' was'} not read")
    for recording in scope.recorded:
        reasons += _of_recording(recording, scope.rank)
    reasons += _first_and_count(list(scope.doubtful), "are not what they are named by")
    reasons += _of_worlds([summary for summary, _ in shortages])
    reasons += _of_steps([summary for summary, _ in shortages])
    reasons += _first_and_count(
        [
            f"{summary.path} holds {steps.not_judged}"
            for summary, _ in shortages
            if (steps := summary.get(Steps)) is not None and steps.not_judged
        ],
        "hold pieces that were not judged",
    )
    reasons += _first_and_count(
        [why for summary, _ in shortages if (why := _outweighed(summary))],
        "have a step that outweighs the others",
    )
    empty = [(summary.path, why) for summary, why in shortages if why]
    if len(empty) == len(shortages):  # nothing at all can be judged: more than a part that is missing
        return reasons
    few = [f"{path} cannot be judged: {why}" for path, why in empty]
    return reasons + _first_and_count(few, "cannot be judged")


def _first_and_count(reasons: list[str], what: str) -> list[str]:
    more = len(reasons) - _MOST_NAMED
    return reasons if more <= 0 else [*reasons[:_MOST_NAMED], f"{more} more captures {what}"]


def _of_recording(recording: RecordedRanks, only: int | None) -> Iterable[str]:
    for name in recording.unreadable:
        yield f"{PurePosixPath(recording.folder) / name} was not read: no manifest of {'a recording' if name == 'recording.json' else 'its rank'}"
    if missing := [r for r in recording.ranks if r not in recording.ranks_read and only in (None, r)]:
        what = f"the recording {recording.folder}" if recording.folder != "." else "the recording"
        yield f"{what} has {_ranks_text(recording.ranks)}, and nothing was read of {_ranks_text(missing)}"
    if unlisted := [r for r in recording.unlisted if only in (None, r)]:
        what = _ranks_text(unlisted)
        yield f"{PurePosixPath(recording.folder) / 'recording.json'} does not list {what}, of which captures are there"
    yield from _first_and_count(
        [
            str(PurePosixPath(recording.folder) / line)
            for r, line in recording.contradictions
            if only in (None, r)
        ],
        "are described by manifests that contradict each other",
    )
    losses = [
        f"{PurePosixPath(recording.folder) / name} was recorded and is not there"
        for rank, name in recording.absent_captures
        if rank in recording.ranks_read and only in (None, rank)
    ]
    yield from _first_and_count(losses, "were recorded and are not there")


def _of_worlds(summaries: Sequence[RankSummary]) -> Iterable[str]:
    """Several ranks of a job, but not all: of one folder, or of all folders with jobs of that size together. Folders that
    hold each rank once are one job, as where each machine writes its own."""
    folders = _jobs(summaries)
    together: dict[int, set[int]] = {}
    for folder, (ranks, world) in folders.items():
        parts = [r for r, w in folders.values() if w == world]
        if sum(map(len, parts)) == len(set().union(*parts)) == world > len(ranks):
            continue
        together.setdefault(world, set()).update(ranks)
        most = max((len(r) for f, (r, _) in folders.items() if f != folder), default=1)
        if _in_part(ranks, world) or (most > 1 == len(ranks) < world):
            where = f" in {folder}" if len(folders) > 1 else ""
            yield f"{_so_many(ranks, world)}{where}: nothing of {_missing(ranks, world)}"
            together[world] |= {*range(min(world, _MOST_RANKS))}  # said
    for world, ranks in together.items():
        if _in_part(ranks, world):
            yield f"{_so_many(ranks, world)}: nothing of {_missing(ranks, world)}"


def _of_steps(summaries: Sequence[RankSummary]) -> Iterable[str]:
    """Ranks of a job of which no step was recorded that its first rank has: ranks are recorded in the same steps."""
    numbers: dict[Hashable, dict[int, tuple[str, set[int]]]] = {}
    for summary in summaries:
        steps = summary.get(Steps)
        if steps is not None and steps.source == "profiler_step" and (summary.world or 0) > 1:
            ranks = numbers.setdefault((str(PurePosixPath(summary.path).parent), summary.world), {})
            ranks.setdefault(summary.rank, (summary.path, set()))[1].update(s.index for s in steps.steps)
    for ranks in numbers.values():
        path, first = ranks.pop(min(ranks))
        for other, own in ranks.values():
            if not first & own:
                yield (
                    f"{other} has none of the steps of {path}: {min(own)} to {max(own)}, and {min(first)} to {max(first)}"
                )


def _outweighed(summary: RankSummary) -> str:
    """That one step takes so much longer than all others, as where one time of the file is damaged, that they do not count."""
    steps = summary.get(Steps)
    if steps is None or (longest := steps.longest_of_all) is None:
        return ""
    others = sum(s.pace for s in steps.steady) - longest.pace
    if longest.pace <= MOST_OUTWEIGHED * others:
        return ""
    return (
        f"{summary.path}: step {longest.index} takes {longest.pace // max(others, 1):,} times as long as the other "
        f"{steps.count - 1} together, which were not judged"
    )


def _jobs(summaries: Sequence[RankSummary]) -> dict[str, tuple[set[int], int]]:
    """Folder -> the ranks in it, and how many ranks its traces say the job has; 0: none says so."""
    folders: dict[str, tuple[set[int], int]] = {}
    for summary in summaries:
        folder = str(PurePosixPath(summary.path).parent)
        ranks, world = folders.get(folder, (set(), 0))
        folders[folder] = ({*ranks, summary.rank}, max(world, summary.world or 0))
    return folders


def _in_part(ranks: Set[int], world: int) -> bool:
    return len(ranks) > 1 and sum(r < world for r in ranks) < world


def _so_many(ranks: Set[int], world: int) -> str:
    there = sum(r < world for r in ranks)
    return f"{there} of {world} ranks {'was' if there == 1 else 'were'} read"


def _missing(ranks: Set[int], world: int) -> str:
    """The first that are not there: a file may claim any number of ranks."""
    return _ranks_text([r for r in range(min(world, len(ranks) + _MOST_NAMED + 1)) if r not in ranks])


def _ranks_text(ranks: Sequence[int]) -> str:
    more = ", …" if len(ranks) > _MOST_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"


def too_little(files: Sequence[Facts]) -> str:
    """Why a capture of these files tells nothing, whatever rules are asked; "" where it does: any of its files is enough."""
    reasons = [_shortage(facts) for facts in files]
    return reasons[0] if all(reasons) else ""


def work_events(files: Sequence[Facts]) -> int:
    """Operators, calls and GPU events in the window of a capture, the most that one of its files has; 0 without a trace."""
    return max(
        (len(_work(facts, steps)) for facts in files if (steps := facts.get(Steps)) is not None), default=0
    )


def fewer_than_others(summaries: Sequence[RankSummary], events: Sequence[int]) -> list[str]:
    """For each capture why it tells nothing beside the other ranks of its job, of which each has so many events in its window:
    as where one was cut to its first events or steps. "" where it does, or another capture of its rank, and where there is no
    trace."""
    jobs = [_job(s) for s in summaries]
    few_events = _usual_of_others(summaries, jobs, events, LEAST_SHARE)
    marked = [_marked(summary) for summary in summaries]
    by_mark = [(job, source) for job, (source, _) in zip(jobs, marked, strict=True)]
    few_steps = _usual_of_others(summaries, by_mark, [count for _, count in marked], LEAST_STEPS)
    return [
        f"{count:,} operators and GPU events, where other ranks have {usual:,}" if usual
        else f"{steps:,} step{'s' if steps > 1 else ''}, where other ranks have {usual_steps:,}" if usual_steps
        else ""
        for count, usual, (_, steps), usual_steps in zip(events, few_events, marked, few_steps, strict=True)
    ]  # fmt: skip


def _usual_of_others(
    summaries: Sequence[RankSummary], jobs: Sequence[Hashable], counts: Sequence[int], least: float
) -> list[int]:
    """For each capture what the other ranks of its job have, as their median, where the most of its own rank is less than this
    share of it; else 0. A count of 0 says nothing."""
    most: dict[Hashable, dict[int, int]] = {}
    for job, summary, count in zip(jobs, summaries, counts, strict=True):
        ranks = most.setdefault(job, {})
        ranks[summary.rank] = max(count, ranks.get(summary.rank, 0))
    in_order = {job: sorted(filter(None, ranks.values())) for job, ranks in most.items()}
    usual = []
    for job, summary, count in zip(jobs, summaries, counts, strict=True):
        own = most[job][summary.rank]
        middle = _median_without(in_order[job], own) if count else 0
        usual.append(middle if own < least * middle else 0)
    return usual


def _median_without(counts: Sequence[int], one: int) -> int:
    """The median of sorted counts but for one of them; 0 of none."""
    gone, rest = bisect_left(counts, one), len(counts) - (one > 0)
    middle = [counts[at + (one > 0 and at >= gone)] for at in ((rest - 1) // 2, rest // 2) if rest]
    return sum(middle) // 2 if middle else 0


def _marked(summary: RankSummary) -> tuple[str, int]:
    """What marks its steps, and how many there are; 0 without marks."""
    steps = summary.get(Steps)
    return (steps.source, len(steps.steps)) if steps is not None else ("none", 0)


def _job(summary: RankSummary) -> tuple[str, int | str]:
    """The folder, which may be one for each rank, and how many ranks the job has, or what the names of its files have in common
    where none says so. A cut trace need not overlap with the others in time."""
    path = PurePosixPath(re.sub(r"\d+", "0", summary.path))
    return str(path.parent), summary.world or path.name


def _work(facts: Facts, steps: Steps) -> I64:
    """Rows of operators, calls and GPU events that reach into the window."""
    run, (start, end) = facts.run, steps.window
    return np.flatnonzero(run.is_cat(*_WORK) & (run.ts < end) & (np.maximum(run.end, run.ts + 1) > start))


def _shortage(facts: Facts) -> str:
    capture = facts.capture
    if capture.run is None and capture.flight is not None and capture.snapshot is None:
        return "" if len(capture.flight) else "no collective in the flight recorder dump"
    if capture.run is None:
        return _shortage_of_snapshot(facts)
    steps, run = facts.get(Steps), capture.run
    if steps is not None and steps.doubt:
        return f"its steps cannot be told apart: {steps.doubt}"
    if why := implausible(facts):
        return why
    if capture.snapshot is not None and facts.get(MemoryLedger) is not None:
        return ""
    if steps is not None and steps.no_request:
        return steps.no_request
    ledger = facts.get(TimeLedger)
    if steps is None or ledger is None or not ledger.rows:
        return "no operator and no GPU work in it"
    work = _work(facts, steps)
    if not len(work):
        return "no operator and no GPU work in the analyzed window"
    if len(work) < LEAST_EVENTS:
        step = "no step and " if steps.source == "none" else ""
        return f"{step}only {len(work)} operator{'s' if len(work) > 1 else ''} or GPU events"
    if not run.dur[work].any():
        return "no operator and no GPU work in it takes any time"
    if run.ts[work].min() == run.ts[work].max():
        return "all operators and GPU work begin at the same moment"
    if run.damage.truncated and steps.steps and not before_the_cut(run, steps.steps):
        return "the file ends before its first step does"
    return ""


def _shortage_of_snapshot(facts: Facts) -> str:
    timeline = facts.get(MemoryTimeline)
    if timeline is None or facts.get(MemoryLedger) is None:
        return "the snapshot has no history of allocations"
    if (entries := sum(history.n for history in timeline.devices)) < LEAST_ENTRIES:
        return f"only {entries} entries in its history of allocations"
    if all(history.reserved is None for history in timeline.devices):
        return "its history of allocations contradicts its segments"
    if (snapshot := facts.capture.snapshot) is not None and not _times_follow(snapshot):
        return "the times of its history stand still or run backwards"
    return ""


def _times_follow(snapshot: Snapshot) -> bool:
    """Whether entries of a device follow one another in time, where they have times at all. A handful may be out of order: several
    threads allocate."""
    if not snapshot.has_clock:
        return True
    same = snapshot.device[1:] == snapshot.device[:-1]
    steps = np.diff(snapshot.time_us)[same]
    return not len(steps) or (bool(steps.any()) and float((steps < 0).mean()) <= _MOST_OUT_OF_ORDER)
