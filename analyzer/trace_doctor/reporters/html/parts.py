"""The small pieces every section is made of: sections, tables, badges, swatches, copyable blocks."""

from __future__ import annotations

from collections.abc import Sequence

from trace_doctor.model import Cell, Column, Finding, Result, Saving, Severity, Unit
from trace_doctor.reporters.html.dom import Child, Html, el, pre, text
from trace_doctor.reporters.html.glossary import GLOSSARY
from trace_doctor.reporters.labels import SYMBOL, saving_words
from trace_doctor.reporters.units import Scale, exact

Row = Sequence[Cell | Html]
"""Cells of a table: values to be formatted by their column, or markup."""
Columns = list[Column | str]
"""Columns of a table; one that is only named holds text."""


def section(anchor: str, title: str, *children: Child, lead: Child = None, count: int | None = None) -> Html:
    """A part of the page with its own heading."""
    heading = el(
        "h2",
        title,
        el("span", f"{count:,}", class_="count") if count is not None else None,
        id=f"{anchor}-title",
    )
    return el(
        "section",
        el("header", heading, el("p", lead, class_="lead") if lead else None, class_="head"),
        *children,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def more(summary: Child, *children: Child) -> Html:
    """What only some readers want, folded."""
    return el("details", el("summary", summary), *children, class_="more")


def tile(name: Child, figure: Child, note: Child = None, *, extra: Child = None, class_: str = "") -> Html:
    """One of the figures at the top of a page."""
    return el(
        "div",
        el("dt", name),
        el(
            "dd",
            el("span", figure, class_="figure"),
            extra,
            el("span", note, class_="note") if note is not None else None,
        ),
        class_=f"tile {class_}".rstrip(),
    )


def step_name(result: Result, number: int, index: int) -> str:
    """A step of an input as the marks of its trace name it; where these have no numbers it is said that it is counted."""
    numbered = any(i.step_source == "profiler_step" for i in result.inputs[number : number + 1])
    return f"ProfilerStep#{index}" if numbered else f"step {index} (counted from 0)"


def signature(short: str, name: str) -> Html:
    """The short name of a kernel; the whole signature below it where there is more."""
    whole = el("span", el("bdi", name), class_="signature") if short != name else None
    return el("span", el("bdi", short), whole, class_="kernel")


def plain(value: object) -> str:
    """A setting as text."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def listed(heading: str, items: Sequence[Child]) -> list[Html]:
    """A list below a heading of its own; nothing where it is empty."""
    return [el("h3", heading), el("ul", [el("li", item) for item in items])] if items else []


def showing(count: int, of: int, what: str) -> Html | None:
    """Says that something was cut; nothing when it was not."""
    return el("p", f"Showing {count:,} of {of:,} {what}.", class_="limit") if count < of else None


def term(key: str, text: str | None = None) -> Html:
    """A word that the glossary explains."""
    return el("a", text or GLOSSARY[key][0].lower(), href=f"#term-{key}", class_="term")


def badge(severity: Severity) -> Html:
    """Severity by symbol, word and colour."""
    return el(
        "span",
        el("span", SYMBOL[severity], aria_hidden="true"),
        f" {severity}",
        class_=f"badge sev-{severity}",
    )


def swatch(kind: str) -> Html:
    """A square in the fill of the charts: hatched where the device waited."""
    return el(
        "svg",
        el("rect", width=14, height=14, rx=3, class_=f"f-{kind}"),
        class_="swatch",
        viewBox="0 0 14 14",
        aria_hidden="true",
    )


def mini_bar(share: float, kind: str = "accent") -> Html:
    """A thin bar in a cell; the number beside it says the same."""
    width = f"{max(0.0, min(1.0, share)) * 100:.1f}%"
    return el(
        "svg", el("rect", width=width, height="100%", class_=f"b-{kind}"), class_="mini", aria_hidden="true"
    )


def gain_look(finding: Finding) -> str:
    """Of what a finding saves: an info finding is not certain, and its figure looks like it."""
    return "gain-words uncertain" if finding.severity == "info" else "gain-words"


def gain(saving: Saving | None) -> str:
    """What a finding may save, with real minus signs."""
    return saving_words(saving)


MOST_FINDINGS = 60
"""of a page; what links to one behind them has no link"""


def anchors(result: Result) -> frozenset[str]:
    """Where a link within the page may lead: findings that it shows, and codes of rules."""
    shown = result.findings[:MOST_FINDINGS]
    ids = {f.id for f in shown} | {f.code for f in shown}
    return frozenset(ids | {o.code for o in result.outcomes if o.outcome != "fired"})


def links(names: Sequence[str], identifiers: frozenset[str], between: str = ", ") -> list[Child]:
    """The findings or rules of these names, linked where the page has them."""
    elements: list[Child] = []
    for n, name in enumerate(names):
        elements += [between if n else None, el("a", name, href=f"#{name}") if name in identifiers else name]
    return elements


def copyable(source: str, *, label: str, path: str | None = None, diff: bool = False) -> Html:
    """Code to paste. The copy button is added by the script and takes the exact text from the embedded result when
    `path` (a JSON path of dots) names it."""
    body = (
        el("pre", el("code", [_diff_line(line) for line in _lines(source)]), class_="diff", tabindex=0)
        if diff
        else pre(source)
    )
    return el("div", body, class_="code", data_copy=path or "", data_label=label)


def _lines(source: str) -> list[str]:
    return source.replace("\r\n", "\n").rstrip("\n").split("\n")


def _diff_line(line: str) -> Html:
    kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "")
    if line.startswith(("+++", "---")):
        kind = "file"
    content = text(line, block=True) if line else Html("")
    return el("span", content, Html("\n"), class_=kind or None)


def data_table(
    caption: Child,
    columns: Sequence[Column | str],
    rows: Sequence[Row],
    *,
    hide_caption: bool = False,
    class_: str = "",
    of: int | None = None,
) -> Html:
    """A table with typed columns: one unit a column, written in its heading; the first column heads its row. A column that
    is only named holds text. `of`: how many rows there are, where some are left out."""
    table_columns = [Column(c) if isinstance(c, str) else c for c in columns]
    scales = [
        Scale.of(column.unit, [_cell_value(row[n]) for row in rows if n < len(row)])
        for n, column in enumerate(table_columns)
    ]
    heads = [
        el("th", _heading(c, s), scope="col", class_="num" if s.numeric and n else None)
        for n, (c, s) in enumerate(zip(table_columns, scales, strict=True))
    ]
    body = [
        el(
            "tr",
            [
                _cell(n, row[n] if n < len(row) else None, column.unit, scales[n])
                for n, column in enumerate(table_columns)
            ],
        )
        for row in rows
    ]
    suffix = f" – showing {len(rows):,} of {of:,}" if of is not None and of > len(rows) else ""
    table = el(
        "table",
        el("caption", caption, suffix, class_="hidden" if hide_caption and not suffix else None),
        el("thead", el("tr", heads)),
        el("tbody", body),
        data_sortable=len(rows) > 1,
    )
    return el("div", table, class_=f"scroll {class_}".rstrip(), tabindex=0, role="group", aria_label="Table")


def _heading(column: Column, scale: Scale) -> Child:
    if scale.unit and scale.unit != "%":
        return [column.title, " ", el("span", f"({scale.unit})", class_="unit")]
    return column.title


def _cell(index: int, value: Cell | Html, unit: Unit, scale: Scale) -> Html:
    if isinstance(value, Html):
        return el("th", value, scope="row") if index == 0 else el("td", value)
    content: Child = scale.cell(value)
    if scale.unit == "%" and content and not isinstance(value, str):
        content = f"{content}%"
    if value is None:
        content = el("span", "–", class_="none", title="not captured")
    if unit in ("code", "location") and value is not None:
        content = el("code", str(value))
    if index == 0:
        return el("th", content, scope="row")
    if not scale.numeric or not isinstance(value, int | float):
        return el("td", content, class_="num" if scale.numeric else None)
    return el("td", content, class_="num", title=exact(value, unit))


def _cell_value(value: Cell | Html) -> Cell:
    return None if isinstance(value, Html) else value
