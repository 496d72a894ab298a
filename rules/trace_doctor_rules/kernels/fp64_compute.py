"""TD311 fp64-compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from trace_doctor import NOTE_FROM, Claim, Context, NotCaptured, Rule, threshold
from trace_doctor.evidence.compute.work import Work
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.operator_inputs import RECORD_SHAPES, OperatorInputs
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules.kernels._shared import Bool, by_model, cost, kernel_table, longest_of, negligible

_DOUBLE = ("double", "c10::complex<double>")
_VERIFY = "Record the same steps again: TD311 is gone and the step is shorter."


def _training(
    type_: str = "double",
    kernel: str = "void at::native::vectorized_elementwise_kernel<4>",
    *,
    share: float = 0.8,
    gpu: bool = True,
    shapes: bool = True,
    index: str = "float",
    printed: bool = False,
    host_us: float = 2,
) -> RunBuilder:
    """Steps of 1 ms, of which operators with inputs of this type take `share`."""
    b = RunBuilder(shapes=shapes, stacks=True) if gpu else RunBuilder(gpu=None, shapes=shapes, stacks=True)
    for _ in range(5):
        with b.step(), b.python("train.py", 12, "train_step"):
            if printed:
                b.run_op("aten::min", dims=[[9]], types=["double"], host_us=15)
            for _ in range(10):
                for part, name, types in (
                    (share, kernel, [type_, type_]),
                    (1 - share, "relu", [index, "float"]),
                ):
                    with b.op("aten::addmm", dims=[[64, 64], [64, 64]], types=types, us=host_us):
                        if gpu:
                            b.launch(100 * part, name)
                        else:
                            b.wait(100 * part)
    return b


_SCRIPT = """import torch

model = torch.nn.Linear(1024, 1024).double()
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(x.double()), y)
    loss.backward()
    optimizer.step()
