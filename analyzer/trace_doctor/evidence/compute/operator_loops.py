"""Python loops over the elements of tensors: the same few operators, again and again under one frame."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.names.event_names import (
    is_backward,
    is_loader,
    is_optimizer,
    is_step,
    is_torch_mark,
)
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat, Run
from trace_doctor.user_frames import is_user_function

LONGEST = 20
"""operators of a small group: what a function does with one element, or with one pair"""
LEAST = 10
"""repetitions of a loop (torch.profiler's own pattern matcher counts as many)"""
ALWAYS, ALIKE = 0.9, 0.75
"""Of a loop with branches: share of the repetitions that an operator is in to count as common to all, and share of the
operators that are"""
_INDEXING = re.compile(
    r"aten::(?:select|slice|narrow|index|index_(?:select|put|add|copy|fill)_?|take|gather|put_|masked_(?:select|scatter)_?"
    r"|(?:select_|slice_)?scatter(?:_add|_reduce)?_?)"
)
_UNBINDING = re.compile(r"aten::(?:unbind|split|split_with_sizes|chunk|tensor_split)")
"""what makes a list of parts, over which the loop goes then"""
_LAYER = re.compile(
    r"aten::(?:linear|addmm|mm|matmul|bmm|baddbmm|einsum|conv\w*|\w*attention\w*|(?:layer|batch|group|instance|rms)_norm|embedding|lstm|gru)"
    r"|(?!aten::).*"
)
"""operators of a model's layers: where no frame tells, their repetitions are layers, not elements"""
_EVALUATED = "autograd::engine::evaluate_function: "
_EVALUATED_OWN = re.compile(rf"^{_EVALUATED}|\d+$")
_ENGINE_NS = 20_000
"""between two nodes the engine itself takes a few microseconds; longer, it waits"""
_MODULE = re.compile(r"nn\.Module: .*|.*torch/nn/modules/module\.py\(\d+\): .*")


class OperatorLoop(Struct, frozen=True):
    """One loop of the source: all its executions in the steady steps."""

    site: Site | None
    """None without Python stacks"""
    group: tuple[str, ...]
    """the operators of each repetition"""
    repeats: tuple[int, ...]
    """of each execution"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ns of each execution"""
    first: tuple[int, ...]
    """ns until the second repetition began, of each execution"""
    steps: int
    """number of steady steps that hold one"""
    repetition_ns: int
    """from one repetition to the next: the median, which other programs on the machine do not move"""
    backward: tuple[tuple[int, int, int], ...] = ()
    """(thread, start, end) ns of the nodes of autograd that come as often in a step as the repetitions, all but the first of
    each: the loop goes backward one element at a time as well"""


class OperatorLoops(Evidence, frozen=True):
    """Loops of ten and more repetitions on the main thread that index a tensor, or go over its parts, longest first.
    Without Python stacks those that hold no operator of a layer.
    """

    loops: tuple[OperatorLoop, ...]
    thread: int
    run: Run

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, sites, main = facts.run, facts.get(CallSites), facts[Threads].main
        spans = facts[Steps].spans("steady")
        ops = _operators(facts, run, main)
        step = facts[Steps].steady_at(run.ts[ops])
        ops, step = ops[step >= 0], step[step >= 0]
        frame = step if sites is None else _frames(run, facts[Nesting], ops)
        ops, frame = ops[frame >= 0], frame[frame >= 0]
        order = np.lexsort((run.ts[ops], frame))
        ops, frame = ops[order], frame[order]
        unbinding = run.is_named(lambda n: _UNBINDING.fullmatch(n) is not None)[ops]
        unbound = np.append(False, unbinding[:-1] & (frame[:-1] == frame[1:]))
        groups: dict[tuple[Site | None, tuple[str, ...]], list[I64]] = {}
        for edges, group in _executions(run.name[ops].astype(np.int64), frame, branches=sites is not None):
            names = tuple(run.names[n] for n in group)
            site = sites.site(int(ops[edges[0]])) if sites is not None else None
            if (site is None) != (sites is None) or (site is None and any(map(_LAYER.fullmatch, names))):
                continue
            if unbound[edges[0]] or any(map(_INDEXING.fullmatch, names)):
                groups.setdefault((site, _rotated(names)), []).append(edges)
        loops, nodes = [], _Nodes(facts)
        for (site, names), executions in groups.items():
            begins = [run.ts[ops[edges[:-1]]] for edges in executions]
            begin = [int(each[0]) for each in begins]
            end = [int(run.end[ops[edges[-1] - 1]]) for edges in executions]
            starts = np.sort(np.array(begin))
            holds_one = np.diff(np.searchsorted(starts, np.array(spans, dtype=np.int64))) > 0
            loops.append(
                OperatorLoop(
                    site=site,
                    group=names,
                    repeats=tuple(len(each) for each in begins),
                    spans=tuple(zip(begin, end, strict=True)),
                    first=tuple(int(each[1] - each[0]) for each in begins),
                    steps=int(holds_one.sum()),
                    repetition_ns=int(np.median(np.concatenate([np.diff(each) for each in begins]))),
                    backward=nodes.repeated(starts, [len(each) for each in begins], names),
                )
            )
        loops.sort(key=lambda loop: (-sum(e - s for s, e in loop.spans), str(loop.site), loop.group))
        return cls(tuple(loops), main, run)


def _node_of(operator: str) -> str:
    """`SelectBackward` of `aten::select`, as autograd names what goes backward through it."""
    words = operator.removeprefix("aten::").rstrip("_").split("_")
    return "".join(word.capitalize() for word in words) + "Backward"


class _Nodes:
    """What autograd evaluates in the steady steps, by step and in order of time on each thread."""

    def __init__(self, facts: Facts) -> None:
        run, steps = facts.run, facts[Steps]
        rows = run.named(lambda n: n.startswith(_EVALUATED) and not n.endswith("AccumulateGrad"), Cat.CPU_OP)
        step = steps.steady_at(run.ts[rows])
        rows, self._step = rows[step >= 0], step[step >= 0]
        order = np.lexsort((run.ts[rows], run.thread[rows]))
        rows, self._step = rows[order], self._step[order]
        self._steps, self._name = steps, run.name[rows].astype(np.int64)
        self._names = [run.names[n] for n in np.unique(self._name)]
        self._thread, self._start = run.thread[rows], run.ts[rows]
        follows = (self._thread[1:] == self._thread[:-1]) & (self._step[1:] == self._step[:-1])
        self._until = run.end[rows].copy()
        self._until[:-1][follows] = np.minimum(self._start[1:], self._until[:-1] + _ENGINE_NS)[follows]

    def repeated(
        self, starts: I64, repeats: list[int], group: tuple[str, ...]
    ) -> tuple[tuple[int, int, int], ...]:
        """Of a loop whose executions begin and repeat so: each node with the engine's own time behind it. One comes once in a
        repetition, or as often as an operator of the group does. None where no operator of the group has a node: there
        only parameters and layers happen to be as many."""
        own = {_node_of(name) for name in group}
        if not any(_EVALUATED_OWN.sub("", name) in own for name in self._names):
            return ()  # nothing goes backward through it
        most = max(Counter(group).values())
        in_step = self._steps.steady_at(starts)
        chosen = np.zeros(len(self._name), dtype=bool)
        for step in np.unique(in_step[in_step >= 0]).tolist():
            least = sum(n for n, at in zip(repeats, in_step.tolist(), strict=True) if at == step)
            here = np.flatnonzero(self._step == step)
            for name in np.unique(self._name[here]).tolist():
                same = here[self._name[here] == name]
                if least <= len(same) < (most + 1) * least:
                    chosen[same[1:]] = True
        pieces = zip(self._thread[chosen], self._start[chosen], self._until[chosen], strict=True)
        return tuple((int(thread), int(start), int(end)) for thread, start, end in pieces)


def _operators(facts: Facts, run: Run, main: int) -> I64:
    """Outermost operators of the main thread, outside backward, optimizer and loader."""
    marks = run.is_named(is_step, is_torch_mark)
    away = run.is_named(is_backward, is_optimizer, is_loader)
    rows = np.flatnonzero(run.is_cat(Cat.CPU_OP) & ~marks & ~away & (run.thread == main))
    rows = facts[Nesting].outermost(rows)
    return rows[~facts[Nesting].inside(rows, away)]


def _frames(run: Run, nesting: Nesting, ops: I64) -> I64:
    """The innermost frame of the user's around each operator, -1 without one."""
    user: Bool = np.zeros(len(run), dtype=bool)
    named = run.is_named(is_user_function)
    user[named & run.is_cat(Cat.PYTHON)] = True
    return _callers(run, nesting, nesting.around(nesting.parent[ops], user), user)


def _callers(run: Run, nesting: Nesting, frame: I64, user: Bool) -> I64:
    """The same frames, but for functions that are called for one element after the other: of these the caller. Modules that
    are called one after the other are layers."""
    own = np.unique(frame[frame >= 0])
    modules = run.is_named(lambda n: _MODULE.fullmatch(n) is not None) & run.is_cat(Cat.PYTHON)
    above = nesting.around(nesting.parent[own], user | modules)
    kind, often = np.unique(
        np.stack([above, run.name[own]], axis=1), axis=0, return_inverse=True, return_counts=True
    )[1:]
    one_by_one = (often[kind.ravel()] >= LEAST) & at_rows(user, above, False)
    caller = np.where(one_by_one, above, own)
    known = frame >= 0
    frame[known] = caller[np.searchsorted(own, frame[known])]
    return frame


def _executions(names: I64, frame: I64, *, branches: bool) -> list[tuple[I64, tuple[int, ...]]]:
    """The loops, in order: the place at which each repetition begins and the one behind the last, and the names that
    come in each repetition."""
    covered = np.zeros(len(names), dtype=bool)
    executions = [
        (edges, tuple(names[edges[0] : edges[1]].tolist())) for edges in _periodic(names, frame, covered)
    ]
    if branches:
        executions += _branched(names, frame, covered)
    return sorted(executions, key=lambda loop: int(loop[0][0]))


def _periodic(names: I64, frame: I64, covered: Bool) -> list[I64]:
    """Stretches in which a group of names repeats under one frame; the shortest period wins. They are marked as taken."""
    executions = []
    for period in range(1, LONGEST + 1):
        if len(names) < period * LEAST:
            break
        same = (names[period:] == names[:-period]) & (frame[period:] == frame[:-period])
        edges = np.diff(np.concatenate([[0], same.astype(np.int8), [0]]))
        begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        long = ends - begins >= period * (LEAST - 1)
        for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
            repeats = (end - begin) // period + 1
            stretch = slice(begin, begin + period * repeats)
            if not covered[stretch].any():
                covered[stretch] = True
                executions.append(begin + period * np.arange(repeats + 1))
    return executions


def _branched(names: I64, frame: I64, covered: Bool) -> list[tuple[I64, tuple[int, ...]]]:
    """Loops whose body has branches: an operator that comes again and again under one frame, after no more than a small
    group, and most of what lies between is the same each time. The rarest such operator comes once in a repetition."""
    at = np.flatnonzero(~covered)
    at = at[np.lexsort((at, names[at], frame[at]))]
    near = (np.diff(at) <= LONGEST) & (np.diff(names[at]) == 0) & (np.diff(frame[at]) == 0)
    edges = np.diff(np.concatenate([[0], near.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    executions = []
    for n in np.argsort(ends - begins, kind="stable").tolist():
        anchors = at[begins[n] : ends[n] + 1]
        if len(anchors) <= LEAST or covered[anchors[0] : anchors[-1]].any():
            continue
        bodies = [names[a:b].tolist() for a, b in pairwise(anchors.tolist())]
        counts = Counter(name for body in bodies for name in set(body))
        core = {name for name, count in counts.items() if count >= ALWAYS * len(bodies)}
        same = sum(name in core for body in bodies for name in body)
        if len(core) > 1 and same >= ALIKE * sum(map(len, bodies)):
            covered[anchors[0] : anchors[-1]] = True
            usual = Counter(map(tuple, bodies)).most_common(1)[0][0]
            executions.append((anchors, tuple(name for name in usual if name in core)))
    return executions


def _rotated(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same group whatever operator a stretch begins with: from its first indexing one."""
    at = next((i for i, n in enumerate(names) if _INDEXING.fullmatch(n)), 0)
    return (*names[at:], *names[:at])
