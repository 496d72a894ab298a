"""`Run`: one trace as columns. Timestamps and durations are int64 nanoseconds; names are small integers.

Every event with a duration is one row, ordered by (start, longer first, place in the file). Host events have
`device == -1`; `stream` is -1 where there is none. Rare arguments are not kept: `Run.args` decodes them again from
the event's byte offset.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I16, I32, I64, U8, Bool, order_of
from trace_doctor.model import Recorded, TorchVersion
from trace_doctor.name_index import NameIndex, Predicate
from trace_doctor.user_frames import Frame

if TYPE_CHECKING:
    import pandas as pd

MOST_COUNTED = 1 << 53
"""No number of bytes, blocks, devices … is larger; a float holds every smaller one."""


def is_count(value: object) -> TypeGuard[int]:
    """What a file says is a number of things. Anything may stand in one that is damaged, or that others wrote."""
    return type(value) is int and 0 <= value < MOST_COUNTED


class Cat(enum.IntEnum):
    """Kinds of event, after the aliases of all profiler versions and vendors are folded together."""

    OTHER = 0
    CPU_OP = 1
    USER_ANNOTATION = 2
    PYTHON = 3
    RUNTIME = 4  # cuda_runtime, hip, mtia_runtime, xpu_runtime ...
    DRIVER = 5
    OVERHEAD = 6  # the profiler's own cost
    KERNEL = 7
    MEMCPY = 8
    MEMSET = 9
    GPU_ANNOTATION = 10
    SYNC = 11  # cuda_sync rows: a device-side view of a wait
    SPAN = 12  # the Trace span and iteration markers that stretch over everything


BORROWED = -2
"""Offsets from here downwards are events of another file."""
GPU_CATS = (Cat.KERNEL, Cat.MEMCPY, Cat.MEMSET)
HOST_CATS = (Cat.CPU_OP, Cat.USER_ANNOTATION, Cat.PYTHON, Cat.RUNTIME, Cat.DRIVER, Cat.OVERHEAD)


@dataclass(frozen=True, slots=True)
class Thread:
    """A track of the trace. `pid`/`tid` are text because real files hold both."""

    pid: str
    tid: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """The profiler's `[memory]` instants, in time order. -1 where a field was not recorded."""

    ts: I64
    addr: I64
    bytes: I64
    """signed: positive allocates"""
    total_allocated: I64
    total_reserved: I64
    device: I16
    """-1 is the CPU"""

    def __len__(self) -> int:
        return len(self.ts)


@dataclass(frozen=True, slots=True)
class Counters:
    """What was sampled of GPUs beside their work, in time order. A value holds from its sample to the next."""

    ts: I64
    value: npt.NDArray[np.float64]
    device: I16
    name: I32
    """index into `names`"""
    names: tuple[str, ...]
    """with their units: `SM Clock (MHz)`"""

    def of(self, device: int, name: str) -> tuple[I64, npt.NDArray[np.float64]]:
        """(ns, values) of one counter of a device; empty where it was not sampled."""
        number = self.names.index(name) if name in self.names else -1
        own = (self.device == device) & (self.name == number)
        return self.ts[own], self.value[own]


def no_counters() -> Counters:
    """Of a trace in which nothing was sampled."""
    nothing = np.zeros(0, dtype=np.int64)
    return Counters(
        nothing, nothing.astype(np.float64), nothing.astype(np.int16), nothing.astype(np.int32), ()
    )


@dataclass(slots=True)
class Damage:
    """What was wrong with the file, counted. All zero for a sound one."""

    truncated: bool = False
    repaired: int = 0
    """events read only after a repair (escape, NaN, invalid UTF-8)"""
    lost: int = 0
    """event texts that could not be read at all"""
    clamped: int = 0
    """negative or missing durations set to 0"""
    given_up: int = 0
    """places that could not be read when reading was given up (`truncated`); 0 where it was not"""
    leading: int = 0
    """bytes before the begin of the JSON, such as lines of a log"""
    trailing: int = 0
    """bytes behind the end of the JSON or of the gzip data that are no trace, padding aside: they may be another capture"""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GraphNode:
    """What is known of a node of a CUDA graph, from the time when it was captured."""

    label: str = ""
    """how the script named the work"""
    stack: tuple[Frame, ...] = ()
    """the user's code that was open, innermost first, with the lines that ran"""


