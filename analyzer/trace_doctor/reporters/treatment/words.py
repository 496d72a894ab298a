"""The one sentence that a treatment comes to, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trace_doctor.model.treatment import Effects, FileChange, Treatment
from trace_doctor.reporters.units import plural, share

NEEDS_UNSAFE = "--unsafe-fixes"
"""in the reason of a fix that was held back"""


_MOST_NAMES = 10


def verdict(treatment: Treatment, interrupted: int | None = None) -> Treatment:
    """The treatment with its verdict and exit code: 0 something helped or nothing was to be tried, 1 nothing helped, 2 files
    of the user's changed, or may have behind a mount, else that of the interruption."""
    treatment = _of_trials(treatment, interrupted)
    treatment = replace(treatment, verdict=treatment.verdict + _batch(treatment))
    sentence = treatment.verdict
    if treatment.stopped:
        sentence = f"stopped: {treatment.stopped}; by then: {sentence}"
    if treatment.changed_count:
        sentence = f"{sentence}; but {plural(treatment.changed_count, 'file')} of yours changed while the command ran"
    if treatment.mounted:
        sentence = f"{sentence}; but a run mounted something in the copy, and what was done behind that cannot be told"
    code = treatment.code if interrupted is not None or sentence == treatment.verdict else 2
    return replace(treatment, code=code, verdict=sentence)


def changed_words(changed: Sequence[FileChange], count: int) -> str:
    """Which files of the user's changed, and who can have done that."""
    names = [f"{c.name} {c.how}" + (f" (behind the link {c.through})" if c.through else "") for c in changed]
    more = f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
    return (
        f"files of yours changed while the command ran in the copy: {', '.join(names[:_MOST_NAMES])}{more}. "
        "Either a run wrote them, or something else did meanwhile"
    )


def _of_trials(treatment: Treatment, interrupted: int | None) -> Treatment:
    helpful, attempts = (
        treatment.of("kept"),
        [a for a in treatment.attempts if a.fate in ("kept", "rejected")],
    )
    if interrupted is not None:
        sentence = (
            f"interrupted: {plural(len(helpful), 'fix', 'fixes')} of {len(attempts)} tried so far helped"
        )
        return replace(
            treatment, code=interrupted, verdict=f"{sentence}{_gain(treatment.together) if helpful else ''}"
        )
    if not treatment.attempts:
        return replace(treatment, code=0, verdict=_nothing_to_try(treatment))
    if not attempts and treatment.of("not_in_force"):
        return replace(treatment, code=1, verdict="no fix was decided: no edit was in force")
    if not attempts:
        return replace(treatment, code=1, verdict="no fix was decided: time limit reached")
    if not helpful:
        return replace(
            treatment, code=1, verdict=f"no fix helped, of {plural(len(attempts), 'fix', 'fixes')} tried"
        )
    names = ", ".join(a.label for a in helpful)
    sentence = f"{plural(len(helpful), 'fix helps', 'fixes help')} ({names}){_gain(treatment.together)}"
    if treatment.confirmed is False:
        return replace(treatment, code=1, verdict=f"{sentence}; not confirmed combined, in separate runs")
    return replace(treatment, code=0, verdict=sentence)


def _nothing_to_try(treatment: Treatment) -> str:
    unsafe = sum(NEEDS_UNSAFE in change.why for change in treatment.by_hand)
    judge = len(treatment.by_hand) - unsafe
    parts = [f"{plural(unsafe, 'fix', 'fixes')} with --unsafe-fixes"] * bool(unsafe)
    parts += [f"{plural(judge, 'fix', 'fixes')} for you to judge"] * bool(judge)
    return f"no fix to try; {', '.join(parts)}" if parts else "no finding has a fix to try"


def _batch(treatment: Treatment) -> str:
    """What a larger batch, or accumulation, gives."""
    times = [(a.fix, a.effects.time) for a in treatment.batch if a.fate == "kept"]
    return "".join(f"; {fix}: {1 / time.ratio:.3g}× the samples per second" for fix, time in times if time)


def _gain(effects: Effects) -> str:
    parts = []
    for effect, word in ((effects.time, "faster"), (effects.memory, "less memory")):
        if effect is not None and effect.verdict == "less":
            parts.append(f"{share(1 - effect.ratio)} {word}")
    return f": {', '.join(parts)}" if parts else ""
