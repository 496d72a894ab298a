"""From what the runs of a trial showed to kept or rejected, with the reason in words."""

from __future__ import annotations

from statistics import median

from trace_doctor.model.treatment import Effect, Effects
from trace_doctor.recording.folder import BUSY
from trace_doctor.reporters.units import share
from trace_doctor.treatment.trial import Rules, Trial


def judge(trial: Trial) -> tuple[bool, str]:
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
        return False, _nothing(effects, trial.rules) + _busy(trial)
    text = ", ".join(_gain(e) for e in gains)
    if effects.time in costs:
        return False, f"{text}, but {_cost(effects.time)}: trade-off: you decide"
    if costs:
        text += f"; {_cost(costs[0])}"
    return True, text + _unseen(effects)


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
