"""The findings, ranked: each opens to what was seen, why it matters, the fix, how to verify it."""

from __future__ import annotations

from trace_doctor.model import Column, Finding, Fix, Result, Saving, Span
from trace_doctor.reporters.diagnosis import but_suppressed, is_clean, not_judged
from trace_doctor.reporters.fix_labels import bytes_of_fix, is_patch, needs_source, safety_words, why_no_patch
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import (
    MOST_FINDINGS,
    Columns,
    Row,
    anchors,
    badge,
    copyable,
    data_table,
    gain,
    gain_look,
    links,
    mini_bar,
    more,
    plain,
    section,
    showing,
    step_name,
    term,
)
from trace_doctor.reporters.html.timeline import moment
from trace_doctor.reporters.labels import (
    BASIS_MEANING,
    claim_words,
    device_name,
    where,
    where_briefly,
    where_in_capture,
)
from trace_doctor.reporters.units import plural

_MOST_SPANS = 20
_IN_FULL = 90_000
"""Bytes of the cards in full, about"""


def render(result: Result) -> Html:
    """Every finding that the page may link to: the first in full, those behind them in brief."""
    if not result.findings:
        return section("findings", "Findings", _none(result), count=0)
    codes: set[str] = set()
    cards: list[Html] = []
    room, whole = _IN_FULL, 0
    for n, finding in enumerate(result.findings[:MOST_FINDINGS]):
        first = finding.code not in codes
        card = _card(finding, n, result, first_of_code=first)
        room -= len(card.encode())
        if n and room < 0:
            card = _card(finding, n, result, first_of_code=first, brief=True)
        else:
            whole += 1
        cards.append(card)
        codes.add(finding.code)
    lead = [
        "What may save most first; uncertain ones count for less. How it is known: ",
        term("saving", "“up to”, “about”"),
        ".",
    ]
    return section(
        "findings",
        "Findings",
        el("div", cards, class_="cards"),
        showing(whole, len(cards), "findings in full; the others are brief"),
        showing(len(cards), len(result.findings), "findings"),
        lead=lead,
        count=len(result.findings),
    )


def _none(result: Result) -> Html:
    passed = sum(o.outcome == "passed" for o in result.outcomes)
    skipped = sum(o.outcome in ("skipped", "error") for o in result.outcomes)
    if why := not_judged(result):
        sentence = f"{why}."
    elif not passed:
        sentence = "No rule could run on this capture."
    else:
        nothing = "No problems" if is_clean(result) else "No findings"
        sentence = f"{nothing}{but_suppressed(result)}: {plural(passed, 'rule')} passed."
    could_not = el(
        "p", f"{plural(skipped, 'rule')} skipped: ", el("a", "what was not recorded", href="#skipped"), "."
    )
    return el("div", el("p", el("strong", sentence)), could_not if skipped else None, class_="empty")


def _card(finding: Finding, index: int, result: Result, *, first_of_code: bool, brief: bool = False) -> Html:
    place = where_briefly(finding.location)
    saving = finding.saving
    share = max(saving.share_of_step or 0.0, saving.share_of_peak or 0.0) if saving else 0.0
    summary = el(
        "summary",
        badge(finding.severity),
        el("h3", el("span", finding.code, class_="code-id"), " ", finding.title or finding.name),
        el("span", gain(saving), mini_bar(share), class_=gain_look(finding)) if gain(saving) else None,
        el("span", f"{finding.confidence} confidence", class_="muted"),
        el("code", place, class_="where") if place else None,
        el("span", "has a patch", class_="tag") if any(is_patch(f) for f in finding.fixes) else None,
    )
    card = el(
        "details",
        summary,
        _brief(finding, result) if brief else _body(finding, index, result),
        open=index == 0 and finding.severity != "info",
        id=finding.id,
        class_=f"finding sev-{finding.severity}",
        data_severity=finding.severity,
        data_fixable=any(is_patch(f) for f in finding.fixes),
    )
    return el(
        "div", el("span", id=finding.code, class_="anchor") if first_of_code else None, card, class_="slot"
    )


