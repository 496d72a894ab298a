"""TD303 unfused-attention."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Context, Fix, NotCaptured, Rule, Saving, Table, threshold
from trace_doctor.arrays import I64
from trace_doctor.evidence.compute.attention import AttentionChains
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid, without_gpu
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import site_of, table, target
from trace_doctor_rules.kernels import _unfused_attention_cases as cases
from trace_doctor_rules.kernels._shared import by_model, cost, kernel_table, longest_of, negligible
from trace_doctor_rules.kernels._unfused_attention_evidence import AttentionForm

_DROPOUT = re.compile(r"aten::(?:\w*dropout\w*|bernoulli_?)")


class UnfusedAttention(Rule):
    """Attention writes its score matrix to memory and reads it again for every operation.

    What it does
    Finds batched matmul, softmax, batched matmul in separate kernels: attention that is written out, or
    scaled_dot_product_attention (SDPA) with its math backend.

    Why is this bad
    The score matrix has tokens × tokens numbers for every head. Scale, mask, softmax and dropout each read and write all
    of it, and training saves it for backward. Fused kernels compute it tile by tile and never store it.

    Evidence
    Kernels of each stream in order: a softmax with a GEMM of `aten::bmm` or `baddbmm` on both sides, at most twelve
    kernels away. Between them no other GEMM runs, but one that computes the values (in a backward its gradients), as shapes
    tell: as many elements as the scores are multiplied with. Exponentials, their sum and a division count as a softmax; log-softmax does
    not. In a CUDA graph, which has no operators, GEMMs on both sides whose grids have the same depth are taken for
    batched; without grids the rule is skipped. Where shapes were recorded, the second matmul must multiply what the softmax is over. With stacks, modules
    called a feed-forward block, experts or a router do not count. Backward chains, with two GEMMs on each side, count as
    well. In a CPU-only capture operators take the place of kernels. With dropout no fused CPU kernel exists, and the rule
    does not report.

    How the saving is estimated
    A model: the kernels between the matmuls are saved, the matmuls stay. It is at most half of the whole chain, and never
    more than the captured steps gain without it (replay). On a CPU four fifths of the work between the matmuls are saved:
    a fused operator was measured to take about as long as the matmuls alone. The bytes are those of the score matrices
    that one forward saves for its backward.

    Fix
    Use torch.nn.functional.scaled_dot_product_attention; in Hugging Face models attn_implementation="sdpa". Where it is
    called already, the message says what excludes fused kernels, as far as types and shapes tell. sdpa_kernel tells the
    rest.

    Fix safety
    Unsafe: results are not bitwise identical, and dropout draws other numbers.

    When to ignore
    When the attention weights themselves are needed, or sequences are so short that launches dominate.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    https://arxiv.org/abs/2205.14135
    """

    code = "TD303"
    name = "unfused-attention"
    title = "Attention is not fused"
    server_fixes = (techniques.fused_attention_backend("Record the same load again: TD303 is gone"),)
    needs = (Steps, Work, AttentionChains, AttentionForm, Replay, Moments)
    wants = (CallSites, KernelSites)

    min_share: float = threshold(
        0.05,
        "unfused attention, matmuls included, as a share of kernel time",
        unit="share",
        source="a fused kernel saves about half of it: below, less than the 3% of a warning",
        note_from=NOTE_FROM,
    )
    most_of_chain: float = threshold(
        0.5,
        "share of a chain that the model saves, at most",
        unit="share",
        source="FlashAttention measured 2 to 4 times the speed of PyTorch's attention (arXiv 2205.14135)",
    )

    gone_on_cpu: float = threshold(
        0.8,
        "share of the work between the matmuls that a fused CPU operator saves",
        unit="share",
        source="torch 2.13, fp32, 64 to 768 positions: 0.5 to 1.1, with a mask 0.8 to 1.1 of it in most of 40 runs",
    )

    VALID = [
        Valid("a fused kernel", lambda: cases.training("flash"), thresholds={"min_share": 0.0}),
        Valid("the softmax of a classifier", lambda: cases.training("classifier")),
        Valid("a softmax over something else", lambda: cases.training("another softmax")),
        Valid("exponentials and sums that are no softmax", lambda: cases.training("exponentials")),
        Valid(
            "a CUDA graph of which no grid was recorded",
            lambda: cases.training("graph without grids"),
            skipped="nor grids tell",
        ),
        Valid("a router in a CUDA graph", lambda: cases.training("router in a graph")),
        Valid("a router over experts", lambda: cases.in_module("TopKRouter")),
        Valid("a feed-forward block", lambda: cases.in_module("SparseMoeBlock")),
        Valid("scores that a product changes", lambda: cases.training(inner=cases.OF_HEADS)),
        Valid(
            "scores that a product changes, with its backward",
            lambda: cases.training(training=True, inner=cases.OF_HEADS),
        ),
        Valid(
            "a product between of which no shape was recorded",
            lambda: cases.training(inner=cases.VALUES, shapes=False),
        ),
        Valid("a product between of another size", lambda: cases.training(inner=((2048, 512), (512, 512)))),
        Valid("little time", lambda: cases.training(us=2, other=2000)),
        Valid("GPU rows only", cases.without_operators, skipped="operator"),
        Valid("products on a CPU", lambda: without_gpu("aten::bmm")),
        Valid("on a CPU with dropout", lambda: cases.training(gpu=False, dropout=True)),
        Valid("on a CPU, fused", lambda: cases.training("flash", gpu=False)),
    ]
    INVALID = [
        Invalid(
            "written out", cases.training, message="matmul, softmax, matmul 4 times per step. It takes 1 ms per step, 38% of kernel time.", saving_us=500, tolerance=0.1, confidence="low",
            codemod="use-sdpa", before=cases.SCRIPT, after=cases.PATCHED,
        ),
        Invalid("of tensors without heads", lambda: cases.training("without heads"), codemod="use-sdpa", before=cases.SCRIPT, after=cases.PATCHED_WITHOUT_HEADS),
        Invalid("values computed after the softmax", lambda: cases.training(inner=cases.VALUES), message="4 times per step", saving_us=500, tolerance=0.1),
        Invalid("values computed by a convolution", lambda: cases.training(inner=cases.POINTWISE), message="4 times per step", saving_us=500, tolerance=0.1),
        Invalid("values computed after the softmax, with its backward", lambda: cases.training(training=True, inner=cases.VALUES), message="Forward and backward take", saving_us=800, tolerance=0.2),
        Invalid("values computed after the softmax, on a CPU", lambda: cases.training(gpu=False, inner=cases.VALUES), message="4 times per step"),
        Invalid("with its backward", lambda: cases.training(training=True), saving_bytes=4 * 64 * 512 * 512 * 2, message="Forward and backward take"),
        Invalid("SDPA in its math backend", lambda: cases.training("math"), message="uses the math backend", codemod="sdpa-backend"),
        Invalid("SDPA of heads that are too large", lambda: cases.training("math", query=(4, 16, 512, 320)), message="(head size 320 exceeds 256)"),
        Invalid("SDPA of three dimensions", lambda: cases.training("math", query=(64, 512, 64)), message="3-D inputs"),
        Invalid("SDPA of tensors whose shape is not in the file", lambda: cases.training("math", query=()), message="takes no mask"),
        Invalid("SDPA without a mask", lambda: cases.training("math", mask=False, query=(4, 16, 512, 256)), message="math backend 4 times"),
        Invalid("SDPA without shapes", lambda: cases.training("math", shapes=False), message="math backend 4 times"),
        Invalid("SDPA on a CPU", lambda: cases.training("math", gpu=False, query=(4, 16, 512, 320)), message="math backend 4 times", fixes=("sdpa_kernel",)),
        Invalid("SDPA of doubles on a CPU", lambda: cases.training("math", gpu=False, dtype="double"), message="math backend 4 times"),
        Invalid("inside a module", lambda: cases.training("module"), fixes=("need_weights",)),
        Invalid("most in SDPA's math backend", lambda: cases.in_math_form(3), codemod="sdpa-backend"),
        Invalid("half in SDPA's math backend", lambda: cases.in_math_form(2), codemod="use-sdpa"),
        Invalid("with dropout", lambda: cases.training(dropout=True), message="4 times per step"),
        Invalid("SDPA of doubles", lambda: cases.training("math", dtype="double"), message="double"),
        Invalid("without shapes", lambda: cases.training(shapes=False), codemod="use-sdpa"),
        Invalid("a softmax written out as well", lambda: cases.training("softmax by hand"), message="4 times per step"),
        Invalid("inside a CUDA graph", lambda: cases.training("graph"), message="4 times per step"),
        Invalid("inside a CUDA graph, and no operator anywhere", cases.without_any_operator, message="4 times per step"),
        Invalid("inside CUDA graphs that end in a softmax", cases.ends_in_a_softmax, message="once per step"),
        Invalid("products of a compiler", lambda: cases.training("templates"), message="4 times per step"),
        Invalid("on a CPU", lambda: cases.training(gpu=False), message="of operator time", saving_us=480, tolerance=0.05, codemod="use-sdpa"),
        Invalid("on a CPU, with its backward", lambda: cases.training(gpu=False, training=True), saving_us=666, tolerance=0.05),
        Invalid("a gated attention", lambda: cases.in_module("GatedAttention"), message="once per step"),
        Invalid("in two functions", cases.in_two_functions, message="in decode() (decoder.py) and 1 more function runs", file="decoder.py", shown="encode() (encoder.py) | 250"),
        Invalid("with stacks", lambda: cases.training(stacks=True), file="model.py"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        chains, kernels = ctx[AttentionChains], ctx[Work]
        whole = chains.products | chains.between
        share = kernels.share(whole)
        if not len(chains.softmax) or share < self.min_share:
            if chains.undecided:
                raise NotCaptured(
                    "CUDA graphs have a softmax between matmuls, and neither operators nor grids tell whether it is attention",
                    "some steps without CUDA graphs, or with CUPTI (torch 1.8.1 and later), which records grids",
                )
            return
        if (
            not kernels.on_gpu
            and kernels.launched_by(lambda n: _DROPOUT.fullmatch(n) is not None)[chains.between].any()
        ):
            return  # no fused kernel of the CPU draws dropout
        inside = kernels.us_per_step(chains.between)
        part = min(
            1.0 if kernels.on_gpu else self.gone_on_cpu,
            self.most_of_chain * kernels.us_per_step(whole) / max(inside, 1e-9),
        )
        saving = _with_bytes(
            by_model(
                kernels, ctx[Replay], chains.between, part,
                f"a fused kernel keeps scale, mask, softmax and dropout on chip; at most {self.most_of_chain:.0%} of the chain",
            ),
            chains,
        )  # fmt: skip
        form = ctx[AttentionForm]
        sites = _sites(ctx, chains)
        site = next(iter(sites), None)
        when = longest_of(kernels, whole)
        device = kernels.device if kernels.on_gpu else None
        yield Claim(
            message=_message(chains, form, share, saving, _where(sites)),
            confidence="low",
            saving=saving,
            location=location(site, device=device, ts_us=ctx[Moments].ts_us(when[0][0])),
            evidence=[
                _table(chains),
                *([_functions(sites)] if len(sites) > 1 else []),
                kernel_table(
                    "Kernels between the matmuls" if kernels.on_gpu else "Operators between the matmuls",
                    kernels,
                    chains.between,
                    ctx.get(KernelSites),
                ),
            ],
            spans=ctx[Moments].longest(when, "unfused attention", device=device),
            fixes=_fixes(form, site, on_gpu=kernels.on_gpu),
            key="math" if form.fell_back else "written out",
        )


def _with_bytes(saving: Saving, chains: AttentionChains) -> Saving:
    """The score matrices of a forward stay for its backward: there where there is one."""
    size = chains.score_bytes
    if not chains.backward.any() or not size or size > (chains.kernels.memory_bytes or size):
        return saving  # more than the device holds: then not all of them are kept (checkpointing)
    return Saving(
        time_us_per_step=saving.time_us_per_step,
        share_of_step=saving.share_of_step,
        bytes=size,
        basis=saving.basis,
        how=saving.how + "; the bytes are those of the score matrices that one forward saves for backward",
    )


def _sites(ctx: Context, chains: AttentionChains) -> dict[Site, float]:
    """The functions that ask for them, with what theirs take in the forward, us per step, the one of most first."""
    kernels = chains.kernels
    order = np.lexsort((np.arange(len(kernels.rows)), kernels.lane))
    place = np.argsort(order)
    softmax = chains.softmax[~chains.backward]
    softmax = softmax[np.argsort(place[softmax])]
    sites = [_place(ctx, kernels, at) for at in softmax.tolist()]
    if not any(sites):
        return {}
    rows = np.flatnonzero(chains.products | chains.between)
    every = np.sort(place[chains.softmax])
    own = every[_nearest(every, place[rows])]
    by_site: dict[Site, float] = {}
    for site in dict.fromkeys(s for s in sites if s is not None):
        mask = np.zeros(len(order), dtype=bool)
        mask[
            rows[np.isin(own, [p for p, s in zip(place[softmax].tolist(), sites, strict=True) if s == site])]
        ] = True
        by_site[site] = kernels.us_per_step(mask)
    return dict(sorted(by_site.items(), key=lambda s: -s[1]))


def _place(ctx: Context, kernels: Work, at: int) -> Site | None:
    """Where one of the kernels (operators) comes from; of a node of a CUDA graph no operator tells."""
    sites, operator = ctx.get(KernelSites), int(kernels.operator[at])
    if (
        sites is not None
        and sites.beyond_launches
        and kernels.on_gpu
        and (site := sites.site(int(kernels.rows[at])))
    ):
        return site
    return site_of(ctx, operator) if operator >= 0 else None


def _nearest(to: I64, places: I64) -> I64:
    """For each place the number of the one of `to` (ascending) that is nearest."""
    behind = np.clip(np.searchsorted(to, places), 1, max(len(to) - 1, 1))
    if len(to) == 1:
        return np.zeros(len(places), dtype=np.int64)
    return np.where(places - to[behind - 1] < to[behind] - places, behind - 1, behind)


def _where(sites: dict[Site, float]) -> str:
    """In which function, and in how many more."""
    if not sites:
        return ""
    first, more = next(iter(sites)), len(sites) - 1
    others = f" and {more} more function{'s' * (more > 1)}" if more else ""
    return f" in {first}{others}"


def _message(chains: AttentionChains, form: AttentionForm, share: float, saving: Saving, where: str) -> str:
    kernels = chains.kernels
    if form.fell_back:
        why = f" ({', '.join(form.refused)})" if form.refused else ""
        what = f"scaled_dot_product_attention{where} uses the math backend{why}"
    else:
        what = f"Attention{where} runs as matmul, softmax, matmul"
    often = _often(int((~chains.backward).sum()) / kernels.steps)
    takes = cost(kernels, kernels.us_per_step(chains.products | chains.between), share)
    both = "Forward and backward take" if chains.backward.any() else "It takes"
    return f"{what} {often}. {both} {takes}.{negligible(saving.share_of_step)}"


def _often(per_step: float) -> str:
    return (
        "less than once per step"
        if per_step < 0.5
        else "once per step"
        if per_step < 1.5
        else f"{per_step:,.0f} times per step"
    )


def _functions(sites: dict[Site, float]) -> Table:
    return table(
        "Functions that compute attention (forward)",
        {"function": "location", "time/step": "us"},
        [[str(site), us] for site, us in sites.items()],
        15,
    )


def _table(chains: AttentionChains) -> Table:
    kernels = chains.kernels
    steps = kernels.steps
    forward = int((~chains.backward).sum())
    return table(
        "Unfused attention",
        {
            "forward chains/step": "count",
            "backward chains/step": "count",
            "matmuls/step": "us",
            "between them/step": "us",
            "score matrices": "bytes",
        },
        [
            [
                round(forward / steps, 1),
                round((len(chains.softmax) - forward) / steps, 1),
                kernels.us_per_step(chains.products),
                kernels.us_per_step(chains.between),
                chains.score_bytes,
            ]
        ],
    )


_VERIFY = "Record the same steps again: flash, fmha or sdpa kernels replace the softmax and TD303 is gone."


def _fixes(form: AttentionForm, site: Site | None, *, on_gpu: bool) -> list[Fix]:
    place = target(site)
    if form.in_module:
        return [techniques.no_attention_weights(_VERIFY, place)]
    if form.fell_back:
        others = [techniques.attention_libraries(_VERIFY)] if on_gpu else []
        return [techniques.sdpa_backend(_VERIFY, place), *others]
    return [techniques.use_sdpa(_VERIFY, place, heads=form.has_heads)]
