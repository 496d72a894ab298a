"""TD407 optimizer-state-bound."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from trace_doctor import Claim, Context, NotCaptured, Rule, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import OPTIMIZER_STATE
from trace_doctor.evidence.memory.device_memory import DeviceMemory
from trace_doctor.evidence.memory.out_of_memory import Failure
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import PeakPassed
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules.memory._shared import (
    NEARLY_FULL,
    breakdown,
    holders,
    how_full,
    in_one_unit,
    peak_saving,
    where_tightest,
)  # fmt: skip

_VERIFY = "optimizer state in a new snapshot is smaller"
_REACHES_STEP = f"a smaller batch, so that optimizer.step() is reached: {CAPTURE_ADVICE}"


def _train(
    *, state_copies: int = 2, activations: int = 100, oom: int = 0, stacks: str | None = "all"
) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks)  # type: ignore[arg-type]
    b.train(3, parameters=[100 * MIB] * 4, activations=[activations * MIB] * 2, state_copies=state_copies)
    if oom:
        with b.forward("/home/me/model.py", 31):
            b.oom(oom * MIB, device_free=oom // 2 * MIB)
    return b


def _first_forward() -> SnapshotBuilder:
    """Memory runs out before the first step(), which would have made the state."""
    b = SnapshotBuilder()
    for _ in range(4):
        b.held(100 * MIB)
    for line in range(4):
        with b.forward("/home/me/model.py", 30 + line):
            b.alloc(200 * MIB)
    with b.forward("/home/me/model.py", 40):
        b.oom(500 * MIB, device_free=MIB)
    return b


class OptimizerStateBound(Rule):
    """A large part of the memory is optimizer state.

    What it does
    Checks what is allocated where memory is tightest: at a failed allocation, else at the peak. It reports how much of it the
    optimizer keeps from step to step.

    Why is this bad
    Adam keeps two numbers per parameter, twice the memory of the model, all the time. With plain data parallelism every rank
    keeps the same numbers.

    Evidence
    A snapshot's history: blocks that step() allocates and that outlive it. Older ones are recognized by their frames, by
    step() freeing them, or by their sizes. The device size comes from a failed allocation, a trace of the run, or the
    settings. If it is unknown, this is an info finding. A history that ends at its peak, not in a failed allocation, does not pass; nor does one
    in which an allocation fails before the first step(), because the state is made there.

    How the saving is estimated
    The reduction of peak allocated bytes with a quarter of the state, which 8 bits instead of 32 leave. State that is already
    in 16 bits can at most halve.

    Fix
    An 8-bit optimizer, Adafactor (HF `optim=`), ZeRO-1 or FSDP where several ranks hold the same state, or state offloaded to
    the host.

    Fix safety
    Shown only: another optimizer takes other steps, and how much precision may be lost is your choice.

    When to ignore
    When the job fits and does not have to grow.

    References
    https://huggingface.co/docs/bitsandbytes/optimizers
    https://docs.pytorch.org/docs/stable/distributed.optim.html
    """

    code = "TD407"
    name = "optimizer-state-bound"
    title = "Optimizer state dominates GPU memory"
    of_training = True
    needs = (MemoryBlocks, DeviceMemory)
    to_pass = (PeakPassed,)
    about = ("optimizer_state",)

    min_share: float = threshold(
        0.30,
        "optimizer state, as a share of the bytes allocated where memory is tightest",
        unit="share",
        source="AdamW in fp32 is half of parameters, gradients and state; below 0.3 activations are the larger part",
    )
    nearly_full: float = threshold(
        NEARLY_FULL,
        "peak, as a share of the device, from which this is a warning",
        unit="share",
        source="the peak leaves out the driver context, NCCL and fragmentation",
    )
    left: float = threshold(
        0.25, "part of the state that 8 bits leave", unit="share", source="8 of 32 bits per number"
    )

    VALID = [
        Valid("activations are far larger", lambda: _train(activations=2000)),
        Valid("SGD without momentum", lambda: _train(state_copies=0)),
        Valid("SGD without momentum, and an allocation failed", lambda: _train(state_copies=0, oom=500)),
        Valid("an allocation failed before the first step", _first_forward, skipped="no optimizer step"),
        Valid("no frames", lambda: _train(stacks=None, state_copies=0), skipped="no frames"),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid(
            "an allocation failed",
            lambda: _train(oom=500),
            message="Optimizer state holds 0.781 GiB of",
            severity="warning",
            confidence="high",
            codemod="replace-optimizer",
            saving_bytes=600 * MIB,
            fix_bytes=(600 * MIB, None, 800 * MIB),
            file="/home/me/train.py",
            line=14,
        ),
        Invalid("the device is nearly full", _train, options={"device_bytes": 1900 * MIB}, severity="warning"),
        Invalid("room enough", _train, options={"device_bytes": 80 * GIB}, severity="info"),
        Invalid("nothing says how large the device is", _train, severity="info", message="was not recorded"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence, memory = ctx[MemoryBlocks], ctx[DeviceMemory]
        claims = list(self._claims(evidence, memory))
        if not claims and evidence.frames_kind == "none":
            raise NotCaptured("no frames recorded", CAPTURE_ADVICE)
        if not claims and any(map(_without_state, memory.failures.values())):
            raise NotCaptured("no optimizer step recorded before the failed allocation", _REACHES_STEP)
        yield from claims

    def _claims(self, evidence: MemoryBlocks, memory: DeviceMemory) -> Iterator[Claim]:
        for device in memory.tightest(evidence.devices, self.nearly_full):
            moment = memory.moment(device)
            state_bytes = device.at(moment)["optimizer_state"]
            if state_bytes >= self.min_share * int(device.history.live[moment]):
                yield self._claim(memory, device, state_bytes, sure=evidence.frames_kind == "all")

    def _claim(self, memory: DeviceMemory, device: DeviceBlocks, state_bytes: int, *, sure: bool) -> Claim:
        history, moment = device.history, memory.moment(device)
        where = where_tightest(memory, device)
        live = int(history.live[moment])
        state = device.classes.where(OPTIMIZER_STATE)
        all_state, peak = history.bytes_over_time(state), history.peak_bytes
        eight_bit = peak_saving(
            peak,
            int((history.live - (1 - self.left) * all_state).max()),
            f"with {self.left:.0%} of the state (8 instead of 32 bits)",
        )
        offloaded = peak_saving(peak, int((history.live - all_state).max()), "without the state")
        alive = state & history.alive(moment)
        return Claim(
            message=f"Optimizer state holds {in_one_unit(state_bytes, live)} {where} ({state_bytes / live:.0%})."
            f"{how_full(memory, device)}",
            confidence="high" if sure else "medium",
            severity="warning" if memory.pressed(device, self.nearly_full) else "info",
            saving=eight_bit,
            location=location(device.caller(Stage.OPTIMIZER), device=device.device),
            evidence=[breakdown(device, moment, where), holders(device.holders(alive), "Optimizer state")],
            fixes=[
                replace(techniques.less_optimizer_state(_VERIFY), saving=eight_bit),
                techniques.adafactor(_VERIFY),
                replace(techniques.offload(_VERIFY), saving=offloaded),
            ],
            key="optimizer-state",
        )


def _without_state(failure: Failure) -> bool:
    """Before the first step there is no state; older state would be among the blocks of that class."""
    return failure.before_any_step and not failure.device.at(failure.moment)["optimizer_state"]
