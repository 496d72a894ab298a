"""What was checked and not found, and what could not be checked."""

from __future__ import annotations

from collections import defaultdict

from trace_doctor.model import Outcome, Result
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Row, anchors, copyable, data_table, links, more, section, term
from trace_doctor.reporters.labels import by_family
from trace_doctor.reporters.units import plural


def passed(result: Result) -> Html | None:
    """The rules that ran and found nothing; None where there is none."""
    rules = [o for o in result.outcomes if o.outcome == "passed"]
    if not rules:
        return None
    fired = {f.code for f in result.findings}
    identifiers = anchors(result)
    columns = ["Rule", "Name", "What it checks", "Note"]
    tables = []
    for family, members in by_family(rules).items():
        rows: list[Row] = [
            [_code(o, fired), el("code", o.name), o.title or None, _refers(o, identifiers)] for o in members
        ]
        tables.append(data_table(f"{family[0].upper()}{family[1:]}: {len(members)}", columns, rows))
    return section(
        "passed",
        "Passed rules",
        more(f"{plural(len(rules), 'rule')} found nothing", tables),
        count=len(rules),
    )


def undecided(result: Result) -> Html | None:
    """The rules that found nothing while much of what they are about has no owner; None where there is none."""
    rules = [o for o in result.outcomes if o.outcome == "undecided"]
    if not rules:
        return None
    fired = {f.code for f in result.findings}
    rows: list[Row] = [
        [_code(o, fired), el("code", o.name), o.title or None, o.reason] for o in rows_sorted(rules)
    ]
    return section(
        "undecided",
        "Undecided rules",
        data_table("Undecided rules", ["Rule", "Name", "What it checks", "Why"], rows, hide_caption=True),
        lead=["They found no problem, but much of the time they check is explained by no finding."],
        count=len(rules),
    )


def skipped(result: Result) -> Html | None:
    """The rules that lack evidence, grouped by what is missing, with the way to capture it."""
    rules = [o for o in result.outcomes if o.outcome == "skipped"]
    failed = [o for o in result.outcomes if o.outcome == "error"]
    if not rules and not failed:
        return None
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in rows_sorted(rules):
        groups[outcome.reason or "no reason given"].append(outcome)
    fired = {f.code for f in result.findings}
    order = sorted(groups.items(), key=lambda kv: (-len(kv[1]), kv[0]))
    return section(
        "skipped",
        "Skipped rules",
        [_group(reason, members, fired) for reason, members in order],
        _failed(failed, fired) if failed else None,
        lead=["The capture does not hold what these need. ", term("skipped", "Skipped is not passed"), "."],
        count=len(rules),
    )


def rows_sorted(rules: list[Outcome]) -> list[Outcome]:
    """By code, name and reason."""
    return sorted(rules, key=lambda o: (o.code, o.name, o.reason or ""))


def _group(reason: str, members: list[Outcome], fired: set[str]) -> Html:
    """What is missing in one line; opened, the rules by family and the way to capture it."""
    captures = list(dict.fromkeys(o.capture for o in members if o.capture))
    return el(
        "details",
        el("summary", el("strong", plural(len(members), "rule")), f": {reason}"),
        [
            el("p", el("span", f"{family[0].upper()}{family[1:]}: ", class_="muted"), _names(mine, fired), class_="rule-list")
            for family, mine in by_family(members).items()
        ],
        [el("p", "To capture it:", class_="limit"), [copyable(c, label="Copy") for c in captures]]
        if captures
        else None,
        class_="skip",
    )  # fmt: skip


def _names(members: list[Outcome], fired: set[str]) -> list[Child]:
    return [[", " if n else None, _code(o, fired), " ", o.title or o.name] for n, o in enumerate(members)]


def _failed(failed: list[Outcome], fired: set[str]) -> Html:
    """A rule that broke says so; the traceback stays folded."""
    elements: list[Child] = []
    for outcome in rows_sorted(failed):
        lines = (outcome.reason or "no reason given").strip().splitlines()
        elements.append(
            el(
                "div",
                el("p", _code(outcome, fired), " ", outcome.name, ": ", lines[-1]),
                more("Traceback", copyable("\n".join(lines), label="Copy")) if len(lines) > 1 else None,
            )
        )
    return el(
        "div",
        el("h3", "Rules that failed"),
        el("p", "An error of trace-doctor, not of your run.", class_="limit"),
        elements,
        class_="skip",
    )


def _code(outcome: Outcome, fired: set[str]) -> Html:
    """The code; it is also where `#TD…` leads when the rule has no finding."""
    if outcome.code in fired:
        return el("a", outcome.code, href=f"#{outcome.code}", class_="code-id")
    fired.add(outcome.code)
    return el("span", outcome.code, id=outcome.code, class_="code-id", tabindex=-1)


def _refers(outcome: Outcome, identifiers: frozenset[str]) -> Html:
    if not outcome.refers_to:
        return el("span", outcome.reason or "")
    return el("span", "see ", links(outcome.refers_to, identifiers))