"""
_PATCHED = _SCRIPT.replace(".double()", ".float()")


class Fp64Compute(Rule):
    """The step computes in float64, which trains no better than float32 and takes twice as long or longer.

    What it does
    Adds up the time of operators whose inputs are float64 tensors, and of fp64 matmul and convolution kernels.

    Why is this bad
    float64 takes twice the bytes of float32 and, at best, half the speed. GPUs made for graphics compute it at 1/32 or
    1/64 of their fp32 speed, and no Tensor Core of theirs takes it. NumPy makes float64 by default: a batch that was
    never cast makes the model follow.

    Evidence
    The types of operators' inputs in the median steady step, where `record_shapes=True` kept them: scalars do not count.
    Without them only GEMM and convolution kernels whose names say fp64 (`dgemm`, `d884gemm`, `f64f64`).

    How the saving is estimated
    A model: half of that time, because half as many bytes move. It is never more than the captured steps gain without
    that work (replay). On GPUs made for graphics matmuls gain much more.

    Fix
    Make the model, the batches and the default type float32: `.float()` in place of `.double()`, and
    `torch.from_numpy(a).float()` for arrays of NumPy.

    Fix safety
    Unsafe: results differ in the seventh digit, random numbers of float32 are others, and sums over millions of values
    lose precision.

    When to ignore
    When the computation needs float64, as in physics, in solvers and in tests of gradients.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.set_default_dtype.html
    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions
    """

    code = "TD311"
    name = "fp64-compute"
    title = "Step computes in float64"
    needs = (Steps, Work, Replay, Moments)
    wants = (OperatorInputs, CallSites)

    min_saving: float = threshold(
        0.05,
        "half of the time of work with float64 inputs, as a share of the step",
        unit="share",
        source="what a person looks for; torch looks for the extremes of a tensor that is printed in float64",
        note_from=NOTE_FROM,
    )

    VALID = [
        Valid("float32", lambda: _training("float")),
        Valid("float32 on a CPU", lambda: _training("float", gpu=False)),
        Valid("a sum in float64", lambda: _training("float", index="double", share=0.995)),
        Valid("an optimizer's kernel, whose scalars are double", lambda: _training("float", "void multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>, double, double>", shapes=False), skipped="types"),
        Valid("a tensor is printed in the step", lambda: _training("float", share=0.6, gpu=False, printed=True)),
        Valid("a small fp64 matmul, and no types", lambda: _training(kernel="ampere_dgemm_128x64_tn", share=0.01, shapes=False), skipped="types"),
        Valid("no types, on a CPU", lambda: _training(gpu=False, shapes=False), skipped="types"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "float64 on a GPU",
            _training,
            message="float64 inputs take 800 µs per step, 80% of kernel time.",
            shown="vectorized_elementwise_kernel<4> | 10",
            saving_us=400,
            tolerance=0.1,
            confidence="medium",
            file="train.py",
            fixes=("float32",),
            codemod="single-precision",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid("matmuls, without types of inputs", lambda: _training(kernel="ampere_dgemm_128x64_tn", shapes=False), message="fp64"),
        Invalid("the host is the limit", lambda: _training(share=0.9, host_us=80), message="saving is negligible"),
        Invalid("on a CPU", lambda: _training(gpu=False), message="79% of operator time", saving_us=400, tolerance=0.15),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        work, inputs = ctx[Work], ctx.get(OperatorInputs)
        by_type = inputs is not None and work.share(work.operator < 0) < self.min_saving
        if inputs is not None and by_type:
            shown = _of_typical_step(work, inputs)
            mask = _with_double(shown, inputs)
        else:
            shown, mask = work, work.where(lambda c: c.kind in ("gemm", "conv") and c.precision == "fp64")
        us, share = shown.us_per_step(mask), shown.share(mask)
        if us / 2 < self.min_saving * ctx[Steps].step_ns / 1e3:
            if not by_type:
                raise NotCaptured("types of operators' inputs were not recorded", RECORD_SHAPES)
            return
        double = np.isin(work.rows, shown.rows[mask])
        saving = by_model(work, ctx[Replay], double, 0.5, "float32 has half the bytes", one_step=by_type)
        what = "Operators with float64 inputs take" if by_type else "fp64 GEMMs and convolutions take"
        yield Claim(
            message=f"{what} {cost(work, us, share)}. float32 takes half the bytes.{negligible(saving.share_of_step)}",
            confidence="medium",
            saving=saving,
            location=location(_main_site(work, double, ctx.get(CallSites))),
            evidence=[kernel_table("Work in float64", shown, mask)],
            spans=ctx[Moments].longest(longest_of(work, double), "float64"),
            fixes=[techniques.single_precision(_VERIFY)],
            key="fp64",
        )


def _of_typical_step(work: Work, inputs: OperatorInputs) -> Work:
    """The work that operators of the typical step launched."""
    there = np.isin(work.operator, inputs.typical(np.unique(work.operator[work.operator >= 0])))
    parts = {name: getattr(work, name)[there] for name in ("rows", "ns", "operator", "lane")}
    return replace(work, steps=1, **parts)


def _with_double(work: Work, inputs: OperatorInputs) -> Bool:
    """The work whose operator has a tensor of float64."""
    operators = np.unique(work.operator)
    double = [
        row
        for row, one in zip(operators.tolist(), inputs.of(operators.tolist()), strict=True)
        if any(kind in _DOUBLE for _, kind in one.tensors())
    ]
    return np.isin(work.operator, np.array(double, dtype=np.int64))


def _main_site(work: Work, double: Bool, call_sites: CallSites | None) -> Site | None:
    """The user's line below which most of it was launched; None where stacks do not tell."""
    if call_sites is None:
        return None
    spent: dict[Site, int] = {}
    for row, ns in zip(work.operator[double].tolist(), work.ns[double].tolist(), strict=True):
        if row >= 0 and (site := call_sites.site(row)) is not None:
            spent[site] = spent.get(site, 0) + ns
    return max(spent, key=spent.__getitem__, default=None)
