"""The diagnosis for a terminal: header, where the step goes, ranked findings, what was not checked, what to do next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec

from trace_doctor.model import (
    Finding,
    Fix,
    Gate,
    MemoryLedgerRow,
    OnDevice,
    Outcome,
    Result,
    Table,
    TimeLedgerRow,
)
from trace_doctor.reporters import Options
from trace_doctor.reporters.diagnosis import (
    between_words,
    not_judged,
    nothing_captured,
    shortages,
    unexplained,
    unexplained_memory,
    verdict,
)
from trace_doctor.reporters.engine_steps import engine_rows, name_of
from trace_doctor.reporters.fix_labels import first_shown, fix_words, fixed_with, needs_source, why_no_patch
from trace_doctor.reporters.labels import (
    BUSY,
    IDLE,
    MEMORY,
    PINNED,
    SEVERITIES,
    SYMBOL,
    Names,
    against_baseline,
    budget_words,
    facts,
    held_words,
    in_which_capture,
    main_rows,
    saving_words,
    shares_of_path,
    short_kernel,
    skipped_words,
    together,
    where,
    where_briefly,
)
from trace_doctor.reporters.next_command import say_next
from trace_doctor.reporters.terminal import Piece, Terminal
from trace_doctor.reporters.units import Scale, columns, duration, number, plural, share, size

_MOST_ROWS = 8
_MOST_REASONS = 4
_MOST_BLOCKS = 4
_MOST_EVIDENCE = 3
"""rows of a finding's table: the page has all"""
_LEAST_TEXT = 24
"""columns that a text of such a table keeps"""
_FROM_TABLE = 3
"""so many devices make a table"""
_BAR = {"compute": "█", "comm": "▓", "copy": "▒", "idle": "░"}
_SHORT = {"compute": "compute", "comm": "exposed comm", "copy": "copies"}
_BUSY_NS: dict[str, Callable[[TimeLedgerRow], int]] = {
    "compute": lambda r: r.compute_ns,
    "comm": lambda r: r.exposed_comm_ns,
    "copy": lambda r: r.exposed_copy_ns,
}


def render(result: Result, options: Options) -> str:
    """The diagnosis in lines of at most `options.width` columns."""
    terminal = Terminal(options.width, color=options.color, ascii=options.ascii)
    more = "in the report" if options.report else "with --output html=PATH"
    if not options.brief:
        _recorded(terminal, result)
    _verdict(terminal, result, more)
    if options.brief:
        for finding in result.findings:
            _title(terminal, finding, against_baseline(finding, result))
        if options.report:
            terminal.put(f"Report: {options.report}")
    else:
        names = Names(result)
        _ledgers(terminal, result, names, more)
        _engine_steps(terminal, result)
        _unexplained(terminal, result)
        for finding in result.findings:
            terminal.blank()
            _finding(terminal, finding, result, names, more)
        terminal.blank()
        _footer(terminal, result, options)
    if result.gate is not None:
        if not options.brief:
            terminal.blank()
        _gate(terminal, result.gate)
    return terminal.text()


def not_checked(result: Result, options: Options) -> str:
    """What the footer says of rules that did not decide, alone."""
    terminal = Terminal(options.width, color=options.color, ascii=options.ascii)
    _not_checked(terminal, result, options)
    return terminal.text()


# ------------------------------------------------------------------------------------------------ header


def _recorded(terminal: Terminal, result: Result) -> None:
    label = f"{result.tool.name}  "
    names = [i.path for i in result.inputs[:3]] or ["no capture"]
    for place, name in enumerate([result.ranks.note, *names] if result.ranks.note else names):
        terminal.put(name, "bold" if place == 0 else "", indent=len(label), first=label if place == 0 else "")
    rest = len(result.inputs) - len(names)
    if rest > 0:
        terminal.put(f"and {rest:,} more", indent=len(label))
    terminal.put(" · ".join(facts(result)), indent=len(label))
    terminal.blank()


