"""The closed loop: fixes one at a time, each on top of those that helped, each kept only where runs show that it helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec.structs import replace as replace_struct

from trace_doctor.model.treatment import Attempt, Effects, Fate
from trace_doctor.treatment.acceptance import InForce, judge
from trace_doctor.treatment.candidates import Candidate, Setup, Value
from trace_doctor.treatment.measurement import RunFailed
from trace_doctor.treatment.search.halving import search
from trace_doctor.treatment.trial import Clock, OutOfTime, Rules, Runner, Trial

Say = Callable[[str], None]
Prove = Callable[[Setup, Candidate], InForce]
"""(the setup without the fix, the fix) -> what a recording with it shows; raises RunFailed"""
Elsewhere = Callable[[Candidate, Sequence[Candidate]], Candidate | None]
"""(a fix that was not in force, all such before it) -> the same at the next place"""
NOTHING_SHOWN = Effects()
NO_VALUE = "no value of the search was faster"
FURTHER_AXES = (1, 2)
"""of a fix that was kept, after the one that it was searched along first"""


@dataclass
class Loop:
    """What is known so far; kept up to date, so that an interruption loses nothing."""

    runner: Runner
    rules: Rules
    clock: Clock
    setup: Setup
    """with what was kept"""
    say: Say = lambda line: None
    prove: Prove = lambda without, candidate: InForce()
    elsewhere: Elsewhere = lambda candidate, others: None
    values_of: Callable[[Candidate, int], Sequence[Value]] = lambda candidate, axis: ()
    """the values of a fix along one of its axes"""
    attempts: list[Attempt] = field(default_factory=list)
    together: Effects = NOTHING_SHOWN
    confirmed: bool | None = None
    decided: Mapping[str, Attempt] = field(default_factory=dict)
    """what an earlier treatment of the same script has decided, by `key`"""
    after_each: Callable[[], None] = lambda: None
    """called when the trial of a fix has ended"""
    _rejects: list[Candidate] = field(default_factory=list)
    _missed: list[Candidate] = field(default_factory=list)
    """that were not in force"""
    _refined: bool = False
    """whether a fix has another value by now than its own trial had"""

    def run(self, queue: Sequence[Candidate], max_trials: int | None = None) -> None:
        """Tries all; then, where several were kept, whether each still helps beside those that were kept after it; then the
        script as it was against the script with all of them.

        What interrupts it passes through, after the fix on trial was written down as not decided.
        """
        start = self.setup
        trials = 0
        for position, candidate in enumerate(queue):
            refusal = self._refusal(candidate)
            if not refusal and (decided := self._past(candidate)) is not None:
                self._take_over(*decided)
                continue
            if not refusal and max_trials is not None and trials >= max_trials:
                refusal = "not tried: --max-trials is reached"
            if refusal:
                self._note(candidate, "not_tried", refusal)
                continue
            trials += 1
            try:
                self._try(candidate, f"{position + 1}/{len(queue)}")
            except OutOfTime:
                for rest in queue[position + 1 :]:
                    self._note(
                        rest, "not_tried", self._refusal(rest) or "not tried: --max-minutes is used up"
                    )
                break
            self.after_each()
        kept = self.setup.fixes
        self._leave_out_each(start)
        self._confirm(start, kept)

    def _past(self, candidate: Candidate) -> tuple[Candidate, Attempt] | None:
        """What an earlier treatment has decided about a fix, and the fix with the value that was found then."""
        if not self.decided:
            return None
        for each in (candidate, *(value.candidate for value in self.values_of(candidate, 0))):
            if (past := self.decided.get(key(_attempt_of(each)))) is not None:
                return each, past
        return None

    def _take_over(self, candidate: Candidate, past: Attempt) -> None:
        """What was decided stands; what helped is combined with what is still to be tried."""
        self.attempts.append(replace_struct(past, label=candidate.label))
        self.say(f"{candidate.label} {past.fate} before: {past.reason}")
        if past.fate == "kept":
            self.setup = self.setup.with_(candidate)
        else:
            self._rejects.append(candidate)

    def only(self, candidate: Candidate, at: str) -> None:
        """Tries one fix, and nothing after it. Raises OutOfTime."""
        if refusal := self._refusal(candidate):
            self._note(candidate, "not_tried", refusal)
        else:
            self._try(candidate, at)

    def _refusal(self, candidate: Candidate) -> str:
        twin = next((c for c in self._rejects if _same_edit(c, candidate)), None)
        if twin is not None:
            return f"the same edit as {twin.label}, which was rejected"
        return self.setup.refuses(candidate)

    def _try(self, candidate: Candidate, at: str) -> None:
        self.say(f"[{at}] {candidate.label} {candidate.item.finding.name}: {candidate.item.fix.title}")
        trial, began, asked, found = Trial(self.rules), self.clock.spent(), candidate, True
        try:
            shown = self._shown(candidate, trial)
            if shown.missed and (through := self._through_option(candidate)) is not None:
                self.say(f"    {shown.missed}; with {' '.join(through.arguments)}:")
                candidate = through
                shown = self._shown(candidate, trial)
            if not (shown.missed or trial.failure):
                candidate, found = self._best(candidate, 0, self.setup)
                trial.samples = candidate.samples
            if found and not (shown.missed or trial.failure):
                trial.run(self.runner, self.setup, self.setup.with_(candidate), self.clock)
        except RunFailed as failure:
            reason = f"could not be measured: the script fails without it: {failure}"
            self._conclude(candidate, "rejected", reason, trial, began)
            return
        except OutOfTime:
            self._conclude(candidate, "not_tried", "not decided: --max-minutes is used up", trial, began)
            raise
        except BaseException:
            self._conclude(candidate, "not_tried", "not decided: interrupted", trial, began)
            raise
        if shown.missed:
            self._conclude(candidate, "not_in_force", shown.missed, trial, began)
            self._missed.append(candidate)
            if (other := self.elsewhere(candidate, self._missed)) is not None:
                self._try(other, f"{at}, at another place")
            return
        is_better, reason = judge(trial, shown) if found else (False, NO_VALUE)
        self._conclude(candidate, "kept" if is_better else "rejected", reason, trial, began)
        if is_better:
            rest, self.setup = self.setup, self.setup.with_(candidate)
            for axis in FURTHER_AXES:
                self._refine(rest, axis)
        else:
            self._rejects += [asked, candidate]

    def _through_option(self, candidate: Candidate) -> Candidate | None:
        """The fix with a value that an option of the command passes: what the command says outdoes a default that an edit sets."""
        values = [] if candidate.arguments else self.values_of(candidate, 0)
        through = [value for value in values if value.candidate.arguments]
        return min(through, key=lambda value: value.predicted).candidate if through else None

    def _best(self, candidate: Candidate, axis: int, rest: Setup) -> tuple[Candidate, bool]:
        """The fix with its best value along an axis, and whether that is worth a trial; as it is where nothing is to be
        searched. `rest` is the setup without the fix."""
        values = self.values_of(candidate, axis)
        if not values:
            return candidate, True
        names = ", ".join(value.text for value in values)
        self.say(f"    searching {values[0].name} among {names}")
        best, tried = search(
            values,
            self.runner,
            self.clock,
            self.setup,
            lambda value: rest.with_(value.candidate),
            self.rules.least_gain,
        )
        found = best.candidate if best is not None else candidate
        return replace(found, tried=(*candidate.tried, *tried)), best is not None

    def _refine(self, rest: Setup, axis: int) -> None:
        """Another value of the fix that was kept last, in place of it where fresh runs show that it adds to it."""
        kept, trial = self.setup.fixes[-1], Trial(self.rules)
        try:
            candidate, found = self._best(kept, axis, rest)
            if candidate is kept:
                return
            if found:
                trial.run(self.runner, self.setup, rest.with_(candidate), self.clock)
        except RunFailed:
            return
        is_better, reason = judge(trial) if found else (False, NO_VALUE)
        self.say(f"    {'kept as well' if is_better else 'left as it is'}: {reason}")
        attempt, name = self.attempts[-1], candidate.tried[-1].name
        if is_better:
            attempt = replace_struct(attempt, reason=f"{attempt.reason}; another {name}: {reason}")
            self._refined = True
        else:
            dropped = (replace_struct(v, best=v.best and v.name != name) for v in candidate.tried)
            candidate = replace(kept, tried=tuple(dropped))
        self.setup = rest.with_(candidate)
        self.attempts[-1] = replace_struct(attempt, **_change(candidate))

    def _shown(self, candidate: Candidate, trial: Trial) -> InForce:
        """What a recording with the fix shows; where the script fails with it, the trial is over."""
        try:
            return self.clock.run(lambda: self.prove(self.setup, candidate))
        except RunFailed as failure:
            trial.failure = str(failure)
            return InForce()

    def _leave_out_each(self, start: Setup) -> None:
        """Drops what gives nothing next to fixes that were kept after it. The last one was tried on top of all others."""
        gained = {a.label: a.effects for a in self.attempts if a.fate == "kept"}
        for candidate in self.setup.fixes[:-1]:
            rest = replace(start, fixes=tuple(c for c in self.setup.fixes if c is not candidate))
            self.say(f"without {candidate.label}, against all that helped")
            trial = Trial(self.rules)
            try:
                trial.run(self.runner, rest, self.setup, self.clock)
            except RunFailed:
                continue  # the others need it
            except OutOfTime:
                return
            is_better, reason = judge(trial)
            needed = (
                is_better or bool(trial.failure) or _gains_still(gained[candidate.label], trial.effects())
            )
            self.say(f"    {'needed' if needed else 'left out'}: {reason}")
            if not needed:
                self.setup = rest
                self.attempts = [
                    replace_struct(
                        a, fate="rejected", reason=f"it helps alone, not next to the others: {reason}"
                    )
                    if a.label == candidate.label and a.fate == "kept"
                    else a
                    for a in self.attempts
                ]

    def _confirm(self, start: Setup, kept_before: Sequence[Candidate]) -> None:
        """Fixes that were picked by their runs look better in those than they are; fresh runs do not."""
        fixes = self.setup.fixes
        if len(fixes) == 1 and len(kept_before) == 1 and not self._refined:
            [self.together] = [a.effects for a in self.attempts if a.fate == "kept"]
            return
        if not fixes:
            return
        self.say(f"what helped ({len(fixes)}) against the script as it was")
        trial = Trial(self.rules)
        try:
            trial.run(self.runner, start, self.setup, self.clock)
        except (OutOfTime, RunFailed):
            self.together = trial.effects()
            return
        self.together = trial.effects()
        self.confirmed, reason = judge(trial)
        self.say(f"    {'confirmed' if self.confirmed else 'NOT confirmed'}: {reason}")

    def _conclude(self, candidate: Candidate, fate: Fate, reason: str, trial: Trial, began: float) -> None:
        seconds = round(self.clock.spent() - began, 1)
        self._note(candidate, fate, reason, trial.effects(), seconds)
        self.say(f"    {fate.replace('_', ' ')}: {reason}")

    def _note(
        self,
        candidate: Candidate,
        fate: Fate,
        reason: str,
        effects: Effects = NOTHING_SHOWN,
        seconds: float = 0.0,
    ) -> None:
        self.attempts.append(
            replace_struct(_attempt_of(candidate), fate=fate, reason=reason, effects=effects, seconds=seconds)
        )


def _attempt_of(candidate: Candidate) -> Attempt:
    """A fix that is still to be tried."""
    item = candidate.item
    return Attempt(
        **item.finding.mention(),
        label=item.label,
        kind=item.fix.kind,
        safety=item.safety,
        predicted=item.finding.saving,
        fate="not_tried",
        reason="",
        samples=candidate.samples,
        **_change(candidate),
    )


def key(attempt: Attempt) -> str:
    """What a fix does, whatever number its finding has: the same in two treatments of the same script."""
    return repr(
        (attempt.code, attempt.fix, attempt.diff, sorted(attempt.environment.items()), attempt.arguments)
    )


def _change(candidate: Candidate) -> dict[str, Any]:
    """What an attempt says of the change itself."""
    item = candidate.item
    script = item.change.script if item.change is not None else None
    return {
        "fix": item.fix.title,
        "diff": item.diff.decode(script.encoding if script else "utf-8", "replace"),
        "environment": dict(candidate.environment),
        "arguments": list(candidate.arguments),
        "values": list(candidate.tried),
    }


def _gains_still(then: Effects, now: Effects) -> bool:
    """Whether at least half of what a fix gained is left: a small gain that was shown once is not shown by every trial."""
    return any(
        a is not None and b is not None and a.verdict == "less" and 1 - b.ratio >= (1 - a.ratio) / 2
        for a, b in ((then.time, now.time), (then.memory, now.memory))
    )


def _same_edit(a: Candidate, b: Candidate) -> bool:
    return bool(a.item.diff) and a.item.diff == b.item.diff
