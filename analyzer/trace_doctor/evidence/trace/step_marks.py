"""What else than the profiler's own marks tells steps: waits for batches, optimizer steps, marks of frameworks; and whether its own
are all there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.names.event_names import is_loader, is_optimizer_step, is_step
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

_MARKERS = re.compile(
    r"(?:\[pl\]\[profile\](?:\[\w+\])?)(?:\w+\.)?run_training_batch|(?:train|training)_(?:step|batch|iteration)"
    r"|[Ii]teration ?#? ?\d*|## ?iteration.*##|DistributedDataParallel\.forward"
    r"|## forward ##|FullyShardedDataParallel\.forward|DataParallel\.forward"
)


_LEAST_OPERATORS = 10
"""Of a process that counts: of one or two events the process may be wrong, where a file is damaged."""


def loader_marks(facts: Facts) -> I64:
    """Waits for a batch on the main thread. Waits with no work between them (several loaders) open one step."""
    run = facts.run
    marks = _on_main(facts, run.named(is_loader, Cat.USER_ANNOTATION, Cat.CPU_OP))
    if len(marks) < 2:
        return marks
    ops = run.ts[_on_main(facts, np.flatnonzero(run.is_cat(Cat.CPU_OP)))]
    between = np.searchsorted(ops, run.ts[marks[1:]]) - np.searchsorted(ops, run.end[marks[:-1]])
    return np.asarray(marks[np.concatenate([[True], between > 0])])


def optimizer_marks(facts: Facts) -> I64:
    """Of several optimizers the one that steps least often, but twice at least; those of one class step in turns."""
    run = facts.run
    marks = _rarest(run, _on_main(facts, run.named(is_optimizer_step, Cat.USER_ANNOTATION, Cat.CPU_OP)))
    operators = run.ts[run.is_cat(Cat.CPU_OP)]
    inside = np.searchsorted(operators, run.end[marks]) - np.searchsorted(operators, run.ts[marks])
    return marks[one_per_turn(inside.tolist())]


def framework_marks(facts: Facts) -> I64:
    """Annotations that frameworks put around a step or its forward pass: of several kinds the rarest that occurs twice."""
    run = facts.run
    named = run.named(lambda name: _MARKERS.fullmatch(name) is not None, Cat.USER_ANNOTATION, Cat.CPU_OP)
    return _rarest(run, _on_main(facts, named), lambda name: re.sub(r"[\d_()]+", "#", name))


def _rarest(run: Run, marks: I64, kind: Callable[[str], str] = str) -> I64:
    """The marks of the kind that occurs least often among those that occur twice."""
    kinds = [kind(run.text(m)) for m in marks]
    often = [(n, -kinds.index(k), k) for k, n in Counter(kinds).items() if n >= 2]
    if not often:
        return marks[:0]
    chosen = min(often)[2]
    return np.asarray(marks[np.array([k == chosen for k in kinds])])


def _on_main(facts: Facts, rows: I64) -> I64:
    """The outermost of these rows on the main thread."""
    if not len(rows):
        return rows
    rows = rows[facts.run.thread[rows] == facts[Threads].main]
    return facts[Nesting].outermost(rows)


def one_per_turn(marks: Sequence[int]) -> slice:
    """Of the steps of optimizers, in time order and each told by its number of operators, those that end a turn of all.

    A turn repeats exactly, twice at least, as the parameters of each optimizer stay the same; else every step ends one. It ends
    with the step that is rarest in it, of several with the last."""
    for turn in range(2, len(marks) // 2 + 1):
        if all(mark == marks[n % turn] for n, mark in enumerate(marks)):
            often = Counter(marks[:turn])
            if len(often) == 1:
                break  # one optimizer
            rarest = min(often.values())
            return slice(max(n for n in range(turn) if often[marks[n]] == rarest), None, turn)
    return slice(None)


MOST_BETWEEN = 0.05
"""of operators and calls, those between the end of a mark and the next one: a profiler ends one where it begins the next"""
LEAST_BETWEEN = 10
"""of them after one mark: fewer are the profiler's own, up to 4 in 124 public captures"""
MOST_EMPTY = 0.1
"""of the steps, those in which nothing begins: in 124 public captures none has less than 0.8 of what the median one has"""


def missing_marks(run: Run, marks: I64, steps: Sequence[tuple[int, int]]) -> str:
    """Which marks of a profiler are missing, or what they were about: steps, [start, end) ns, in which nothing was recorded; "" for
    neither. `marks`: their rows in time order."""
    if len(steps) < 2:
        return ""
    work = run.ts[run.is_cat(Cat.CPU_OP, Cat.RUNTIME, Cat.DRIVER) & run.own]
    ends, begins = np.searchsorted(work, run.end[marks][:-1]), np.searchsorted(work, run.ts[marks][1:])
    after = begins - ends
    between = int(after[after >= LEAST_BETWEEN].sum())
    if between > MOST_BETWEEN * len(work):
        return (
            f"{between:,} operators and calls between its step markers: markers are missing, or end too early"
        )
    events = np.delete(run.ts, marks)
    empty = sum(a == b for a, b in np.searchsorted(events, steps).tolist())
    return (
        f"{empty} steps of {len(steps)} in which nothing was recorded"
        if empty > MOST_EMPTY * len(steps)
        else ""
    )


def several_processes(facts: Facts) -> str:
    """Why this is not one training loop: a profiler records the process that it runs in, and its steps are marked by one
    thread, so more of them come from traces that were merged into one file."""
    run = facts.run
    launches = facts[Launches].launch
    working = np.append(np.flatnonzero(run.is_cat(Cat.CPU_OP)), launches[launches >= 0])
    counts: Counter[str] = Counter()
    for thread, count in enumerate(np.bincount(run.thread[working], minlength=len(run.threads)).tolist()):
        counts[run.threads[thread].pid] += count
    processes = [pid for pid, count in counts.items() if count >= _LEAST_OPERATORS]
    if len(processes) > 1:
        return f"{len(processes)} processes ran operators, as where a file holds the merged traces of several ranks"
    marking = np.unique(run.thread[run.named(is_step, Cat.USER_ANNOTATION, Cat.CPU_OP)])
    if len(marking) > 1:
        return f"{len(marking)} threads mark steps, as where a file holds the merged traces of several ranks"
    return ""