def _verdict(terminal: Terminal, result: Result, more: str) -> None:
    healthy = (
        not result.findings
        and not nothing_captured(result)
        and not not_judged(result)
        and any(o.outcome == "passed" for o in result.outcomes)
        and not any(o.outcome == "undecided" for o in result.outcomes)
        and not unexplained(result)
        and unexplained_memory(result) is None
    )
    first, *others = verdict(result)
    healthy = healthy and not others
    terminal.put(f"✔ {first}" if healthy else first, "good" if healthy else "bold")
    for sentence in others:
        terminal.put(sentence)
    reasons = shortages(result)
    for reason in reasons[: 2 * _MOST_ROWS]:
        terminal.put(reason, "warning", indent=2, first="!")
    if len(reasons) > 2 * _MOST_ROWS:
        terminal.put(f"{len(reasons) - 2 * _MOST_ROWS:,} more {more}", "warning", indent=2, first="!")
    warned = [(i, w) for i in result.inputs for w in i.warnings]
    for source, warning in warned[:_MOST_ROWS]:
        terminal.put(f"{source.path}: {warning}" if len(result.inputs) > 1 else warning, indent=2, first="!")
    if len(warned) > _MOST_ROWS:
        terminal.put(f"{len(warned) - _MOST_ROWS:,} more warnings {more}", indent=2, first="!")


# ------------------------------------------------------------------------------------------------ ledgers


def _ledgers(terminal: Terminal, result: Result, names: Names, more: str) -> None:
    steady = main_rows(result)
    rows: list[OnDevice] = [*steady, *result.memory_ledger, *result.memory_held]
    if rows or result.memory_pinned:
        terminal.blank()
    several = len(steady) > 1 or len(rows) - len(steady) > 1
    labels = [names.place(r) for r in rows] if several else ["memory"]
    labels += [PINNED] if result.memory_pinned else []
    gutter = max(columns(label) for label in labels) + 4 if labels else 0
    if len(steady) >= _FROM_TABLE:
        _time_table(terminal, result, steady[:_MOST_ROWS], names)
    else:
        for row in steady:
            _time_row(terminal, row, names.place(row) if several else "step", gutter)
    _more_devices(terminal, len(steady), more)
    if len(result.memory_ledger) >= _FROM_TABLE:
        _memory_table(terminal, result.memory_ledger[:_MOST_ROWS], names)
    else:
        for memory in result.memory_ledger:
            text = ", ".join([f"peak {size(memory.peak_bytes)}", *_reserved(memory)])
            text += f": {_classes(memory)}"
            _entry(terminal, names.place(memory) if several else "memory", text, gutter)
    _more_devices(terminal, len(result.memory_ledger), more)
    held = [(row, names.place(row) if several else "memory") for row in result.memory_held[:_MOST_ROWS]]
    for in_use, label in [*held, *((row, PINNED) for row in result.memory_pinned[:_MOST_ROWS])]:
        text = f"{held_words(in_use)}, {size(in_use.reserved_bytes)} reserved"
        _entry(terminal, label, text, gutter)
        for frame, count in in_use.by_frame[:3]:
            _entry(terminal, "", f"{size(count)}: {frame}", gutter)


def _engine_steps(terminal: Terminal, result: Result) -> None:
    """What an inference engine did, a line for each kind of step."""
    if not (rows := engine_rows(result)):
        return
    terminal.blank()
    lines = [["", "steps", "requests", "tokens", "GPU busy", "of the window", "median"]]
    lines += [
        [
            name_of(row),
            number(row.count),
            *("" if figure is None else number(figure) for figure in (row.requests, row.tokens)),
            "" if row.busy_share is None else share(row.busy_share),
            share(row.share),
            duration(row.median_us),
        ]
        for row in rows
    ]
    _aligned(terminal, lines)


def _unexplained(terminal: Terminal, result: Result) -> None:
    """The largest stretches that no finding explains, of the device that the verdict speaks of."""
    blocks = unexplained(result)
    if not blocks:
        return
    terminal.blank()
    terminal.put("Not explained by any finding, per step:", indent=2)
    lines = [["", "", "times", "longest", "between"]]
    lines += [
        [f"{part}: {short_kernel(block.name)}" if block.name else part, duration(block.total_us / steps), number(round(block.count / steps, 1)), duration(block.longest_us), between_words(block)]
        for part, block, steps in blocks[:_MOST_BLOCKS]
    ]  # fmt: skip
    _aligned(terminal, lines)


