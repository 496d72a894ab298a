"""Markdown for a job summary or a comment on a pull request: verdict first, then budgets, findings, what was not checked.

A job summary holds 1 MiB and a comment 64 KiB: the page fits both. Each finding has its row; as many as fit have their
details. Foreign text is written so that no renderer sees markup, links, mentions or formulas in it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from trace_doctor.errors import no_command_at_start
from trace_doctor.model import Budget, Finding, Fix, Result, Table
from trace_doctor.reporters import Options
from trace_doctor.reporters.diagnosis import headline, shortages
from trace_doctor.reporters.fix_labels import fix_words, is_patch
from trace_doctor.reporters.labels import (
    SYMBOL,
    Names,
    against_baseline,
    amount,
    budget_outcome,
    facts,
    in_which_capture,
    saving_words,
    together,
    where_briefly,
)
from trace_doctor.reporters.source_locations import failing, line_of
from trace_doctor.reporters.units import Scale, plural, visible

MOST_BYTES = 64_000
_AROUND = 1_000
"""bytes that a file of it or a comment has beside it: the digest at its end, the mark of the comment, a link"""
_LONGEST, _LONGEST_DIFF, _MOST_ROWS, _MOST_FINDINGS = 600, 4_000, 10, 100
_MARKUP = re.compile(
    r"[\\`*\[\]|~$!{}^<>&@]"
    r"|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])"  # inside a word it is no emphasis
    r"|#(?=\d)|:(?=//)|(?<=\bwww)\."
    r"|(?<!:):(?=[\w+-]+:(?!:))"  # an emoji
    r"|\bgh-(?=\d)"  # an issue
    r"|\b(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40}\b"  # a commit
    r"|^[-+=#]|^\d(?=\d*[.)](?:\s|$))",
    re.IGNORECASE,
)


def render(result: Result, options: Options) -> str:
    """Markdown of at most MOST_BYTES: the summary whole, details while there is room."""
    head = [*_verdict(result), *_budgets(result), *_overview(result), *_decided(result)]
    tail = [*_not_checked(result, options), *_notes(result)]
    room = MOST_BYTES - _bytes([*head, *tail])
    details: list[str] = []
    for finding in result.findings:
        block = _details(result, finding)
        room -= _bytes([block])
        if room < 100:
            break
        details.append(block)
    more = len(result.findings) - len(details)
    if more:
        details.append(f"{plural(more, 'more finding')} without details here; the HTML report has them.")
    page = no_command_at_start("\n\n".join([*head, *details, *tail]) + "\n")
    if len(page.encode()) <= (1 << 16) - _AROUND:
        return page
    return "\n\n".join([*head[:1], "All of it is too long for this page; the HTML report has it.\n"])


def _bytes(blocks: Sequence[str]) -> int:
    return sum(len(b.encode("utf-8", "surrogateescape")) + 2 for b in blocks)


# ------------------------------------------------------------------------------------------------ parts


def _verdict(result: Result) -> Iterator[str]:
    gate = result.gate
    if gate is not None:
        yield f"## {'✔' if not gate.code else '✖'} {md(gate.verdict)}"
    yield f"**{md(headline(result))}**" if gate is not None else f"## {md(headline(result))}"
    paths = [md(i.path) for i in result.inputs[:3]]
    more = [f"{len(result.inputs) - 3:,} more"] if len(result.inputs) > 3 else []
    context = [md(f) for f in [result.ranks.note, *facts(result)] if f]
    if paths or context:
        yield " · ".join([", ".join([*paths, *more]), *context]).strip(" ·")


def _budgets(result: Result) -> Iterator[str]:
    if result.gate is None or not result.gate.budgets:
        return
    yield "### Budgets"
    rows = [[*_budget(b)] for b in result.gate.budgets]
    yield table(["", "budget", "found", "expected at most", "baseline", "noise", "runs", "why"], rows)


def _budget(budget: Budget) -> Iterator[str]:
    yield {"passed": "✔", "failed": "✖" if budget.level == "error" else "▲", "undecided": "?"}[budget.status]
    yield md(budget.name)
    for value in (budget.found, budget.limit, budget.baseline):
        yield amount(value, budget.unit)
    yield f"±{amount(budget.noise, budget.unit)}" if budget.noise else ""
    yield ", ".join(amount(v, budget.unit) for v in budget.values[:_MOST_ROWS])
    yield md(budget_outcome(budget))


def _overview(result: Result) -> Iterator[str]:
    if not result.findings:
        return
    yield f"### {plural(len(result.findings), 'finding')}{together(result, ', ')}"
    fails = failing(result)
    rows = []
    for f in result.findings[:_MOST_FINDINGS]:
        states = [against_baseline(f, result), "fails" if f.id in fails and result.gate else ""]
        place = where_briefly(f.location)
        rows.append(
            [
                f"{SYMBOL[f.severity]} {f.severity}",
                md(f"{f.id} {f.name}"),
                code(place) if place else "",
                md(saving_words(f.saving)),
                f.confidence,
                ", ".join(state for state in states if state),
            ]
        )
    yield table(["severity", "finding", "place", "saving", "confidence", ""], rows)
    if (more := len(result.findings) - _MOST_FINDINGS) > 0:
        yield f"… and {plural(more, 'more finding')}."


def _decided(result: Result) -> Iterator[str]:
    """What is fixed since the baseline, and else worth a line of the gate: no detail stands before it."""
    if result.gate is not None and result.gate.notes:
        yield _bullets(result.gate.notes)


def _details(result: Result, finding: Finding) -> str:
    place = line_of(result, finding.location)
    at = f"{place[0]}:{place[1]}" if place and place[1] else place[0] if place else ""
    lines = [
        f"<details><summary>{SYMBOL[finding.severity]} {md(finding.id)} {md(finding.title or finding.name)}</summary>",
        md(finding.message),
        " · ".join(
            p
            for p in (
                code(at) if at else "",
                md(in_which_capture(finding, Names(result))),
                md(saving_words(finding.saving)),
            )
            if p
        ),
        *(_evidence(t) for t in finding.evidence[:2]),
        *(_fix(f) for f in finding.fixes[:3]),
        "</details>",
    ]
    return "\n\n".join(line for line in lines if line)


def _evidence(evidence: Table) -> str:
    scales = [
        Scale.of(c.unit, [row[n] for row in evidence.rows if n < len(row)])
        for n, c in enumerate(evidence.columns)
    ]
    rows = [
        [md(s.with_unit(v)) for s, v in zip(scales, row, strict=False)] for row in evidence.rows[:_MOST_ROWS]
    ]
    of = evidence.of or len(evidence.rows)
    suffix = f" (showing {len(rows)} of {of:,})" if of > len(rows) else ""
    return f"{md(evidence.title)}{suffix}\n\n{table([c.title for c in evidence.columns], rows)}"


def _fix(fix: Fix) -> str:
    if is_patch(fix):
        return f"Fix: {md(fix.title)} [{fix_words(fix)}]\n\n{fenced(fix.diff or '', 'diff')}"
    text = f"\n\n{fenced(fix.text)}" if fix.text else ""
    text += f"\n\nSketch, not applied:\n\n{fenced(fix.sketch, 'diff')}" if fix.sketch else ""
    return f"Fix: {md(fix.title)} [{fix_words(fix)}]{text}"


def _not_checked(result: Result, options: Options) -> Iterator[str]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for o in result.outcomes:
        if o.outcome in ("skipped", "error"):
            reason = ((o.reason or "").strip() or "no reason given").splitlines()[-1]
            by_reason[reason if o.outcome == "skipped" else f"failed: {reason}"].append(f"{o.code} {o.name}")
    if by_reason:
        count = sum(map(len, by_reason.values()))
        yield f"### {plural(count, 'rule')} skipped"
        yield "\n".join(
            f"- {md(', '.join(names))}: {md(reason)}" for reason, names in sorted(by_reason.items())
        )


def _notes(result: Result) -> Iterator[str]:
    notes = shortages(result)
    notes += [
        f"suppressed at {s.where}: {s.finding.message} ({s.reason or 'no reason given'})"
        for s in result.suppressed
    ]
    notes += [f"{i.path}: {w}" for i in result.inputs for w in i.warnings]
    notes += [f"not analyzed: {i.path} ({i.reason})" for i in result.ignored if not i.unread]
    notes += result.limits
    if notes:
        yield _bullets(notes)


def _bullets(lines: Sequence[str]) -> str:
    more = [f"{len(lines) - 20} more"] if len(lines) > 20 else []
    return "\n".join(f"- {md(s)}" for s in [*lines[:20], *more])


# ------------------------------------------------------------------------------------------------ markup


def md(text: str) -> str:
    """Foreign text as one line of plain words: nothing in it is markup, a link, a mention or a formula."""
    text = visible(text).strip()
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return _MARKUP.sub(_inert, text)


def _inert(match: re.Match[str]) -> str:
    """Links that GitHub makes after all markup is read need a break that does not show."""
    first, rest = match[0][0], match[0][1:]
    if rest:
        return f"{first}&#8203;{rest}"
    return f"&#{ord(first)};" + ("&#8203;" if first in "@#:" else "")


def code(text: str) -> str:
    """Text in a code span, inert in Markdown and HTML."""
    return f"<code>{md(text)}</code>"


def fenced(text: str, language: str = "") -> str:
    """A block that ends only where it is meant to: its fence is longer than any in the text."""
    text = visible(text, block=True).rstrip("\n")
    if len(text) > _LONGEST_DIFF:
        text = text[:_LONGEST_DIFF].rsplit("\n", 1)[0] + "\n… cut here"
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are markup already; columns in which nothing stands are left out."""
    filled = [n for n, title in enumerate(titles) if title == "" or any(n < len(r) and r[n] for r in rows)]
    filled = [n for n in filled if titles[n] or any(n < len(r) and r[n] for r in rows)]
    lines = [[md(titles[n]) for n in filled], ["---"] * len(filled)]
    lines += [[row[n] if n < len(row) else "" for n in filled] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
