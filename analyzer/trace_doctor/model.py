"""The result: one JSON-able object that every reporter, the gate and the fixes are made from.

This module is the contract (schema version 1). The JSON Schema is generated from these types.
Times for people are float microseconds (`_us`), ledgers are integer nanoseconds (`_ns`), memory is bytes,
shares are 0..1. `None` means "not known", never zero.
"""

from __future__ import annotations

import re
from html import escape
from importlib import import_module
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

SCHEMA_VERSION = 1
MAX_ROWS = 50
"""Rows of one evidence table in a Result; `Table.of` says how many there were."""

Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Basis = Literal["measured", "replay", "bound", "model"]
FixKind = Literal["patch", "env", "command", "config", "advice"]
Safety = Literal["safe", "unsafe", "display"]
OutcomeKind = Literal["fired", "passed", "skipped", "error"]
Unit = Literal["us", "bytes", "share", "count", "code", "location", "text"]
Cell = str | int | float | None

IDLE_CAUSES: tuple[str, ...] = (
    "data_loading",
    "allocator",
    "compile",
    "cold_start",
    "sync",
    "optimizer",
    "annotation",
    "python",
    "dispatch",
    "launch",
    "profiler",
    "unattributed",
)
MEMORY_CATEGORIES: tuple[str, ...] = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "temporaries",
    "workspaces",
    "held_before_recording",
    "unknown",
)


class Location(Struct, frozen=True, kw_only=True):
    """Where a finding points: a line of the script when known, else a place in the capture."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    rank: int | None = None
    device: int | None = None
    stream: int | None = None
    step: int | None = None
    ts_us: float | None = None


class Saving(Struct, frozen=True, kw_only=True):
    """What the fix may save: an upper bound, with the sentence that derives it. Never negative."""

    time_us_per_step: float | None = None
    share_of_step: float | None = None
    bytes: int | None = None
    share_of_peak: float | None = None
    basis: Basis = "bound"
    how: str = ""


class Column(Struct, frozen=True):
    title: str
    unit: Unit = "text"


class Table(Struct, frozen=True, kw_only=True):
    """Evidence for people: typed columns, so that one renderer draws every rule's table."""

    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    of: int | None = None
    """How many rows there were before the table was cut; None when it is whole."""


class Span(Struct, frozen=True, kw_only=True):
    """A stretch of the capture, to look up in Perfetto."""

    ts_us: float
    dur_us: float
    label: str = ""
    device: int | None = None
    stream: int | None = None
    step: int | None = None


class Target(Struct, frozen=True, kw_only=True):
    """The place in the user's script that a codemod is to edit."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


class Fix(Struct, frozen=True, kw_only=True):
    """A fix as data. `codemod` names an edit of `trace_doctor.fixes`; `params` are its arguments.

    `text` is what to paste or to do when no script is at hand; `diff` is filled in when one is.
    """

    title: str
    kind: FixKind
    safety: Safety = "unsafe"
    framework: str = "torch"
    codemod: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    target: Target | None = None
    diff: str | None = None
    text: str = ""
    verify: str = ""
    risk: str = ""
    """What could go wrong, in one sentence."""


class Finding(Struct, frozen=True, kw_only=True):
    id: str
    code: str
    name: str
    title: str
    severity: Severity
    confidence: Confidence
    message: str
    fingerprint: str
    input: int = 0
    rank: int | None = None
    location: Location = Location()
    saving: Saving | None = None
    evidence: list[Table] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    thresholds: dict[str, Any] = field(default_factory=dict)
    refers_to: list[str] = field(default_factory=list)
    why: str = ""
    """The rule's "Why is this bad" section, so that a report needs no rule pack to be rendered again."""


class Outcome(Struct, frozen=True, kw_only=True):
    code: str
    name: str
    title: str = ""
    outcome: OutcomeKind
    reason: str | None = None
    capture: str | None = None
    refers_to: list[str] = field(default_factory=list)
    inputs: list[int] | None = None
    """positions in `Result.inputs` of the captures on which the rule could decide (fired or passed)"""


class TorchVersion(Struct, frozen=True, kw_only=True):
    """Bounds of the torch version that made the capture, and how they are known."""

    min: str | None = None
    max: str | None = None
    how: str | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """What the profiler was told to record. None: the file does not say."""

    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None
    flops: bool | None = None
    modules: bool | None = None


class Work(Struct, frozen=True, kw_only=True):
    """What a steady step computes (medians), to tell whether two captures are of the same job. None: not recorded."""

    kernels: float | None = None
    operators: float | None = None
    shapes: list[str] = field(default_factory=list)
    """`aten::linear [64, 784] [10, 784]`: products and convolutions with their input shapes, each form once"""


