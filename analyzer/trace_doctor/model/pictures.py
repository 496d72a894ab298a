"""What the charts and tables of a report are drawn from, reduced to what a page can show."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.findings import Basis
from trace_doctor.model.ledgers import OnDevice


class StepRow(Struct, frozen=True, kw_only=True):
    input: int = 0
    rank: int
    index: int
    start_us: float
    dur_us: float
    """from its mark to the next one"""
    pace_us: float | None = None
    """from the completion of the step before it to its own, GPU work included: what `Summary.step_us` is the median of"""
    warmup: bool = False


class Segment(Struct, frozen=True, array_like=True):
    """`kind` is compute, comm, copy, or one of IDLE_CAUSES."""

    start_us: float
    dur_us: float
    kind: str


class Gap(Struct, frozen=True, array_like=True):
    """A stretch in which a device did no work. `cause` owns most of it: `share` of its length."""

    start_us: float
    dur_us: float
    cause: str
    share: float


class Strip(Struct, frozen=True, kw_only=True):
    """What one stream of a device did, whatever the others did meanwhile: communication and copies that compute hides
    stand here too. Between the segments the stream does nothing."""

    stream: int
    """as the capture numbers it"""
    busy_us: float
    segments: list[Segment]
    shown: int
    of: int


class Lane(OnDevice, frozen=True, kw_only=True):
    """One device's time, start to end without holes, reduced for drawing. Times are relative to `start_us`
    of the first lane's capture (0 = start of the analysed window)."""

    label: str
    dur_us: float
    segments: list[Segment]
    shown: int
    of: int
    gaps: list[Gap] = field(default_factory=list)
    """the longest ones, longest first, as they were before the reduction"""
    streams: list[Strip] = field(default_factory=list)
    """the busiest streams, by number; none where a single one did all the work"""
    of_streams: int = 0
    """how many streams worked; 0 where the device has none"""


class MemoryMark(Struct, frozen=True, array_like=True):
    at: float
    kind: str
    """segment_alloc | segment_free | oom | step | peak"""
    label: str = ""


class MemorySeries(OnDevice, frozen=True, kw_only=True):
    """Memory of one device over time, reduced by min/max buckets. All lists have one value per point.

    `unit` is "us" (microseconds from the first entry) or "entry" (position in the record, where it has no clock).
    """

    unit: Literal["us", "entry"]
    at: list[float]
    live_by_category: dict[str, list[int]]
    reserved: list[int | None]
    peak_index: int
    marks: list[MemoryMark] = field(default_factory=list)
    shown: int = 0
    of: int = 0


class KernelRow(OnDevice, frozen=True, kw_only=True):
    name: str
    kind: str
    """compute | comm | copy"""
    count: int
    total_us: float
    mean_us: float
    share: float
    """of the window's compute time"""
    step_us: float | None = None
    """mean over the steady steps; None without steps"""
    step_sd_us: float | None = None
    """standard deviation over the steady steps; None for fewer than two"""


class OperatorRow(Struct, frozen=True, kw_only=True):
    """Time of the host in an operator or a runtime call itself, without what it calls, on the threads of the training
    loop and of autograd."""

    input: int = 0
    rank: int
    name: str
    kind: Literal["operator", "runtime"]
    count: int
    self_us: float
    """in the analysed window"""
    share: float
    """of all that is listed for the capture or was left out"""
    step_us: float | None = None
    """mean over the steady steps; None without steps"""
    step_sd_us: float | None = None
    """standard deviation over the steady steps; None for fewer than two"""


class CollectiveRow(OnDevice, frozen=True, kw_only=True):
    name: str
    count: int
    total_us: float
    exposed_us: float


class PathPart(Struct, frozen=True, kw_only=True):
    """What one operator, call or kernel has of a critical path."""

    name: str
    kind: str
    """host, kernels, communication, between kernels, launch delay or other"""
    count: int
    us: float


class CriticalPath(Struct, frozen=True, kw_only=True):
    """HolisticTraceAnalysis' longest chain of work through one step of a trace; times in us."""

    input: int = 0
    rank: int
    step: int
    """the number of its mark"""
    path_us: float
    by_kind: dict[str, float]
    parts: list[PathPart]
    """the largest ones, largest first"""


class WhatIf(Struct, frozen=True, kw_only=True):
    """Step time after the fixes named (finding ids), replayed together. The first entry, with none, is today."""

    input: int = 0
    rank: int = 0
    fixes: list[str]
    step_us: float
    basis: Basis = "replay"