def _more_devices(terminal: Terminal, count: int, more: str) -> None:
    if count > _MOST_ROWS:
        terminal.put(f"… and {count - _MOST_ROWS:,} more devices {more}", indent=2)


def _time_table(terminal: Terminal, result: Result, rows: list[TimeLedgerRow], names: Names) -> None:
    """Of many devices a line each: the bars are in the report."""
    there = {
        k: v
        for k, v in _BUSY_NS.items()
        if k == "compute" or any(v(r) / max(r.window_ns, 1) > 0.01 for r in rows)
    }
    lines = [["", "step", *(_SHORT[k] for k in there), "idle", "mostly"]]
    for row in rows:
        window = max(row.window_ns, 1)
        cause, ns = next(iter(_largest(msgspec.structs.asdict(row.idle_ns))), ("", 0))
        lines.append(
            [
                names.place(row),
                duration(row.step_us) if row.steps else "",
                *(share(of(row) / window) for of in there.values()),
                share(row.idle_ns.total() / window),
                f"{IDLE[cause].label} {share(ns / window)}" if ns / window >= 0.01 else "",
            ]
        )
    _aligned(terminal, lines)


def _memory_table(terminal: Terminal, rows: list[MemoryLedgerRow], names: Names) -> None:
    lines = [["", "peak", "reserved at most", "of the peak"]]
    lines += [
        [names.place(r), size(r.peak_bytes), size(r.max_reserved_bytes) if r.max_reserved_bytes else "", _classes(r)]
        for r in rows
    ]  # fmt: skip
    _aligned(terminal, lines)


def _aligned(terminal: Terminal, lines: list[list[str]]) -> None:
    """The first line is the heading; the last column has what is left of the width, where that is enough for a word."""
    most = [max(columns(terminal.clean(cell)) for cell in column) for column in zip(*lines, strict=True)]
    figures = [w + 1 for w in most[1:-1]]
    room = terminal.width - 2 - sum(w + 1 for w in figures)
    name = min(most[0], room)
    last_width = room - name - 2
    for place, line in enumerate(lines):
        cells = [(line[0], name), *((cell, -w) for cell, w in zip(line[1:-1], figures, strict=True))]
        if last_width >= 8:
            cells.append((f" {line[-1]}", last_width + 1))
        terminal.row(cells, "" if place else "dim")


def _reserved(row: MemoryLedgerRow) -> list[str]:
    parts = [f"{size(row.max_reserved_bytes)} reserved at most"] if row.max_reserved_bytes else []
    return parts + ([f"{size(row.private_bytes)} in private pools"] if row.private_bytes else [])


def _classes(row: MemoryLedgerRow) -> str:
    parts = _largest(msgspec.structs.asdict(row.by_category))
    return ", ".join(f"{MEMORY[k].label} {size(v)}" for k, v in parts[:4])


def _time_row(terminal: Terminal, row: TimeLedgerRow, name: str, gutter: int) -> None:
    window = max(row.window_ns, 1)
    busy = {kind: of(row) for kind, of in _BUSY_NS.items()}
    idle = row.idle_ns.total()
    causes = _largest(msgspec.structs.asdict(row.idle_ns))
    parts = [f"{BUSY[k].label} {share(v / window)}" for k, v in busy.items() if v]
    main_causes = [f"{IDLE[k].label} {share(v / window)}" for k, v in causes if v / window >= 0.01][:5]
    inside = f" ({', '.join(main_causes)})" if main_causes else ""
    if idle:
        parts.append(f"{'not computing' if row.device < 0 else 'idle'} {share(idle / window)}{inside}")
    label = terminal.clean(f"  {name}")
    pieces = _bar({**busy, "idle": idle}, terminal.width - gutter)
    bar = "".join(terminal.style(terminal.clean(text), style) for text, style in pieces)
    terminal.lines.append(label + " " * (gutter - columns(label)) + bar)
    _entry(terminal, "", " · ".join(parts), gutter)


