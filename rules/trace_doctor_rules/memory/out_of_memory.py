"""TD410 out-of-memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trace_doctor import Cell, Claim, Context, Fix, Rule, Table, Target, Unit, threshold
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.out_of_memory import Failure, OutOfMemory
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._remedies import GENERAL, remedies
from trace_doctor_rules.memory._shared import (
    MiB,
    breakdown,
    expandable_segments,
    holders,
    in_one_unit,
    mib,
    times,
)


def _fails(
    *,
    fragmented: bool = False,
    free: int | None = 100 * MIB,
    retries: bool = True,
    op: str = "log_softmax",
    held: int = 2 * GIB,
    state: bool = False,
    again: bool = False,
    stacks: Literal["all"] | None = "all",
) -> SnapshotBuilder:
    """Activations fill the device, with gaps between them or without; then the loss asks for 1 GiB."""
    b = SnapshotBuilder(stacks=stacks)
    b.held(held)
    if state:
        b.train(2, parameters=[200 * MIB] * 4)
    kept, holes = [], []
    for layer in range(40):
        with b.forward(line=10 + layer):
            kept.append(b.alloc(12 * MIB))
            if fragmented:
                holes.append(b.alloc(6 * MIB))
                kept.append(b.alloc(1536 * 1024))
    with b.forward(line=60):
        b.temporary(700 * MIB)
    b.free(*holes)
    with b.forward("/home/me/loss.py", 22, op=op):
        if retries:
            b.release_cached()
        for _ in range(1 + again):
            b.oom(GIB if not fragmented else 300 * MIB, device_free=free or 0)
            if free is None:
                del b.entries[-1]["device_free"]
    return b


def _trains() -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(3)
    return b


class OutOfMemoryRule(Rule):
    """An allocation failed: the GPU had no memory left.

    What it does
    Reports for every device with an out-of-memory entry what was requested and where, what was free, what was cached and in
    how large blocks, and what was allocated.

    Why is this bad
    The job ends, or repeats its step with a smaller batch.

    Evidence
    An `oom` entry in a snapshot's history (a file name alone is no evidence), and the replayed blocks and segments at that
    moment. Segments freed just before it are malloc's own retries. Other GPUs of the process are named where it reserves at
    most 10% of the failing GPU's memory on them. A snapshot does not show other processes, so that files of one rank of
    several are left out.

    How the saving is estimated
    Not estimated: the request has to fit.

    Fix
    Where other GPUs of the process are nearly empty: layers placed there. Where the free memory would be enough in one piece:
    `expandable_segments:True`. Else by the largest category: checkpointing
    or smaller micro-batches for activations, an 8-bit optimizer or sharding for optimizer state. And by the request itself: a
    chunked loss, scaled_dot_product_attention.

    Fix safety
    The allocator setting is unsafe: what else sets or reads the variable does not show in a script. Checkpointing, a
    chunked loss and scaled_dot_product_attention are unsafe: results are not bitwise identical. Smaller batches with
    accumulation and another optimizer are shown only: the choice is yours.

    When to ignore
    When the script catches the error on purpose, to find the largest batch.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    code = "TD410"
    name = "out-of-memory"
    title = "GPU ran out of memory"
    needs = (OutOfMemory, MemoryBlocks)
    explained_by = ("TD402", "TD403", "TD404", "TD405", "TD406", "TD407", "TD411")

    main_holder: float = threshold(
        0.30,
        "share of allocated memory from which a category gets its own fix",
        unit="share",
        source="TD407's threshold",
    )

    VALID = [
        Valid("no failure", _trains),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid(
            "too large",
            lambda: _fails(fragmented=False),
            message="memory: 1,024 MiB requested in forward() (/home/me/loss.py:22), 100 MiB free, nothing cached. It is 924 MiB short",
            severity="critical",
            confidence="high",
            file="/home/me/loss.py",
            line=22,
        ),
        Invalid("in pieces", lambda: _fails(fragmented=True, free=150 * MIB), message="Without fragmentation this request would fit.", codemod="allocator-setting"),
        Invalid("twice", lambda: _fails(again=True), message="memory twice, the last time: 1,024", fixes=("reduce a part of the tokens",)),
        Invalid("the process may take no more", lambda: _fails(free=2 * GIB), message="The process has reached its own limit"),
        Invalid("what was free is not in the file", lambda: _fails(free=None), message="Free memory was not recorded"),
        Invalid("without stacks", lambda: _fails(stacks=None), message="requested, 100 MiB free"),
        Invalid("weights hold most", lambda: _fails(op="mm"), fixes=("checkpoint(", "accumulation")),
        Invalid(
            "activations hold most",
            lambda: _fails(held=GIB),
            fixes=("a part of the tokens", "checkpoint(", "accumulation"),
            thresholds={"main_holder": 480 / 1504},
        ),
        Invalid("optimizer state holds most", lambda: _fails(held=GIB, state=True), fixes=("a part of the tokens", "8-bit")),
        Invalid("without a retry", lambda: _fails(fragmented=False, retries=False), message="1,024 MiB requested"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        for failure in ctx[OutOfMemory].failures:
            yield self._claim(failure)

    def _claim(self, f: Failure) -> Claim:
        device = f.device
        site = device.stacks.site(f.stack)
        where = f" in {device.place(f.stack)}" if f.stack >= 0 else ""
        alive = device.history.alive(f.moment)
        held = device.holders(alive)
        top = max((v, k) for k, v in device.at(f.moment).items())
        return Claim(
            message=f"GPU {device.device} ran out of memory{_again(f)}: {mib(f.requested)} requested{where}{_state(f)} "
            + (
                _spare(f)
                or f"Largest category: {top[1].replace('_', ' ')}, {in_one_unit(top[0], f.live)} allocated."
            ),
            confidence="high",
            severity="critical",
            location=location(site, device=device.device),
            evidence=[
                _numbers(f),
                breakdown(device, f.moment, "at the failed allocation"),
                holders(held, "Largest allocations"),
                *_others(f),
            ],
            fixes=self._fixes(f, target(site)),
            key=f"{site.function if site else ''}",
        )

    def _fixes(self, f: Failure, place: Target | None) -> list[Fix]:
        fixes: list[Fix] = []
        if f.nearly_empty:
            fixes.append(techniques.other_devices(_FITS))
        if f.fits_if_packed:
            fixes += expandable_segments(f.device.history.settings)
        fixes += [r for r in remedies(f.device.stacks, [f.stack], place) if r.title != GENERAL]
        at = f.device.at(f.moment)
        if at["activations"] >= self.main_holder * f.live:
            fixes += _CHECKPOINT
        if at["optimizer_state"] >= self.main_holder * f.live:
            fixes.append(_STATE)
        return fixes or _CHECKPOINT


_FITS = "the step runs through, and the activations in a new snapshot are smaller"
_CHECKPOINT = [techniques.checkpoint_blocks(_FITS), techniques.gradient_accumulation(_FITS)]
_STATE = techniques.less_optimizer_state("optimizer state in a new snapshot is smaller")


def _again(f: Failure) -> str:
    return f" {times(f.count)}, the last time" if f.count > 1 else ""


def _state(f: Failure) -> str:
    if f.device_free is None or f.cached is None or f.largest_gap is None:
        return ". Free memory was not recorded."
    cached = (
        f"{mib(f.cached)} cached (largest block {mib(f.largest_gap)})"
        if f.cached >= MiB
        else "nothing cached"
    )
    text = f", {mib(f.device_free)} free, {cached}."
    if f.fits_if_packed:
        return f"{text} Without fragmentation this request would fit."
    if f.limited:
        return f"{text} The process has reached its own limit (set_per_process_memory_fraction)."
    return f"{text} It is {mib(f.requested - f.device_free - f.cached)} short even without fragmentation."


def _numbers(f: Failure) -> Table:
    rows: list[list[Cell]] = [
        ["requested", f.requested],
        ["free on the device", f.device_free],
        ["reserved by this process", f.reserved],
        ["allocated (requested bytes)", f.live],
        ["cached, not allocated", f.cached],
        ["largest cached block", f.largest_gap],
        ["freed by the preceding retries", f.retried],
        ["usable device memory (free + reserved)", f.device_bytes],
    ]
    return table("State at the failed allocation", {"metric": "text", "bytes": "bytes"}, rows)


def _spare(f: Failure) -> str:
    """The other devices, where this process used little of them: moving a part of the model there is the real remedy."""
    spare = f.nearly_empty
    if not spare:
        return ""
    names = [f"GPU {d.device}" for d in spare]
    whole = ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]
    most = max(d.reserved for d in spare)
    each = " each" if len(names) > 1 else ""
    return f"This process reserves at most {mib(most)}{each} on {whole}."


def _others(f: Failure) -> list[Table]:
    """The other devices of this process: a full one beside empty ones is imbalance."""
    rows = [
        (
            d.device,
            d.allocated,
            d.reserved,
            "over the record" if d.over_record else "when the snapshot was written",
        )
        for d in f.others
    ]
    columns: dict[str, Unit] = {
        "device": "count",
        "allocated": "bytes",
        "reserved": "bytes",
        "at most": "text",
    }
    return [table("Other GPUs of this process", columns, rows)] if rows else []
