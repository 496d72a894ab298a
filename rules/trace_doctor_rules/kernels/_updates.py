"""What updates parameters one by one, and what goes where they are updated all at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trace_doctor import Run
from trace_doctor.evidence.compute.optimizer_work import OptimizerWork
from trace_doctor.evidence.compute.update_loops import UpdateLoop, UpdateLoops
from trace_doctor.evidence.replay.what_if import Removal

Rows = npt.NDArray[np.int64]
FOREACH = frozenset(
    ["ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"]
)
"""classes of torch.optim with a foreach form (torch 2.0 and later)"""
FUSED = frozenset(["Adagrad", "Adam", "AdamW", "SGD"])
"""those with a fused form as well"""
OTHERS = frozenset(["Adafactor", "LBFGS", "Muon", "SparseAdam"])
"""classes of torch.optim whose update is no loop of elementwise operators, or not a user's to write anew"""


@dataclass(frozen=True)
class Update:
    """What updates parameters one by one: an optimizer, or a loop of the user's."""

    optimizer: str
    """its class; empty for a loop that is in none"""
    runs: tuple[Rows, ...]
    """the operators of each execution"""
    spans: tuple[tuple[int, int], ...]
    """[start, end) ns of each execution"""
    of: int
    """so many kernels (on a CPU: operators) become one"""
    loop: UpdateLoop | None = None
    """None for classes of torch.optim"""

    @property
    def who(self) -> str:
        """What updates, for messages."""
        return f"{self.optimizer}.step()" if self.optimizer else "A loop"

    @property
    def fused(self) -> bool:
        """Whether PyTorch has a fused form of it: one operator for all parameters."""
        return self.optimizer in FUSED


def by_optimizers(work: OptimizerWork) -> Iterator[Update]:
    """The step() of each class of torch.optim that has a foreach form and did not take one."""
    classes = [work.optimizer(mark) for mark in work.steps.tolist()]
    for optimizer in sorted(FOREACH.intersection(classes)):
        marks = work.steps[[name == optimizer for name in classes]]
        operators = work.operators(marks)
        if not _at_once(work, operators):
            run = work.run
            spans = tuple(zip(run.ts[marks].tolist(), run.end[marks].tolist(), strict=True))
            yield Update(optimizer, _of_each(run, marks, operators), spans, 3)


def by_hand(update_loops: UpdateLoops) -> Iterator[Update]:
    """Loops of the user's own, inside the step() of a class of theirs or of none."""
    run = update_loops.run
    for loop in update_loops.loops:
        if loop.optimizer not in FOREACH | OTHERS:
            spans = tuple((int(run.ts[rows[0]]), int(run.end[rows[-1]])) for rows in loop.runs)
            yield Update(loop.optimizer, loop.runs, spans, min(len(loop.names), 3), loop)


def _of_each(run: Run, marks: Rows, operators: Rows) -> tuple[Rows, ...]:
    """The operators inside each of these marks."""
    edges = np.searchsorted(run.ts[operators], [run.ts[marks], run.end[marks]])
    return tuple(operators[first:behind] for first, behind in edges.T.tolist())


def _at_once(work: OptimizerWork, operators: Rows) -> bool:
    """Whether step() runs operators or kernels that update many parameters at once."""
    run = work.run
    names = [run.names[i] for i in np.unique(run.name[operators]).tolist()]
    kernels = [run.names[i] for i in np.unique(run.name[work.gpu_rows(operators)]).tolist()]
    return any(
        n.startswith(("aten::_foreach_", "aten::_fused_", "Torch-Compiled", "triton_")) for n in names
    ) or any("multi_tensor_apply" in k or k.startswith("triton_") for k in kernels)


def removal_on_gpu(run: Run, update: Update, gpu: Rows) -> Removal:
    """From the second operator of each execution to its last, and of so many kernels all but one."""
    spans = tuple(
        (int(run.thread[rows[0]]), int(run.ts[rows[1]]), int(run.end[rows[-1]]))
        for rows in update.runs
        if len(rows) > 1
    )
    return Removal(host_spans=spans, gpu_rows=tuple(np.delete(gpu, np.s_[:: update.of]).tolist()))


def left_on_cpu(update: Update, *, small: bool) -> int:
    """Of so many operators on a CPU one is left. A fused Adam, or one by hand that such a one replaces, reads and writes
    less, whatever the size; all others gain only what calling small operators costs."""
    adam = update.optimizer in FUSED - {"SGD"} if update.loop is None else bool(update.optimizer)
    if adam and update.of >= 3:
        return update.of
    return 2 if small else 1


def removal_on_cpu(run: Run, update: Update) -> Removal:
    """On a CPU: of so many operators all but one, each until the next begins."""
    spans = []
    for rows in update.runs:
        until = np.append(run.ts[rows[1:]], run.end[rows[-1:]])
        goes = np.arange(len(rows)) % update.of > 0
        spans += [
            (int(run.thread[rows[0]]), start, end)
            for start, end in zip(run.ts[rows[goes]].tolist(), until[goes].tolist(), strict=True)
        ]
    return Removal(host_spans=tuple(spans))
