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
from trace_doctor_rules.memory._shared import size
from trace_doctor_rules.memory._unused_memory_evidence import Headroom, Room

_VERIFY = "samples per second have risen, and so has the largest reserved memory"


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
    for _ in range(steps):
        with b.step():
            b.memory(MIB, reserved=reserved * GIB)
            if loader_us:
                b.loader(loader_us)
            for _ in range(50):
                with b.op("aten::mm", us=40):
                    b.launch(kernel_us)
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
    """More than half of the device's memory is never used, and the device waits for the host.

    What it does
    Compares the largest reserved memory of a training run with the device's, where the device is idle for reasons that cost
    the same in every step, whatever the batch.

    Why is this bad
    A step has costs that do not grow with the batch: launches, Python, the optimizer, one wait for the loss. A larger batch
    spreads them over more samples, and the kernels fill the device better.

    Evidence
    Total Reserved of a trace's `[memory]` events or a snapshot, the device's memory from the trace's device properties or the
    settings, the time ledger of the steady steps, and a backward or an optimizer in them. A device that waits for data is
    none of this: a larger batch takes longer to load.

    How the saving is estimated
    There is none: how much faster a larger batch is only a run can say. How large it may be follows from what grows with it,
    which a snapshot tells (activations, inputs, temporaries); without one as if all memory grew.

    Fix
    A larger batch. Where several are accumulated before a step: fewer of them.

    Fix safety
    Shown only: the learning rate and its schedule have to follow the batch.

    When to ignore
    When the batch is set by what is to be learned, or other jobs share the device.

    References
    https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    code = "TD408"
    name = "unused-memory"
    title = "More than half of the device's memory is never used"
    needs = (Headroom, Steps)
    to_pass = (RecordedOperators, IdleCauses)

    max_share: float = threshold(
        0.50,
        "largest reserved, as a share of the device",
        unit="share",
        source="the batch can then be doubled",
    )
    min_waits: float = threshold(
        0.10,
        "idle by host causes that a step costs whatever its batch, as a share of the steady steps",
        unit="share",
        source="below, the device is saturated in time and the batch changes little",
    )
    fill: float = threshold(
        0.90,
        "part of the device that the proposed batch is to reserve",
        unit="share",
        source="a margin for peaks",
    )
    min_steps: int = threshold(3, "steady steps", source="fewer are a demonstration, not a job")

    VALID = [
        Valid("the device is busy", lambda: _steps(kernel_us=60)),
        Valid("most of the memory is used", lambda: _steps(reserved=50)),
        Valid("the device waits for data", lambda: _steps(kernel_us=60, loader_us=20_000)),
        Valid("inference", lambda: _steps(train="")),
        Valid("a device of unknown size", lambda: _steps(size=0), skipped="how large the device is"),
        Valid("one step", lambda: _steps(steps=1)),
        Valid("memory was not recorded", _not_recorded, skipped="not recorded"),
        Valid("a snapshot alone", SnapshotBuilder, skipped="no profiler trace"),
    ]
    INVALID = [
        Invalid("a tenth of the device", _steps, message="8 GiB of 80 GiB", severity="info", confidence="high"),
        Invalid(
            "the user says how large the device is",
            _steps,
            options={"device_bytes": 20 * GIB},
            thresholds={"max_share": 0.4, "min_steps": 5},
            message="2 times",
        ),
        Invalid("a backward and no optimizer", lambda: _steps(train="backward"), severity="info"),
        Invalid("beside a device of unknown size", _one_of_unknown_size, severity="info"),
        Invalid("beside a device that does nothing", lambda: _steps(devices=2), severity="info"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        headroom, steps = ctx[Headroom], ctx[Steps]
        if steps.source == "none":
            raise NotCaptured("no steps are marked", "call prof.step() after each training step")
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
            message=f"Training reserves {size(room.reserved)} of {size(room.size)} at most, and for {room.waits:.0%} of the time the "
            f"device waits for work of the host that a larger batch does not repeat: one {factor} times as large would fit.",
            confidence="high",
            severity="info",
            location=Location(device=room.device),
            evidence=[_table(room)],
            fixes=[techniques.raise_batch(_VERIFY, factor)],
            key="unused",
        )


def _table(room: Room) -> Table:
    return table(
        f"Memory and time of device {room.device}",
        {"what": "text", "bytes": "bytes", "share": "share"},
        [
            ["memory of the device", room.size, 1.0],
            ["largest reserved", room.reserved, room.reserved / room.size],
            ["of it growing with the batch", room.per_sample, None],
            ["device busy", None, room.busy],
            ["device waits for work that every step costs", None, room.waits],
        ],
    )
