"""The accepted state: which findings are known, and what the figures were. Written and read as JSON.

A finding is known by its fingerprint (rule, file, function, call; no line, no time, no rank), so an edit elsewhere in the
script or a slower machine does not make it new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from trace_doctor.errors import UsageError
from trace_doctor.files import read_regular
from trace_doctor.gate.runs import MEASURES, cost, spread
from trace_doctor.model import Finding, Result, Severity, Tool, Unit

VERSION = 1


class Known(Struct, frozen=True, kw_only=True):
    """`count`: how often one capture shows it; `cost`: the largest share of the step or of the peak it claimed."""

    fingerprint: str
    code: str
    name: str
    place: str = ""
    severity: Severity = "info"
    count: int = 1
    cost: float | None = None


class Figure(Struct, frozen=True, kw_only=True):
    """A measure as it was: one value for each run, and their median absolute deviation or that of the steps."""

    unit: Unit
    values: list[float]
    spread: float = 0.0


class Baseline(Struct, frozen=True, kw_only=True):
    baseline_version: int
    tool: Tool = Tool()
    devices: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    """rules that could look"""
    findings: list[Known] = field(default_factory=list)
    figures: dict[str, Figure] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> Baseline:
        """What a result shows now, to be accepted. Suppressed findings are not part of it."""
        groups: dict[str, list[Finding]] = {}
        for finding in result.findings:
            groups.setdefault(finding.fingerprint, []).append(finding)
        figures = {
            name: Figure(unit=measure.unit, values=values, spread=spread(result, name))
            for name, measure in MEASURES.items()
            if (values := measure.of(result))
        }
        return cls(
            baseline_version=VERSION,
            tool=result.tool,
            devices=devices(result),
            decided=sorted(o.code for o in result.outcomes if o.outcome in ("fired", "passed")),
            findings=sorted(
                (_known(g) for g in groups.values()), key=lambda k: (k.code, k.place, k.fingerprint)
            ),
            figures=figures,
        )

    def words(self) -> str:
        counts = ((len(self.findings), "finding"), (len(self.figures), "figure"))
        return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2).decode() + "\n"


def _known(group: Sequence[Finding]) -> Known:
    worst = group[0]
    costs = [c for f in group if (c := cost(f)) is not None]
    return Known(
        fingerprint=worst.fingerprint,
        code=worst.code,
        name=worst.name,
        place=place(worst),
        severity=worst.severity,
        count=max(Counter(f.input for f in group).values()),
        cost=max(costs, default=None),
    )


def place(finding: Finding) -> str:
    """File and function, as far as they are known: no line, which moves."""
    file = (finding.location.file or "").replace("\\", "/").rsplit("/", 1)[-1]
    return " ".join(p for p in (file, finding.location.function) if p)


def devices(result: Result) -> list[str]:
    return sorted({i.device_name or "no GPU" for i in result.inputs if i.kind == "trace"})


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError, in one line, where there is no baseline."""
    try:
        data = read_regular(path)
    except OSError as error:
        hint = "; --update-baseline writes it" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"--baseline {path}: {error.strerror or 'cannot be read'}{hint}") from None
    try:
        baseline = msgspec.json.decode(data, type=Baseline)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"--baseline {path} is no baseline: {error}") from None
    if baseline.baseline_version != VERSION or any(not f.values for f in baseline.figures.values()):
        raise UsageError(
            f"--baseline {path}: version {baseline.baseline_version}, this trace-doctor reads {VERSION}; "
            "write it again with --update-baseline"
        )
    return baseline
