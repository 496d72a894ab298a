"""A row for each capture of a page that shows several: what is wrong with it, beside its step and its peak."""

from __future__ import annotations

from trace_doctor.model import LOOKED, Column, Finding, Result
from trace_doctor.reporters.diagnosis import names_who_delays
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Columns, Row, anchors, badge, data_table, gain
from trace_doctor.reporters.labels import Names, main_rows
from trace_doctor.reporters.units import plural

_MOST = 24
_FOLDED = 8
"""rows before "Show all", the gravest first; one or two more are not worth the button"""
_ELSEWHERE = "The same in other captures"
"""Title of the table in which a finding names the other captures that have it"""


def verdicts(result: Result) -> Html | None:
    """None for a single capture."""
    numbers = _captures(result)
    if len(numbers) < 2:
        return None
    names = Names(result)
    steps = {row.input: row.step_us for row in main_rows(result) if row.steps}
    peaks: dict[int, int] = {}
    for memory in result.memory_ledger:
        peaks[memory.input] = max(memory.peak_bytes, peaks.get(memory.input, 0))
    columns: Columns = ["Capture", "Verdict", "Saving"]
    columns += [Column("Step", "us")] * bool(steps) + [Column("Peak memory", "bytes")] * bool(peaks)
    rows: list[Row] = []
    found = {number: _findings(result, number) for number in numbers}
    folded = len(numbers) > _FOLDED + 2
    if folded:
        order = {f.id: place for place, f in enumerate(result.findings)}
        drawn = {lane.input: place for place, lane in reversed(list(enumerate(result.timeline)))}
        numbers.sort(
            key=lambda n: (
                order[worst.id] if (worst := found[n][0]) else len(order),
                drawn.get(n, len(drawn)),
            )
        )
    for number in numbers[:_MOST]:
        worst, others = found[number]
        rows.append(
            [
                _called(result, names, number),
                _verdict(result, number, worst, others),
                _saving(worst, number, names),
                *([steps.get(number)] if steps else []),
                *([peaks.get(number)] if peaks else []),
            ]
        )
    table = data_table(
        "The most severe finding of each capture", columns, rows, of=len(numbers), class_="captures"
    )
    if not folded:
        return table
    every = el("label", el("input", type="checkbox"), el("span", f"Show all {len(rows)}"), class_="switch")
    return el("div", table, every, class_="fold")


def _captures(result: Result) -> list[int]:
    """Their positions in `Result.inputs`: of the several files of one capture that which rows and findings name."""
    shown = {
        row.input
        for rows in (result.time_ledger, result.memory_ledger, result.memory_held, result.timeline)
        for row in rows
    }
    few = {n for n, source in enumerate(result.inputs) if source.too_little}
    return sorted(n for n in {*shown, *few, *(f.input for f in result.findings)} if n < len(result.inputs))


def _called(result: Result, names: Names, number: int) -> Html:
    """By its rank where that tells it from the others: a row is then a line, and the files are listed below."""
    name = names.of(number)
    return el("bdi", name or result.inputs[number].path, class_="place" if name else None)


def _findings(result: Result, number: int) -> tuple[Finding | None, int]:
    """The most severe one that names the capture or a rank that all of its job wait for, and how many more do."""
    path, job = result.inputs[number].path, result.inputs[number].job
    own = [
        f
        for f in result.findings
        if f.input == number
        or path in _elsewhere(f)
        or (names_who_delays(f, result) and result.inputs[f.input].job == job)
    ]
    return (own[0], len(own) - 1) if own else (None, 0)


def _elsewhere(finding: Finding) -> set[object]:
    return {row[0] for table in finding.evidence if table.title == _ELSEWHERE for row in table.rows if row}


def _saving(worst: Finding | None, number: int, names: Names) -> str:
    """A finding of several captures claims what it saves in one of them."""
    if worst is None or not gain(worst.saving):
        return ""
    if worst.input == number or not (where := names.of(worst.input)):
        return gain(worst.saving)
    return f"see {where}"


def _verdict(result: Result, number: int, worst: Finding | None, others: int) -> Html:
    if worst is not None:
        more: Child = f" and {plural(others, 'more finding')}" if others else None
        title: Child = worst.title or worst.name
        linked = el("a", title, href=f"#{worst.id}") if worst.id in anchors(result) else title
        return el("span", badge(worst.severity), " ", linked, more)
    if why := result.inputs[number].too_little:
        return el("span", f"not analyzed: {why}")
    known = [o for o in result.outcomes if o.inputs is not None]
    decided = sum(o.outcome in LOOKED and number in (o.inputs or ()) for o in known)
    if known and not decided:
        return el("span", "no rule could run")
    cut = any(
        t.title == _ELSEWHERE and (t.of or 0) > len(t.rows) for f in result.findings for t in f.evidence
    )
    rest = "; findings of other captures may name it too" if cut else ""
    looked = f": {plural(decided, 'rule')} ran" if decided else ""
    return el("span", f"no finding of its own{looked}{rest}")
