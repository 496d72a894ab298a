"""The two ledgers: every ns of a device, every byte of its peak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct, field

from trace_doctor.model.quantities import Bytes, Count, Ns, Us


class IdleNs(Struct, frozen=True, kw_only=True):
    data_loading: Ns = 0
    allocator: Ns = 0
    compile: Ns = 0
    cold_start: Ns = 0
    sync: Ns = 0
    optimizer: Ns = 0
    annotation: Ns = 0
    python: Ns = 0
    dispatch: Ns = 0
    launch: Ns = 0
    graph: Ns = 0
    profiler: Ns = 0
    unattributed: Ns = 0

    def total(self) -> int:
        """Idle time of all causes, ns."""
        return sum(msgspec.structs.astuple(self))


IDLE_CAUSES: tuple[str, ...] = IdleNs.__struct_fields__


PART_NAMES: dict[str, str] = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_copy": "exposed copies",
    "data_loading": "data loading",
    "sync": "host–device sync",
    "allocator": "allocator",
    "compile": "compilation",
    "cold_start": "cold start",
    "optimizer": "optimizer on the host",
    "annotation": "user annotation",
    "python": "Python or unrecorded",
    "dispatch": "operator dispatch",
    "launch": "kernel launch",
    "graph": "inside CUDA graphs",
    "profiler": "profiler overhead",
    "unattributed": "unattributed",
}
"""parts of the time ledger as people read them"""


class OnDevice(Struct, frozen=True, kw_only=True):
    """A row that belongs to a device of a capture. `input` is the position in `Result.inputs`: two files may have the same
    rank."""

    input: Count = 0
    rank: int
    device: int


class TimeLedgerRow(OnDevice, frozen=True, kw_only=True):
    """window_ns = compute_ns + exposed_comm_ns + exposed_copy_ns + sum(idle_ns), exactly.

    `input` is the position in `Result.inputs` (here and in all rows below): two files may have the same rank.
    """

    phase: Literal["steady", "warmup", "outside"]
    steps: Count
    window_ns: Ns
    compute_ns: Ns
    exposed_comm_ns: Ns
    exposed_copy_ns: Ns
    idle_ns: IdleNs
    step_us: Us
    step_sd_us: dict[str, Us] = field(default_factory=dict)
    """standard deviation of each part over the steps (compute, comm, copy, the causes), where it varies"""


class UnownedBlock(Struct, frozen=True, kw_only=True):
    """Time of one part of the ledger that no finding owns, by what was open meanwhile."""

    name: str
    """the host event, collective or copy; "" where nothing was recorded"""
    total_us: Us
    count: Count
    """stretches of it"""
    steps: Count
    """steady steps that have one"""
    longest_us: Us
    ts_us: float
    """begin of the longest, in the clock of its file"""
    before: str
    """what started last before the longest: GPU work, or an operator where no GPU worked"""
    behind: str
    """and first behind it"""


class OwnershipRow(OnDevice, frozen=True, kw_only=True):
    """How much of one part of the time ledger findings own, in the steady steps. A moment that several speak of belongs to
    the gravest of them. What is owned need not be saved."""

    part: str
    """`exposed_comm`, `exposed_copy` or a cause of idle time"""
    total_ns: Ns
    unowned_ns: Ns
    start_up_ns: Ns = 0
    """of what no finding owns: the start of the program (see `Input.start_up_share`)"""
    findings: list[str] = field(default_factory=list)
    """ids of the findings that own some of it"""
    blocks: list[UnownedBlock] = field(default_factory=list)
    """the largest of what no finding owns and is no start-up"""

    def __post_init__(self) -> None:
        """Raises ValueError for a part that the ledger does not have."""
        if self.part not in PART_NAMES:
            raise ValueError("no part of the time breakdown")


class Unowned(Struct, frozen=True, kw_only=True):
    """Time of the steady steps of one device that no finding owns, as shares of these steps."""

    input: Count
    device: int
    compute: float
    by_part: dict[str, float]
    """part of the ledger -> share, the largest first; without start-up"""
    start_up: float

    @property
    def total(self) -> float:
        """Share of the steady steps that is neither compute nor owned by a finding."""
        return sum(self.by_part.values()) + self.start_up


def unowned(ledger: Sequence[TimeLedgerRow], ownership: Sequence[OwnershipRow]) -> list[Unowned]:
    """Of each device with steady steps (without marks of steps: with a window)."""
    own: dict[tuple[int, int], list[OwnershipRow]] = {}
    for row in ownership:
        own.setdefault((row.input, row.device), []).append(row)
    shares = []
    for steady in (row for row in ledger if row.phase == "steady" and row.window_ns):
        rows = own.get((steady.input, steady.device), [])
        parts = {r.part: (r.unowned_ns - r.start_up_ns) / steady.window_ns for r in rows}
        shares.append(
            Unowned(
                input=steady.input,
                device=steady.device,
                compute=steady.compute_ns / steady.window_ns,
                by_part=dict(sorted(parts.items(), key=lambda part: -part[1])),
                start_up=sum(r.start_up_ns for r in rows) / steady.window_ns,
            )
        )
    return shares


class CategoryBytes(Struct, frozen=True, kw_only=True):
    parameters: Bytes = 0
    gradients: Bytes = 0
    optimizer_state: Bytes = 0
    activations: Bytes = 0
    inputs: Bytes = 0
    temporaries: Bytes = 0
    workspaces: Bytes = 0
    held_before_recording: Bytes = 0
    unknown: Bytes = 0
    unsharded_parameters: Bytes = 0
    weight_copies: Bytes = 0


MEMORY_CATEGORIES: tuple[str, ...] = CategoryBytes.__struct_fields__
MEMORY_NAMES: dict[str, str] = {c: c.replace("_", " ") for c in MEMORY_CATEGORIES} | {
    "workspaces": "library workspaces",
    "held_before_recording": "allocated before recording",
    "weight_copies": "autocast weight copies",
}
"""categories as people read them"""


NEEDS_A_REASON = ("temporaries", "workspaces", "weight_copies", "unsharded_parameters", "unknown")
"""categories that are no part of a model, its training or its data"""


class MemoryLedgerRow(OnDevice, frozen=True, kw_only=True):
    """Live bytes at the peak; sum(by_category) = peak_bytes, exactly. Requested sizes."""

    peak_bytes: Bytes
    by_category: CategoryBytes
    max_reserved_bytes: Bytes | None
    max_live_bytes: Bytes
    private_bytes: Bytes = 0
    """of segments in private pools, as those of CUDA graphs, when the snapshot was written: other work cannot use them"""
    how: str
    explained: list[str] = field(default_factory=list)
    """categories that a finding speaks of"""
    by_frame: list[tuple[str, Bytes]] = field(default_factory=list)


def unowned_memory(row: MemoryLedgerRow) -> dict[str, float]:
    """Category -> share of the peak, largest first, of what needs a reason and no finding speaks of. Empty where nothing is
    classed, as in a trace."""
    by_category = msgspec.structs.asdict(row.by_category)
    if row.by_category.unknown == row.peak_bytes:
        return {}
    shares = {
        name: by_category[name] / row.peak_bytes
        for name in NEEDS_A_REASON
        if by_category[name] and name not in row.explained
    }
    return dict(sorted(shares.items(), key=lambda s: -s[1]))


class MemoryHeldRow(OnDevice, frozen=True, kw_only=True):
    """What a device held when a snapshot without a usable history was written. Whether that was its peak is not known.
    Of pinned memory, which is the host's, `device` is -1."""

    held_bytes: Bytes
    """requested bytes of the live blocks"""
    reserved_bytes: Bytes
    blocks: Count
    """live ones"""
    by_frame: list[tuple[str, Bytes]] = field(default_factory=list)
    """the code that allocated most, largest first"""
