"""A treatment as one page: what was tried and what it gave, then what changed between the recordings."""

from __future__ import annotations

from trace_doctor.model.treatment import Attempt, Effect, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.fix_labels import SAFETY
from trace_doctor.reporters.html import difference as compared
from trace_doctor.reporters.html import page
from trace_doctor.reporters.html.dom import Html, el, pre
from trace_doctor.reporters.html.parts import Row, copyable, data_table, gain, section, tile
from trace_doctor.reporters.labels import where_briefly
from trace_doctor.reporters.treatment.text import BATCH, how, measured, moved, outside, searched
from trace_doctor.reporters.treatment.words import changed_words
from trace_doctor.reporters.units import plural

_COLUMNS = ("Verdict", "Fix", "Safety", "Place", "Predicted", "Measured", "Why")


def render(treatment: Treatment, options: Options) -> str:
    """The page. The same treatment gives the same bytes."""
    sections = [
        _verdict(treatment),
        _changed(treatment),
        _attempts(treatment),
        _batch(treatment),
        _patch(treatment),
        _by_hand(treatment),
    ]
    if treatment.difference is not None:
        sections += compared.sections(treatment.difference)
    return page(treatment.verdict, sections, treatment.to_json(), tool=treatment.tool)


def _verdict(treatment: Treatment) -> Html:
    together = treatment.together
    return el(
        "section",
        el("p", "Treatment", class_="subject"),
        el("h1", treatment.verdict, id="verdict-title"),
        el("dl", _tile("Step time", together.time), _tile("Peak memory", together.memory), class_="tiles"),
        el("p", how(treatment), class_="lead") if treatment.attempts else None,
        el("ul", [el("li", n) for n in treatment.notes]) if treatment.notes else None,
        id="verdict",
        aria_labelledby="verdict-title",
    )


def _tile(name: str, effect: Effect | None) -> Html | None:
    if effect is None:
        return None
    return tile(name, moved(effect), class_={"less": "gain", "more": "worse"}.get(effect.verdict, ""))


def _changed(treatment: Treatment) -> Html | None:
    """Files of the user's that are not as they were."""
    if not treatment.changed:
        return None
    rows: list[Row] = [[el("code", c.name), c.how, el("code", c.through)] for c in treatment.changed]
    columns = ["File", "What happened", "Behind the link"]
    return section(
        "changed",
        "Files of yours that changed",
        el(
            "div",
            el("p", changed_words(treatment.changed, treatment.changed_count)),
            data_table("Files of yours that changed", columns, rows, hide_caption=True),
        ),
        count=treatment.changed_count,
    )


def _batch(treatment: Treatment) -> Html | None:
    """What changes the training."""
    if not treatment.batch:
        return None
    text = treatment.batch_patch
    patch = copyable(text, label="patch", path="batch.patch", diff=True) if text else None
    table = data_table(
        "Batch sizes that were tried", _COLUMNS, [_row(a) for a in treatment.batch], hide_caption=True
    )
    return section("batch", "Batch size", el("div", el("p", BATCH), table, patch), count=len(treatment.batch))


def _attempts(treatment: Treatment) -> Html:
    rows = [_row(a) for a in treatment.attempts]
    table = data_table("Fixes that were tried", _COLUMNS, rows, hide_caption=True)
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
        "not_in_force": ("gate-failed", "✖ not in force"),
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
        el("ul", [el("li", line) for line in (*searched(one.values), *measured(one.effects, one.samples))]),
        one.reason,
    ]


def _patch(treatment: Treatment) -> Html | None:
    """What helped: an edit, and how the command is to be started."""
    started = [
        el("p", f"Start the command {text}.") for text in outside(treatment.environment, treatment.arguments)
    ]
    if not treatment.patch and not started:
        return None
    patch = copyable(treatment.patch, label="patch", path="patch", diff=True) if treatment.patch else None
    return section("patch", "The patch", el("div", patch, started))


def _by_hand(treatment: Treatment) -> Html | None:
    if not treatment.by_hand:
        return None
    items = [
        el("li", el("span", b.label, class_="code-id"), f" {b.fix}: {b.why}", pre(b.text) if b.text else None)
        for b in treatment.by_hand
    ]
    return section("by-hand", f"{plural(len(items), 'fix', 'fixes')} left to you", el("ul", items))