class Pace(Struct, frozen=True, kw_only=True):
    """The steady steps of one trace, all of them (`Result.steps` may be cut)."""

    steps: int
    median_us: float
    mad_us: float
    """median absolute deviation: how far a step usually is from the median"""


class Input(Struct, frozen=True, kw_only=True):
    path: str
    kind: Literal["trace", "snapshot", "torch_trace"]
    rank: int = 0
    rank_how: str = ""
    device_name: str | None = None
    torch_version: TorchVersion = TorchVersion()
    events: int = 0
    steps: int = 0
    recorded: Recorded = Recorded()
    pace: Pace | None = None
    """None without steps"""
    step_source: str | None = None
    """what marks the steps: profiler_step, loader, optimizer, marker; None without steps"""
    work: Work = Work()
    warnings: list[str] = field(default_factory=list)


class IdleNs(Struct, frozen=True, kw_only=True):
    data_loading: int = 0
    allocator: int = 0
    compile: int = 0
    cold_start: int = 0
    sync: int = 0
    optimizer: int = 0
    annotation: int = 0
    python: int = 0
    dispatch: int = 0
    launch: int = 0
    profiler: int = 0
    unattributed: int = 0

    def total(self) -> int:
        return sum(msgspec.structs.astuple(self))


class TimeLedgerRow(Struct, frozen=True, kw_only=True):
    """window_ns = compute_ns + exposed_comm_ns + exposed_copy_ns + sum(idle_ns), exactly.

    `input` is the position in `Result.inputs` (here and in all rows below): two files may have the same rank.
    """

    input: int = 0
    rank: int
    device: int
    phase: Literal["steady", "warmup", "outside"]
    steps: int
    window_ns: int
    compute_ns: int
    exposed_comm_ns: int
    exposed_copy_ns: int
    idle_ns: IdleNs
    step_us: float


class CategoryBytes(Struct, frozen=True, kw_only=True):
    parameters: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0
    inputs: int = 0
    temporaries: int = 0
    workspaces: int = 0
    held_before_recording: int = 0
    unknown: int = 0


class MemoryLedgerRow(Struct, frozen=True, kw_only=True):
    """Live bytes at the peak; sum(by_category) = peak_bytes, exactly. Requested sizes."""

    input: int = 0
    rank: int
    device: int
    peak_bytes: int
    by_category: CategoryBytes
    max_reserved_bytes: int | None
    max_live_bytes: int
    how: str
    by_frame: list[tuple[str, int]] = field(default_factory=list)


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


class Lane(Struct, frozen=True, kw_only=True):
    """One device's time, start to end without holes, reduced for drawing. Times are relative to `start_us`
    of the first lane's capture (0 = start of the analysed window)."""

    input: int = 0
    rank: int
    device: int
    label: str
    dur_us: float
    segments: list[Segment]
    shown: int
    of: int
    gaps: list[Gap] = field(default_factory=list)
    """the longest ones, longest first, as they were before the reduction"""


class MemoryMark(Struct, frozen=True, array_like=True):
    at: float
    kind: str
    """segment_alloc | segment_free | oom | step | peak"""
    label: str = ""


class MemorySeries(Struct, frozen=True, kw_only=True):
    """Memory of one device over time, reduced by min/max buckets. All lists have one value per point.

    `unit` is "us" (microseconds from the first entry) or "entry" (position in the record, where it has no clock).
    """

    input: int = 0
    rank: int
    device: int
    unit: Literal["us", "entry"]
    at: list[float]
    live_by_category: dict[str, list[int]]
    reserved: list[int | None]
    peak_index: int
    marks: list[MemoryMark] = field(default_factory=list)
    shown: int = 0
    of: int = 0


class KernelRow(Struct, frozen=True, kw_only=True):
    input: int = 0
    rank: int
    device: int
    name: str
    kind: str
    """compute | comm | copy"""
    count: int
    total_us: float
    mean_us: float
    share: float
    """of the window's compute time"""


class CollectiveRow(Struct, frozen=True, kw_only=True):
    input: int = 0
    rank: int
    device: int
    name: str
    count: int
    total_us: float
    exposed_us: float


class WhatIf(Struct, frozen=True, kw_only=True):
    """Step time after the fixes named (finding ids), replayed together. The first entry, with none, is today."""

    input: int = 0
    rank: int = 0
    fixes: list[str]
    step_us: float
    basis: Basis = "replay"


class ReplayQuality(Struct, frozen=True, kw_only=True):
    base_error: float | None = None
    unexplained_share: float | None = None


