"""`FlightDump`: what the flight recorder of torch.distributed kept of one rank's collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trace_doctor.user_frames import Frame

State = Literal["scheduled", "started", "completed"]


@dataclass(frozen=True, slots=True)
class FlightEntry:
    """One call of a collective, or of a send or receive. Sizes are elements of all tensors together."""

    record_id: int
    """counts all entries of the process, those that the ring has overwritten included"""
    group: tuple[str, str]
    """name and description of the process group"""
    sequence: int
    """number of the collective in its group (calls coalesced into one share it); of a send or receive no such"""
    kind: str
    """as the backend names it: `all_reduce`, `_all_gather_base`, `send`"""
    backend: str
    """`nccl`, `gloo`; "" where the entry names none"""
    peers: tuple[int, int] | None
    """of a send or receive: source and destination, as ranks of the group, -1 for any"""
    is_p2p: bool
    elements_in: int
    elements_out: int
    dtypes: tuple[str, str]
    """of inputs and outputs, each once"""
    state: State
    """of a backend that does not follow its work (gloo) always `scheduled`"""
    retired: bool
    """the process has done with it: complete, failed or timed out"""
    created_ns: int
    """when the host called it, in ns since the epoch; 0 where that was not recorded"""
    timeout_ms: int
    """0 where it was not recorded"""
    stack: tuple[Frame, ...]
    """the innermost first: frames of the user's files, else the innermost of any; empty where none was recorded"""


@dataclass(frozen=True)
class FlightDump:
    """The newest collectives of one rank, by record id."""

    path: str
    rank: int
    rank_how: str
    entries: tuple[FlightEntry, ...]
    groups: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """name and description of a process group -> its ranks in the job, where the dump says so"""
    written_ns: int = 0
    """time of the file, in ns since the epoch: no earlier than the dump; a copy may be later"""
    warnings: tuple[str, ...] = ()
    unread: int = 0
    """entries of the file that are not in `entries`: damaged, or more than are read"""

    rank_assumed: bool = False
    """nothing names the rank"""

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From its first call to when it was written, ns since the epoch; None where no time was recorded."""
        created = [e.created_ns for e in self.entries if e.created_ns]
        return (min(created), max(self.written_ns, *created)) if created else None
