"""TD408 unused-memory."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Location, NotCaptured, Rule, Table, threshold
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import GIB, MIB, Invalid, RunBuilder, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.memory._shared import in_one_unit
from trace_doctor_rules.memory._unused_memory_evidence import Headroom, Room

_VERIFY = "samples per second and peak reserved memory are higher"


def _steps(
    *,
    reserved: int = 8,
    kernel_us: float = 20,
    loader_us: float = 0,
    train: str = "optimizer",
    steps: int = 5,
    devices: int = 1,
    both: bool = False,
    size: int = 80,
) -> RunBuilder:
    """Steps of 50 small kernels that the host launches one after another, on a device of 80 GiB."""
    b = RunBuilder(memory=True, devices=devices, gpu_bytes=size * GIB)
    for _ in b.steps(steps):
        b.memory(MIB, reserved=reserved * GIB)
        if loader_us:
            b.loader(loader_us)
        for _ in range(50):
            b.run_op("aten::mm", kernel_us, host_us=40)
        if train == "optimizer":
            with b.optimizer_step():
                b.wait(5)
        elif train == "backward":
            with b.op("autograd::engine::evaluate_function: MmBackward0"):
                b.wait(5)
        for b.device in range(1, devices):
            b.memory(MIB, reserved=reserved * GIB)
            if both:
                b.launch(20)
        b.device = 0
        b.memory(-MIB, reserved=reserved * GIB)
    return b


def _one_of_unknown_size() -> RunBuilder:
    b = _steps(devices=2, both=True)
    del b.meta["deviceProperties"][1]
    return b


def _not_recorded() -> RunBuilder:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(20)
    return b


class UnusedMemory(Rule):
    """More than half of the GPU's memory is unused while the GPU waits for the host.

    What it does
    Compares peak reserved memory of a training run with the device's, where the GPU is idle for reasons that cost the same in
    every step, whatever the batch size.

    Why is this bad
    A step has costs that do not grow with the batch: launches, Python, the optimizer, one wait for the loss. A larger batch
    spreads them over more samples, and its kernels fill the SMs better.

    Evidence
    Total Reserved of a trace's `[memory]` events or a snapshot, the device's memory from the trace's device properties or the
    settings, the time breakdown of the steady steps, and a backward or an optimizer in them. A GPU that waits for data is not
    counted: a larger batch takes longer to load.

    How the saving is estimated
    Not estimated: only a run can tell how much faster a larger batch is. How large the batch can be follows from what grows with
    it, which a snapshot tells (activations, inputs, temporaries). Without a snapshot all memory is assumed to grow.

    Fix
    A larger batch. With gradient accumulation: fewer micro-batches.

    Fix safety
    Shown only: the learning rate and its schedule must follow the batch size.

    When to ignore
    When the batch size is fixed by the training recipe, or other jobs share the device.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD408"
    name = "unused-memory"
    title = "Most GPU memory is unused"
    of_training = True
    needs = (Headroom, Steps)
    to_pass = (RecordedOperators, IdleCauses)

    max_share: float = threshold(
        0.50,
        "peak reserved memory, as a share of the device",
        unit="share",
        source="the batch can then be doubled",
    )
    min_waits: float = threshold(
        0.10,
        "GPU idle for host work that does not grow with the batch, as a share of the steady steps",
        unit="share",
        source="below, the GPU is busy and a larger batch changes little",
    )
    fill: float = threshold(
        0.90, "part of the device that the proposed batch reserves", unit="share", source="a margin for peaks"
    )
    min_steps: int = threshold(3, "steady steps", source="fewer are a demonstration, not a job")

    VALID = [
        Valid("the device is busy", lambda: _steps(kernel_us=60)),
        Valid("most of the memory is used", lambda: _steps(reserved=50)),
        Valid("the device waits for data", lambda: _steps(kernel_us=60, loader_us=20_000)),
        Valid("inference", lambda: _steps(train="")),
        Valid("a device of unknown size", lambda: _steps(size=0), skipped="device size"),
        Valid("one step", lambda: _steps(steps=1)),
        Valid("memory was not recorded", _not_recorded, skipped="not recorded"),
        Valid("a snapshot alone", SnapshotBuilder, skipped="no profiler trace"),
    ]
    INVALID = [
        Invalid("a tenth of the device", _steps, message="at most 8.00 GiB of 80.0 GiB", severity="info", confidence="high"),
        Invalid(
            "the user says how large the device is",
            _steps,
            options={"device_bytes": 20 * GIB},
            thresholds={"max_share": 0.4, "min_steps": 5},
            message="A batch 2× as large fits.",
        ),
        Invalid("a backward and no optimizer", lambda: _steps(train="backward"), severity="info"),
        Invalid("beside a device of unknown size", _one_of_unknown_size, severity="info"),
        Invalid("beside a device that does nothing", lambda: _steps(devices=2), severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        headroom, steps = ctx[Headroom], ctx[Steps]
        if steps.source == "none":
            raise NotCaptured("no step markers", "call prof.step() after each step")
        if not headroom.trains or len(steps.steady) < self.min_steps:
            return
        low = [
            r for r in headroom.rooms if r.reserved <= self.max_share * r.size and r.waits >= self.min_waits
        ]
        if len(low) == len(headroom.rooms):
            yield self._claim(max(low, key=lambda r: r.reserved / r.size))

    def _claim(self, room: Room) -> Claim:
        factor = max(1, int(room.growth(self.fill)))
        return Claim(
            message=f"Training reserves at most {in_one_unit(room.reserved, room.size)}. The GPU waits {room.waits:.0%} of the time for "
            f"host work that does not grow with the batch. A batch {factor}× as large fits.",
            confidence="high",
            severity="info",
            location=Location(device=room.device),
            evidence=[_table(room)],
            fixes=[techniques.raise_batch(_VERIFY, factor)],
            key="unused",
        )


def _table(room: Room) -> Table:
    return table(
        f"Memory and time, device {room.device}",
        {"metric": "text", "bytes": "bytes", "share": "share"},
        [
            ["device memory", room.size, 1.0],
            ["peak reserved", room.reserved, room.reserved / room.size],
            ["grows with the batch", room.per_sample, None],
            ["GPU busy", None, room.busy],
            ["GPU waits for fixed host work", None, room.waits],
        ],
    )