def _body(finding: Finding, index: int, result: Result) -> Html:
    return el(
        "div",
        el("p", finding.message, class_="message"),
        _facts(finding, result),
        _excerpt(finding, result),
        [data_table(t.title, t.columns, t.rows, of=t.of) for t in finding.evidence],
        moment(finding, result),
        _spans(finding, result),
        [el("h4", "Why this matters"), _prose(finding.why)] if finding.why else None,
        _fixes(finding.fixes, index),
        _thresholds(finding),
        class_="body",
    )


def _brief(finding: Finding, result: Result) -> Html:
    """For the findings far down a long list: what was seen, where, and what to do."""
    return el(
        "div",
        el("p", finding.message, class_="message"),
        _facts(finding, result),
        moment(finding, result),
        [el("p", el("strong", "Fix: "), f.title) for f in finding.fixes[:3]],
        class_="body",
    )


def _basis(saving: Saving) -> str:
    """What its basis means; of an estimate that comes from a bound `how` says it."""
    is_from_bound = saving.known == "about" and saving.basis == "bound"
    return "" if is_from_bound else f" – {BASIS_MEANING[saving.basis]}"


def _facts(finding: Finding, result: Result) -> Html:
    """What else is known, as a short list."""
    facts: list[tuple[Child, Child]] = []
    saving = finding.saving
    if gain(saving) and saving:
        facts.append(
            (
                term("saving", "Saving"),
                ". ".join(
                    filter(
                        None,
                        [f"{claim_words(saving)}{_basis(saving)}", saving.how[:1].upper() + saving.how[1:]],
                    )
                ),
            )
        )
    elif saving and saving.how:
        facts.append(("Saving", saving.how))
    facts.append((term("confidence", "Confidence"), finding.confidence))
    facts.append(("Rule", [el("code", finding.code), " ", finding.name]))
    if finding.location.file:
        facts.append(("Line" if finding.location.line else "File", el("code", where(finding.location))))
    if finding.location.function and where(finding.location) != finding.location.function:
        facts.append(("Function", el("code", finding.location.function)))
    at = where_in_capture(finding.location)
    if len(result.inputs) > 1 and finding.input < len(result.inputs):
        facts.append(("Capture", [el("bdi", result.inputs[finding.input].path), f", {at}" if at else ""]))
    elif at:
        facts.append(("In the capture", at))
    if finding.refers_to:
        facts.append(("See also", links(finding.refers_to, anchors(result))))
    return el("dl", [[el("dt", name), el("dd", value)] for name, value in facts], class_="facts")


def _excerpt(finding: Finding, result: Result) -> Html | None:
    """The lines of the script around the place the finding names."""
    lines = result.source_excerpts.get(finding.location.file or "", [])
    line = finding.location.line
    near = [(n, source) for n, source in lines if line is not None and abs(n - line) <= 4]
    if not near:
        return None
    elements = [
        el(
            "span",
            el("span", f"{n:>5} ", class_="ln"),
            source,
            Html("\n"),
            class_="here" if n == line else None,
        )
        for n, source in near
    ]
    return el(
        "figure",
        el("figcaption", where(finding.location)),
        el("pre", el("code", elements), tabindex=0),
        class_="excerpt",
    )


def _spans(finding: Finding, result: Result) -> Html | None:
    if not finding.spans:
        return None
    spans = finding.spans[:_MOST_SPANS]
    columns: Columns = ["Moment", "Where", Column("ts in the capture (µs)"), Column("Lasts", "us")]
    rows: list[Row] = [
        [s.label or finding.name, _span_place(s, finding.input, result), Html(f"{s.ts_us:.3f}"), s.dur_us]
        for s in spans
    ]
    query = (
        "SELECT ts, dur, name FROM slice WHERE "
        + " OR ".join(_overlap(s) for s in spans[:3])
        + " ORDER BY ts"
    )
    return more(
        f"Where in the capture ({plural(len(finding.spans), 'moment')})",
        data_table(
            "The same moments in the capture, to look up in a trace viewer",
            columns,
            rows,
            of=len(finding.spans),
        ),
        el("p", "In Perfetto, this query lists what ran then:", class_="limit"),
        copyable(query, label="Copy for Perfetto"),
    )


