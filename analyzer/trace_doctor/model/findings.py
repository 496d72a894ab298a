"""What a rule found: the finding with its place, evidence, saving and fixes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from trace_doctor.errors import one_line
from trace_doctor.model.quantities import Amount, Bytes, Count, Share, Us

MAX_ROWS = 50
"""Rows of one evidence table in a Result; `Table.of` says how many there were."""
Severity = Literal["critical", "warning", "info"]
Confidence = Literal["high", "medium", "low"]
Basis = Literal["measured", "replay", "bound", "model"]
Known = Literal["up_to", "about"]
"""a bound, or an estimate with an interval that is to hold the real figure in 80 % of cases"""
FixKind = Literal["patch", "env", "command", "config", "advice"]
Safety = Literal["unsafe", "display"]
OutcomeKind = Literal["fired", "passed", "undecided", "skipped", "error"]
"""`undecided`: the rule found nothing, and much time of the kind that it is about has no owner"""
LOOKED: frozenset[OutcomeKind] = frozenset({"fired", "passed", "undecided"})
"""outcomes of rules that could look"""
Unit = Literal["us", "bytes", "share", "count", "code", "location", "text"]
Cell = str | int | float | None


class Location(Struct, frozen=True, kw_only=True):
    """Where a finding points: a line of the script when known, else a place in the capture."""

    file: str | None = None
    line: Count | None = None
    function: str | None = None
    rank: int | None = None
    ranks: list[Count] = field(default_factory=list)
    """the ranks it is about, where they are not `rank` alone"""
    device: int | None = None
    stream: int | None = None
    step: int | None = None
    ts_us: float | None = None

    @property
    def about_ranks(self) -> list[int]:
        """`ranks`, else `rank` alone where it is known."""
        return self.ranks or ([] if self.rank is None else [self.rank])


_MOST_RANGES = 3
"""ranks, or ranges of them, to name: of more their number tells more"""


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 and 6`, `ranks 0-2, 5, 7 and 4 more`."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1].append(rank)
        else:
            ranges.append([rank])
    parts = [part for some in ranges for part in ([some] if len(some) > 2 else [[rank] for rank in some])]
    named = [f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts[:_MOST_RANGES]]
    if left := sum(map(len, parts[_MOST_RANGES:])):
        named.append(f"{left} more")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(named)}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


class HowKnown(Struct, frozen=True, kw_only=True):
    """Whether figures are a bound or an estimate. Raises ValueError for an estimate without its interval, and for an interval
    that leaves its figures out."""

    known: Known = "up_to"
    low: Amount | None = None
    """of an estimate: the 80 % interval begins at so many times the figures"""
    high: Amount | None = None

    def __post_init__(self) -> None:
        if self.known == "about" and (self.low is None or self.high is None):
            raise ValueError("an estimate needs its interval, low and high")
        if not (self.low or 0.0) <= 1.0 <= (1.0 if self.high is None else self.high):
            raise ValueError("an interval, low to high, holds 1, the figure itself")


class Saving(HowKnown, frozen=True, kw_only=True):
    """What the fix may save, with the sentence that derives it. Never negative.

    Taking time or memory out of a run is a bound: nothing that stays gets faster. What puts other work in its place is an
    estimate, made by `about`."""

    time_us_per_step: Us | None = None
    share_of_step: Share | None = None
    bytes: Bytes | None = None
    share_of_peak: Share | None = None
    peak: Literal["allocated", "reserved"] = "allocated"
    """which peak `bytes` and `share_of_peak` are of"""
    basis: Basis = "bound"
    how: str = ""

    def about(self, low: float = 0.5, high: float = 2.0) -> Saving:
        """The same as an estimate; `low` and `high` are multiples of its figures, wide on purpose where a model gives none
        itself: it is assumed, not measured. Never more than the step, or the peak."""
        most = 1.0 / max(self.share_of_step or 0.0, self.share_of_peak or 0.0, 1e-9)
        return replace(self, known="about", low=min(low, 1.0), high=max(min(high, most), 1.0))


def known_together(savings: Iterable[Saving]) -> HowKnown:
    """How the sum of savings of time is known: an estimate where one of them is, its interval weighted by their time."""
    timed = [s for s in savings if s.time_us_per_step]
    if all(s.known == "up_to" for s in timed):
        return HowKnown()
    whole = sum(s.time_us_per_step or 0.0 for s in timed)

    def mean(multiples: Iterable[float | None]) -> float:
        pairs = zip(timed, multiples, strict=True)
        return sum((s.time_us_per_step or 0.0) * (1.0 if m is None else m) for s, m in pairs) / whole

    low, high = mean(s.low for s in timed), mean(s.high for s in timed)
    return HowKnown(known="about", low=min(low, 1.0), high=max(high, 1.0))


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
    left_out: str = ""
    """Of a diff that `trace-doctor fix` leaves out beside those of the others: why. Empty where it makes it."""
    sketch: str = ""
    """Of an edit that is not made, where its place is known: `file:line` with `-` and `+` lines. The reason against it is in
    `text`; no tool applies it."""
    text: str = ""
    verify: str = ""
    risk: str = ""
    """What could go wrong, in one sentence."""
    saving: Saving | None = None
    """what this fix alone may save; None where the finding's saving is of this fix, or nothing is known"""
    short: Bytes | None = None
    """of a failed allocation: what is still missing with this fix alone, 0 where it is enough"""


def enough_first(fixes: Iterable[Fix], missing: int) -> list[Fix]:
    """Fixes against what is missing: those that are enough alone first, then by what they give, then those of which that is not
    known. Each says what would still be missing."""
    measured = [
        f
        if f.saving is None or f.saving.bytes is None
        else replace(f, short=max(missing - f.saving.bytes, 0))
        for f in fixes
    ]
    return sorted(measured, key=lambda f: missing + 1 if f.short is None else f.short)


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
    missing_bytes: Bytes | None = None
    """of a failed allocation: what has to be freed for it, and for what follows as far as that is known"""
    thresholds: dict[str, Any] = field(default_factory=dict)
    refers_to: list[str] = field(default_factory=list)
    why: str = ""
    """The rule's "Why is this bad" section, so that a report needs no rule pack to be rendered again."""

    def __repr__(self) -> str:
        return one_line(f"<{self.id} {self.name}, {self.severity}: {self.message!r}>")


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
    skipped_on: list[Count] = field(default_factory=list)
    """likewise of those that it should have looked at and could not, where it decided on others"""
    skipped_because: str | None = None
    """why it could not, on the first of them"""


class Suppressed(Struct, frozen=True, kw_only=True):
    """A finding that a comment of the script or the configuration silences. No report counts it as a fault."""

    finding: Finding
    kind: Literal["comment", "config"]
    where: str
    """`train.py:41` of the comment, or the key in the configuration"""
    reason: str = ""
