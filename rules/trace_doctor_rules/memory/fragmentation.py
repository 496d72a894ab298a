"""TD402 fragmentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from trace_doctor import Claim, Context, Fix, NotCaptured, Rule, Saving, Table, threshold
from trace_doctor.evidence.memory.allocator import asker, growths
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.device_memory import DeviceMemory
from trace_doctor.evidence.memory.out_of_memory import Failure
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import PeakPassed, PeakRecorded
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.testing import MIB, Invalid, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.memory._shared import MiB, already, expandable_segments, in_one_unit, mib
from trace_doctor_rules.memory._still_to_come import repeated_layers, short_in_one_piece, still_to_come

_VERIFY = "peak reserved and peak allocated bytes of a new snapshot are closer together"
Bytes = npt.NDArray[np.int64]


def _growing(
    sizes: tuple[int, ...] = (400, 500, 600, 700), *, clock: bool = True, oom: int = 0
) -> SnapshotBuilder:
    """Every batch is larger than the one before, so that no cached segment is large enough for it."""
    b = SnapshotBuilder(clock=clock)
    b.held(200 * MIB)
    for count in sizes:
        with b.forward("/home/me/model.py", 44):
            b.temporary(count * MIB)
    if oom:
        b.oom(oom * MIB, device_free=0)
    return b


def _contradictory() -> SnapshotBuilder:
    b = _growing()
    b.entries.append({**b.entries[0], "action": "segment_alloc", "size": 1 << 50})
    return b


def _before_the_record() -> SnapshotBuilder:
    """Everything that is reserved was so when recording began: how much was live before is not known."""
    b = SnapshotBuilder()
    blocks = [b.held(600 * MIB) for _ in range(4)]
    b.free(*blocks)
    b.entries.clear()
    for _ in range(4):
        with b.forward():
            b.temporary(500 * MIB)
        with b.optimizer_step():
            b.temporary(20 * MIB)
    return b


def _fails(*, asked: int, free: int, live: int = 800, expandable: bool = False) -> SnapshotBuilder:
    """Half of every pair of blocks is free again when the loss asks for memory."""
    b = SnapshotBuilder(expandable_segments=expandable)
    b.held(100 * MIB)
    pairs = []
    for layer in range(live // 20):
        with b.forward(line=10 + layer % 7):
            pairs.append((b.alloc(11 * MIB), b.alloc(9 * MIB)))
    b.free(*(second for _, second in pairs))
    with b.forward("/home/me/loss.py", 22, op="log_softmax"):
        b.oom(asked * MIB, device_free=free * MIB)
    return b


def _fails_in_training() -> SnapshotBuilder:
    """The loss would fit in one piece, its gradient would not."""
    b = _fails(asked=500, free=300)
    b.entries.pop()
    with b.zero_grad():
        b.temporary(MIB)
    with b.forward("/home/me/loss.py", 22, op="log_softmax"):
        b.oom(500 * MIB, device_free=300 * MIB)
    return b


def _peak_passes() -> SnapshotBuilder:
    """At the end most of the reserved memory is free, because the peak is over."""
    b = SnapshotBuilder()
    b.held(200 * MIB)
    for _ in range(3):
        with b.forward():
            b.temporary(900 * MIB, 700 * MIB, 500 * MIB)
    return b


class Fragmentation(Rule):
    """Reserved memory is split into blocks that no request fits.

    What it does
    Compares peak reserved with peak allocated memory. For a failed allocation it checks whether the free bytes, on the device
    and in the cache, would have been enough in one piece, and whether they would have been for what follows as well.

    Why is this bad
    Reserved memory that is not allocated is of no use. The job needs a larger device than its tensors do, or runs out of memory
    although enough is free.

    Evidence
    A snapshot's history: segment events and the replayed blocks. The reserved peak must be reached within the record, because
    what was allocated before it is unknown. Free bytes at the end of a record prove nothing: the peak may be over. Cached
    segments that are entirely free but of the wrong size count. A failure while the device has enough free memory comes from
    a limit of the process, not from fragmentation. If the reserved memory is older than the record, or the record is shorter
    than a step or ends at its peak, the rule is skipped.

    How the saving is estimated
    Peak reserved minus peak allocated bytes. An upper bound: even a packed allocator keeps a few MiB between blocks.

    Fix
    `expandable_segments:True` lets a segment grow in place, so that blocks of every size share the same memory. Where it
    cannot be used (Windows, memory shared between processes): `max_split_size_mb`, or the largest batch first.

    Fix safety
    Unsafe: where memory lies does not change results, but what else sets or reads the variable does not show in a script.

    When to ignore
    When nothing else needs the memory.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    code = "TD402"
    name = "fragmentation"
    title = "GPU memory is fragmented"
    needs = (MemoryBlocks, DeviceMemory)
    to_pass = (PeakRecorded, PeakPassed)
    yields_to = ("TD401", "TD409")

    min_share: float = threshold(
        0.15,
        "peak reserved minus peak allocated bytes, as a share of peak reserved",
        unit="share",
        source="settled real jobs: 2-13%",
    )
    min_bytes: int = threshold(
        512 * MiB,
        "peak reserved minus peak allocated bytes",
        unit="bytes",
        source="segments of 2 and 20 MiB leave tens of MiB in any job",
    )

    VALID = [
        Valid("one size", lambda: _growing((900, 900, 900, 900))),
        Valid("small", lambda: _growing((100, 130, 160, 190))),
        Valid("reserved before the record", _before_the_record, thresholds={"min_bytes": 1, "min_share": 0.01}, skipped="older than the allocation history"),
        Valid("a small part", _growing, thresholds={"min_share": 0.7}),
        Valid("segments that do not add up", _contradictory, skipped="contradictory"),
        Valid("free at the end, full at the peak", _peak_passes),
        Valid("a failure: too little even in one piece", lambda: _fails(asked=900, free=200)),
        Valid("a failure: the limit of the process", lambda: _fails(asked=900, free=9000)),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "growing batches",
            _growing,
            fixes=("import os", "python train.py", "max_split_size_mb", "bucket"),
            shown="cached memory (2 of 4)",
            message="Peak allocated memory is 0.879 GiB of 2.34 GiB reserved: 62% is never used.",
            severity="warning",
            confidence="high",
            saving_bytes=1500 * MIB,
            codemod="allocator-setting",
            file="/home/me/model.py",
            line=44,
        ),
        Invalid("without a clock", lambda: _growing((400, 500, 600, 700, 800), clock=False), saving_bytes=2200 * MIB, shown="(3 of 5)"),
        Invalid("and a request that nothing would fit", lambda: _growing(oom=9000), message="62% is never used. For the 9,000 MiB request that failed this is not enough alone."),
        Invalid("and a request that would have fitted", lambda: _growing(oom=1200), message="is never used. A 1,200 MiB request"),
        Invalid("with segments that grow", lambda: _fails(asked=500, free=300, expandable=True), message="already enabled.", fixes=("bucket",)),
        Invalid("a failure that would have fitted, but not what follows", _fails_in_training, message="20 MiB. This is not enough alone: what follows would be "),
        Invalid(
            "a failure that would have fitted",
            lambda: _fails(asked=500, free=300),
            message="failed with 300 MiB free and 372 MiB cached. Without fragmentation this request would fit: the largest cached block is 20 MiB.",
            saving_bytes=372 * MIB,
            severity="warning",
            file="/home/me/loss.py",
            line=22,
        ),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        devices, memory = ctx[MemoryBlocks].devices, ctx[DeviceMemory]
        known = [(d, d.history.reserved) for d in devices if d.history.reserved is not None]
        if not known:
            raise NotCaptured("contradictory segment events in the snapshot", CAPTURE_ADVICE)
        older = found = False
        for device, reserved in known:
            failure = memory.failures.get(device.device)
            unused = int(reserved.max()) - device.history.peak_bytes
            is_large = unused >= max(self.min_bytes, self.min_share * int(reserved.max()))
            if is_large and int(reserved[0]) == int(reserved.max()):
                older, is_large = True, False
            if is_large or (failure is not None and failure.fits_if_packed):
                found = True
                yield _claim(device, reserved, failure, unused if is_large else None)
        if older and not found:
            raise NotCaptured(
                "most of the reserved memory is older than the allocation history", CAPTURE_ADVICE
            )


