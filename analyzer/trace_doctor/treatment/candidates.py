"""Which fixes of a result can be tried, in which order, and what it takes to run the script with some of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trace_doctor.fixes.plan import Plan
from trace_doctor.fixes.resolved import PlannedFix, together
from trace_doctor.model.treatment import ByHand, ValueTried

CHANGE_THE_TRAINING = ("batch-size", "gradient-accumulation")
"""codemods behind which a step, or a pass of it, has other samples"""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=\S+")


@dataclass(frozen=True)
class Candidate:
    """A fix that a program can make: an edit, variables to start the command with, or options to add to it."""

    item: PlannedFix
    environment: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    samples: float | None = None
    """how many times as many samples a step has with it, where it changes the training; None: the training is the same"""
    tried: tuple[ValueTried, ...] = ()
    """values that a search has compared"""

    @property
    def label(self) -> str:
        """What the fix is called in messages."""
        return self.item.label

    @property
    def claim(self) -> float:
        """Share of the step or of the peak that the finding claims, whichever is more."""
        saving = self.item.finding.saving
        return max(saving.share_of_step or 0.0, saving.share_of_peak or 0.0) if saving else 0.0


@dataclass(frozen=True)
class Value:
    """One value of a fix."""

    name: str
    text: str
    candidate: Candidate
    """the fix with it"""
    predicted: float = 1.0
    """step time, as a share of that without the fix"""


@dataclass(frozen=True)
class Setup:
    """The script with some fixes made."""

    plan: Plan
    fixes: tuple[Candidate, ...] = ()

    def with_(self, candidate: Candidate) -> Setup:
        """The same with one fix more."""
        return replace(self, fixes=(*self.fixes, candidate))

    @property
    def edits(self) -> Plan:
        """The plan with these edits alone."""
        return replace(self.plan, items=tuple(c.item for c in self.fixes if c.item.change is not None))

    def files(self) -> dict[str, bytes]:
        """File name -> its new bytes."""
        return {name: data for name, (_, data) in self.edits.outputs.items()}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that its fixes set."""
        return {name: value for c in self.fixes for name, value in c.environment}

    @property
    def arguments(self) -> list[str]:
        """Arguments that its fixes add to the command."""
        return [a for c in self.fixes for a in c.arguments]

    def refuses(self, candidate: Candidate) -> str:
        """Why a fix cannot be made on top of these; empty where it can."""
        if candidate.item.change is not None:
            fixes = together([*(c.item for c in self.fixes if c.item.change is not None), candidate.item])
            return "" if fixes[-1].status == "ready" else fixes[-1].why
        twin = next((c for c in self.fixes if c.item.finding.id == candidate.item.finding.id), None)
        return f"an alternative to {twin.label}" if twin is not None else ""


def candidates(plan: Plan) -> tuple[list[Candidate], list[ByHand]]:
    """The fixes to try, those that promise most first, and what is left for a person.

    A variable or an option is tried only where no edit does the same.
    """
    options: list[Candidate] = []
    by_hands: list[ByHand] = []
    for item in plan.items:
        if item.status == "held":
            by_hands.append(_by_hand(item, item.why))
        elif item.fix.codemod in CHANGE_THE_TRAINING and (item.change or item.fix.kind == "command"):
            by_hands.append(
                _by_hand(item, "it changes the training: --search-batch judges it in samples per second")
            )
        elif (option := candidate_of(item)) is not None:
            options.append(option)
        elif _concerns(item, plan):
            by_hands.append(_by_hand(item, item.why or "it is a manual fix"))
    with_edits = {c.item.finding.id for c in options if c.item.change is not None}
    queue = [c for c in options if c.item.change is not None or c.item.finding.id not in with_edits]
    return sorted(queue, key=lambda c: -c.claim), by_hands


def candidate_of(item: PlannedFix) -> Candidate | None:
    """What a program can make of a fix: an edit with the options that belong to it, else what changes the command."""
    if item.change is None or item.status not in ("ready", "covered", "conflict"):
        return _outside(item)
    arguments = tuple(word for option in item.change.options for word in (option.flag, option.value))
    return Candidate(replace(item, status="ready", why=""), arguments=arguments)


def _concerns(item: PlannedFix, plan: Plan) -> bool:
    """Whether a person has to look at a fix: not where another of the same finding found its place in the scripts, and
    this one, for other scripts, found none."""
    has_place = any(i.change is not None and i.finding.id == item.finding.id for i in plan.items)
    for_others = item.fix.framework not in ("torch", "", *plan.frameworks)
    return not (item.status == "already" or for_others or (has_place and item.status == "unresolved"))


def _by_hand(item: PlannedFix, why: str) -> ByHand:
    return ByHand(label=item.label, fix=item.fix.title, why=why, text=item.fix.text)


def _outside(item: PlannedFix) -> Candidate | None:
    """A fix that changes how the command is started instead of a file."""
    fix = item.fix
    words = _words(fix.text)
    if fix.kind == "env" and item.safety != "display" and fix.codemod is None:
        variables = [w for w in words if _VARIABLE.fullmatch(w)]
        if variables and "python" in words[len(variables) : len(variables) + 1]:
            pairs = tuple((name, value) for name, _, value in (v.partition("=") for v in variables))
            return Candidate(item, environment=pairs)
    if fix.kind == "command" and fix.codemod is not None and item.status == "display" and "..." in words:
        return Candidate(item, arguments=tuple(words[words.index("...") + 1 :]))
    return None


def _words(text: str) -> Sequence[str]:
    """The words of the first line."""
    try:
        return shlex.split(text.split("\n", 1)[0], comments=True)
    except ValueError:
        return []
