"""Loops over the parameters of a model, written by hand: an update rule, an average of weights, clipping.

What gives them away is a long run of elementwise operators, some of them in place, with nothing between: a model's forward
has products there, and its backward runs on a thread of autograd. That they go over parameters, and not over the steps of a
simulation, is known within the step of an optimizer, by tensors of several shapes, or by their number: one for each
gradient that backward accumulated.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.compute.optimizer_work import launched_in, optimizer_class
from trace_doctor.evidence.names.event_arguments import shapes
from trace_doctor.evidence.names.event_names import (
    is_backward,
    is_loader,
    is_optimizer,
    is_step,
    is_torch_mark,
    is_view,
)
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run

LEAST = 20
"""operators of a run"""
TENSORS = 10
"""times that one operator works in place: fewer tensors are no model"""
_PROBED = 64
"""operators of a run whose shapes are looked at"""
_UPDATE = re.compile(r"aten::(?:mul|add|sub|div|addcmul|addcdiv|lerp|clamp|clamp_min|clamp_max)_")
_ELEMENTWISE = re.compile(
    r"aten::(?:mul|add|sub|rsub|div|true_divide|addcmul|addcdiv|lerp|sqrt|rsqrt|pow|square|neg|reciprocal|abs|sign|exp|log"
    r"|maximum|minimum|max|clamp|clamp_min|clamp_max|where|copy|zero|fill|clone|detach|alias|to|norm|linalg_vector_norm"
    r"|sum|mean|zeros_like|ones_like|empty_like|full_like|result_type|item|_to_copy)_?"
)
_COMPUTES = frozenset(f"aten::{name}" for name in ("mul", "add", "sub", "div", "lerp", "addcmul", "addcdiv"))
_WRITE = "aten::copy_"
"""writes what was computed apart back into a tensor, one for each; alone it may only move data"""
_GRADIENT = "torch::autograd::AccumulateGrad"


class UpdateLoop(Struct, frozen=True):
    """One loop of the source: its executions in the steady steps."""

    optimizer: str
    """class whose `step()` it is; empty for a loop outside of one"""
    names: tuple[str, ...]
    """its operators, each once"""
    site: Site | None
    runs: tuple[I64, ...]
    """rows of the operators of each execution"""


class UpdateLoops(Evidence, frozen=True):
    """Of the main thread. Raises NotCaptured without a window."""

    loops: tuple[UpdateLoop, ...]
    """most operators first"""
    run: Run
    nesting: Nesting
    launches: Launches

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, sites = facts.run, facts.get(CallSites)
        ops, step, mark = plain_operators(facts)
        gradients = gradients_by_step(facts)
        update = run.name_ids(lambda n: _UPDATE.fullmatch(n) is not None)
        by_loop: dict[tuple[str, tuple[str, ...], Site | None], list[I64]] = defaultdict(list)
        for first, behind in _runs(run, ops, step, mark):
            rows = ops[first:behind]
            ids, counts = np.unique(run.name[rows], return_counts=True)
            most = _tensors(run, ids, counts, update)
            if most < TENSORS:
                continue
            of = int(mark[first])
            if of < 0 and not over_parameters(run, rows, most, gradients.get(int(step[first]), 0)):
                continue
            names = tuple(sorted(run.names[i] for i in ids.tolist()))
            optimizer = optimizer_class(run.text(of)) if of >= 0 else ""
            by_loop[optimizer, names, sites.site(int(rows[0])) if sites is not None else None].append(rows)
        loops = [UpdateLoop(o, names, site, tuple(runs)) for (o, names, site), runs in by_loop.items()]
        loops.sort(key=lambda loop: (-sum(map(len, loop.runs)), loop.optimizer, loop.names, str(loop.site)))
        return cls(tuple(loops), run, facts[Nesting], facts[Launches])

    def gpu_rows(self, rows: I64) -> I64:
        """The GPU work launched inside these host events."""
        return launched_in(self.run, self.nesting, self.launches, rows)


def plain_operators(facts: Facts) -> tuple[I64, I64, I64]:
    """The outermost operators of the main thread in steady steps: rows, number of the step, row of the optimizer's step
    around each (-1: none)."""
    run, nesting, main = facts.run, facts[Nesting], facts[Threads].main
    marks = run.is_named(is_step, is_loader, is_optimizer, is_torch_mark)
    rows = nesting.outermost(np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & (run.thread == main)))
    step = facts[Steps].steady_at(run.ts[rows])
    rows, step = rows[step >= 0], step[step >= 0]
    own = run.named(is_optimizer, Cat.USER_ANNOTATION, Cat.CPU_OP)
    own = nesting.outermost(own[run.thread[own] == main])
    at = np.searchsorted(run.ts[own], run.ts[rows], side="right") - 1
    around = np.append(own, -1)[at]
    mark = np.where(run.ts[rows] < run.end[around], around, -1)
    return rows, step, mark


def _tensors(run: Run, names: I32, counts: I64, update: I32) -> int:
    """How often a run's most frequent operator works in place; or writes, where so much was computed before."""
    most = int(counts[np.isin(names, update)].max(initial=0))
    writes = int(counts[[run.names[n] == _WRITE for n in names.tolist()]].sum())
    computes = [run.names[n] in _COMPUTES for n in names.tolist()]
    return max(most, min(writes, int(counts[computes].max(initial=0))))


def _runs(run: Run, ops: I64, step: I64, mark: I64) -> list[tuple[int, int]]:
    """[first, behind) of elementwise operators that follow each other within one step, and one optimizer or none."""
    elementwise: Bool = np.isin(
        run.name[ops], run.name_ids(lambda n: is_view(n) or _ELEMENTWISE.fullmatch(n) is not None)
    )
    if not len(ops):
        return []
    new = np.ones(len(ops), dtype=np.bool_)
    new[1:] = (elementwise[1:] != elementwise[:-1]) | (step[1:] != step[:-1]) | (mark[1:] != mark[:-1])
    first = np.flatnonzero(new)
    behind = np.append(first[1:], len(ops))
    long = elementwise[first] & (behind - first >= LEAST)
    return list(zip(first[long].tolist(), behind[long].tolist(), strict=True))


def gradients_by_step(facts: Facts) -> dict[int, int]:
    """How many gradients backward accumulated, by steady step."""
    run = facts.run
    step = facts[Steps].steady_at(run.ts[run.named(lambda n: n == _GRADIENT, Cat.CPU_OP)])
    numbers, counts = np.unique(step[step >= 0], return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def over_parameters(run: Run, rows: I64, tensors: int, gradients: int) -> bool:
    """Training, and as many tensors as it has gradients (or a whole number of times as many), or of several shapes."""
    if not len(run.name_ids(is_backward)):
        return False
    if gradients >= TENSORS and tensors % gradients == 0:
        return True
    probed = rows[:: max(1, len(rows) // _PROBED)][:_PROBED]
    first = {shape for arguments in run.args(probed.tolist()) for shape in shapes(arguments)[:1]}
    return len(first - {()}) > 1