def _claim(device: DeviceBlocks, reserved: Bytes, failure: Failure | None, unused: int | None) -> Claim:
    history = device.history
    failed = failure if failure is not None and failure.fits_if_packed else None
    short = short_in_one_piece(failed, still_to_come(failed, repeated_layers(failed))) if failed else None
    growth = growths(history)
    last = int(growth[reserved[growth + 1].argmax()]) if len(growth) else 0
    stack = failed.stack if failed is not None else asker(history, last)
    site = device.stacks.site(stack)
    most = int(reserved.max())
    parts = []
    if unused is not None:
        parts.append(
            f"Peak allocated memory is {in_one_unit(history.peak_bytes, most)} reserved: {unused / most:.0%} is never used."
        )
    if failed is not None:
        parts.append(
            f"A {mib(failed.requested)} request failed with {mib(failed.device_free or 0)} free and {mib(failed.cached or 0)} cached. "
            f"Without fragmentation this request would fit: the largest cached block is {mib(failed.largest_gap or 0)}."
        )
        if short:
            parts.append(f"This is not enough alone: what follows would be {mib(short)} short.")
    if failed is None and failure is not None and failure.fits_if_packed is False:
        parts.append(f"For the {mib(failure.requested)} request that failed this is not enough alone.")
    return Claim(
        message=f"{' '.join(parts)}{already(history.settings)}",
        confidence="high",
        severity="warning",
        saving=Saving(
            bytes=unused if unused is not None else failed.cached if failed is not None else None,
            share_of_peak=None if unused is None else unused / most,
            peak="reserved",
            basis="bound",
            how=f"peak allocated memory is {in_one_unit(history.peak_bytes, most)} reserved"
            if unused is not None
            else "bytes cached and not allocated when the request failed",
        ),
        location=location(site, device=device.device),
        evidence=[_growths(device, reserved)],
        fixes=[replace(fix, short=short) for fix in _fixes(history.settings)],
        key="failed" if unused is None else "reserved",
    )


def _growths(device: DeviceBlocks, reserved: Bytes) -> Table:
    """The largest requests for which a segment was allocated although the cache had as many free bytes."""
    history = device.history
    growth = growths(history)
    free = reserved[growth] - history.live[growth]
    needless = free >= history.entry_size[growth]
    chosen = growth[needless][np.argsort(-history.entry_size[growth][needless], kind="stable")]
    rows = [
        (device.place(asker(history, at)), int(history.entry_size[at]), held, live, held - live)
        for at in chosen.tolist()
        for held, live in [(int(reserved[at]), int(history.live[at]))]
    ]
    title = f"Segments allocated despite enough cached memory ({len(rows)} of {len(growth)})"
    return table(
        title,
        {
            "allocated at": "location",
            "segment": "bytes",
            "reserved": "bytes",
            "allocated": "bytes",
            "cached": "bytes",
        },
        rows,
        10,
    )


def _fixes(settings: Mapping[str, object]) -> list[Fix]:
    fixes = expandable_segments(settings)
    if not settings.get("expandable_segments"):
        fixes.append(techniques.max_split_size(_VERIFY))
    return [*fixes, techniques.steady_shapes(_VERIFY)]
