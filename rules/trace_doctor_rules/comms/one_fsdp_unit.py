"""TD605 one-fsdp-unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trace_doctor import Claim, Context, Rule, Saving, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.idle.gaps import IdleCauses
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.comms._one_fsdp_unit_evidence import Gathers
from trace_doctor_rules.memory._shared import size

_ALL_GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def _training(units: int, *, fsdp: bool = True, ahead: bool = False, dtype: str = "BFloat16") -> RunBuilder:
    """Each unit gathers its parameters for forward and again for backward. The host may run ahead of the GPU."""
    b = RunBuilder(rank=0, world_size=8)
    for _ in b.steps(4):
        b.loader(1 if ahead else 5)
        for _ in range(2 * units):
            with b.annotation("FSDP::pre_forward" if fsdp else "gather"), b.op("record_param_comms"):
                sizes: dict[str, Any] = {"Out msg nelems": 800_000_000 // units, "dtype": dtype}
                b.launch(2000 / units, _ALL_GATHER, stream=20, **sizes)
            b.run_op("aten::mm", 1000 / units)
        if not ahead:
            b.sync("cudaDeviceSynchronize")
    return b


class OneFsdpUnit(Rule):
    """FSDP gathers the whole model as one unit.

    What it does
    Counts the all-gathers per step in a run with FullyShardedDataParallel or `fully_shard`.

    Why is this bad
    FSDP frees gathered parameters unit by unit, and gathers the next unit while one computes. With the whole model as one unit
    every rank holds all parameters in forward and in backward, and all compute waits for one long all-gather.

    Evidence
    FSDP's own annotations, and one or two all-gathers in every steady step: one for forward, one for backward. A model wrapped
    block by block has two per block.

    How the saving is estimated
    A model: of the gathered bytes (element count and type, where recorded) only those of the largest block must be allocated
    at a time. The capture does not show the largest block: the whole all-gather is claimed, as an upper bound.

    Fix
    Call `fully_shard` on each block before the model; FSDP1: an auto-wrap policy.

    Fix safety
    Unsafe: results are not bitwise identical, and parameters in checkpoints have other names.

    When to ignore
    When the model is so small that one all-gather is short.

    References
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html
    """

    code = "TD605"
    name = "one-fsdp-unit"
    title = "FSDP wraps the model as one unit"
    of_training = True
    about = ("exposed_comm",)
    needs = (Gathers,)
    to_pass = (IdleCauses,)

    most_per_step: int = threshold(
        2, "all-gathers per step that mean one unit", source="one for forward, one for backward"
    )
    min_steps: int = threshold(2, "steady steps that show it", source="one step may be cut off")

    VALID = [
        Valid("wrapped block by block", lambda: _training(12)),
        Valid("few steps", lambda: _training(1), thresholds={"min_steps": 5}),
        Valid("no FSDP", lambda: _training(1, fsdp=False), skipped="FSDP"),
    ]
    INVALID = [
        Invalid("one unit", lambda: _training(1), message="2 all-gathers of 1.49 GiB per step, 4.00 ms in total.", thresholds={"min_steps": 4}, saving_bytes=1_600_000_000),
        Invalid("numbers of an unknown size", lambda: _training(1, dtype="Float4"), message="2 all-gathers per step, 4.00 ms in total."),
        Invalid("the host runs ahead", lambda: _training(1, ahead=True), message="per step, 4.00 ms in total"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        gathers = ctx[Gathers]
        if gathers.steps < self.min_steps or not 1 <= gathers.per_step <= self.most_per_step:
            return
        what = f" of {size(gathers.bytes)}" if gathers.bytes else ""
        yield Claim(
            message=(
                f"FSDP gathers the whole model as one unit: {gathers.per_step:g} all-gather{'s' if gathers.per_step > 1 else ''}"
                f"{what} per step, {milliseconds(gathers.ns / gathers.steps / 1e3)} in total."
            ),
            confidence="medium",
            saving=Saving(
                bytes=gathers.bytes,
                basis="model",
                how="the gathered parameters: with several units only those of one are allocated",
            )
            if gathers.bytes
            else None,
            severity="info",
            evidence=[
                table(
                    "All-gathers in the steady steps",
                    {"steps": "count", "all-gathers/step": "count", "largest": "bytes", "total": "us"},
                    [[gathers.steps, gathers.per_step, gathers.bytes, gathers.ns / 1e3]],
                )
            ],
            fixes=[
                techniques.fully_shard(
                    "record again: each block has two all-gathers per step, and the peak is lower"
                )
            ],
            key="one-unit",
        )