def _entry(terminal: Terminal, name: str, text: str, gutter: int) -> None:
    terminal.put(text, indent=gutter, first=f"  {name}")


def _bar(parts: dict[str, int], room: int) -> list[Piece]:
    """Characters by share; borders are rounded, so that the bar is always full."""
    whole = sum(parts.values()) or 1
    pieces, before, filled = [], 0, 0
    for kind, part in parts.items():
        before += part
        upto = round(before / whole * room)
        pieces.append((_BAR[kind] * (upto - filled), kind))
        filled = upto
    return pieces


def _largest(parts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(((k, v) for k, v in parts.items() if v), key=lambda kv: (-kv[1], kv[0]))


# ------------------------------------------------------------------------------------------------ findings


def _finding(terminal: Terminal, finding: Finding, result: Result, names: Names, more: str) -> None:
    """A known finding of a baseline is no alarm, whatever its severity."""
    state = against_baseline(finding, result)
    _title(terminal, finding, state)
    heading = [state, finding.severity, f"{finding.confidence} confidence", in_which_capture(finding, names)]
    terminal.put(" · ".join(part for part in heading if part), "dim", indent=2)
    terminal.put(finding.message, indent=2)
    if finding.evidence:
        _evidence(terminal, finding.evidence[0])
    fix = first_shown(finding)
    if fix is not None and (other := fixed_with(finding, result)):
        terminal.put(f"{fix.title}, as for {other}", indent=7, first="  fix:")
    elif fix is not None:
        _fix(terminal, fix)
    hidden = len(finding.fixes) - 1
    if hidden > 0:
        terminal.put(f"{plural(hidden, 'more fix', 'more fixes')} {more}", "dim", indent=7)


def _title(terminal: Terminal, finding: Finding, state: str) -> None:
    saving = saving_words(finding.saving)
    symbol, style = ("=", "dim") if state == "known" else (SYMBOL[finding.severity], finding.severity)
    head: list[Piece] = [(f"{symbol} {finding.code} {finding.name}", style)]
    if saving:
        head.append((saving, "bold"))
    if where(finding.location):
        head.append((where_briefly(finding.location), ""))
    terminal.flow(head, indent=2)


def _evidence(terminal: Terminal, table: Table) -> None:
    """The first rows of the table. Texts give way to figures; last columns that still do not fit are left out."""
    rows = table.rows[:_MOST_EVIDENCE]
    scales = [
        Scale.of(column.unit, [row[n] for row in rows if n < len(row)])
        for n, column in enumerate(table.columns)
    ]
    cells = [
        [terminal.clean(scale.with_unit(value)) for scale, value in zip(scales, row, strict=False)]
        for row in rows
    ]
    heads = [terminal.clean(column.title) for column in table.columns]
    if not any(text for row in cells for text in row):
        return
    widths = [max(columns(r[n]) for r in [heads, *cells] if n < len(r)) + 1 for n in range(len(heads))]
    room = terminal.width - 2
    while sum(widths) + len(widths) > room and (wide := max(w for w in widths)) > _LEAST_TEXT:
        over = sum(widths) + len(widths) - room
        widths[widths.index(wide)] = max(wide - over, _LEAST_TEXT)
    while len(widths) > 1 and sum(widths) + len(widths) > room:
        widths.pop()
    signed = [-w if scale.numeric else w for w, scale in zip(widths, scales, strict=False)]
    terminal.put(table.title, "dim", indent=2)
    for row in [heads, *cells]:
        terminal.row([("", 0), *zip(row, signed, strict=False)], "dim")


def _fix(terminal: Terminal, fix: Fix) -> None:
    needs = ", needs --source" if needs_source(fix) else ""
    terminal.put(f"{fix.title} [{fix_words(fix)}{needs}]", indent=7, first="  fix:")
    if reason := why_no_patch(fix):
        terminal.put(f"no patch: {reason}", "dim", indent=7)


# ------------------------------------------------------------------------------------------------ footer


def _footer(terminal: Terminal, result: Result, options: Options) -> None:
    _totals(terminal, result)
    _not_checked(terminal, result, options)
    others = [i for i in result.ignored if not i.unread]  # the header has those
    if others:
        paths = ", ".join(f"{i.path} ({i.reason})" for i in others[:3])
        more = f" and {len(others) - 3:,} more" if len(others) > 3 else ""
        terminal.put(f"{plural(len(others), 'file')} not analyzed: {paths}{more}")
    for path in result.critical_path[:8]:
        terminal.put(f"Critical path (HTA), rank {path.rank}, step {path.step}: {shares_of_path(path)}")
    for limit in result.limits:
        terminal.put(limit, "dim")
    if options.report:
        terminal.put(f"Report: {options.report}")
    say_next(terminal, result, options)


def _gate(terminal: Terminal, gate: Gate) -> None:
    terminal.put(gate.verdict, "good" if not gate.code else "critical")
    for budget in gate.budgets:
        mark = {"passed": "✔", "failed": "✖" if budget.level == "error" else "▲", "undecided": "?"}
        terminal.put(budget_words(budget), indent=4, first=f"  {mark[budget.status]}")
    for note in gate.notes:
        terminal.put(note, "dim", indent=4, first="  !")


def _totals(terminal: Terminal, result: Result) -> None:
    counts = {s: sum(f.severity == s for f in result.findings) for s in SEVERITIES}
    parts = [f"{n:,} {s}" for s, n in counts.items() if n]
    total = plural(len(result.findings), "finding")
    terminal.put((f"{total}: {', '.join(parts)}" if parts else total) + together(result, " · "), "bold")


def _not_checked(terminal: Terminal, result: Result, options: Options) -> None:
    outcomes = result.outcomes
    skipped = [o for o in outcomes if o.outcome == "skipped"]
    passed = sum(o.outcome == "passed" for o in outcomes)
    if passed:
        terminal.put(f"{plural(passed, 'rule')} passed")
    if undecided := [o for o in outcomes if o.outcome == "undecided"]:
        reasons = dict.fromkeys(o.reason or "no reason given" for o in undecided)
        parts = [
            f"{', '.join(o.code for o in undecided if (o.reason or 'no reason given') == reason)}: {reason}"
            for reason in reasons
        ]
        terminal.put(f"{plural(len(undecided), 'rule')} undecided. {'; '.join(parts)}")
    if skipped:
        _skipped(terminal, skipped, options)
    if partly := [o for o in outcomes if o.skipped_on]:
        more = "" if options.show_skipped else "  (--show-skipped)"
        terminal.put(f"{plural(len(partly), 'rule')} skipped on some of the captures{more}")
    for outcome in partly if options.show_skipped else ():
        paths = [result.inputs[n].path for n in outcome.skipped_on if n < len(result.inputs)]
        terminal.put(f"{outcome.code} on {', '.join(paths)}: {outcome.skipped_because}", indent=2)
    for failed in (o for o in outcomes if o.outcome == "error"):
        reason = (failed.reason or "").strip().splitlines()
        terminal.put(
            f"{failed.code} {failed.name} failed: {reason[-1] if reason else 'no reason given'}", "warning"
        )


def _skipped(terminal: Terminal, skipped: list[Outcome], options: Options) -> None:
    by_reason: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in skipped:
        by_reason[outcome.reason or "no reason given"].append(outcome)
    groups = sorted(by_reason.items(), key=lambda kv: (-len(kv[1]), kv[0]))
    if not options.show_skipped:
        reasons = groups[:_MOST_REASONS] if len(groups) > _MOST_REASONS + 1 else groups
        parts = [f"{reason} ({len(members)})" if len(groups) > 1 else reason for reason, members in reasons]
        if rest := len(skipped) - sum(len(members) for _, members in reasons):
            parts.append(f"other ({rest})")
        terminal.put(f"{skipped_words(skipped)}: {'; '.join(parts)}  (--show-skipped)")
        return
    terminal.put(f"{skipped_words(skipped)}:")
    for reason, members in groups:
        terminal.put(f"{', '.join(f'{o.code} {o.name}' for o in members)}: {reason}", indent=2)
        for capture in dict.fromkeys(o.capture for o in members if o.capture):
            terminal.put(f"record: {capture}", "dim", indent=4)
