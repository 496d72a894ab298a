"""A difference as one page: what changed in ten seconds, where the time and the memory went below."""

from __future__ import annotations

from trace_doctor.model.comparison import Appeared, Followed, Side
from trace_doctor.model.difference import Change, Difference
from trace_doctor.reporters import Options
from trace_doctor.reporters.compared import FATES, VERDICTS, appeared_word
from trace_doctor.reporters.difference.rows import Block, blocks, moved, outcome, value, verdict
from trace_doctor.reporters.html import page
from trace_doctor.reporters.html.charts.bars import Bar, stacked
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.parts import Row, badge, data_table, more, section, signature, swatch, tile
from trace_doctor.reporters.labels import cost_words, where_briefly
from trace_doctor.reporters.units import duration, exact, plural, share, size


def render(difference: Difference, options: Options) -> str:
    """The page. The same difference gives the same bytes."""
    return page(
        difference.verdict,
        [_verdict(difference), *sections(difference)],
        difference.to_json(),
        tool=difference.tool,
    )


def sections(difference: Difference) -> list[Html | None]:
    """What stands below the verdict."""
    return [
        *[_block(block) for block in blocks(difference)],
        _findings(difference),
        _rules(difference),
        _how(difference),
    ]


def _verdict(difference: Difference) -> Html:
    warnings = el(
        "div",
        el("h2", "May not be comparable"),
        el("ul", [el("li", w) for w in difference.warnings]),
        class_="first doubts",
    )
    return el(
        "section",
        el("p", "Before and after", class_="subject"),
        el("h1", difference.verdict, id="verdict-title"),
        el("dl", _step(difference), *_memory(difference), _counts(difference), class_="tiles"),
        _missing(difference),
        warnings if difference.warnings else None,
        el(
            "dl",
            el("dt", "Before"), el("dd", _side(difference.before)), el("dt", "After"), el("dd", _side(difference.after)),
            class_="facts",
        ),
        id="verdict",
        aria_labelledby="verdict-title",
    )  # fmt: skip


def _missing(difference: Difference) -> Html | None:
    reasons = [*difference.undecided, *(f"let pass by --allow-partial: {why}" for why in difference.partial)]
    listed = el("ul", [el("li", why) for why in reasons])
    return el("div", el("h2", "Not all of both sides"), listed, class_="first doubts") if reasons else None


def _side(side: Side) -> list[Child]:
    more = f"and {plural(len(side.paths) - 3, 'more file')}" if len(side.paths) > 3 else ""
    parts: list[Child] = [el("bdi", p) for p in side.paths[:3]] or ["no capture"]
    parts += [p for p in (more, *side.device_names[:2], *(f"torch {v}" for v in side.torch_version[:2])) if p]
    parts.append(plural(side.findings, "finding"))
    return [[" · " if n else None, part] for n, part in enumerate(parts)]


def _step(difference: Difference) -> Html:
    step = difference.step_time
    if step.before is None or step.after is None or step.change_us is None:
        return tile("Step time", "–", "no steps on both sides")
    relative = f", {_percent(step.change_us, step.before.median_us)}" if step.before.median_us else ""
    note = f"before {duration(step.before.median_us)}{relative}: {VERDICTS[step.verdict].lower()}"
    kind = {"faster": "gain", "slower": "worse"}.get(step.verdict, "")
    return tile("Step time", duration(step.after.median_us), note, class_=kind)


def _percent(change: float, before: float) -> str:
    return f"{'−' if change < 0 else '+'}{share(abs(change) / before)}"


def _memory(difference: Difference) -> list[Html]:
    peaks, tiles = difference.memory, []
    for name, a, b in (
        ("Peak memory", peaks.allocated_before, peaks.allocated_after),
        ("Reserved memory", peaks.reserved_before, peaks.reserved_after),
    ):
        if a is not None and b is not None:
            relative = f", {_percent(b - a, a)}" if a and a != b else ", the same" if a == b else ""
            kind = "" if not a or abs(b - a) / a <= 0.02 else "gain" if b < a else "worse"
            tiles.append(tile(name, size(b), f"before {size(a)}{relative}", class_=kind))
    return tiles or [tile("Peak memory", "–", "no memory on both sides")]


def _counts(difference: Difference) -> Html:
    parts = [f"{n} {word}" for fate, (_, word, _) in FATES.items() if (n := difference.count(fate))]
    parts += [f"{len(difference.new)} new"] * bool(difference.new)
    return tile(
        "Findings", f"{difference.before.findings} → {difference.after.findings}", ", ".join(parts) or "none"
    )


def _block(block: Block) -> Html:
    if not block.changes:
        return section(block.key, block.title, el("p", f"Not captured: {block.missing}.", class_="empty"))
    noisy = [c for c in block.changes if c.verdict == "within_noise"]
    clear = [c for c in block.changes if c.verdict != "within_noise"]
    whole = block.key in ("time", "peak")
    changes = block.changes if whole else clear
    quiet = el("p", "No change beyond the noise.", class_="empty") if not clear and not whole else None
    return section(
        block.key,
        block.title,
        _bars(block) if whole else None,
        _table(block, changes) if changes else quiet,
        more(f"{plural(len(noisy), 'other')} within noise", _table(block, noisy))
        if noisy and not whole
        else None,
    )