class SavingUpTo(Struct, frozen=True, kw_only=True):
    time_us_per_step: float | None = None
    share_of_step: float | None = None
    bytes: int | None = None


class Summary(Struct, frozen=True, kw_only=True):
    step_us: float | None = None
    """Median steady step; None without a step source."""
    gpu_busy_share: float | None = None
    gpu_idle_share: float | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    replay: ReplayQuality = ReplayQuality()
    saving_up_to: SavingUpTo = SavingUpTo()
    verdict: str = ""
    """One sentence for people."""


class Suppressed(Struct, frozen=True, kw_only=True):
    """A finding that a comment of the script or the configuration silences. No report counts it as a fault."""

    finding: Finding
    kind: Literal["comment", "config"]
    where: str
    """`train.py:41` of the comment, or the key in the configuration"""
    reason: str = ""


class Budget(Struct, frozen=True, kw_only=True):
    """One figure that the gate judged. `unit` is us, bytes or share; `found` is the aggregate over the runs."""

    name: str
    unit: Unit
    level: Literal["error", "warning"] = "error"
    """a warning is said, and never fails the gate"""
    status: Literal["passed", "failed", "undecided"]
    found: float | None = None
    values: list[float] = field(default_factory=list)
    """one for each run"""
    limit: float | None = None
    """more than this fails"""
    baseline: float | None = None
    noise: float | None = None
    """k x MAD: differences from the baseline up to this are noise"""
    how: str = ""
    """what makes the limit, or why nothing could be decided"""


class Gate(Struct, frozen=True, kw_only=True):
    """What `check` decided."""

    code: int
    """the exit code: 0 passed, 1 failed, 3 could not decide"""
    verdict: str
    fail_on: str = "warning"
    failing: list[str] = field(default_factory=list)
    """ids of the findings that fail it"""
    known: list[str] = field(default_factory=list)
    """ids of the findings that the baseline holds"""
    budgets: list[Budget] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    """required rules that could not look, with the reason"""
    notes: list[str] = field(default_factory=list)


class Ignored(Struct, frozen=True, kw_only=True):
    """A file below the paths that was not analysed, with the reason."""

    path: str
    reason: str


class Tool(Struct, frozen=True, kw_only=True):
    name: str = "trace-doctor"
    version: str = ""


class Result(Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    inputs: list[Input] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    summary: Summary = Summary()
    time_ledger: list[TimeLedgerRow] = field(default_factory=list)
    memory_ledger: list[MemoryLedgerRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    timeline: list[Lane] = field(default_factory=list)
    memory_timeline: list[MemorySeries] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    collectives: list[CollectiveRow] = field(default_factory=list)
    what_if: list[WhatIf] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    suppressed: list[Suppressed] = field(default_factory=list)
    gate: Gate | None = None
    """only from `check`"""
    source_root: str | None = None
    """folder of the source inside its git work tree, with a final slash ("" at its top); None: no source was given.
    Paths of scripts are relative to it."""
    scripts: list[str] = field(default_factory=list)
    """the scripts of the source that findings and fixes name; other paths are as the capture has them"""
    source_excerpts: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """file -> [(line number, text)] near the findings; empty with --no-source."""
    config: dict[str, Any] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)

    def to_json(self) -> bytes:
        """The result as UTF-8 JSON: sorted keys, two-space indent, arrays of plain values on one line (series would
        else be mostly spaces), one final newline. Same result, same bytes."""
        text = msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)
        return _PLAIN_ARRAY.sub(lambda array: _ARRAY_BREAK.sub(rb"\1", array[0]), text) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str) -> Result:
        """Reads what `to_json` wrote. Raises msgspec.ValidationError when it is no such result."""
        return msgspec.json.decode(data, type=cls)

    def _repr_html_(self) -> str:
        """The report in a frame of its own, for notebooks. Reporters are looked up when asked for: this module needs none."""
        page: str = import_module("trace_doctor.reporters").render(self, "html", zoom=False)
        return (
            f'<iframe srcdoc="{escape(page)}" sandbox="allow-scripts allow-downloads" title="trace-doctor report" '
            'style="width:100%; height:720px; border:1px solid #8884; border-radius:8px"></iframe>'
        )


_VALUE = rb"\n *[^\s\[\]{}][^\n]*(?<![\[{])"
_PLAIN_ARRAY = re.compile(rb"\[(?:%s)+\n *\]" % _VALUE)
_ARRAY_BREAK = re.compile(rb"(?<=\[)\n *|(?<=,)\n( ) *|\n *(?=\])")


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of `Result`, generated from the types above."""
    schema = msgspec.json.schema(Result)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "trace-doctor result",
        **schema,
    }
