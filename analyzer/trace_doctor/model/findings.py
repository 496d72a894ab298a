"""What a rule found: the finding with its place, evidence, saving and fixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from trace_doctor.model.quantities import Bytes, Count, Share, Us

MAX_ROWS = 50
"""Rows of one evidence table in a Result; `Table.of` says how many there were."""
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Basis = Literal["measured", "replay", "bound", "model"]
FixKind = Literal["patch", "env", "command", "config", "advice"]
Safety = Literal["safe", "unsafe", "display"]
OutcomeKind = Literal["fired", "passed", "undecided", "skipped", "error"]
"""`undecided`: the rule found nothing, and much time of the kind that it is about has no owner"""
LOOKED: frozenset[OutcomeKind] = frozenset({"fired", "passed", "undecided"})
"""outcomes of rules that could look"""
Unit = Literal["us", "bytes", "share", "count", "code", "location", "text"]
Cell = str | int | float | None


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

    time_us_per_step: Us | None = None
    share_of_step: Share | None = None
    bytes: Bytes | None = None
    share_of_peak: Share | None = None
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
    of: Count | None = None
    """How many rows there were before the table was cut; None when it is whole."""

    @classmethod
    def with_units(cls, title: str, units: Mapping[str, Unit], rows: list[list[Cell]]) -> Table:
        """A whole table; `units` holds the titles of its columns, each with its unit."""
        return cls(title=title, columns=[Column(name, unit) for name, unit in units.items()], rows=rows)


class Span(Struct, frozen=True, kw_only=True):
    """A stretch of the capture, to look up in Perfetto."""

    ts_us: float
    dur_us: Us
    label: str = ""
    device: int | None = None
    stream: int | None = None
    step: int | None = None


class Target(Struct, frozen=True, kw_only=True):
    """The place in the user's script that a codemod is to edit."""

    file: str | None = None
    line: int | None = None
    function: str | None = None


NOT_PATCHED = "# not patched:"
"""starts the lines of a fix's text that say why a look at the source found no place for it"""


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


class Mention(Struct, frozen=True, kw_only=True):
    """What it takes to speak of a finding: the part that comparisons of two results repeat."""

    id: str
    code: str
    name: str
    title: str
    severity: Severity
    confidence: Confidence
    location: Location = Location()

    def mention(self) -> dict[str, Any]:
        """The fields above, to make a richer one from."""
        return {name: getattr(self, name) for name in Mention.__struct_fields__}


class Finding(Mention, frozen=True, kw_only=True):
    message: str
    fingerprint: str
    input: Count = 0
    rank: int | None = None
    saving: Saving | None = None
    evidence: list[Table] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    thresholds: dict[str, Any] = field(default_factory=dict)
    refers_to: list[str] = field(default_factory=list)
    why: str = ""
    """The rule's "Why is this bad" section, so that a report needs no rule pack to be rendered again."""

    def __repr__(self) -> str:
        return f"<{self.id} {self.name}, {self.severity}: {self.message!r}>"


class Outcome(Struct, frozen=True, kw_only=True):
    code: str
    name: str
    title: str = ""
    outcome: OutcomeKind
    reason: str | None = None
    capture: str | None = None
    refers_to: list[str] = field(default_factory=list)
    inputs: list[Count] | None = None
    """positions in `Result.inputs` of the captures on which the rule could decide (fired or passed)"""


class Suppressed(Struct, frozen=True, kw_only=True):
    """A finding that a comment of the script or the configuration silences. No report counts it as a fault."""

    finding: Finding
    kind: Literal["comment", "config"]
    where: str
    """`train.py:41` of the comment, or the key in the configuration"""
    reason: str = ""
