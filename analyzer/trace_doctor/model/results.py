"""The result that holds all of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from trace_doctor.errors import one_line
from trace_doctor.model.captures import Ignored, Input, LinesRun, Ranks
from trace_doctor.model.detail import Detail
from trace_doctor.model.findings import Finding, HowKnown, Outcome, Suppressed
from trace_doctor.model.gates import Gate
from trace_doctor.model.html_safe_json import html_safe
from trace_doctor.model.jobs import JobDelays
from trace_doctor.model.ledgers import MemoryHeldRow, MemoryLedgerRow, OwnershipRow, TimeLedgerRow
from trace_doctor.model.pictures import (
    CollectiveRow,
    CriticalPath,
    EngineRow,
    KernelRow,
    Lane,
    MemorySeries,
    OperatorRow,
    StepRow,
    WhatIf,
)
from trace_doctor.model.quantities import Amount, Bytes, Count, Share, Us
from trace_doctor.model.reading import (
    LONGEST,
    check_figures,
    check_jobs,
    check_pictures,
    check_rows,
    checked,
    count_long,
    shortened,
)

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

SCHEMA_VERSION = 1


class ReplayQuality(Struct, frozen=True, kw_only=True):
    base_error: Amount | None = None
    unexplained_share: Amount | None = None


class SavingUpTo(HowKnown, frozen=True, kw_only=True):
    """What the fixes may save together; an estimate where one of them is."""

    time_us_per_step: Us | None = None
    share_of_step: Share | None = None
    bytes: Bytes | None = None


class Summary(Struct, frozen=True, kw_only=True):
    step_us: Us | None = None
    """Mean steady step; None without a step source."""
    plain_step_us: Us | None = None
    """Mean step without the profiler, of the capture that `step_us` is of; only a recording tells."""
    gpu_busy_share: Share | None = None
    """Compute, and communication and copies that run without it: `time_ledger` has each of the three."""
    gpu_idle_share: Share | None = None
    peak_allocated_bytes: Bytes | None = None
    peak_reserved_bytes: Bytes | None = None
    replay: ReplayQuality = ReplayQuality()
    saving_up_to: SavingUpTo = SavingUpTo()
    left_out: Count = 0
    """findings below min-confidence or min-saving"""
    verdict: str = ""
    """Up to three sentences for people, the gravest fault first."""


class Tool(Struct, frozen=True, kw_only=True):
    name: str = "trace-doctor"
    version: str = ""


class Document(Struct, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()

    def to_json(self) -> bytes:
        """UTF-8 JSON with sorted keys, two-space indent and a final newline; a report holds it as it is. Same input, same
        bytes."""
        return html_safe(msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2)) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Reads what `to_json` wrote. Raises msgspec.ValidationError when it is no such object."""
        return msgspec.json.decode(data, type=cls)


class InNotebooks(Protocol):
    """What `trace_doctor.reporters.notebook` makes of a result, for this module knows no reporters."""

    def html(self, result: Result) -> str:
        """The report in a frame."""

    def frames(self, result: Result) -> dict[str, pandas.DataFrame]:
        """As `Result.frames`."""

    def figures(self, result: Result) -> dict[str, Figure]:
        """As `Result.figures`."""


in_notebooks: InNotebooks | None = None
"""set by that module"""


