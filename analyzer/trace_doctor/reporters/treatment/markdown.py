"""A treatment as Markdown: the body of a pull request, and the message of the commit of each fix that helped."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from trace_doctor.errors import no_command_at_start, unbroken
from trace_doctor.model.treatment import Attempt, Effect, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.labels import claim_words, where_briefly
from trace_doctor.reporters.markdown import code, md, table
from trace_doctor.reporters.treatment.text import how, measured, moved, outside
from trace_doctor.reporters.treatment.words import changed_words

_TITLES = ("finding", "fix", "at", "predicted", "step", "peak memory", "losses")
_SUBJECT = 72


def render(treatment: Treatment, options: Options) -> str:
    """What helped with its measured table, then what did not, and what a reviewer has to know."""
    return no_command_at_start("\n\n".join(_blocks(treatment)) + "\n")


def _blocks(treatment: Treatment) -> Iterator[str]:
    yield f"**{md(treatment.verdict)}**"
    if kept := treatment.of("kept"):
        yield table(_TITLES, [*map(_row, kept), *_together(treatment)])
    if besides := outside(treatment.environment, treatment.arguments):
        yield f"Start the command {' and '.join(map(code, besides))} as well: this is in no file."
    if others := [a for a in treatment.attempts if a.fate != "kept"]:
        yield "Not kept:\n\n" + table(
            ("finding", "fix", "why"),
            [[code(a.label), md(a.fix), md(f"{a.fate.replace('_', ' ')}: {a.reason}")] for a in others],
        )
    if manual := treatment.by_hand:
        yield "Left to you:\n\n" + table(
            ("finding", "fix", "why"), [[code(b.label), md(b.fix), md(b.why)] for b in manual]
        )
    notes = [
        *treatment.notes,
        *([changed_words(treatment.changed, treatment.changed_count)] * bool(treatment.changed)),
    ]
    if notes:
        yield "\n".join(f"- {md(note)}" for note in notes)
    if treatment.attempts:
        yield md(how(treatment))


def _row(attempt: Attempt) -> list[str]:
    effects = attempt.effects
    losses = effects.losses.how if effects.losses is not None else ""
    return [
        code(attempt.label),
        md(f"{attempt.fix} [{attempt.safety}]"),
        md(where_briefly(attempt.location)),
        md(claim_words(attempt.predicted)),
        _moved(effects.time),
        _moved(effects.memory),
        md(losses),
    ]


def _together(treatment: Treatment) -> Iterator[list[str]]:
    """Fixes that were picked by their runs look better in those than in the runs of all together."""
    if treatment.confirmed is not None:
        word = "together" if treatment.confirmed else "together, NOT confirmed"
        both = treatment.together
        yield [f"**{word}**", "", "", "", _moved(both.time), _moved(both.memory), ""]


def _moved(effect: Effect | None) -> str:
    return md(moved(effect)) if effect is not None else ""


def commit_message(attempt: Attempt) -> str:
    """Subject and body, in lines of at most 72 characters."""
    place = where_briefly(attempt.location)
    lines = [
        f"{attempt.label} {attempt.name}" + (f" at {place}" if place else "") + f" [{attempt.safety}]",
        *([f"predicted: {claim}"] if (claim := claim_words(attempt.predicted)) else []),
        *measured(attempt.effects, attempt.samples),
        "Kept by trace-doctor treat: " + attempt.reason,
    ]
    body = "\n".join(line for text in lines for line in textwrap.wrap(unbroken(text), _SUBJECT))
    subject = textwrap.shorten(unbroken(attempt.fix), _SUBJECT, placeholder=" ...")
    return no_command_at_start(f"{subject}\n\n{body}\n")