def _overlap(span: Span) -> str:
    """Perfetto keeps nanoseconds."""
    start = round(span.ts_us * 1000)
    return f"(ts < {start + max(1, round(span.dur_us * 1000))} AND ts + dur > {start})"


def _span_place(span: Span, number: int, result: Result) -> str:
    parts = [
        device_name(span.device) if span.device is not None else "",
        f"stream {span.stream}" if span.stream is not None else "",
        step_name(result, number, span.step) if span.step is not None else "",
    ]
    return ", ".join(p for p in parts if p)


def _fixes(fixes: list[Fix], finding: int) -> list[Html]:
    """In full for the framework of the first; the same for other frameworks stays folded."""
    items = []
    for n, fix in enumerate(fixes):
        block = _fix(fix, finding, n)
        if n and fix.framework != fixes[0].framework and not fix.diff:
            block = more(f"For {fix.framework}: {fix.title}", block)
        items.append(block)
    return items


def _fix(fix: Fix, finding: int, n: int) -> Html:
    path = f"findings.{finding}.fixes.{n}"
    reason = "give the script's folder with --source" if needs_source(fix) else why_no_patch(fix)
    target = (
        f"{fix.target.file}:{fix.target.line}" if fix.target and fix.target.file and fix.target.line else None
    )
    return el(
        "div",
        el("h4", "Fix: ", fix.title),
        el(
            "p",
            el(
                "span", "manual" if fix.safety == "display" else fix.safety, class_=f"tag safety-{fix.safety}"
            ),
            " ",
            term("safety", "review its risk" if fix.risk and fix.safety == "unsafe" else safety_words(fix)),
            [" · ", el("code", target)] if target else None,
            f" · saves {gives}" if (gives := bytes_of_fix(fix)) else None,
            f" · {fix.framework}" if fix.framework != "torch" else None,
            class_="fix-line",
        ),
        copyable(fix.diff, label="Copy patch", path=f"{path}.diff", diff=True) if fix.diff else None,
        [
            el("p", "Sketch, not applied:", class_="limit"),
            copyable(fix.sketch, label="Copy sketch", path=f"{path}.sketch", diff=True),
        ]
        if fix.sketch
        else None,
        copyable(
            fix.text, label="Copy command" if fix.kind in ("env", "command") else "Copy", path=f"{path}.text"
        )
        if fix.text and not fix.diff
        else None,
        el("p", "No patch yet: ", reason, ".", class_="limit") if reason else None,
        el("p", el("strong", "Risk: "), _inline(fix.risk)) if fix.risk else None,
        el("p", el("strong", "To verify: "), _inline(fix.verify)) if fix.verify else None,
        class_="fix",
    )


def _prose(text: str) -> list[Html]:
    """Paragraphs and simple lists of a rule's docstring. `code` in backticks stays code."""
    blocks = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        if lines and all(line.startswith(("- ", "* ")) for line in lines):
            blocks.append(el("ul", [el("li", _inline(line[2:])) for line in lines]))
        elif lines:
            blocks.append(el("p", _inline(" ".join(lines))))
    return blocks


def _inline(text: str) -> list[Child]:
    pieces = text.replace("``", "`").split("`")
    if len(pieces) % 2 == 0:
        return [text]
    return [el("code", piece) if n % 2 else piece for n, piece in enumerate(pieces)]


def _thresholds(finding: Finding) -> Html | None:
    if not finding.thresholds:
        return None
    rows: list[Row] = [[el("code", k), plain(v)] for k, v in sorted(finding.thresholds.items())]
    table = data_table("Thresholds in force", [Column("Threshold", "code"), "Value"], rows, hide_caption=True)
    return more("Thresholds in force", table)
