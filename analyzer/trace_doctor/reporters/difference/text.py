"""A difference for a terminal: the step, where its time went, kernels and operators that changed, memory, findings."""

from __future__ import annotations

from trace_doctor.model.difference import Change, Difference
from trace_doctor.reporters import Options
from trace_doctor.reporters.compared import INDENT, appeared, doubts, followed, header, memory, step_time
from trace_doctor.reporters.difference.rows import Block, beyond, blocks, moved, outcome, value, verdict
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.units import plural

_MOST = 8
_NAME, _FIGURE, _VERDICT = 26, 11, 18


def render(difference: Difference, options: Options) -> str:
    """Text of at most `options.width` columns."""
    terminal = Terminal(options.width, color=options.color, ascii=options.ascii)
    header(terminal, difference)
    step_time(terminal, difference.step_time)
    memory(terminal, difference)
    for block in blocks(difference):
        terminal.blank()
        _block(terminal, block)
    _findings(terminal, difference)
    doubts(terminal, difference)
    terminal.blank()
    for limit in difference.limits:
        terminal.put(limit, "dim")
    terminal.put(difference.verdict, "bold")
    return terminal.text()


def _block(terminal: Terminal, block: Block) -> None:
    if not block.changes:
        terminal.put(f"{block.title}: not captured: {block.missing}", "dim")
        return
    whole = block.key in ("time", "peak")
    changes = block.changes if whole else beyond(block.changes)[:_MOST]
    terminal.put(block.title, "bold")
    if changes:
        terminal.row([("", _NAME), *((h, -_FIGURE) for h in ("before", "after", "change"))], "dim")
    for change in changes:
        _row(terminal, block, change)
    more = len(block.changes) - len(changes)
    if more:
        terminal.put(f"{more} {'more, within noise' if len(changes) < _MOST else 'more'}", "dim", indent=2)


def _row(terminal: Terminal, block: Block, change: Change) -> None:
    cells = [(block.label(change.name), _NAME)]
    for cell in (
        value(change, change.before, change.after),
        value(change, change.after, change.before),
        moved(change),
    ):
        cells.append((cell, -_FIGURE))
    style = {"less": "good", "more": "warning"}.get(change.verdict, "dim")
    terminal.row([*cells, (f" {verdict(change)}", _VERDICT)], style)


def _findings(terminal: Terminal, difference: Difference) -> None:
    changed = [f for f in difference.findings if f.fate != "still_there"]
    if changed or difference.new:
        terminal.blank()
    for one in changed:
        followed(terminal, one)
    for new in difference.new:
        appeared(terminal, new)
    same = len(difference.findings) - len(changed)
    if same:
        terminal.put(f"{plural(same, 'finding')} as before", "dim", indent=INDENT)
    others = [r for r in difference.rules if not r.findings_before and not r.findings_after]
    if others:
        terminal.blank()
        terminal.put("Rules run on one side only", "bold")
    for rule in others[:_MOST]:
        line = f"{rule.code} {rule.name}: {outcome(rule, False)} → {outcome(rule, True)}"
        terminal.put(f"{line}{f' ({rule.reason})' if rule.reason else ''}", "dim", indent=2)
    if len(others) > _MOST:
        terminal.put(f"{len(others) - _MOST} more", "dim", indent=2)
