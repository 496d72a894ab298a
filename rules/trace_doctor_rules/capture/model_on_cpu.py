"""TD006 model-on-cpu."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Rule
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice


def _training(
    *, op: str = "aten::addmm", gpu: bool = True, wait: bool = True, kernels: bool = False
) -> RunBuilder:
    b = RunBuilder() if gpu else RunBuilder(gpu=None)
    for _ in range(3):
        with b.step(), b.op(op, us=500):
            if kernels:
                b.launch(100)
    if wait:
        b.sync()
    return b


class ModelOnCpu(Rule):
    """The machine has a GPU, and the model computes on the CPU.

    What it does
    Says so when the file names GPUs, nothing was launched on them, and products or convolutions ran on the host.

    Why is this bad
    A model or its batches that were never moved to the GPU train tens of times slower than they could.

    Evidence
    `deviceProperties` of the file, or the GPU in `environment.json` of a recording, no call that launches GPU work, and
    operators of oneDNN or NNPACK, which have no implementation for GPUs; or products and convolutions in a capture that
    recorded the GPU's runtime (its housekeeping calls are there): whatever was launched would be in it.

    How the saving is estimated
    It is not: nothing in the capture says how fast the GPU is at this.

    Fix
    Move the model before the optimizer is made, and each batch in the loop.

    Fix safety
    Only shown: where tensors are made is for people to say.

    When to ignore
    When the work is meant to run on the CPU.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html
    """

    code = "TD006"
    name = "model-on-cpu"
    title = "The model runs on the CPU"
    needs = (CaptureHealth,)

    VALID = [
        Valid("kernels are launched", lambda: _training(kernels=True)),
        Valid("a machine without a GPU", lambda: _training(gpu=False, wait=False)),
        Valid("the GPU was not asked for", lambda: _training(wait=False)),
        Valid("nothing is computed", lambda: _training(op="aten::empty")),
    ]
    INVALID = [
        Invalid(
            "products, and no launch in a profile of the GPU",
            _training,
            severity="warning",
            message="lists NVIDIA H100 80GB HBM3, but no kernel",
            fixes=("Move the model",),
        ),
        Invalid("operators of a CPU library", lambda: _training(op="aten::mkldnn_convolution", wait=False), severity="warning"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        health = ctx[CaptureHealth]
        if not health.devices or health.gpu_events or not health.ran_on_cpu:
            return
        names = ", ".join(dict.fromkeys(name or "an unnamed GPU" for name in health.devices))
        yield Claim(
            message=f"The capture lists {names}, but no kernel was launched. Matmuls or convolutions ran on the CPU.",
            confidence="high",
            severity="warning",
            fixes=[
                advice(
                    "Move the model and batches to the GPU",
                    'device = torch.device("cuda")\nmodel = model.to(device)   # before the optimizer is made\n'
                    "batch = batch.to(device, non_blocking=True)   # in the loop",
                    "",
                    "Record again: the trace holds kernels and TD006 is gone",
                )
            ],
            key="cpu",
        )
