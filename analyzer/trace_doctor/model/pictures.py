"""What the charts and tables of a report are drawn from, reduced to what a page can show."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.findings import Basis
from trace_doctor.model.ledgers import OnDevice
from trace_doctor.model.quantities import Amount, Bytes, Count, Share, Us


class StepRow(Struct, frozen=True, kw_only=True):
    input: Count = 0
    rank: int
    index: int
    start_us: float
    dur_us: Us
    """from its mark to the next one"""
    pace_us: Us | None = None
    """from the completion of the step before it to its own, GPU work included"""
    warmup: bool = False
    kind: str = ""
    """what an inference engine did in it: prefill, decode, mixed …; empty for other programs"""


class EngineRow(Struct, frozen=True, kw_only=True):
    """The steady steps of one kind of an inference engine, or (`waiting`, `dummy`) the stretches between steps in which its
    server waited for requests, or ran dummy steps or captured graphs."""

    input: Count = 0
    rank: int
    kind: Literal["prefill", "decode", "mixed", "running", "diffusion", "other", "waiting", "dummy"]
    count: Count
    requests: Amount | None = None
    """median of a step; None where the engine does not say it"""
    tokens: Amount | None = None
    """the same"""
    median_us: Us
    share: Share
    """of the analyzed window"""
    busy_share: Share | None = None
    """of these steps, in which the GPU worked; None where not all of its work was recorded"""
    with_graph: Count = 0
    """steps that launched a CUDA graph"""


class Segment(Struct, frozen=True, array_like=True):
    """`kind` is compute, comm, copy, or one of IDLE_CAUSES."""

    start_us: float
    dur_us: Us
    kind: str


class Gap(Struct, frozen=True, array_like=True):
    """A stretch in which a device did no work. `cause` owns most of it: `share` of its length."""

    start_us: float
    dur_us: Us
    cause: str
    share: Share


class Strip(Struct, frozen=True, kw_only=True):
    """What one stream of a device did, whatever the others did meanwhile: communication and copies that compute hides
    stand here too. Between the segments the stream does nothing."""

    stream: int
    """as the capture numbers it"""
    busy_us: Us
    segments: list[Segment]
    shown: Count
    of: Count


class Lane(OnDevice, frozen=True, kw_only=True):
    """One device's time, start to end without holes, reduced for drawing. Times are relative to `start_us`
    of the first lane's capture (0 = start of the analyzed window)."""

    label: str
    dur_us: Us
    segments: list[Segment]
    shown: Count
    of: Count
    gaps: list[Gap] = field(default_factory=list)
    """the longest ones, longest first, as they were before the reduction"""
    streams: list[Strip] = field(default_factory=list)
    """the busiest streams, by number; none where a single one did all the work"""
    of_streams: Count = 0
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
    live_by_category: dict[str, list[Bytes]]
    reserved: list[Bytes | None]
    peak_index: Count
    marks: list[MemoryMark] = field(default_factory=list)
    shown: Count = 0
    of: Count = 0


class KernelRow(OnDevice, frozen=True, kw_only=True):
    name: str
    kind: str
    """compute | comm | copy"""
    count: Count
    total_us: Us
    mean_us: Us
    share: Amount
    """of the window's compute time"""
    step_us: Us | None = None
    """mean over the steady steps; None without steps"""
    step_sd_us: Us | None = None
    """standard deviation over the steady steps; None for fewer than two"""


class OperatorRow(Struct, frozen=True, kw_only=True):
    """Time of the host in an operator or a runtime call itself, without what it calls, on the threads of the training
    loop and of autograd."""

    input: Count = 0
    rank: int
    name: str
    kind: Literal["operator", "runtime"]
    count: Count
    self_us: Us
    """in the analyzed window"""
    share: Share
    """of all that is listed for the capture or was left out"""
    step_us: Us | None = None
    """mean over the steady steps; None without steps"""
    step_sd_us: Us | None = None
    """standard deviation over the steady steps; None for fewer than two"""


class CollectiveRow(OnDevice, frozen=True, kw_only=True):
    name: str
    count: Count
    total_us: Us
    exposed_us: Us


class PathPart(Struct, frozen=True, kw_only=True):
    """What one operator, call or kernel has of a critical path."""

    name: str
    kind: str
    """host, kernels, communication, between kernels, launch delay or other"""
    count: Count
    us: Us


class CriticalPath(Struct, frozen=True, kw_only=True):
    """HolisticTraceAnalysis' longest chain of work through one step of a trace; times in us."""

    input: Count = 0
    rank: int
    step: int
    """the number of its mark"""
    path_us: Us
    by_kind: dict[str, Us]
    parts: list[PathPart]
    """the largest ones, largest first"""


class WhatIf(Struct, frozen=True, kw_only=True):
    """Step time after the fixes named (finding ids), replayed together. The first entry, with none, is today."""

    input: Count = 0
    rank: int = 0
    fixes: list[str]
    step_us: Us
    basis: Basis = "replay"
