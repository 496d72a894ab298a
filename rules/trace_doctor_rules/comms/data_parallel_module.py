"""TD603 data-parallel-module."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Rule, Saving
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.intervals import intersect, intervals, total
from trace_doctor.evidence.trace.gpu_timeline import COMPUTE, GpuTimeline
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table


def _training(devices: int, *, marked: bool = True, stacks: bool = False) -> RunBuilder:
    """One process scatters a batch, copies the model to each device and computes there, one after the other."""
    b = RunBuilder(devices=devices, stacks=stacks)
    for _ in b.steps(4):
        b.loader(5)
        mark = b.annotation("DataParallel.forward" if marked else "forward")
        with mark, b.python("torch/nn/parallel/data_parallel.py", 140, "forward"):
            for device in range(devices):
                b.device = device
                with b.op("aten::mm"):
                    b.wait(300)
                    b.launch(600)
        b.device = 0
        b.idle_until_done()
    return b


class DataParallelModule(Rule):
    """One process drives several GPUs with `nn.DataParallel`.

    What it does
    Reports `DataParallel.forward` in a capture in which more than one GPU works.

    Why is this bad
    DataParallel copies the model to every GPU in every step and runs all GPUs from threads of one Python process that block each
    other. It gathers all outputs and gradients on the first GPU, whose memory is full first.

    Evidence
    The annotation `DataParallel.forward`, a frame or an operator of the module, and GPU work on two or more devices in the window.

    How the saving is estimated
    A model: one process per GPU takes as long as the busiest GPU computes, with its communication overlapped.

    Fix
    DistributedDataParallel, one process per GPU.

    Fix safety
    Advice only: the launcher, the sampler and the batch size per process change.

    When to ignore
    Where torchrun cannot start the script, as in a notebook.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
    https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    code = "TD603"
    name = "data-parallel-module"
    title = "nn.DataParallel runs several GPUs"
    of_training = True
    needs = (Parallelism, GpuTimeline, Steps)

    VALID = [
        Valid("one GPU", lambda: _training(1)),
        Valid("several GPUs without DataParallel", lambda: _training(2, marked=False)),
    ]
    INVALID = [
        Invalid("two GPUs", lambda: _training(2), message="2 GPUs"),
        Invalid(
            "before torch marked it, with stacks",
            lambda: _training(2, marked=False, stacks=True),
            message="2 GPUs",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        timeline, steps = ctx[GpuTimeline], ctx[Steps]
        if not ctx[Parallelism].data_parallel or len(timeline.devices) < 2:
            return
        spans = intervals(steps.on_device("steady"))
        computing = {
            d: total(intersect(timeline.work(d, COMPUTE), spans)) / steps.count for d in timeline.devices
        }
        longest, step = max(computing.values()), steps.step_ns
        saved = max(step - longest, 0.0)
        yield Claim(
            message=(
                f"nn.DataParallel drives {len(computing)} GPUs from one process. The busiest GPU computes for "
                f"{milliseconds(longest / 1e3)} of the {milliseconds(step / 1e3)} step."
            ),
            confidence="medium",
            saving=Saving(
                time_us_per_step=saved / 1e3,
                share_of_step=saved / step,
                basis="model",
                how="a step as long as the compute of the busiest GPU, with all communication overlapped",
            ),
            evidence=[
                table(
                    "Compute per steady step",
                    {"device": "count", "compute": "us", "share of step": "share"},
                    [[device, ns / 1e3, ns / step] for device, ns in computing.items()],
                )
            ],
            fixes=[
                techniques.data_parallel(
                    "record one rank of the new run: TD603 is gone and the step is shorter"
                )
            ],
            key="data-parallel",
        )
