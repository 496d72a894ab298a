"""The accepted state: which findings are known, and what the figures were. Written and read as JSON.

A finding is known by its fingerprint (rule, file's name, function, call; no line, no time, no rank), so an edit elsewhere in the
script or a slower machine does not make it new, and by the path of its file, so that another file of that name does.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from trace_doctor.config.budget_table import FIGURES, MOST
from trace_doctor.errors import UsageError, one_line
from trace_doctor.files import open_regular
from trace_doctor.gate.runs import MEASURES, cost, spread
from trace_doctor.model import LOOKED, Finding, Result, Severity, Tool, Unit
from trace_doctor.sound_json import repeated_key
from trace_doctor.user_frames import shared_parts

VERSION = 1
MAX_BYTES = 64 << 20
_MOST_SPREAD = 1.001
"""of the value: the median absolute deviation of what is never negative is at most the median"""


class _Head(Struct):
    """What tells a baseline from any other JSON."""

    baseline_version: int


class Known(Struct, frozen=True, kw_only=True):
    """`count`: how often one capture shows it; `cost`: the largest share of the step or of the peak it claimed."""

    fingerprint: str
    code: str
    name: str
    place: str = ""
    path: str = ""
    """of its file, as far as it is known"""
    in_project: bool = False
    """the path is the whole one within the project"""
    severity: Severity = "info"
    count: int
    cost: float | None


class Figure(Struct, frozen=True, kw_only=True):
    """A measure as it was: one value for each run, and their median absolute deviation or that of the steps."""

    unit: Unit
    values: list[float]
    spread: float


class Baseline(Struct, frozen=True, kw_only=True):
    baseline_version: int
    tool: Tool = Tool()
    devices: list[str]
    ranks: int
    """how many were read"""
    decided: list[str]
    """rules that could look"""
    findings: list[Known]
    figures: dict[str, Figure]

    @classmethod
    def of(cls, result: Result) -> Baseline:
        """What a result shows now, to be accepted. Suppressed findings are not part of it."""
        groups: dict[tuple[str, str], list[Finding]] = {}
        for finding in result.findings:
            groups.setdefault((finding.fingerprint, path_of(finding, result)[0]), []).append(finding)
        figures = {
            name: Figure(unit=measure.unit, values=values, spread=spread(result, name))
            for name, measure in MEASURES.items()
            if (values := measure.of(result))
        }
        return cls(
            baseline_version=VERSION,
            tool=result.tool,
            devices=devices(result),
            ranks=len({i.rank for i in result.inputs}),
            decided=sorted(o.code for o in result.outcomes if o.outcome in LOOKED),
            findings=sorted(
                (_entry(g, result) for g in groups.values()),
                key=lambda k: (k.code, k.place, k.fingerprint, k.path),
            ),
            figures=figures,
        )

    def with_others_of(self, before: Baseline) -> tuple[Baseline, int]:
        """With what an earlier one holds of rules that could not look now (left out, or without their evidence), and how much that
        is: nobody has seen it gone."""
        others = [known for known in before.findings if known.code not in self.decided]
        findings = sorted([*self.findings, *others], key=lambda k: (k.code, k.place, k.fingerprint, k.path))
        return msgspec.structs.replace(self, findings=findings), len(others)

    def words(self) -> str:
        """What it holds: `2 findings, 3 figures`."""
        counts = ((len(self.findings), "finding"), (len(self.figures), "figure"))
        return ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts)

    def to_json(self) -> str:
        """As it is written, with a line break at the end."""
        return msgspec.json.format(msgspec.json.encode(self, order="sorted"), indent=2).decode() + "\n"


def _entry(group: Sequence[Finding], result: Result) -> Known:
    worst = group[0]
    costs = [c for f in group if (c := cost(f)) is not None]
    path, in_project = path_of(worst, result)
    return Known(
        fingerprint=worst.fingerprint,
        code=worst.code,
        name=worst.name,
        place=place(worst),
        path=path,
        in_project=in_project,
        severity=worst.severity,
        count=max(Counter(f.input for f in group).values()),
        cost=max(costs, default=None),
    )


def path_of(finding: Finding, result: Result) -> tuple[str, bool]:
    """Path of its file, and whether that is the whole one within the project, as the source tells. Else it is as recorded,
    below the working folder relative to it: what a build calls its checkout says nothing."""
    file = finding.location.file or ""
    if file in result.scripts:
        return f"{result.source_root or ''}{file}", True
    path = file.replace("\\", "/")
    with contextlib.suppress(OSError):
        path = path.removeprefix(Path.cwd().as_posix().rstrip("/") + "/")
    return path, False


def alike(known: Known, finding: Finding, result: Result) -> int:
    """How many last parts of their paths a finding and one of the same fingerprint share; 0 where it is another file, or where
    the entry names another place than its fingerprint stands for, as one written by hand may."""
    if known.place != place(finding):
        return 0
    return same_file(path_of(finding, result), (known.path, known.in_project))


def same_file(one: tuple[str, bool], other: tuple[str, bool]) -> int:
    """How many last parts two paths of `path_of` share; 0 where they are of two files."""
    if one[1] and other[1]:
        return len(one[0]) + 1 if one == other else 0
    return shared_parts(one[0], other[0])


def place(finding: Finding) -> str:
    """File and function, as far as they are known: no line, which moves."""
    file = (finding.location.file or "").replace("\\", "/").rsplit("/", 1)[-1]
    return " ".join(p for p in (file, finding.location.function) if p)


def devices(result: Result) -> list[str]:
    """Names of the devices of all traces, each once."""
    return sorted({i.device_name or "no GPU" for i in result.inputs if i.kind == "trace"})


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError, in one line, where there is no baseline."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        hint = "; --update-baseline writes it" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"--baseline {path}: {error.strerror or 'cannot be read'}{hint}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"--baseline {path} is no baseline: larger than {MAX_BYTES >> 20} MB")
    try:
        version = msgspec.json.decode(data, type=_Head).baseline_version
        baseline = msgspec.json.decode(data, type=Baseline) if version == VERSION else None
        if key := repeated_key(data):  # as a merge by hand leaves it
            raise UsageError(
                one_line(f"--baseline {path} is no baseline: {key[:60]!r} stands twice in one object of it")
            )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(one_line(f"--baseline {path} is no baseline: {error}")) from None
    if baseline is None:
        raise UsageError(
            f"--baseline {path}: version {version}, this trace-doctor reads {VERSION}; "
            "write it again with --update-baseline"
        )
    if why := _impossible(baseline):
        raise UsageError(one_line(f"--baseline {path}: {why}; write it again with --update-baseline"))
    return baseline


def _impossible(baseline: Baseline) -> str:
    """What no run can have measured: it would let every regression pass. Empty where all is sound."""
    for name, figure in baseline.figures.items():
        if name not in FIGURES:
            return f"figure {name[:60]} is none that is guarded"
        if figure.unit != FIGURES[name]:
            return f"figure {name[:60]} has the unit {figure.unit}"
        if not figure.values or not all(
            _within(v, MOST[figure.unit]) for v in [*figure.values, figure.spread]
        ):
            return f"figure {name[:60]} holds no possible values"
        if figure.unit != "share" and figure.spread > _MOST_SPREAD * max(figure.values):
            return f"figure {name[:60]} varies by more than its own value"
    for known in baseline.findings:
        if known.count < 1 or not (known.cost is None or _within(known.cost, MOST["share"])):
            return f"finding {known.code[:60]} has no possible count or cost"
    if baseline.devices and not baseline.figures:
        return "a trace was read, and no figure of it is there"
    return "" if baseline.ranks > 0 else "no rank was read"


def _within(value: float, most: float) -> bool:
    return 0 <= value <= most
