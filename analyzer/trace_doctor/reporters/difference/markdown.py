"""A difference for a job summary or a comment: verdict, step time, then the tables."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor.model.comparison import Side
from trace_doctor.model.difference import Change, Difference
from trace_doctor.reporters import Options
from trace_doctor.reporters.compared import VERDICTS, appeared_word
from trace_doctor.reporters.difference.rows import Block, beyond, blocks, moved, outcome, value, verdict
from trace_doctor.reporters.labels import where_briefly
from trace_doctor.reporters.markdown import code, md, table
from trace_doctor.reporters.units import duration, plural, share, size

_MOST = 12


def render(difference: Difference, options: Options) -> str:
    """At most a few KB: lists are cut, and say so."""
    parts = [
        f"## {md(difference.verdict)}",
        f"Before: {_side(difference.before)}  \nAfter: {_side(difference.after)}",
        *_warnings(difference),
        *_summary(difference),
    ]
    for block in blocks(difference):
        parts += _block(block)
    parts += [*_findings(difference), *_rules(difference), *[md(limit) for limit in difference.limits]]
    return "\n\n".join(parts) + "\n"


def _side(side: Side) -> str:
    more = [f"{len(side.paths) - 2:,} more"] if len(side.paths) > 2 else []
    ranks = [plural(side.ranks, "rank")] if side.ranks > 1 else []
    paths = ", ".join([*side.paths[:2], *more]) or "no capture"
    return md(" · ".join([paths, *side.device_names[:2], *ranks, plural(side.findings, "finding")]))


def _warnings(difference: Difference) -> Iterator[str]:
    missing = [*difference.undecided, *(f"accepted by --allow-partial: {why}" for why in difference.partial)]
    if missing:
        yield "**Not all of both sides:**\n\n" + "\n".join(f"- {md(why)}" for why in missing)
    if difference.warnings:
        yield "**May not be comparable:**\n\n" + "\n".join(f"- {md(w)}" for w in difference.warnings)


def _summary(difference: Difference) -> Iterator[str]:
    rows = []
    step = difference.step_time
    if step.before and step.after and step.change_us is not None:
        change = f"{'-' if step.change_us < 0 else '+'}{duration(abs(step.change_us))}"
        if step.before.median_us:
            change += f" ({share(abs(step.change_us) / step.before.median_us)})"
        verdict = f"{VERDICTS[step.verdict].lower()}; noise threshold {duration(step.noise_us or 0.0)}"
        rows.append(
            ["step time", duration(step.before.median_us), duration(step.after.median_us), change, verdict]
        )
    peaks = difference.memory
    for name, a, b in (
        ("peak memory", peaks.allocated_before, peaks.allocated_after),
        ("reserved", peaks.reserved_before, peaks.reserved_after),
    ):
        if a is not None and b is not None:
            change = f"{'-' if b < a else '+'}{size(abs(b - a))} ({share(abs(b - a) / a)})" if a else ""
            rows.append([name, size(a), size(b), change if a != b else "the same", ""])
    if rows:
        yield table(["", "before", "after", "change", "verdict"], rows)


def _block(block: Block) -> Iterator[str]:
    whole = block.key in ("time", "peak")
    changes = block.changes if whole else beyond(block.changes)[:_MOST]
    if not changes:
        return
    yield f"### {md(block.title)}"
    yield table(["", "before", "after", "change", "verdict"], [_row(block, c) for c in changes])
    if more := len(block.changes) - len(changes):
        yield f"{more} more{', within noise' if len(changes) < _MOST else ''}."


def _row(block: Block, change: Change) -> list[str]:
    a, b = value(change, change.before, change.after), value(change, change.after, change.before)
    return [md(block.label(change.name)), a, b, moved(change), verdict(change)]


def _findings(difference: Difference) -> Iterator[str]:
    rows = [
        [f.fate.replace("_", " "), md(f"{f.id} {f.name}"), code(w) if (w := where_briefly(f.location)) else "", f.confidence, md(f.reason or "")]
        for f in difference.findings
    ]  # fmt: skip
    rows += [
        [appeared_word(f), md(f"{f.id} {f.name}"), code(w) if (w := where_briefly(f.location)) else "", f.confidence, md(f.message)]
        for f in difference.new
    ]  # fmt: skip
    if rows:
        yield "### Findings"
        yield table(["", "finding", "place", "confidence", "why"], rows[: 4 * _MOST])
        if len(rows) > 4 * _MOST:
            yield f"{len(rows) - 4 * _MOST} more."


def _rules(difference: Difference) -> Iterator[str]:
    changed = [r for r in difference.rules if not r.findings_before and not r.findings_after]
    if changed:
        yield "### Rules whose outcome changed"
        yield "\n".join(
            f"- {md(f'{r.code} {r.name}: {outcome(r, False)} → {outcome(r, True)}')}{f' ({md(r.reason)})' if r.reason else ''}"
            for r in changed
        )
