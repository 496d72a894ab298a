"""A treatment as one page: what was tried and what it gave, then what changed between the recordings."""

from __future__ import annotations

from trace_doctor.model.treatment import Attempt, Effect, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.html import difference as compared
from trace_doctor.reporters.html import page
from trace_doctor.reporters.html.dom import Html, el, pre
from trace_doctor.reporters.html.parts import Row, copyable, data_table, gain, section, tile
from trace_doctor.reporters.labels import SAFETY, where_briefly
from trace_doctor.reporters.treatment_text import how, measured, moved, outside
from trace_doctor.reporters.treatment_words import changed_words
from trace_doctor.reporters.units import plural


def render(made: Treatment, options: Options) -> str:
    """The page. The same treatment gives the same bytes."""
    sections = [_verdict(made), _changed(made), _attempts(made), _patch(made), _left(made)]
    if made.difference is not None:
        sections += compared.sections(made.difference)
    return page(made.verdict, sections, made.to_json(), tool=made.tool)


def _verdict(made: Treatment) -> Html:
    together = made.together
    return el(
        "section",
        el("p", "Treatment", class_="subject"),
        el("h1", made.verdict, id="verdict-title"),
        el("dl", _tile("Step time", together.time), _tile("Peak memory", together.memory), class_="tiles"),
        el("p", how(made), class_="lead") if made.attempts else None,
        el("ul", [el("li", n) for n in made.notes]) if made.notes else None,
        id="verdict",
        aria_labelledby="verdict-title",
    )


def _tile(name: str, effect: Effect | None) -> Html | None:
    if effect is None:
        return None
    return tile(name, moved(effect), class_={"less": "gain", "more": "worse"}.get(effect.verdict, ""))


def _changed(made: Treatment) -> Html | None:
    """Files of the user's that are not as they were."""
    if not made.changed:
        return None
    rows: list[Row] = [[el("code", c.name), c.how, el("code", c.through)] for c in made.changed]
    columns = ["File", "What happened", "Behind the link"]
    return section(
        "changed",
        "Files of yours that changed",
        el(
            "div",
            el("p", changed_words(made.changed, made.changed_count)),
            data_table("Files of yours that changed", columns, rows, hide_caption=True),
        ),
        count=made.changed_count,
    )


def _attempts(made: Treatment) -> Html:
    columns = ["Verdict", "Fix", "Safety", "Place", "Predicted", "Measured", "Why"]
    rows = [_row(a) for a in made.attempts]
    table = data_table("Fixes that were tried", columns, rows, hide_caption=True)
    return section(
        "fixes",
        "What was tried",
        table if rows else el("p", "No finding has a fix that a program can make.", class_="empty"),
        count=len(rows),
    )


def _row(one: Attempt) -> Row:
    kind, word = {
        "kept": ("gate-passed", "✔ kept"),
        "rejected": ("gate-failed", "✖ rejected"),
        "not_tried": ("muted", "? not tried"),
    }[one.fate]
    started = outside(one.environment, one.arguments)
    return [
        el("span", word, class_=kind),
        el(
            "span",
            el("span", one.label, class_="code-id"),
            " ",
            one.fix,
            [[" ", el("code", s)] for s in started],
        ),
        el("span", one.safety, title=SAFETY[one.safety]),
        el("code", where_briefly(one.location)),
        gain(one.predicted),
        el("ul", [el("li", line) for line in measured(one.effects)]),
        one.reason,
    ]


def _patch(made: Treatment) -> Html | None:
    """What helped: an edit, and how the command is to be started."""
    started = [el("p", f"Start the command {said}.") for said in outside(made.environment, made.arguments)]
    if not made.patch and not started:
        return None
    patch = copyable(made.patch, label="patch", path="patch", diff=True) if made.patch else None
    return section("patch", "The patch", el("div", patch, started))


def _left(made: Treatment) -> Html | None:
    if not made.by_hand:
        return None
    items = [
        el("li", el("span", b.label, class_="code-id"), f" {b.fix}: {b.why}", pre(b.text) if b.text else None)
        for b in made.by_hand
    ]
    return section("by-hand", f"{plural(len(items), 'fix', 'fixes')} left to you", el("ul", items))
