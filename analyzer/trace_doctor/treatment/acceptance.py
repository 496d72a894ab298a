"""From what the runs of a trial showed to kept or rejected, with the reason in words; and whether an edit was in force."""

from __future__ import annotations

import difflib
import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from trace_doctor.model import Finding, Fix, Result
from trace_doctor.model.findings import LOOKED
from trace_doctor.model.treatment import Effect, Effects
from trace_doctor.recording.agent.executed_lines import code_lines
from trace_doctor.recording.folder import BUSY, RankRecord, read
from trace_doctor.recording.lines_tsv import lines_run
from trace_doctor.reporters.units import share
from trace_doctor.treatment.candidates import Candidate, Setup
from trace_doctor.treatment.trial import Rules, Trial


@dataclass(frozen=True)
class InForce:
    """What a recording with a fix shows of it."""

    missed: str = ""
    """why it was not in force; empty where it was, or the recording cannot tell"""
    finding: str = ""
    """what the finding claims with it and without it"""
    is_smaller: bool | None = None
    """the finding, by a tenth or more; None where the recording cannot tell"""

    @classmethod
    def of(cls, folder: Path, without: Setup, candidate: Candidate, before: Result, after: Result) -> InForce:
        """From the recording in a folder, and the diagnoses before and of it."""
        recording = read(folder)
        ranks = list(recording.ranks.values()) if recording is not None else []
        ran = {digest: lines for (_, digest), lines in lines_run(folder).items()}
        missed = _not_executed(without, candidate, ran) or _not_set(candidate.item.fix, ranks)
        if missed:
            return cls(missed)
        was, now = _claims(before, candidate.item.finding), _claims(after, candidate.item.finding)
        if was is None or now is None:
            return cls()
        words = f"{candidate.item.finding.code} claims {share(now)} of the step with it, {share(was)} without"
        return cls("", words, now <= 0.9 * was)


def _not_executed(without: Setup, candidate: Candidate, ran: Mapping[str, set[int]]) -> str:
    """The first of its lines that ran in no process, where none of the edit did; imports do not count."""
    before, missed = without.files(), ""
    for name, data in without.with_(candidate).files().items() if ran else ():
        change = candidate.item.change
        own = {file.name: file.data for file, _ in change.files} if change is not None else {}
        if not name.endswith(".py") or name not in own:
            continue
        lines = ran.get(hashlib.sha256(data).hexdigest(), set())
        for changed in _changed_lines(before.get(name, own[name]), data):
            if not changed.isdisjoint(lines):
                return ""
            missed = missed or f"{name}:{min(changed)} did not run in the recording with it"
    return missed


def _changed_lines(before: bytes, after: bytes) -> Iterator[set[int]]:
    """Of each place where a script was changed, the lines with code that is no import."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with_code = code_lines(compile(after, "script", "exec", dont_inherit=True))
    old, new = before.split(b"\n"), after.split(b"\n")
    for tag, _, _, first, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        code = with_code & {*range(first + 1, end + 1)} if tag != "equal" else set[int]()
        if code and not all(new[n - 1].lstrip().startswith((b"import ", b"from ")) for n in code):
            yield code


def _not_set(fix: Fix, ranks: list[RankRecord]) -> str:
    """Which of its values no DataLoader, optimizer or flag had in the end; those that leave things as they are aside."""
    flag = {str(fix.params["name"]): fix.params.get("value")} if "name" in fix.params else {}
    for name, value in {**fix.params, **flag}.items():
        there = [v for rank in ranks for v in rank.settings.get(name, ())]
        value = value in (True, "True") if isinstance(value, str) else value
        if value and there and not any(v == value or _is_more(v, value) for v in there):
            values = ", ".join(dict.fromkeys(map(str, there)))
            return f"{name} was {values} in the recording with it"
    return ""


def _is_more(value: object, than: object) -> bool:
    return isinstance(value, int | float) and isinstance(than, int | float) and value > than


def _claims(result: Result, finding: Finding) -> float | None:
    """The largest share of the step or of the peak that findings of its kind claim; None where nothing could tell."""
    shares = [
        max(f.saving.share_of_step or 0.0, f.saving.share_of_peak or 0.0)
        for f in result.findings
        if f.code == finding.code and f.saving is not None
    ]
    looked = any(o.code == finding.code and o.outcome in LOOKED for o in result.outcomes)
    return max(shares) if shares else 0.0 if looked else None


def judge(trial: Trial, shown: InForce | None = None) -> tuple[bool, str]:
    """Whether a fix is kept, and why."""
    if trial.failure:
        return False, f"the script fails with it: {trial.failure}"
    effects = trial.effects()
    refusal = _losses(effects, trial)
    if refusal:
        return False, refusal
    gains = [e for e in (effects.time, effects.memory) if e is not None and e.verdict == "less"]
    costs = [e for e in (effects.time, effects.memory) if e is not None and e.verdict == "more"]
    if not gains:
        return False, _no_effect(shown) + _nothing(effects, trial.rules) + _busy(trial)
    text = ", ".join(_gain(e) for e in gains)
    if effects.time in costs:
        return False, f"{text}, but {_cost(effects.time)}: trade-off: you decide"
    if costs:
        text += f"; {_cost(costs[0])}"
    return True, text + _unseen(effects)


def _no_effect(shown: InForce | None) -> str:
    """What is known of an edit that gained nothing: that it was in force, and whether it changed what it was for."""
    if shown is None or shown.is_smaller is None:
        return ""
    return f"{'' if shown.is_smaller else 'no effect: '}in force, {shown.finding}; "


def _losses(effects: Effects, trial: Trial) -> str:
    losses = effects.losses
    if losses is None or losses.verdict in ("same", "close"):
        return ""
    if losses.verdict == "differ":
        return f"the losses {losses.how}"
    if trial.rules.without_losses:
        return ""
    return "no loss was seen, so nothing tells whether the numbers stay right (--without-losses keeps it all the same)"


def _busy(trial: Trial) -> str:
    """What a busy machine has to do with it."""
    waits = [run.waited_for_cpu for run in (*trial.before, *trial.after) if run.waited_for_cpu is not None]
    if not waits or median(waits) < BUSY:
        return ""
    return f"; training waited {median(waits):.0%} of the time for a CPU: a quieter machine may show one"


def _unseen(effects: Effects) -> str:
    unseen = effects.losses is not None and effects.losses.verdict == "not_seen"
    return "; no loss was seen to compare" if unseen else ""


def _gain(effect: Effect) -> str:
    word = "faster" if effect.unit == "us" else "less memory"
    least = f" (at least {share(1 - effect.bound)})" if effect.bound is not None else ""
    return f"{share(1 - effect.ratio)} {word}{least}"


def _cost(effect: Effect | None) -> str:
    assert effect is not None
    word = "slower" if effect.unit == "us" else "more memory"
    return f"{share(effect.ratio - 1)} {word}"


def _nothing(effects: Effects, rules: Rules) -> str:
    """No gain: how large one would have shown."""
    both = [e for e in (effects.time, effects.memory) if e is not None]
    if not both:
        return "nothing was measured"
    worse = [e for e in both if e.verdict == "more"]
    if worse:
        return ", ".join(_cost(e) for e in worse)
    scatter = max(both[0].detectable, rules.least_gain)
    pairs = f"{effects.pairs} pairs of runs" if effects.pairs > 1 else "a pair of runs"
    return f"no gain beyond the noise; detection limit {share(scatter)} in {pairs}"
