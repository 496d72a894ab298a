"""A difference for a terminal: the step, where its time went, kernels and operators that changed, memory, findings."""

from __future__ import annotations

from trace_doctor.model.difference import Change, Difference
from trace_doctor.reporters import Options
from trace_doctor.reporters.compared import (
    INDENT,
    appeared,
    doubts,
    followed,
    header,
    memory,
    step_time,
)
from trace_doctor.reporters.difference.rows import Block, beyond, blocks, moved, outcome, value, verdict
from trace_doctor.reporters.terminal import Paper
from trace_doctor.reporters.units import plural

_MOST = 8
_NAME, _FIGURE, _VERDICT = 26, 11, 18


def render(made: Difference, options: Options) -> str:
    """Text of at most `options.width` columns."""
    paper = Paper(options.width, color=options.color, ascii=options.ascii)
    header(paper, made)
    step_time(paper, made.step_time)
    memory(paper, made)
    for block in blocks(made):
        paper.blank()
        _block(paper, block)
    _findings(paper, made)
    doubts(paper, made)
    paper.blank()
    for limit in made.limits:
        paper.put(limit, "dim")
    paper.put(made.verdict, "bold")
    return paper.text()


def _block(paper: Paper, block: Block) -> None:
    if not block.changes:
        paper.put(f"{block.title}: not captured: {block.missing}", "dim")
        return
    whole = block.key in ("time", "peak")
    shown = block.changes if whole else beyond(block.changes)[:_MOST]
    paper.put(block.title, "bold")
    if shown:
        paper.row([("", _NAME), *((h, -_FIGURE) for h in ("before", "after", "change"))], "dim")
    for change in shown:
        _row(paper, block, change)
    left = len(block.changes) - len(shown)
    if left:
        paper.put(f"{left} {'more, within noise' if len(shown) < _MOST else 'more'}", "dim", indent=2)


def _row(paper: Paper, block: Block, change: Change) -> None:
    cells = [(block.label(change.name), _NAME)]
    for said in (
        value(change, change.before, change.after),
        value(change, change.after, change.before),
        moved(change),
    ):
        cells.append((said, -_FIGURE))
    style = {"less": "good", "more": "warning"}.get(change.verdict, "dim")
    paper.row([*cells, (f" {verdict(change)}", _VERDICT)], style)


def _findings(paper: Paper, made: Difference) -> None:
    changed = [f for f in made.findings if f.fate != "still_there"]
    if changed or made.new:
        paper.blank()
    for one in changed:
        followed(paper, one)
    for new in made.new:
        appeared(paper, new)
    same = len(made.findings) - len(changed)
    if same:
        paper.put(f"{plural(same, 'finding')} as before", "dim", indent=INDENT)
    others = [r for r in made.rules if not r.findings_before and not r.findings_after]
    if others:
        paper.blank()
        paper.put("Rules that could look on one side only", "bold")
    for rule in others[:_MOST]:
        said = f"{rule.code} {rule.name}: {outcome(rule, False)} → {outcome(rule, True)}"
        paper.put(f"{said}{f' ({rule.reason})' if rule.reason else ''}", "dim", indent=2)
    if len(others) > _MOST:
        paper.put(f"{len(others) - _MOST} more", "dim", indent=2)