def _bars(block: Block) -> Html | None:
    """Both sides on one scale, so that the shorter bar is the smaller whole."""
    prefix = "mem-" if block.key == "peak" else ""
    parts = [(f"{prefix}{c.name}", block.label(c.name), c) for c in block.changes]
    sides = [
        ("Before", [(kind, name, c.before or 0.0) for kind, name, c in parts]),
        ("After", [(kind, name, c.after or 0.0) for kind, name, c in parts]),
    ]
    wholes = [sum(v for _, _, v in of_side) for _, of_side in sides]
    if not max(wholes):
        return None
    words = size if block.key == "peak" else duration
    bars = [
        Bar(name, of_side, words(whole), whole / max(wholes))
        for (name, of_side), whole in zip(sides, wholes, strict=True)
    ]
    return stacked(f"{block.key}-chart", block.title, bars)


def _table(block: Block, changes: list[Change]) -> Html:
    rows: list[Row] = [
        [
            _name(block, change),
            _figure(value(change, change.before, change.after), change.before, change),
            _figure(value(change, change.after, change.before), change.after, change),
            _figure(moved(change).replace("-", "−"), change.change, change),
            _words(change),
        ]
        for change in changes
    ]
    columns = ["Part", "Before", "After", "Change", "Beyond noise?"]
    return data_table(block.title, columns, rows, hide_caption=True, class_="changes")


def _name(block: Block, change: Change) -> Html:
    label = block.label(change.name)
    if block.key in ("time", "peak"):
        return el(
            "span", swatch(f"{'mem-' if block.key == 'peak' else ''}{change.name}"), label, class_="key"
        )
    return signature(label, change.name)


def _figure(text: str, value: float | None, change: Change) -> Html:
    return el("span", text, title=exact(value, change.unit) or None, class_="figures")


def _words(change: Change) -> Html:
    kind = {"less": "gate-passed", "more": "gate-failed"}.get(change.verdict, "muted")
    noise = change.noise or 0.0
    limit = f"noise ±{duration(noise) if change.unit == 'us' else size(noise)}"
    word = {"less": "✔ less", "more": "▲ more"}.get(change.verdict)
    return el("span", el("span", f"{word}, " if word else "", verdict(change), class_=kind), f" · {limit}")


def _findings(difference: Difference) -> Html:
    if not difference.findings and not difference.new:
        return section("findings", "Findings", el("p", "None before, none after.", class_="empty"))
    rows = [_followed(f) for f in difference.findings] + [_appeared(f) for f in difference.new]
    columns = ["What became of it", "Finding", "Severity", "Place", "Cost", "Confidence", "Why"]
    return section(
        "findings",
        "Findings",
        data_table("Findings before and after", columns, rows, hide_caption=True),
        count=len(rows),
    )


def _followed(f: Followed) -> Row:
    symbol, word, style = FATES[f.fate]
    kind = {"good": "gate-passed", "critical": "gate-failed", "warning": "gate-undecided"}.get(style, "muted")
    cost = cost_words(f.promised)
    if f.after_saving is not None:
        cost += f" → {cost_words(f.after_saving)}"
    return [
        el("span", f"{symbol} {word}", class_=kind),
        el("span", el("span", f.id, class_="code-id"), " ", f.title or f.name),
        badge(f.severity),
        el("code", where_briefly(f.location)),
        cost,
        f.confidence,
        "; ".join(p for p in (f.reason, f"record: {f.capture}" if f.capture else None) if p),
    ]


def _appeared(f: Appeared) -> Row:
    return [
        el("span", appeared_word(f), class_="gate-failed" if appeared_word(f) == "new" else "muted"),
        el("span", el("span", f.id, class_="code-id"), " ", f.title or f.name),
        badge(f.severity),
        el("code", where_briefly(f.location)),
        cost_words(f.saving),
        f.confidence,
        f.message if f.checked_before else f"{f.message} BEFORE could not show it: it may predate the fix.",
    ]


def _rules(difference: Difference) -> Html | None:
    if not difference.rules:
        return None
    rows: list[Row] = [
        [
            el("span", el("span", r.code, class_="code-id"), " ", r.title or r.name),
            outcome(r, False),
            outcome(r, True),
            r.confidence or "",
            r.reason or "",
        ]
        for r in difference.rules
    ]
    columns = ["Rule", "Before", "After", "Confidence", "Why"]
    return section(
        "rules",
        "Rules that say something else",
        data_table("Rules", columns, rows, hide_caption=True),
        lead="The largest cost that a finding of the rule claims, of the step or of the peak.",
        count=len(rows),
    )


def _how(difference: Difference) -> Html:
    sentences = [
        "Times are means over the steady steps; of several recordings the median, over ranks and devices the mean.",
        "A change is beyond the noise when it is more than three standard errors of the difference, 2% of the figure, and half a percent of the step.",
        "Confidence is high when several recordings on both sides show it, medium when one side has a single recording (which does not show how much runs differ), low when the change is less than twice the noise or the sides may not be of one job.",
        "“≤” is of a list that was cut: what is not on it may be as long as its last entry.",
        *difference.limits,
    ]
    return section(
        "help",
        "How to read this page",
        el("p", difference.step_time.how, class_="limit") if difference.step_time.how else None,
        el("ul", [el("li", s) for s in sentences]),
    )