@dataclass(frozen=True, repr=False)
class Run:
    """One profiler trace of one rank."""

    path: str
    """as shown to people: relative to the input root"""
    ts: I64
    dur: I64
    name: I32
    cat: U8
    thread: I32
    device: I16
    stream: I32
    correlation: I64
    """-1 where there is none"""
    external_id: I64
    offset: I64
    """of the event's `{` in the decompressed file"""
    names: list[str]
    threads: list[Thread]
    memory: MemoryEvents
    meta: dict[str, Any]
    """the small top-level fields: deviceProperties, distributedInfo, flags, versions"""
    recorded: Recorded = Recorded()
    counters: Counters = field(default_factory=no_counters)
    torch_version: TorchVersion = TorchVersion()
    rank: int = 0
    rank_how: str = ""
    damage: Damage = field(default_factory=Damage)
    warnings: list[str] = field(default_factory=list)
    read_args: Callable[[Iterable[int]], list[dict[str, Any]]] | None = None
    """byte offsets -> `args` objects; set by the loader"""
    graph_nodes: Mapping[int, GraphNode] = field(default_factory=dict)
    """by `graph id << 32 | graph node id`: what files beside the trace say of nodes of CUDA graphs"""
    derived: dict[str, npt.NDArray[Any]] = field(default_factory=dict, init=False, compare=False, repr=False)
    """columns of evidence that follow from these alone, by `Evidence.field`: made once. A `replace` begins without."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what is only there to be quick."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __repr__(self) -> str:
        return f"Run({self.path!r}, {len(self)} events)"

    def __len__(self) -> int:
        return len(self.ts)

    @cached_property
    def end(self) -> I64:
        """End of each event, ns."""
        return self.ts + self.dur

    def is_cat(self, *cats: Cat) -> Bool:
        """Mask of the rows of these categories."""
        mask = self.cat == int(cats[0]) if cats else np.zeros(len(self), dtype=bool)
        for cat in cats[1:]:
            mask |= self.cat == int(cat)  # an enum is compared as int64: ten times as slow
        return mask

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """The first and the last moment of its events; None without any."""
        own = self.own
        return (int(self.ts[own].min()), int(self.end[own].max())) if own.any() else None

    @property
    def own(self) -> Bool:
        """Mask of the rows that are events of this file: all but those that `loading.lending` laid into it."""
        return self.offset > BORROWED

    @cached_property
    def gpu(self) -> I64:
        """Row numbers of kernels, copies and memsets, by start."""
        return np.flatnonzero(self.is_cat(*GPU_CATS))

    @cached_property
    def by_name(self) -> NameIndex:
        """The rows by name."""
        if "by_name" not in self.derived:
            self.derived["by_name"] = order_of(self.name, len(self.names)).astype(np.int32)
        return NameIndex(self.names, self.name, self.derived["by_name"])

    def name_ids(self, *predicates: Predicate) -> I32:
        """Ids of the names that satisfy any of the predicates: each distinct name is asked once."""
        return self.by_name.ids(predicates)

    def is_named(self, *predicates: Predicate) -> Bool:
        """Mask of the rows whose name satisfies any of the predicates."""
        mask = np.zeros(len(self), dtype=bool)
        mask[self.by_name.rows(self.name_ids(*predicates).tolist())] = True
        return mask

    def named(self, predicate: Predicate, *cats: Cat) -> I64:
        """Row numbers of the events whose name satisfies the predicate, optionally of some categories."""
        mask = self.is_named(predicate)
        return np.flatnonzero(mask & self.is_cat(*cats) if cats else mask)

    def text(self, row: int) -> str:
        """The name of one event."""
        return self.names[int(self.name[row])]

    def name_ids_at(self, rows: I64) -> I64:
        """Ids of the names of these rows; -1 where the row is."""
        return np.where(rows < 0, -1, self.name[rows])

    def args(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """The `args` of these events, decoded again from the file (in the order asked for)."""
        if self.read_args is None:
            return [{} for _ in rows]
        return self.read_args([int(self.offset[r]) for r in rows])

    @property
    def base_ns(self) -> int:
        """What the file counts its times from, ns since the epoch; the columns have it added."""
        return int(self.meta.get("baseTimeNanoseconds", 0))

    @property
    def device_properties(self) -> list[dict[str, Any]]:
        """What the file says of each GPU: `name`, and numbers such as `id` and `totalGlobalMem`."""
        return list(self.meta.get("deviceProperties", ()))

    @cached_property
    def device_names(self) -> dict[int, str]:
        """Device id -> name (only those that have a name)."""
        return {p.get("id", i): p["name"] for i, p in enumerate(self.device_properties) if p.get("name")}

    def events(self) -> pd.DataFrame:
        """The columns as a DataFrame, for people: ts_us, dur_us, name, cat, pid, tid, device, stream, correlation."""
        import pandas as pd

        names = np.array(self.names, dtype=object)
        return pd.DataFrame(
            {
                "ts_us": self.ts / 1000.0,
                "dur_us": self.dur / 1000.0,
                "name": names[self.name] if len(names) else [],
                "cat": [Cat(c).name.lower() for c in self.cat.tolist()],
                "pid": [self.threads[t].pid for t in self.thread.tolist()],
                "tid": [self.threads[t].tid for t in self.thread.tolist()],
                "device": self.device,
                "stream": self.stream,
                "correlation": self.correlation,
            }
        )
