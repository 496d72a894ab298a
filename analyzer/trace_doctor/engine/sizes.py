"""How much of everything a result holds, so that it stays small enough to be sent. What is left out is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from trace_doctor.model import Finding, Table

MAX_LANES = 16
MAX_IGNORED = 200
MAX_SEGMENTS, MAX_POINTS, MAX_KERNELS, MAX_OPERATORS, MAX_SHAPES = 1200, 800, 1200, 900, 160
"""Over all captures, so that a result of many ranks stays small enough to be sent."""
MAX_STRIP_SEGMENTS = 360
"""Over all captures, for each of the up to six streams of a device"""
MAX_MEMORY_BLOCKS = 24_000
"""Over all captures, of a page: so that it stays small enough to be opened at once"""
MAX_WORK_ROWS, MAX_FRAMES = 16_000, 4_000
"""Over all captures, of what a page shows closer"""
MAX_STEPS = 200
MAX_FINDINGS = 100
MAX_DETAIL = 60_000
"""Bytes of findings with all their evidence; those behind keep a few rows"""
R = TypeVar("R", bound=msgspec.Struct)


@dataclass(frozen=True)
class Sizes:
    """How much of everything one capture may show, where there are others."""

    segments: int
    strip_segments: int
    kernels: int
    operators: int
    shapes: int
    memory_blocks: int = 0
    work_rows: int = 0
    frames: int = 0
    """of what a page shows closer: kernels and as many operators; Python frames"""
    detail: bool = False
    """whether what a page shows closer is collected too"""

    @classmethod
    def among(cls, captures: int, traces: int, *, detail: bool = False) -> Sizes:
        """What each of so many captures may show, so many of them with a trace: the more, the coarser."""
        lanes = min(traces, MAX_LANES)
        return cls(
            segments=share(MAX_SEGMENTS, lanes, 60, 600),
            strip_segments=share(MAX_STRIP_SEGMENTS, lanes, 12, 90),
            kernels=share(MAX_KERNELS, traces, 2, 400),
            operators=share(MAX_OPERATORS, traces, 2, 300),
            shapes=share(MAX_SHAPES, captures, 4, 24),
            memory_blocks=share(MAX_MEMORY_BLOCKS, captures, 100, 12_000),
            work_rows=share(MAX_WORK_ROWS, traces, 40, 2000),
            frames=share(MAX_FRAMES, traces, 100, 2000),
            detail=detail,
        )


def limit(rows: list[R], most: int, what: str, limits: list[str], of: int | None = None) -> list[R]:
    """The first of the rows, of which there were `of`; `limits` takes what was left out."""
    total = len(rows) if of is None else of
    if total > most:
        limits.append(f"showing {most} of {total} {what}")
    return rows[:most]


def with_details(findings: list[Finding], limits: list[str]) -> list[Finding]:
    """The first findings as they are; of the others, which nobody reads before those, a few rows of evidence."""
    detailed_findings: list[Finding] = []
    room, whole = MAX_DETAIL, 0
    for finding in findings:
        if room > 0:
            room -= len(msgspec.json.encode(finding))
            whole += 1
            detailed_findings.append(finding)
        else:
            detailed_findings.append(
                replace(finding, evidence=[_cut(t) for t in finding.evidence[:2]], spans=finding.spans[:1])
            )
    if whole < len(findings):
        limits.append(f"showing all evidence of {whole} of {len(findings)} findings")
    return detailed_findings


def _cut(table: Table) -> Table:
    return replace(table, rows=table.rows[:3], of=table.of or len(table.rows))


def share(budget: int, among: int, least: int, most: int) -> int:
    """What each gets of a budget."""
    return min(max(budget // max(among, 1), least), most)
