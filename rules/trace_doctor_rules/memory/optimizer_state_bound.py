"""TD407 optimizer-state-bound."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, NotCaptured, Rule, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.classes import OPTIMIZER_STATE
from trace_doctor.evidence.memory.device_memory import DeviceMemory
from trace_doctor.evidence.memory.stages import Stage
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules.memory._shared import (
    NEARLY_FULL,
    holders,
    how_full,
    make_up,
    peak_saving,
    size,
    where_tightest,
)  # fmt: skip

_VERIFY = "optimizer state in a new snapshot is smaller"


def _train(
    *, state_copies: int = 2, activations: int = 100, oom: int = 0, stacks: str | None = "all"
) -> SnapshotBuilder:
    b = SnapshotBuilder(stacks=stacks)  # type: ignore[arg-type]
    b.train(3, parameters=[100 * MIB] * 4, activations=[activations * MIB] * 2, state_copies=state_copies)
    if oom:
        with b.forward("/home/me/model.py", 31):
            b.oom(oom * MIB, device_free=oom // 2 * MIB)
    return b


class OptimizerStateBound(Rule):
    """A large part of the memory is the optimizer's state.

    What it does
    Looks at what the live bytes are where memory was tightest: at a failed allocation, else at the peak, and says how much
    of them the optimizer keeps from step to step.

    Why is this bad
    Adam keeps two numbers for every parameter, twice the memory of the model, all the time. On several ranks that train
    with plain data parallelism every one of them keeps the same numbers.

    Evidence
    A snapshot's history: blocks that step() made and that outlive it; older ones by their frames, by step() freeing them, or
    by their sizes, as the memory ledger says. How large the device is comes from a failed allocation, a trace of the run, or
    the settings; where nothing says it, this is a note.

    How the saving is estimated
    The fall of the highest live bytes with a quarter of the state, which is what eight bits instead of 32 leave. State that
    is kept in 16 bits already halves at most.

    Fix
    An 8-bit optimizer, Adafactor (HF `optim=`), ZeRO-1 or FSDP where several ranks hold the same, or state on the host.

    Fix safety
    Shown only: another optimizer takes other steps, and which loss of precision is bearable is a choice.

    When to ignore
    When the job fits and is not to grow.

    References
    https://huggingface.co/docs/bitsandbytes/optimizers
    https://docs.pytorch.org/docs/stable/distributed.optim.html
    """

    code = "TD407"
    name = "optimizer-state-bound"
    title = "Optimizer state fills the memory"
    needs = (MemoryBlocks, DeviceMemory)

    min_share: float = threshold(
        0.30,
        "optimizer state, as a share of the live bytes where memory was tightest",
        unit="share",
        source="AdamW in fp32 is half of parameters, gradients and state; below 0.3 activations are the larger part",
    )
    nearly_full: float = threshold(
        NEARLY_FULL,
        "peak, as a share of the device, from which this is a warning",
        unit="share",
        source="what a driver context, NCCL and fragmentation need is left out of the peak",
    )
    left: float = threshold(
        0.25, "part of the state that eight bits leave", unit="share", source="8 of 32 bits per number"
    )

    VALID = [
        Valid("activations are far larger", lambda: _train(activations=2000)),
        Valid("SGD without momentum", lambda: _train(state_copies=0)),
        Valid("no frames", lambda: _train(stacks=None, state_copies=0), skipped="no frames"),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid(
            "an allocation failed",
            lambda: _train(oom=500),
            message="800 MiB",
            severity="warning",
            confidence="high",
            codemod="replace-optimizer",
            saving_bytes=600 * MIB,
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
            raise NotCaptured(
                "no frames were recorded, so the optimizer's state cannot be told apart", CAPTURE_ADVICE
            )
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
        saved_bytes = (1 - self.left) * history.bytes_over_time(state)
        after = int((history.live - saved_bytes).max())
        alive = state & history.alive(moment)
        return Claim(
            message=f"The optimizer keeps {size(state_bytes)} of the {size(live)} live {where} ({state_bytes / live:.0%})"
            f"{how_full(memory, device)}.",
            confidence="high" if sure else "medium",
            severity="warning" if memory.pressed(device, self.nearly_full) else "info",
            saving=peak_saving(
                history.peak_bytes, after, f"with {self.left:.0%} of the state (8 bits instead of 32)"
            ),
            location=location(device.caller(Stage.OPTIMIZER), device=device.device),
            evidence=[
                make_up(device, moment, f"Live {where}"),
                holders(device.holders(alive), "Optimizer state"),
            ],
            fixes=[techniques.less_optimizer_state(_VERIFY), techniques.offload(_VERIFY)],
            key="optimizer-state",
        )
