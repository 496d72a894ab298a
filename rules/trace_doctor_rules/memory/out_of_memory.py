"""TD410 out-of-memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trace_doctor import Cell, Claim, Context, Fix, Rule, Table, Target, threshold
from trace_doctor.evidence.memory.blocks import MemoryBlocks
from trace_doctor.evidence.memory.out_of_memory import Failure, OutOfMemory
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import GIB, MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._remedies import GENERAL, remedies
from trace_doctor_rules.memory._shared import MiB, expandable_segments, holders, make_up, size, times


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
    """An allocation failed: the device had no memory left.

    What it does
    For every device with an out-of-memory entry: what was asked for and where, what was free on the device, what was
    cached but free, in which pieces, who held the rest.

    Why is this bad
    The job ends, or repeats its step with a smaller batch.

    Evidence
    An `oom` entry of a snapshot's history (the name of a file is none), and the replayed blocks and segments at that
    moment. Segments given back just before it are malloc's own retries.

    How the saving is estimated
    There is none: what is needed is that the request fits.

    Fix
    Where it would have fitted, had the free memory been in one piece: `expandable_segments:True`. Else by what holds most:
    checkpointing or smaller micro-batches for activations, an 8-bit optimizer or sharding for optimizer state; and by what
    asked: a loss in chunks, scaled_dot_product_attention.

    Fix safety
    The allocator setting is safe where the program plainly does nothing that it could be at odds with. Checkpointing, a loss
    in chunks and scaled_dot_product_attention are unsafe: results differ in the last bits. Smaller batches with accumulation and another optimizer are shown only: which one is wanted is a choice.

    When to ignore
    When the script catches the error on purpose, to find the largest batch.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    code = "TD410"
    name = "out-of-memory"
    title = "The device ran out of memory"
    needs = (OutOfMemory, MemoryBlocks)
    explained_by = ("TD402", "TD403", "TD404", "TD405", "TD406", "TD407", "TD411")

    main_holder: float = threshold(
        0.30,
        "part of live memory from which a category gets a fix of its own",
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
            message="memory: 1,024 MiB asked for at /home/me/loss.py:22 in forward, 100 MiB free on the device, nothing cached: 924",
            severity="critical",
            confidence="high",
            file="/home/me/loss.py",
            line=22,
        ),
        Invalid("in pieces", lambda: _fails(fragmented=True, free=150 * MIB), message="would have fitted in one piece", codemod="allocator-setting"),
        Invalid("twice", lambda: _fails(again=True), message="memory twice, last: 1,024", fixes=("in chunks",)),
        Invalid("the process may take no more", lambda: _fails(free=2 * GIB), message="but a limit of this process"),
        Invalid("what was free is not in the file", lambda: _fails(free=None), message="what was free was not"),
        Invalid("without stacks", lambda: _fails(stacks=None), message="asked for, 100 MiB free"),
        Invalid("weights hold most", lambda: _fails(op="mm"), fixes=("Recompute", "smaller batches")),
        Invalid(
            "activations hold most",
            lambda: _fails(held=GIB),
            fixes=("in chunks", "Recompute", "smaller batches"),
            thresholds={"main_holder": 480 / 1504},
        ),
        Invalid("optimizer state holds most", lambda: _fails(held=GIB, state=True), fixes=("in chunks", "state")),
        Invalid("without a retry", lambda: _fails(fragmented=False, retries=False), message="1,024 MiB asked for"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        for failure in ctx[OutOfMemory].failures:
            yield self._claim(ctx, failure)

    def _claim(self, ctx: Context, f: Failure) -> Claim:
        device = f.device
        site = device.stacks.site(f.stack)
        where = f" at {device.place(f.stack)}" if f.stack >= 0 else ""
        alive = device.history.alive(f.moment)
        held = device.holders(alive)
        top = max((v, k) for k, v in device.at(f.moment).items())
        return Claim(
            message=f"Device {device.device} ran out of memory{_again(f)}: {mib(f.requested)} asked for{where}, {_state(f)}. "
            f"Largest part of the {size(f.live)} live: {top[1].replace('_', ' ')}, {size(top[0])}.",
            confidence="high",
            severity="critical",
            location=location(site, device=device.device),
            evidence=[
                _numbers(f),
                make_up(device, f.moment, "Live when it failed"),
                holders(held, "Who held the memory"),
                *_others(ctx, f),
            ],
            fixes=self._fixes(f, target(site)),
            key=f"{site.function if site else ''}",
        )

    def _fixes(self, f: Failure, place: Target | None) -> list[Fix]:
        fixes: list[Fix] = []
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
    return f" {times(f.count)}, last" if f.count > 1 else ""


def mib(count: int) -> str:
    """One unit for all numbers that are to be compared."""
    return f"{count / MiB:,.0f} MiB"


def _state(f: Failure) -> str:
    if f.device_free is None or f.cached is None or f.largest_gap is None:
        return "what was free was not recorded"
    cached = (
        f"{mib(f.cached)} cached in pieces of at most {mib(f.largest_gap)}"
        if f.cached >= MiB
        else "nothing cached"
    )
    text = f"{mib(f.device_free)} free on the device, {cached}"
    if f.fits_if_packed:
        return f"{text}: it would have fitted in one piece"
    if f.limited:
        return f"{text}: not the device but a limit of this process was reached (set_per_process_memory_fraction)"
    return f"{text}: {mib(f.requested - f.device_free - f.cached)} too little even in one piece"


def _numbers(f: Failure) -> Table:
    rows: list[list[Cell]] = [
        ["asked for", f.requested],
        ["free on the device", f.device_free],
        ["reserved by this process", f.reserved],
        ["live (requested bytes)", f.live],
        ["cached but in no live block", f.cached],
        ["largest piece of that", f.largest_gap],
        ["given back by the retries just before", f.retried],
        ["device memory within reach (free + reserved)", f.device_bytes],
    ]
    return table("When it failed", {"what": "text", "bytes": "bytes"}, rows)


def _others(ctx: Context, f: Failure) -> list[Table]:
    """The peaks of the other devices of this process: a full one beside empty ones is imbalance."""
    rows = [
        (d.device, d.history.peak_bytes) for d in ctx[MemoryBlocks].devices if d.device != f.device.device
    ]
    return [table("Other devices", {"device": "count", "peak": "bytes"}, rows)] if rows else []
