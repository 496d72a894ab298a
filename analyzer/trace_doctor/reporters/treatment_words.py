"""The one sentence that a treatment comes to, and its exit code."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from trace_doctor.model.treatment import Effects, FileChange, Treatment
from trace_doctor.reporters.units import plural, share

NEEDS_UNSAFE = "--unsafe-fixes"
"""in the reason of a fix that was held back"""


_NAMED = 10


def verdict(made: Treatment, interrupted: int | None = None) -> Treatment:
    """The treatment with its verdict and exit code: 0 something helped or nothing was to be tried, 1 nothing helped, 2 files
    of the user's changed, or may have behind a mount, else that of the interruption."""
    made = _of_trials(made, interrupted)
    said = made.verdict
    if made.stopped:
        said = f"stopped: {made.stopped}; by then: {said}"
    if made.changed_count:
        said = f"{said}; but {plural(made.changed_count, 'file')} of yours changed while the command ran"
    if made.mounted:
        said = (
            f"{said}; but a run mounted something in the copy, and what was done behind that cannot be told"
        )
    code = made.code if interrupted is not None or said == made.verdict else 2
    return replace(made, code=code, verdict=said)


def changed_words(changed: Sequence[FileChange], count: int) -> str:
    """Which files of the user's changed, and who can have done that."""
    shown = [f"{c.name} {c.how}" + (f" (behind the link {c.through})" if c.through else "") for c in changed]
    more = f" and {count - _NAMED} more" if count > _NAMED else ""
    return (
        f"files of yours changed while the command ran in the copy: {', '.join(shown[:_NAMED])}{more}. "
        "A run wrote them, or somebody else did meanwhile: this cannot be told"
    )


def _of_trials(made: Treatment, interrupted: int | None) -> Treatment:
    kept, tried = made.of("kept"), [a for a in made.attempts if a.fate != "not_tried"]
    if interrupted is not None:
        said = f"interrupted: {plural(len(kept), 'fix', 'fixes')} of {len(tried)} tried so far helped"
        return replace(made, code=interrupted, verdict=f"{said}{_gain(made.together) if kept else ''}")
    if not made.attempts:
        return replace(made, code=0, verdict=_nothing_to_try(made))
    if not tried:
        return replace(made, code=1, verdict="no fix was decided: there was no time for one")
    if not kept:
        return replace(made, code=1, verdict=f"no fix helped, of {plural(len(tried), 'fix', 'fixes')} tried")
    names = ", ".join(a.label for a in kept)
    said = f"{plural(len(kept), 'fix helps', 'fixes help')} ({names}){_gain(made.together)}"
    if made.confirmed is False:
        return replace(made, code=1, verdict=f"{said}; together, in runs of their own, they do not")
    return replace(made, code=0, verdict=said)


def _nothing_to_try(made: Treatment) -> str:
    held = sum(NEEDS_UNSAFE in left.why for left in made.by_hand)
    judge = len(made.by_hand) - held
    said = [f"{plural(held, 'fix', 'fixes')} with --unsafe-fixes"] * bool(held)
    said += [f"{plural(judge, 'fix', 'fixes')} for you to judge"] * bool(judge)
    return f"no fix to try; {', '.join(said)}" if said else "no finding has a fix to try"


def _gain(effects: Effects) -> str:
    said = []
    for effect, word in ((effects.time, "faster"), (effects.memory, "less memory")):
        if effect is not None and effect.verdict == "less":
            said.append(f"{share(1 - effect.ratio)} {word}")
    return f": {', '.join(said)}" if said else ""