class Result(Document, frozen=True, kw_only=True):
    inputs: list[Input] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    ranks: Ranks = Ranks()
    incomplete: list[str] = field(default_factory=list)
    """why this is no diagnosis of all that was given or recorded: captures not read, ranks missing, pieces of a trace
    that were recorded apart from the one that was judged, a trace with too little in it. `check`, `verify` and `diff` then end with 3 unless --allow-partial is given"""
    summary: Summary = Summary()
    time_ledger: list[TimeLedgerRow] = field(default_factory=list)
    ownership: list[OwnershipRow] = field(default_factory=list)
    """which findings own the time that is no compute, and what no finding owns"""
    memory_ledger: list[MemoryLedgerRow] = field(default_factory=list)
    memory_held: list[MemoryHeldRow] = field(default_factory=list)
    """of devices without a memory ledger: what a snapshot holds that knows the moment it was written only"""
    memory_pinned: list[MemoryHeldRow] = field(default_factory=list)
    """pinned memory of the host, where a snapshot has it: no part of any GPU's memory"""
    steps: list[StepRow] = field(default_factory=list)
    engine_steps: list[EngineRow] | UnsetType = UNSET
    """only of inference engines that mark their steps"""
    timeline: list[Lane] = field(default_factory=list)
    memory_timeline: list[MemorySeries] = field(default_factory=list)
    kernels: list[KernelRow] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    collectives: list[CollectiveRow] = field(default_factory=list)
    what_if: list[WhatIf] = field(default_factory=list)
    jobs: list[JobDelays] | UnsetType = UNSET
    """only of jobs of several process groups, by the rules that look at them"""
    critical_path: list[CriticalPath] = field(default_factory=list)
    """only where it was asked for"""
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
    lines_run: list[LinesRun] | UnsetType = UNSET
    """only of a recording that tells"""
    config: dict[str, Any] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    detail: list[Detail] | UnsetType = UNSET
    """of each capture; only where a page was asked for, and in no saved result"""

    @property
    def unread(self) -> list[Ignored]:
        """Captures that were met and not read."""
        return [i for i in self.ignored if i.unread]

    def to_json(self) -> bytes:
        """The result as UTF-8 JSON: sorted keys, two-space indent, arrays and objects of plain values on one line
        (series and rows would else be mostly spaces), one final newline, and no `detail`. A report holds it as it is. Same
        result, same bytes."""
        stored = msgspec.structs.replace(self, detail=UNSET)
        text = msgspec.json.format(msgspec.json.encode(stored, order="sorted"), indent=2)
        return html_safe(_PLAIN.sub(lambda plain: _BREAK.sub(rb"\1", plain[0]), text)) + b"\n"

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Reads what `to_json` wrote; texts that no analysis writes, for their length, are cut, and `limits` says so. Raises
        msgspec.ValidationError when it is no such result, UnusableResult where it holds what no analysis measures, or a fix
        asks for what its codemod does not do."""
        result = msgspec.json.decode(data, type=cls)
        decoded = msgspec.json.decode(data)
        if too_long := count_long(decoded):
            result = msgspec.convert(shortened(decoded), cls)
            note = f"{too_long:,} texts of the saved result are longer than {LONGEST:,} characters: cut"
            result = msgspec.structs.replace(result, limits=[*result.limits, note])
        findings = checked(result.findings)
        suppressed = [
            msgspec.structs.replace(s, finding=f)
            for s, f in zip(result.suppressed, checked([s.finding for s in result.suppressed]), strict=True)
        ]
        check_figures(decoded)
        check_pictures(result.timeline, result.memory_timeline)
        check_jobs(result.jobs or ())
        rows = (result.time_ledger, result.memory_ledger, result.memory_held, result.kernels)
        devices = {(row.input, row.device) for of_kind in rows for row in of_kind}
        check_rows([o.code for o in result.outcomes], findings, len(result.inputs), devices)
        return msgspec.structs.replace(result, findings=findings, suppressed=suppressed)

    def __repr__(self) -> str:
        """For a console: the verdict and a line for each finding. All of it would be as long as the JSON."""
        of = f"{self.inputs[0].path!r}" if len(self.inputs) == 1 else f"{len(self.inputs)} captures"
        head = one_line(f"<Result of {of}: {self.summary.verdict!r}")
        return "\n  ".join([head, *map(repr, self.findings)]) + ">"

    def _repr_html_(self) -> str | None:
        return in_notebooks.html(self) if in_notebooks is not None else None

    def frames(self) -> dict[str, pandas.DataFrame]:
        """`findings`, `time_ledger`, `memory_ledger`, `steps`, `kernels`, `operators` and `collectives`, a row for each; nested fields
        as `saving.share_of_step`, units as the names say (`_ns`, `_us`, `_bytes`), shares from 0 to 1. A part without rows is empty.
        All but the findings have the path of their `capture`."""
        assert in_notebooks is not None
        return in_notebooks.frames(self)

    def figures(self) -> dict[str, Figure]:
        """plotly figures of what there is: `breakdown` (ms per step by part), `kernels` (the 20 longest), `savings` (by finding) and
        `memory` (classes at the peak)."""
        assert in_notebooks is not None
        return in_notebooks.figures(self)


_VALUE = rb"\n *[^\s\[\]{}][^\n]*(?<![\[{])"
_PLAIN = re.compile(rb"[\[{](?:%s)+\n *[\]}]" % _VALUE)
_BREAK = re.compile(rb"(?<=[\[{])\n *|(?<=,)\n( ) *|\n *(?=[\]}])")
