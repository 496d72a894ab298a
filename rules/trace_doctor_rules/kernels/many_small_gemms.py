"""TD309 many-small-gemms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trace_doctor import NOTE_FROM, Claim, Context, Rule, Table, threshold
from trace_doctor.evidence.compute.matmuls import Product, Products
from trace_doctor.evidence.compute.operator_loops import OperatorLoops
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.durations import three_figures
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.intervals import covered, intervals
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.kernels import _many_small_gemms_cases as cases
from trace_doctor_rules.kernels._shared import by_model, cost, negligible, noun

Rows = npt.NDArray[np.int64]
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
_ROUTING = frozenset(
    f"aten::{name}"
    for name in (
        "index", "index_select", "index_put_", "_index_put_impl_", "index_add", "index_add_", "gather", "scatter_",
        "scatter_add_", "masked_select", "nonzero",
    )
)  # fmt: skip
"""how rows are given to an expert, and its results back"""
_JOINS = ("aten::stack", "aten::cat")
_ATTENTION = ("aten::_softmax", "aten::bmm", "aten::baddbmm", "aten::scaled_dot_product_attention")
_PICKS = ("aten::slice", "aten::select", "aten::narrow", "aten::index_select")


class ManySmallGemms(Rule):
    """A loop runs one small GEMM after the other, each too small to fill the GPU.

    What it does
    Finds loops of small GEMMs of the same shape that do not depend on each other: the experts of a mixture-of-experts
    layer, or heads and branches whose results are joined.

    Why is this bad
    Each GEMM is a launch of its own on a part of the SMs. Choosing rows and adding results between two experts are more
    launches. One grouped GEMM does the same work in one call.

    Evidence
    Shapes of `aten::mm` and `aten::addmm` in the forward of a typical step: at least four GEMMs with weights of one
    shape, with at most three others and no attention between two of them. In addition, one of three signs that they do
    not depend on each other: rows are chosen or scattered between them (`index`, `index_add_`, `gather` ...); a `stack`
    or `cat` of as many tensors follows; or something is sliced from a tensor with a dimension as long as the loop (the
    weight of each branch). Layers that depend on each other show none of these. The mean kernel takes at most 100 us. On
    a CPU the mean GEMM has at most 4 million operations, and the finding is info.

    How the saving is estimated
    A model: half of the GEMMs' time (on a CPU a quarter), forward and backward. The work between them comes on top. It is
    never more than the captured steps gain without them (replay).

    Fix
    Use one grouped or batched GEMM for all experts.

    Fix safety
    Only shown: the weights are stacked, which changes checkpoints, and the tokens must be sorted by expert.

    When to ignore
    When there are few experts with many tokens each.

    References
    https://arxiv.org/abs/2211.15841
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
    """

    code = "TD309"
    name = "many-small-gemms"
    title = "Many small GEMMs run sequentially"
    needs = (Steps, Work, OperatorInputs, Products, Nesting, Replay, Moments)
    wants = (CallSites, OperatorLoops)
    to_pass = (RecordedOperators, OperatorsOfWork, IdleCauses)

    min_share: float = threshold(
        0.05,
        "GEMMs of such loops, as a share of kernel time",
        unit="share",
        source="half of it may go: below, less than the 3% of a warning",
        note_from=NOTE_FROM,
    )
    min_times: int = threshold(4, "GEMMs of one loop", source="the smallest mixtures of experts have four")
    max_between: int = threshold(
        3,
        "other GEMMs between two of a loop",
        source="an expert has two or three layers, a block four and more",
    )
    max_beside: int = threshold(
        2,
        "the same where only a slice or a join shows that they do not depend on each other",
        source="blocks with attention have four and more",
    )
    min_shown: float = threshold(
        0.8,
        "repetitions between which rows are routed or a weight is picked",
        unit="share",
        source="rule of thumb: an expert without tokens is left out",
    )
    max_us: float = threshold(
        100.0,
        "mean kernel time up to which a GEMM is small",
        unit="us",
        source="experts of 8 to 573 us in captures: those above 100 us fill the GPU by themselves",
    )
    part: float = threshold(
        0.5,
        "share of the GEMMs' time that a grouped one saves",
        unit="share",
        source="MegaBlocks reports up to 1.4 times the speed of whole training steps (arXiv 2211.15841)",
    )

    max_flop_on_cpu: float = threshold(
        4e6,
        "mean number of operations up to which a GEMM is small on a CPU",
        unit="count",
        source="100 us of one core at 40 GFLOP/s",
    )
    part_on_cpu: float = threshold(
        0.25,
        "share of the GEMMs' time that a batched one saves on a CPU",
        unit="share",
        source="torch 2.13, one core, 8 to 48 GEMMs of 5 to 230 us: half in four of six loops, once nothing",
    )

    VALID = [
        Valid("layers that build on each other", lambda: cases.training("layers")),
        Valid("layers with attention between", lambda: cases.training("attention")),
        Valid("two experts", lambda: cases.training(experts=2)),
        Valid("products that fill the GPU", lambda: cases.training(us=400)),
        Valid("five products of each expert", lambda: cases.training(depth=5)),
        Valid("four products of each branch", lambda: cases.training("weighted", depth=4)),
        Valid("a stack of other tensors", lambda: cases.training("stacked", stacked=6)),
        Valid("four products before the stack", lambda: cases.training("stacked", before=4)),
        Valid("layers, whatever their share", lambda: cases.training("layers", gpu=False), thresholds={"min_share": 0.0}),
        Valid("little time", lambda: cases.training(us=2, other=4000)),
        Valid("in CUDA graphs", cases.replayed, skipped="in CUDA graphs, whose operators"),
        Valid("no shapes", lambda: cases.training(shapes=False), skipped="shapes"),
        Valid("layers on a CPU", lambda: cases.training("layers", gpu=False)),
        Valid("large products on a CPU", lambda: cases.training(gpu=False)),
    ]  # fmt: skip
    INVALID = [
        Invalid("experts", cases.training, message="16 forward GEMMs per step run one by one in 2 loops over same-shape weights. They take 192 µs per step, 29% of kernel time (mean kernel 12 µs).", saving_us=96, tolerance=0.1, confidence="low"),
        Invalid("at the borders", lambda: cases.training(experts=4), message="8 forward GEMMs", thresholds={"max_us": 12.0, "max_between": 1, "min_shown": 1.0}),
        Invalid("branches at the borders", lambda: cases.training("weighted"), message="16 forward GEMMs", thresholds={"max_beside": 1, "min_shown": 1.0}),
        Invalid("a stack at the borders", lambda: cases.training("stacked", experts=4, stacked=4), message="8 forward GEMMs", thresholds={"max_beside": 1}),
        Invalid("of which the last product alone is stacked", lambda: cases.training("stacked", depth=4), message="in 1 loop over same-shape"),
        Invalid("with its backward", lambda: cases.training(training=True), message="With backward they take", saving_us=144),
        Invalid("results that are weighted and added up", lambda: cases.training("weighted"), message="16 forward GEMMs"),
        Invalid("results that are stacked", lambda: cases.training("stacked"), message="16 forward GEMMs"),
        Invalid("many experts", lambda: cases.training(experts=40, stacks=True), message="80 forward GEMMs"),
        Invalid("with stacks", lambda: cases.training(stacks=True), file="moe.py", message="GEMMs per step in forward() (moe.py) run"),
        Invalid("on a CPU", lambda: cases.training(gpu=False, hidden=64), message="of operator time (mean operator", severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels = ctx[Work]
        products = ctx[Products].all
        loops = list(self._loops(ctx, products))
        forward = [p for loop in loops for p in loop]
        if not forward:
            return
        shapes = {_sizes(p) for p in forward}
        gemms = forward + [p for p in products if p.backward and _sizes(p) in shapes]
        mask = np.isin(kernels.operator, np.array([p.operator for p in gemms], dtype=np.int64))
        ns = sum(p.ns for p in gemms)
        per_step = kernels.total / kernels.steps
        if ns < self.min_share * per_step or not self._small(kernels, gemms, ns / mask.sum()):
            return
        assumed = (
            "one grouped GEMM fills the SMs, each of these fills only some"
            if kernels.on_gpu
            else "one batched GEMM replaces the call of each"
        )
        part = self.part if kernels.on_gpu else self.part_on_cpu
        saving = by_model(kernels, ctx[Replay], mask, part, assumed, one_step=True)
        site = _site(ctx, loops)
        run = kernels.run
        spans = [(int(run.ts[loop[0].operator]), int(run.end[loop[-1].operator])) for loop in loops]
        mean = three_figures(ns / mask.sum() / 1e3)
        take = "With backward they take" if any(p.backward for p in gemms) else "They take"
        yield Claim(
            message=(
                f"{len(forward)} forward GEMMs per step{f' in {site}' if site else ''} run one by one in "
                f"{len(loops)} loop{'s' if len(loops) > 1 else ''} over same-shape weights. "
                f"{take} {cost(kernels, ns / 1e3, ns / per_step)} (mean {noun(kernels)} {mean})."
                f"{negligible(saving.share_of_step)}"
            ),
            confidence="low",
            severity=None if kernels.on_gpu else "info",
            saving=saving,
            location=location(
                site,
                device=kernels.device if kernels.on_gpu else None,
                ts_us=ctx[Moments].ts_us(int(kernels.run.ts[forward[0].operator])),
            ),
            evidence=[_table(loops, per_step, f"of {noun(kernels)} time")],
            spans=ctx[Moments].longest(spans, "loop over small GEMMs"),
            fixes=[techniques.grouped_gemm(_VERIFY, target(site))],
            owned=_everywhere(ctx, spans),
            key="loop",
        )

    def _loops(self, ctx: Context, products: Sequence[Product]) -> Iterator[list[Product]]:
        """Runs of forward products with one weight size that do not build on each other."""
        run, inputs, least = ctx[Nesting].run, ctx[OperatorInputs], max(self.min_times, 2)
        everything, attention, routing, joins, picks = (
            inputs.typical(run.named(names.__contains__))
            for names in (_PRODUCTS, _ATTENTION, _ROUTING, _JOINS, _PICKS)
        )
        tensors = np.array(
            [len(operands.tensors()) for operands in inputs.of(joins.tolist())], dtype=np.int64
        )
        joins, tensors = joins[tensors >= least], tensors[tensors >= least]
        groups: dict[tuple[tuple[str, int, int], int], list[Product]] = defaultdict(list)
        for p in products:
            if not p.backward:
                groups[_weight(p), p.thread].append(p)
        for group in groups.values():
            rows = np.array([p.operator for p in group], dtype=np.int64)
            far = (
                (_between(everything, rows) > self.max_between)
                | (_between(attention, rows) > 0)
                | (_between(joins, rows) > 0)
            )
            routed = _between(routing, rows) > 0
            edges = [0, *(np.flatnonzero(far) + 1).tolist(), len(group)]
            for begin, end in pairwise(edges):
                loop = group[begin:end]
                if len(loop) < least:
                    continue
                by_rows = routed[begin : end - 1].mean() >= self.min_shown
                if (
                    by_rows
                    or self._joined(loop, everything, joins, tensors)
                    or self._numbered(ctx, loop, everything, picks)
                ):
                    yield loop

    def _numbered(self, ctx: Context, loop: Sequence[Product], everything: Rows, picks: Rows) -> bool:
        """Whether between two of them something is picked by the number of the repetition, a weight of each branch say: from
        a tensor with a dimension as long as the loop. Layers may do that, too, but have more products each."""
        rows = np.array([p.operator for p in loop], dtype=np.int64)
        if _between(everything, rows).max() > self.max_beside:
            return False
        inside = picks[slice(*np.searchsorted(picks, rows[[0, -1]]).tolist())]
        long = [len(loop) in operands.shape(0) for operands in ctx[OperatorInputs].of(inside.tolist())]
        picked = _between(inside[np.array(long, dtype=bool)], rows) > 0
        return bool(picked.mean() >= self.min_shown)

    def _joined(self, loop: Sequence[Product], everything: Rows, joins: Rows, tensors: Rows) -> bool:
        """Whether the next stack or cat of several is of as many tensors, with few products before it."""
        last = loop[-1].operator
        at = int(np.searchsorted(joins, last))
        if at == len(joins):
            return False
        passed = np.searchsorted(everything, joins[at]) - np.searchsorted(everything, last, side="right")
        return bool(passed <= self.max_beside and tensors[at] == len(loop))

    def _small(self, kernels: Work, gemms: Sequence[Product], mean_ns: float) -> bool:
        """By time on a GPU, whose clock nobody else moves; on a CPU by size."""
        if kernels.on_gpu:
            return mean_ns <= self.max_us * 1e3
        return sum(p.flop for p in gemms) <= self.max_flop_on_cpu * len(gemms)


_VERIFY = "Record the same steps again: one GEMM replaces each loop and the step is shorter."


def _everywhere(ctx: Context, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """These loops of one typical step, and the same loops in the others, where stacks tell which they are."""
    operator_loops = ctx.get(OperatorLoops)
    own_spans, others = intervals(spans), list(spans)
    for loop in operator_loops.loops if operator_loops is not None else ():
        if (covered(np.array(loop.spans), own_spans) > 0).any():
            others += loop.spans
    return others


def _weight(p: Product) -> tuple[str, int, int]:
    """What the products of a loop have in common."""
    return p.name, p.inner, p.columns


def _sizes(p: Product) -> tuple[int, ...]:
    return tuple(sorted((p.rows, p.inner, p.columns)))


def _between(marks: Rows, rows: Rows) -> Rows:
    """How many of the marks begin between each row and the next (rows are in order of their start)."""
    return np.asarray(
        np.searchsorted(marks, rows[1:], side="left") - np.searchsorted(marks, rows[:-1], side="right")
    )


def _site(ctx: Context, loops: Sequence[Sequence[Product]]) -> Site | None:
    """The innermost function that all products of the longest loop have in common."""
    sites = ctx.get(CallSites)
    if sites is None:
        return None
    loop = max(loops, key=len)
    nesting = ctx[Nesting]
    last = set(nesting.ancestors(loop[-1].operator))
    shared = (row for row in nesting.ancestors(loop[0].operator) if row in last)
    return next((site for row in shared if (site := sites.site(row)) is not None), None)


def _table(loops: Sequence[Sequence[Product]], per_step: float, of_all: str) -> Table:
    grouped: dict[tuple[str, int, int], list[Product]] = defaultdict(list)
    for loop in loops:
        grouped[_weight(loop[0])] += loop
    ranked = sorted(grouped.items(), key=lambda item: (-sum(p.ns for p in item[1]), item[0]))
    return table(
        "Loops over small GEMMs (forward)",
        {
            "operator": "text",
            "weight": "code",
            "rows": "text",
            "GEMMs/step": "count",
            "time/step": "us",
            of_all: "share",
        },
        [
            [
                name,
                f"{inner} × {columns}",
                f"{min(p.rows for p in own)}–{max(p.rows for p in own)}",
                len(own),
                sum(p.ns for p in own) / 1e3,
                sum(p.ns for p in own) / max(per_step, 1),
            ]
            for (name, inner, columns), own in ranked
        ],
    )
