"""TD302 unaligned-dims."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Context, Fix, Location, Rule, Table, threshold
from trace_doctor.arrays import I64
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.compute.matmuls import Product, Products
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.names.kernel_names import kernel_class, neither_transposed
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.evidence.trace.recorded_operators import OperatorsOfWork, RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules._shared import advice, table, target
from trace_doctor_rules.kernels._shared import by_model, cost, kernel_table, longest_of, negligible

_GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x3_tn_align8>"


def _training(
    vocabulary: int = 50257,
    *,
    tokens: int = 8192,
    dtype: str = "c10::BFloat16",
    shapes: bool = True,
    us: float = 400.0,
    bias: bool = False,
    stacks: bool = False,
    hidden: int = 768,
    width: int = 3072,
) -> RunBuilder:
    """A block with aligned products, and the projection to a vocabulary: forward and backward."""
    b = RunBuilder(shapes=shapes, stacks=stacks)
    for _ in range(4):
        with b.step(), b.python("model.py", 70, "forward"):
            for _ in range(4):
                with b.op("aten::linear"):
                    _mm(b, (tokens, hidden), (hidden, width), dtype, 100 * width / 3072)
            with b.op("aten::linear"):
                if bias:
                    with b.op(
                        "aten::addmm",
                        us=2,
                        dims=[[vocabulary], [tokens, hidden], [hidden, vocabulary]],
                        types=[dtype] * 3,
                    ):
                        b.launch(us, _GEMM)
                else:
                    _mm(b, (tokens, hidden), (hidden, vocabulary), dtype, us)
            with b.thread(200), b.op("autograd::engine::evaluate_function: MmBackward0"):
                _mm(b, (tokens, vocabulary), (vocabulary, hidden), dtype, us)
                _mm(b, (vocabulary, tokens), (tokens, hidden), dtype, us)
            b.wait(20)
    return b


def _alone(kernel: str, size: int = 4097, inner: int = 4097, bias: bool = False) -> RunBuilder:
    """Nothing but products of as many rows as columns."""
    b = RunBuilder(shapes=True)
    for _ in b.steps(4):
        dims = [*[[size]] * bias, [size, inner], [inner, size]]
        with b.op("aten::addmm" if bias else "aten::mm", us=2, dims=dims, types=["c10::BFloat16"] * 3):
            b.launch(400, kernel)
        b.wait(20)
    return b


def _batched(align: int, *, shapes: bool = True, of: str = _GEMM) -> RunBuilder:
    """Batched products of 90 x 77 matrices, whose kernel names the width of its loads."""
    kernel = of.replace("align8", f"align{align}")
    b = RunBuilder(shapes=shapes)
    for _ in b.steps(4):
        dims = [[64, 90, 64], [64, 64, 77]]
        b.run_op("aten::bmm", 400, kernel, host_us=2, dims=dims, types=["c10::BFloat16"] * 2)
        b.wait(20)
    return b


def _mm(b: RunBuilder, a: Sequence[int], w: Sequence[int], dtype: str, us: float) -> None:
    b.run_op("aten::mm", us, _GEMM, host_us=2, dims=[list(a), list(w)], types=[dtype] * 2)


class UnalignedDims(Rule):
    """Half-precision GEMMs have dimensions that Tensor Cores cannot load efficiently.

    What it does
    Finds fp16 and bf16 GEMMs with a weight whose height or width is not a multiple of 8, and kernels of other GEMMs, batched ones
    too, that load fewer numbers at a time.

    Why is this bad
    Tensor Cores load 16 bytes at a time, which are 8 half-precision numbers. Where a row does not start at such a
    boundary, slower kernels with narrower loads run, in forward and backward. A vocabulary of 50257 is the classic case.

    Evidence
    Shapes and types of `aten::mm` and `aten::addmm` in a typical step. The dimensions of weights are taken from the
    forward (inner and last dimension of a GEMM). A backward GEMM counts where one of its three dimensions is such a one.
    Batch and token counts and biases do not count, nor do shapes of batched GEMMs. A kernel that is named by its loads (`align1`,
    `align2`: so many numbers at a time) is evidence by itself, also where shapes were not recorded. A GEMM with as many rows as columns counts only where
    its kernel reads both operands untransposed: otherwise it may multiply a matrix with its own transpose, over tokens.

    How the saving is estimated
    A model: these GEMMs run at the FLOP rate of the aligned half-precision GEMMs of the same step that are half as large
    or more, with at most half of their time saved. Without GEMMs to compare with, a quarter is assumed. It is never more
    than the captured steps gain without these GEMMs (replay).

    Fix
    Pad the vocabulary, the hidden size or the number of classes to a multiple of 8, better of 64.

    Fix safety
    Only shown: checkpoints get other shapes, and padded logits must be masked or cut off.

    When to ignore
    When the shape is given by a published checkpoint.

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html#requirements-tc
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD302"
    name = "unaligned-dims"
    title = "GEMM dimensions misaligned for Tensor Cores"
    needs = (Steps, Kernels, Replay, Moments)
    wants = (Products, OperatorInputs, CallSites, KernelSites)
    to_pass = (RecordedOperators, OperatorsOfWork, IdleCauses)

    min_share: float = threshold(
        0.03,
        "GEMMs with misaligned weights, as a share of kernel time",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    multiple: int = threshold(
        8,
        "elements that a dimension should be a multiple of",
        source="16 bytes: NVIDIA's requirements for Tensor Cores",
    )
    most_narrow: int = threshold(
        2,
        "numbers that a kernel loads at a time, by its name, up to which its operands are misaligned",
        source="4 bytes, a quarter of what Tensor Cores load: cuBLAS and CUTLASS name their kernels by it",
    )
    min_part: float = threshold(
        0.05,
        "share of their time saved, below which the dimensions do no harm",
        unit="share",
        source="GEMMs of one size vary by a few per cent",
    )
    most_part: float = threshold(
        0.5,
        "share of their time saved, at most",
        unit="share",
        source="NVIDIA's guide shows up to twice the speed",
    )
    min_comparable: float = threshold(
        0.5,
        "size of an aligned GEMM for comparison, as a share of the smallest misaligned one",
        unit="share",
        source="smaller ones run at a lower rate whatever their dimensions",
    )
    unknown_part: float = threshold(
        0.25,
        "share of their time saved where there is no aligned GEMM to compare with",
        unit="share",
        source="a guess on the safe side: NVIDIA's guide shows up to twice the speed",
    )

    VALID = [
        Valid("a padded vocabulary", lambda: _training(50304), thresholds={"min_share": 0.0}),
        Valid("an odd number of tokens", lambda: _training(50304, tokens=8191), thresholds={"min_part": 0.0}),
        Valid("no more to be had", lambda: _training(us=2400, width=49152), thresholds={"most_part": 0.01}),
        Valid("no more to be guessed", lambda: _training(us=2400), thresholds={"unknown_part": 0.01}),
        Valid("fp32", lambda: _training(dtype="float")),
        Valid("little time", lambda: _training(us=3)),
        Valid("as fast as aligned ones", lambda: _training(us=1636, width=49152)),
        Valid("a matrix times its own transpose", lambda: _alone(_GEMM)),
        Valid("the same with Tensile", lambda: _alone("Cijk_Alik_Bljk_BBS_BH_MT128x64x64_MI32x32x8x1", 1025, 8192)),
        Valid("batched, in loads of 8 bytes", lambda: _batched(4)),
        Valid("batched, in fp32", lambda: _batched(1, of="void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align8>")),
        Valid("batched, a small part", lambda: _batched(1), thresholds={"min_share": 1.01}),
        Valid("no shapes", lambda: _training(shapes=False), skipped="shapes"),
        Valid("no GPU", without_gpu, skipped="no GPU work"),
    ]  # fmt: skip
    INVALID = [
        Invalid("a vocabulary of 50257", _training, message="GEMMs with misaligned dimensions take 1.2 ms per step, 75% of kernel time. Not divisible by 8: 50257.", confidence="low"),
        Invalid(
            "as large as an aligned one, and slower", lambda: _training(us=2400, width=49152), saving_us=3 * (2400 - 1636),
        ),
        Invalid("nothing to compare with", lambda: _training(us=2400), saving_us=3 * 600, thresholds={"min_part": 0.25}),
        Invalid("with a bias", lambda: _training(bias=True), message="50257"),
        Invalid("a hidden size of 770", lambda: _training(50304, hidden=770), message="770"),
        Invalid("square, of two matrices", lambda: _alone(_GEMM.replace("_tn_", "_nn_")), message="4097"),
        Invalid("square, with a bias", lambda: _alone(_GEMM, bias=True), message="4097"),
        Invalid("the same with Tensile", lambda: _alone("Cijk_Ailk_Bljk_BBS_BH_MT128x64x64_MI32x32x8x1", 1025, 8192), message="Not divisible by 8: 1025."),
        Invalid("batched, one number at a time", lambda: _batched(1), message="load 1 number at a time. Not divisible by 8: 90, 77.", saving_us=100, fixes=("multiple of 8",)),
        Invalid("the same without shapes", lambda: _batched(2, shapes=False), message="load 2 numbers at a time.", fixes=("multiple of 8",)),
        Invalid("with stacks", lambda: _training(stacks=True), file="model.py"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels, replay = ctx[Kernels], ctx[Replay]
        products = _products(ctx)
        by_name = self._by_name(ctx, {p.name for p in products})
        if by_name is not None:
            yield by_name
        elif (missing := ctx.missing(Products)) is not None:
            raise missing
        sizes = {n for p in products if not p.backward for n in (p.inner, p.columns) if n % self.multiple}
        bad = [p for p in products if self._unaligned(p, sizes)]
        per_step = kernels.total / kernels.steps
        ns = sum(p.ns for p in bad)
        if not bad or ns < self.min_share * per_step:
            return
        operators = np.array([p.operator for p in bad], dtype=np.int64)
        mask = np.isin(kernels.operator, operators)
        part, assumed = self._part(bad, [p for p in products if p not in bad])
        if part < self.min_part:
            return
        saving = by_model(kernels, replay, mask, part, assumed, one_step=True)
        longest = max(bad, key=lambda p: p.ns)
        site = _site(ctx, bad)
        odd_sizes = ", ".join(str(n) for n in sorted(_used(bad, sizes), reverse=True)[:4])
        yield Claim(
            message=(
                f"Half-precision GEMMs{f' in {site}' if site else ''} with misaligned dimensions take {cost(kernels, ns / 1e3, ns / per_step)}. "
                f"Not divisible by {self.multiple}: {odd_sizes}.{negligible(saving.share_of_step)}"
            ),
            confidence="low",
            saving=saving,
            location=location(
                site, device=kernels.device, ts_us=ctx[Moments].ts_us(int(kernels.run.ts[longest.operator]))
            ),
            evidence=[_table(bad, per_step)],
            spans=ctx[Moments].longest(longest_of(kernels, mask), "misaligned GEMM", device=kernels.device),
            fixes=[_fix(sorted(_used(bad, sizes), reverse=True)[0], self.multiple, site)],
            key="unaligned",
        )

    def _by_name(self, ctx: Context, judged: Set[str]) -> Claim | None:
        """Of kernels that name their narrow loads, but for those of operators that are judged by their shapes."""
        kernels = ctx[Kernels]
        mask = kernels.named(lambda name: _loads(name) <= self.most_narrow) & ~kernels.launched_by(
            judged.__contains__
        )
        ns = int(kernels.ns[mask].sum())
        if not ns or ns < self.min_share * kernels.total:
            return None
        saving = by_model(
            kernels,
            ctx[Replay],
            mask,
            self.unknown_part,
            "there is no aligned GEMM of these shapes to compare with",
        )
        narrow = max(_loads(name) for name, *_ in kernels.by_name(mask))
        odd = _odd(ctx, kernels.by_operator(mask)[0], self.multiple)
        dims = f" Not divisible by {self.multiple}: {', '.join(map(str, odd))}." if odd else ""
        return Claim(
            message=(
                f"Half-precision GEMMs that take {cost(kernels, kernels.us_per_step(mask), kernels.share(mask))} load "
                f"{narrow} number{'s' * (narrow > 1)} at a time.{dims}{negligible(saving.share_of_step)}"
            ),
            confidence="low",
            saving=saving,
            location=Location(device=kernels.device),
            evidence=[kernel_table("GEMM kernels with narrow loads", kernels, mask, ctx.get(KernelSites))],
            spans=ctx[Moments].longest(longest_of(kernels, mask), "misaligned GEMM", device=kernels.device),
            fixes=[_any_fix(self.multiple)],
            key="narrow loads",
        )

    def _unaligned(self, p: Product, sizes: set[int]) -> bool:
        """In forward the rows are batch and tokens; in backward any of the three may be a weight's size."""
        dims = (p.inner, p.columns) if not p.backward else (p.rows, p.inner, p.columns)
        return any(n in sizes for n in dims)

    def _part(self, bad: Sequence[Product], good: Sequence[Product]) -> tuple[float, str]:
        """How much of their time goes, and why."""
        least = self.min_comparable * min(p.flop for p in bad)
        good = [p for p in good if p.flop >= least]
        time = sum(p.ns for p in good)
        if not time:
            return self.unknown_part, "there is no aligned half-precision GEMM as large to compare with"
        aligned = sum(p.flop for p in good) / time
        slow = sum(p.flop for p in bad) / sum(p.ns for p in bad)
        part = min(max(1 - slow / aligned, 0.0), self.most_part)
        return (
            part,
            f"aligned GEMMs of the step run at {aligned / 1e3:,.1f} TFLOP/s, these at {slow / 1e3:,.1f} TFLOP/s",
        )


def _products(ctx: Context) -> list[Product]:
    """Those in half precision, without products of a matrix with its own transpose, whose inner size may be that of tokens; none
    where shapes were not recorded."""
    kernels, products = ctx[Kernels], ctx.get(Products)
    if products is None:
        return []
    as_they_lie = set(kernels.operator[kernels.named(neither_transposed)].tolist())
    return [
        p
        for p in products.all
        if p.half and (p.name != "aten::mm" or p.rows != p.columns or p.operator in as_they_lie)
    ]


_LOADS = re.compile(r"_align(\d+)(?!\d)")


def _loads(name: str) -> int:
    """How many numbers at a time a half-precision GEMM loads; of others, and where the name does not say, very many."""
    kernel = kernel_class(name)
    loads = _LOADS.search(name) if kernel.kind == "gemm" and kernel.precision in ("fp16", "bf16") else None
    return int(loads.group(1)) if loads else 1 << 30


def _odd(ctx: Context, operators: I64, multiple: int) -> list[int]:
    """The heights and widths of their matrices that are no multiples, the first four of them."""
    inputs = ctx.get(OperatorInputs)
    if inputs is None:
        return []
    tensors = [shape for each in inputs.of(inputs.typical(operators).tolist()) for shape, _ in each.tensors()]
    return sorted({n for shape in tensors for n in shape[-2:] if n % multiple}, reverse=True)[:4]


def _used(bad: Sequence[Product], sizes: set[int]) -> set[int]:
    return {n for p in bad for n in (p.rows, p.inner, p.columns) if n in sizes}


def _site(ctx: Context, bad: Sequence[Product]) -> Site | None:
    sites = ctx.get(CallSites)
    forward = [p for p in bad if not p.backward]
    if sites is None:
        return None
    return sites.site(max(forward, key=lambda p: p.ns).operator)


def _table(bad: Sequence[Product], per_step: float) -> Table:
    grouped: dict[tuple[int, int, int, bool], tuple[int, int]] = {}
    for p in bad:
        key = (p.rows, p.inner, p.columns, p.backward)
        count, ns = grouped.get(key, (0, 0))
        grouped[key] = (count + 1, ns + p.ns)
    ranked = sorted(grouped.items(), key=lambda item: (-item[1][1], item[0]))
    return table(
        "Misaligned GEMMs",
        {
            "M × K × N": "code",
            "pass": "text",
            "count/step": "count",
            "time/step": "us",
            "of kernel time": "share",
        },
        [
            [f"{m} × {k} × {n}", "backward" if back else "forward", count, ns / 1e3, ns / max(per_step, 1)]
            for (m, k, n, back), (count, ns) in ranked
        ],
    )


def _any_fix(multiple: int) -> Fix:
    return advice(
        title=f"Pad the dimensions to a multiple of {multiple}",
        text=f"the last dimension of each operand, and where it is transposed the one before: a multiple of {multiple} numbers\n"
        "# sequence lengths: DataCollatorWithPadding(tokenizer, pad_to_multiple_of=8); an attention mask hides what is padded\n"
        "# views that begin at an odd offset: .contiguous() copies them to an aligned one",
        verify="Record the same steps again: the kernels are named align8 and take less time.",
        risk="what is padded must be masked",
    )


def _fix(size: int, multiple: int, site: Site | None) -> Fix:
    padded = -(-size // 64) * 64
    return advice(
        title=f"Pad {size} to {padded}",
        target=target(site),
        text=(
            f"a layer with {size} inputs or outputs: use {padded} (a multiple of {multiple}, better of 64)\n"
            f"# vocabulary: nn.Embedding({padded}, ...), nn.Linear(..., {padded}); ignore the logits from {size} on\n"
            "# HF: model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)"
        ),
        verify="Record the same steps again: the GEMMs have padded dimensions and take less time.",
        risk="checkpoints have other shapes; padded logits must be masked or cut off",
    )
