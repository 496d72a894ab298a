"""The steps of `generate()` of transformers and of pipelines of diffusers, which mark none: what Python stacks show of them.

Without stacks nothing tells them for certain: the layers of a model repeat as its steps do.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import numpy as np

from trace_doctor.arrays import I64
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.names.engine_step_names import DENOISING, GENERATE_DECODE, GENERATE_PREFILL
from trace_doctor.evidence.names.event_names import is_module
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.pieces import Span
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

LEAST = 3
"""forwards of one model in a loop: fewer are no loop"""
LEAST_SHARE = 0.5
"""of the time from the first to the last operator: what lies outside is not judged, and that must not be most of a capture"""
_LOOP = re.compile(
    r"(?:.*[/\\])?transformers[/\\]generation[/\\]utils\.py\(\d+\): _?(?:sample|(?:group_)?beam_search|greedy_search)"
)
_SCHEDULER = re.compile(r"(?:.*[/\\])?diffusers[/\\]schedulers[/\\]\w+\.py\(\d+\): step")
Steps = tuple[list[Span], list[str]]


def _is_loop(name: str) -> bool:
    return _LOOP.fullmatch(name) is not None


def _is_scheduler(name: str) -> bool:
    return _SCHEDULER.fullmatch(name) is not None


def generation_steps(facts: Facts, piece: Span) -> Steps:
    """(start, end) ns of the forwards of a model in `generate()`, each with what follows it, and of the denoising steps of a
    pipeline; and their labels. None where stacks do not show them, or they are the lesser part of the capture."""
    spans, labels = _of_generate(facts)
    if not spans:
        spans, labels = _of_diffusion(facts)
    inside = [n for n, (start, _) in enumerate(spans) if piece[0] <= start < piece[1]]
    spans, labels = [spans[n] for n in inside], [labels[n] for n in inside]
    host = facts.run.is_cat(Cat.CPU_OP) & (facts.run.ts >= piece[0]) & (facts.run.ts < piece[1])
    if not spans or not host.any():
        return [], []
    length = int(facts.run.end[host].max() - facts.run.ts[host].min())
    return (spans, labels) if sum(end - start for start, end in spans) >= LEAST_SHARE * length else ([], [])


def _frames(facts: Facts, rows: I64) -> I64:
    """The outermost of these rows on the main thread."""
    return (
        facts[Nesting].outermost(rows[facts.run.thread[rows] == facts[Threads].main]) if len(rows) else rows
    )


def _of_generate(facts: Facts) -> Steps:
    """The forward of a step is that of the model that a loop calls most often. The first in a loop computes the prompt, where the
    loop began in the trace."""
    run, nesting = facts.run, facts[Nesting]
    spans: list[Span] = []
    labels: list[str] = []
    loops = _frames(facts, run.named(_is_loop, Cat.PYTHON))
    if not len(loops):
        return spans, labels
    first_operator = int(run.ts[run.is_cat(Cat.CPU_OP)].min(initial=np.iinfo(np.int64).max))
    modules = run.named(is_module, Cat.PYTHON)
    for loop in loops.tolist():
        chosen = np.zeros(len(run), dtype=bool)
        chosen[loop] = True
        calls = nesting.outermost(modules[nesting.inside(modules, chosen)])
        names = Counter(run.text(c) for c in calls.tolist())
        model, count = max(names.items(), key=lambda item: item[1], default=("", 0))
        if count < LEAST:
            continue
        starts = [int(run.ts[c]) for c in calls.tolist() if run.text(c) == model]
        spans += zip(starts, [*starts[1:], int(run.end[loop])], strict=True)
        begun = int(run.ts[loop]) > first_operator
        labels += [GENERATE_PREFILL if begun else GENERATE_DECODE, *[GENERATE_DECODE] * (count - 1)]
    return spans, labels


def _of_diffusion(facts: Facts) -> Steps:
    """The scheduler ends a denoising step: what precedes the first end is cut off."""
    run = facts.run
    ends = run.end[_frames(facts, run.named(_is_scheduler, Cat.PYTHON))].tolist()
    if len(ends) < LEAST:
        return [], []
    return [*pairwise(ends)], [DENOISING] * (len(ends) - 1)
