"""TD604 replicated-states."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Location, Rule, Saving, threshold
from trace_doctor.evidence.distributed.parallelism import Parallelism
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.testing import MIB, Invalid, RunBuilder, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.memory._shared import size


def _trained(
    *,
    mark: str = "DistributedDataParallel.forward",
    within: str = "layer",
    world: int = 8,
    activations: int = 50,
) -> tuple[RunBuilder, SnapshotBuilder]:
    """One rank: its trace and its snapshot."""
    trace = RunBuilder(rank=0, world_size=world)
    for _ in range(3):
        with trace.step(), trace.annotation(mark):
            with trace.op("aten::mm"), trace.annotation(within):
                trace.launch(100)
            trace.sync()
    memory = SnapshotBuilder()
    memory.train(3, parameters=[100 * MIB] * 4, activations=[activations * MIB] * 2, state_copies=2)
    return trace, memory


class ReplicatedStates(Rule):
    """Every rank holds the same parameters, gradients and optimizer state.

    What it does
    Checks the peak of a rank that trains with DistributedDataParallel, and computes what ZeRO or FSDP would leave of it.

    Why is this bad
    Data-parallel ranks hold equal copies. Sharded over the ranks they take a fraction. The freed memory allows a larger
    batch, or the model on smaller GPUs.

    Evidence
    A snapshot of the rank, with the memory breakdown at its peak, and a trace of it that shows DistributedDataParallel and
    the number of ranks.

    How the saving is estimated
    A model: each stage leaves 1/N of its part on each of N ranks. ZeRO-1 shards the optimizer state, ZeRO-2 also the
    gradients, ZeRO-3 (FSDP) also the parameters. Buffers for gathering are not counted.

    Fix
    `fully_shard` for each block (FSDP2), or DeepSpeed ZeRO.

    Fix safety
    Unsafe: results are not bitwise identical, and checkpoints hold shards.

    When to ignore
    When the job fits and does not have to grow: sharding costs communication.

    References
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    https://arxiv.org/abs/1910.02054
    """

    code = "TD604"
    name = "replicated-states"
    title = "Training state replicated on every rank"
    of_training = True
    needs = (MemoryBlocks, Parallelism)

    min_share: float = threshold(
        0.5,
        "parameters, gradients and optimizer state, as a share of the peak",
        unit="share",
        source="below, activations dominate the memory",
    )

    VALID = [
        Valid("activations are far larger", lambda: _trained(activations=4000)),
        Valid("no data parallelism", lambda: _trained(mark="forward")),
        Valid("sharded already, in part", lambda: _trained(within="FSDP::pre_forward")),
        Valid("one rank", lambda: _trained(world=1)),
        Valid("no trace", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid("AdamW on eight ranks", _trained, message="8 ranks", saving_bytes=1400 * MIB),
        Invalid("on two ranks", lambda: _trained(world=2), saving_bytes=800 * MIB),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        wrappers = ctx[Parallelism]
        world = wrappers.world_size or 1
        if not wrappers.ddp or wrappers.fsdp or world < 2:
            return
        for device in ctx[MemoryBlocks].devices:
            peak, held = device.history.peak_bytes, device.at_peak
            parts = [held[kind] for kind in ("optimizer_state", "gradients", "parameters")]
            if not peak or sum(parts) < self.min_share * peak:
                continue
            saved_bytes = [int(sum(parts[:stage]) * (1 - 1 / world)) for stage in (1, 2, 3)]
            yield Claim(
                message=(
                    f"Each of {world} ranks holds {size(sum(parts))} of parameters, gradients and optimizer state "
                    f"({sum(parts) / peak:.0%} of its peak)."
                ),
                confidence="medium",
                saving=Saving(
                    bytes=saved_bytes[2],
                    share_of_peak=saved_bytes[2] / peak,
                    basis="model",
                    how=f"ZeRO-3 leaves 1/{world} of parameters, gradients and optimizer state on each rank",
                ),
                location=Location(device=device.device),
                evidence=[
                    table(
                        "Memory freed per rank by sharding",
                        {"sharded": "text", "freed": "bytes", "share of peak": "share"},
                        [
                            ["optimizer state (ZeRO-1)", saved_bytes[0], saved_bytes[0] / peak],
                            ["+ gradients (ZeRO-2)", saved_bytes[1], saved_bytes[1] / peak],
                            ["+ parameters (ZeRO-3, FSDP)", saved_bytes[2], saved_bytes[2] / peak],
                        ],
                    )
                ],
                fixes=[
                    techniques.fully_shard("a new snapshot of a rank has a lower peak"),
                    techniques.zero(_VERIFY, stage=3),
                    techniques.offload(_VERIFY),
                ],
                key="replicated",
            )


_VERIFY = "optimizer state in a new snapshot is smaller"
