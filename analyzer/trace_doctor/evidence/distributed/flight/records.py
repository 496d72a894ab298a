"""The collectives of one rank, as its flight recorder kept them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from trace_doctor.arrays import I64, U8, Bool
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import NO_DUMP, Evidence, Facts
from trace_doctor.user_frames import Frame

HOW_TO_DUMP = (
    "set TORCH_FR_BUFFER_SIZE=2000 (older PyTorch: TORCH_NCCL_TRACE_BUFFER_SIZE) on every rank: "
    "when a collective times out, each writes comm_lib_trace_rank_N"
)
NO_GROUP = frozenset({"", "undefined", "default_pg"})
"""descriptions of process groups that nobody gave"""
SCHEDULED, STARTED, COMPLETED = 0, 1, 2
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_KINDS = (
    "all_reduce_barrier", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast", "barrier", "gather", "scatter",
    "reduce",
)  # fmt: skip
H = TypeVar("H", bound=Hashable)


class Group(Struct, frozen=True, array_like=True):
    """A process group as a dump names it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """in the job; empty where the dump does not say"""


class FlightRecords(Evidence, frozen=True):
    """Calls by record id. Columns are aligned. Raises NotCaptured without a dump."""

    groups: tuple[Group, ...]
    kinds: tuple[str, ...]
    """`all_reduce`, whatever form of it the backend names; of an unknown one its own name"""
    backends: tuple[str, ...]
    dtypes: tuple[tuple[str, str], ...]
    """of inputs and outputs"""
    stacks: tuple[tuple[Frame, ...], ...]
    """the innermost first"""
    group: I64
    """index in `groups`"""
    sequence: I64
    """number of a collective in its group; of a send or receive that of the collective before it"""
    kind: I64
    """index in `kinds`"""
    backend: I64
    """index in `backends`"""
    p2p: Bool
    source: I64
    """of a send or receive: rank in the group, -1 for any; of a collective -1"""
    destination: I64
    elements_in: I64
    elements_out: I64
    dtype: I64
    """index in `dtypes`"""
    stack: I64
    """index in `stacks`"""
    state: U8
    """SCHEDULED, STARTED or COMPLETED"""
    retired: Bool
    created: I64
    """ns since the epoch; 0 where not recorded"""
    timeout: I64
    """ms; 0 where not recorded"""
    overwritten: bool
    """there were older calls, which the dump no longer has"""
    written: int
    """ns since the epoch: no earlier than the dump"""
    unread: int
    """entries of the file that are not here: damaged, or more than are kept; what they were is not known"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        dump = facts.capture.flight
        if dump is None:
            raise NotCaptured(NO_DUMP, HOW_TO_DUMP)
        entries = dump.entries
        groups, group = _numbered(e.group for e in entries)
        kinds, kind = _numbered(plain_kind(e.kind) for e in entries)
        backends, backend = _numbered(e.backend for e in entries)
        dtypes, dtype = _numbered(e.dtypes for e in entries)
        stacks, stack = _numbered(e.stack for e in entries)

        def column(values: Iterable[int]) -> I64:
            return np.array(list(values), dtype=np.int64)

        return cls(
            groups=tuple(Group(*name, dump.groups.get(name, ())) for name in groups),
            kinds=kinds,
            backends=backends,
            dtypes=dtypes,
            stacks=stacks,
            group=group,
            sequence=column(e.sequence for e in entries),
            kind=kind,
            backend=backend,
            p2p=np.array([e.is_p2p for e in entries], dtype=bool),
            source=column(e.peers[0] if e.peers else -1 for e in entries),
            destination=column(e.peers[1] if e.peers else -1 for e in entries),
            elements_in=column(e.elements_in for e in entries),
            elements_out=column(e.elements_out for e in entries),
            dtype=dtype,
            stack=stack,
            state=np.array([_STATES[e.state] for e in entries], dtype=np.uint8),
            retired=np.array([e.retired for e in entries], dtype=bool),
            created=column(e.created_ns for e in entries),
            timeout=column(e.timeout_ms for e in entries),
            overwritten=len(entries) > 0 and entries[0].record_id > 0,
            written=dump.written_ns,
            unread=dump.unread,
        )

    @cached_property
    def followed(self) -> Bool:
        """Of which calls the state means anything: gloo retires its work and never says that it started or was completed."""
        started, retired = (
            np.bincount(self.backend, which, minlength=len(self.backends)) > 0
            for which in (self.state > SCHEDULED, self.retired)
        )
        return np.asarray((started | ~retired)[self.backend], dtype=bool)

    @cached_property
    def pending(self) -> Bool:
        """Which calls had not ended. Without states those that were not retired: others ended, or timed out."""
        return np.where(self.followed, self.state != COMPLETED, ~self.retired)

    @cached_property
    def timed_out(self) -> Bool:
        """Which calls the process gave up: retired without being complete."""
        return self.retired & self.pending

    def newest(self, most: int) -> FlightRecords:
        """So many calls at most; those before them count as not read."""
        if (left_out := len(self.state) - most) <= 0:
            return self
        columns = {name: getattr(self, name)[left_out:] for name in COLUMNS}
        used, columns["stack"] = np.unique(columns["stack"], return_inverse=True)
        stacks = tuple(self.stacks[n] for n in used.tolist())
        return replace(self, **columns, stacks=stacks, overwritten=True, unread=self.unread + left_out)


COLUMNS = (
    "group", "sequence", "kind", "backend", "p2p", "source", "destination", "elements_in", "elements_out", "dtype", "stack",
    "state", "retired", "created", "timeout",
)  # fmt: skip
"""of `FlightRecords`: one value for each call"""


def plain_kind(name: str) -> str:
    """The collective that a backend's name is a form of: `_all_gather_base` and `ALLGATHER_coalesced` are `all_gather`. Forms for
    uneven sizes are kinds of their own."""
    lower = name.lower().lstrip("_").replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    lower = lower.replace("reducescatter", "reduce_scatter")
    uneven = lower.endswith("_v") or "_v_" in lower
    kind = next((k for k in _KINDS if lower.startswith(k) and not uneven), name)
    return "barrier" if kind == "all_reduce_barrier" else kind


def _numbered(values: Iterable[H]) -> tuple[tuple[H, ...], I64]:
    """Different values in their order, and for each its place among them."""
    places: dict[H, int] = {}
    index = [places.setdefault(value, len(places)) for value in values]
    return tuple(places), np.array(index, dtype=np.int64)
