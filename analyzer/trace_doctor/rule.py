"""What a rule is. Class variables are its identity, `threshold`s its settings, the docstring its page."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar, dataclass_transform

from msgspec import Struct

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts, Options
from trace_doctor.evidence.rank_summary import JobEvidence, Limits
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Confidence, Fix, Location, Saving, Severity, Span, Table

HEADINGS = (
    "What it does",
    "Why is this bad",
    "Evidence",
    "How the saving is estimated",
    "Fix",
    "Fix safety",
    "When to ignore",
    "References",
)

E = TypeVar("E", bound=Evidence | JobEvidence)
Kind = type[Evidence] | type[JobEvidence]


class Threshold(NamedTuple):
    """A configurable number of a rule."""

    default: Any
    description: str
    unit: str
    source: str
    note_from: float | None = None
    """where it is not reached, but this is, the rule's claims are notes: no cost is silence because of a share"""


NOTE_FROM = 0.01
"""share of the step: less is within the noise of almost every run"""
MOST_CLAIMS = 10_000
"""of a rule on one capture: each is compared with others, and a result shows a hundred findings"""


def threshold(
    default: Any, description: str, *, unit: str = "", source: str = "", note_from: float | None = None
) -> Any:
    """A configurable number of a rule: says what it means and where it comes from. In the rule it is a plain value."""
    return Threshold(default, description, unit, source, note_from)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a rule says of one fault. The engine makes a `Finding` of it: id, severity, fingerprint and order are
    not the rule's to choose."""

    message: str
    """one sentence with the numbers"""
    confidence: Confidence
    title: str = ""
    """where that of the rule says less than is known"""
    saving: Saving | None = None
    severity: Severity | None = None
    """only for rules without a saving, or to cap: never raises what the saving gives"""
    location: Location = Location()
    evidence: Sequence[Table] = ()
    spans: Sequence[Span] = ()
    fixes: Sequence[Fix] = ()
    missing_bytes: int | None = None
    """of a failed allocation: what has to be freed for it, and for what follows as far as that is known"""
    removal: Removal | None = None
    """what the fixes take out of the run, for the combined replay; None where no replay applies"""
    owned: Sequence[tuple[int, int]] = ()
    """(start, end) ns of the time this claim owns, to tell whether another rule speaks of the same moments"""
    owned_on: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """rank -> the same of the captures of other ranks of its job, whose time it explains"""
    tells_of: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """rank -> rules whose claims on that rank of the job are about the cause that this one names: they are given up"""
    minor: bool = False
    """below the thresholds of its rule: a note, whatever the settings say"""
    key: str = ""
    """what tells this claim from others of the same rule, without times and line numbers (call site, op, frame)"""


class View(Protocol):
    """What a rule looks at: the evidence of one capture, or of one rank of a job."""

    @property
    def rank(self) -> int:
        """Of the job; 0 where there is one process."""

    def __getitem__(self, kind: type[Any], /) -> Any: ...
    def get(self, kind: type[Any], /) -> Any:
        """The evidence, or None where it was not captured."""


class Context:
    """What a rule may see: the evidence it declared in `needs` and `wants`, nothing else."""

    def __init__(self, view: View, rule: Rule) -> None:
        self._view = view
        self._allowed = {*rule.needs, *rule.wants}
        self._rule = rule

    def __getitem__(self, kind: type[E]) -> E:
        self._declared(kind)
        evidence: E = self._view[kind]
        return evidence

    def get(self, kind: type[E]) -> E | None:
        """The evidence, or None where it was not captured."""
        self._declared(kind)
        evidence: E | None = self._view.get(kind)
        return evidence

    def missing(self, kind: type[Any]) -> NotCaptured | None:
        """Why this evidence is not there, or None when it is."""
        self._declared(kind)
        try:
            self._view[kind]
        except NotCaptured as reason:
            return reason
        return None

    def _declared(self, kind: type[Any]) -> None:
        if kind not in self._allowed:
            raise TypeError(f"{self._rule.code} reads {kind.__name__} without declaring it in needs or wants")

    @property
    def options(self) -> Options:
        """What the user says about the capture; a rule over several ranks has none."""
        return self._view.options if isinstance(self._view, Facts) else Options()

    @property
    def rank(self) -> int:
        """The rank whose capture, or whose summary, is looked at."""
        return self._view.rank


@dataclass_transform(kw_only_default=True, field_specifiers=(threshold,))
class Rule:
    """Base of all rules: `AnyRule(min_share=0.2)` sets its thresholds, whose types are checked as those of a dataclass. It is
    none: that takes a millisecond each to make. See docs/writing-rules.md for the one page a rule author needs."""

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[tuple[Kind, ...]] = ()
    wants: ClassVar[tuple[Kind, ...]] = ()
    to_pass: ClassVar[tuple[Kind, ...]] = ()
    """what else has to be there where it finds nothing: a capture that could not show the fault is *skipped*"""
    yields_to: ClassVar[tuple[str, ...]] = ()
    explained_by: ClassVar[tuple[str, ...]] = ()
    """rules whose findings on the same capture and device say why: a finding refers to them and takes their fixes"""
    costs_host_time: ClassVar[bool] = False
    """what it finds passes on the host: where others kept the machine busy, it may be theirs"""
    about: ClassVar[tuple[str, ...]] = ()
    """parts of the time ledger whose time it would find: where much of one has no owner, finding nothing is no *passed*. And
    categories of memory that its findings explain"""
    of_training: ClassVar[bool] = False
    """whether it is about training alone: skipped on a capture of an inference engine"""
    limits: ClassVar[tuple[type[Struct], ...]] = ()
    """structs of thresholds that `JobEvidence.build_with` takes: the rule has a threshold for each field"""
    server_fixes: ClassVar[tuple[Fix, ...]] = ()
    """what to do instead where an inference server was recorded: its options, and no edit of a script"""
    VALID: ClassVar[list[Any]] = []
    INVALID: ClassVar[list[Any]] = []

    def check(self, ctx: Context) -> Iterator[Claim]:
        """Yields one claim per fault. Raises NotCaptured to abstain; yields nothing when the run is sound."""
        raise NotImplementedError

    def claims(self, view: View) -> list[Claim]:
        """What it says of a capture, or of a rank. Raises NotCaptured where the capture could not show it, and ValueError for
        a rule that does not come to an end."""
        steps = view.get(Steps) if self.of_training or self.server_fixes else None
        if self.of_training and steps is not None and steps.source == "engine":
            raise NotCaptured("an inference engine was recorded, and no training")
        if self.of_training and steps is not None and steps.no_request:
            raise NotCaptured(steps.no_request)
        ctx = Context(view, self)
        for kind in self.needs:
            ctx[kind]
        claims = list(itertools.islice(self.check(ctx), MOST_CLAIMS + 1))
        if len(claims) > MOST_CLAIMS:
            raise ValueError(f"more than {MOST_CLAIMS:,} claims on one capture")
        if self.server_fixes and steps is not None and steps.of_server:
            claims = [replace(claim, fixes=list(self.server_fixes)) for claim in claims]
        return claims

    def must_be_able_to_pass(self, view: View) -> None:
        """Raises NotCaptured where finding nothing says nothing."""
        for kind in self.to_pass:
            view[kind]

    @classmethod
    def over_ranks(cls) -> bool:
        """Whether it looks at several ranks: it then sees of each what its summary holds."""
        return any(issubclass(kind, JobEvidence) for kind in (*cls.needs, *cls.wants))

    known_thresholds: ClassVar[dict[str, Threshold]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Threshold)}
        cls.known_thresholds = {**cls.known_thresholds, **own}
        for name, value in own.items():
            setattr(cls, name, value.default)

    def __init__(self, **thresholds: Any) -> None:
        for name, value in thresholds.items():
            if name not in self.known_thresholds:
                raise TypeError(f"{self.code} has no threshold {name}")
            setattr(self, name, value)

    def thresholds(self) -> dict[str, Any]:
        """The thresholds in force, by name."""
        return {name: getattr(self, name) for name in self.known_thresholds}

    def limits_in_force(self) -> Limits:
        """The thresholds that evidence over several ranks goes by."""
        return {
            kind: kind(**{name: getattr(self, name) for name in kind.__struct_fields__})
            for kind in self.limits
        }

    def for_notes(self) -> Self | None:
        """The rule with the thresholds from which on a cost is worth a note; those that were set stay. None without any."""
        lower = {
            name: known.note_from
            for name, known in self.known_thresholds.items()
            if known.note_from is not None and getattr(self, name) == known.default
        }
        return type(self)(**{**self.thresholds(), **lower}) if lower else None

    @classmethod
    def sections(cls) -> dict[str, str]:
        """The docstring by heading. The text before the first heading is under ''."""
        sections: dict[str, list[str]] = {"": []}
        current = ""
        for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
            heading = re.fullmatch(r"#{0,3}\s*(.+?)\s*:?", line)
            if heading and heading.group(1).rstrip("?") in HEADINGS:
                current = heading.group(1).rstrip("?")
                sections[current] = []
            else:
                sections[current].append(line)
        return {k: "\n".join(v).strip() for k, v in sections.items()}
