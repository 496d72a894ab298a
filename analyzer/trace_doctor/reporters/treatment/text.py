"""A treatment for a terminal: what was tried, what it promised, what it gave."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from trace_doctor.model.treatment import Attempt, Effect, Effects, Treatment, ValueTried
from trace_doctor.reporters import Options
from trace_doctor.reporters.labels import claim_words, where_briefly
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.treatment.words import changed_words
from trace_doctor.reporters.units import duration, plural, share, size

_FATES = {
    "kept": ("✔", "kept", "good"),
    "rejected": ("✖", "rejected", "critical"),
    "not_in_force": ("✖", "not in force", "critical"),
    "not_tried": ("?", "not tried", "dim"),
}
_INDENT = 15
BATCH = (
    "Batch size and accumulation change the training. They are judged by samples per second, not by losses, and have a patch of "
    "their own:"
)


def render(treatment: Treatment, options: Options) -> str:
    """Text of at most `options.width` columns."""
    terminal = Terminal(options.width, color=options.color, ascii=options.ascii)
    for attempt in treatment.attempts:
        _attempt(terminal, attempt)
    if treatment.attempts:
        terminal.blank()
    _together(terminal, treatment)
    if treatment.batch:
        terminal.put(BATCH, "dim")
    for attempt in treatment.batch:
        _attempt(terminal, attempt)
    for change in treatment.by_hand:
        terminal.put(f"{change.label} {change.fix}: {change.why}", "dim", indent=_INDENT, first="manual")
    for note in treatment.notes:
        terminal.put(note, "dim", indent=2, first="-")
    if treatment.changed:
        terminal.put(
            changed_words(treatment.changed, treatment.changed_count),
            "critical",
            indent=_INDENT,
            first="CHANGED",
        )
    if treatment.attempts:
        terminal.put(how(treatment), "dim")
    terminal.blank()
    terminal.put(treatment.verdict, "bold")
    return terminal.text()


def how(treatment: Treatment) -> str:
    """The test, in two sentences."""
    m = treatment.method
    return (
        f"Runs of {m.warmup_steps + m.timed_steps} steps, {m.warmup_steps} of them to warm up, with and without each "
        f"fix in turn, {m.repeats} of each, twice as many if not clear; a run counts with its {m.figure} step. Kept: a gain of more than "
        f"{share(m.least_gain)} by the exact signed-rank test over pairs of runs (alpha {m.alpha:g})."
    )


def _attempt(terminal: Terminal, one: Attempt) -> None:
    symbol, word, style = _FATES[one.fate]
    place = where_briefly(one.location)
    head = f"{one.label} {one.name}: {one.fix}  [{one.safety}]" + (f"  {place}" if place else "")
    terminal.put(head, style, indent=_INDENT, first=f"{symbol} {word}")
    if started := outside(one.environment, one.arguments):
        terminal.put(f"tried {' and '.join(started)}", indent=_INDENT)
    if promised := claim_words(one.predicted):
        terminal.put(f"predicted: {promised}", indent=_INDENT)
    for line in (*searched(one.values), *measured(one.effects, one.samples)):
        terminal.put(line, indent=_INDENT)
    terminal.put(one.reason, indent=_INDENT)


def searched(values: Sequence[ValueTried]) -> list[str]:
    """What a search has compared, a line a name: `searched num_workers: 1 -40%, 2 -62% (best), 4 fails`."""
    lines: dict[str, list[str]] = {}
    for one in values:
        change = _signed(one.ratio) if one.ratio is not None else "fails"
        lines.setdefault(one.name, []).append(f"{one.value} {change}{' (best)' if one.best else ''}")
    return [f"searched {name}: {', '.join(texts)}" for name, texts in lines.items()]


def measured(effects: Effects, samples: float | None = None) -> list[str]:
    """What the runs showed, a line a quantity. `samples` as of the attempt."""
    lines = []
    if effects.time is not None:
        what = "step" if samples is None else "time for the samples of a step as it is"
        lines.append(f"measured: {what} {moved(effects.time)} in {plural(effects.pairs, 'pair')} of runs")
        if samples is not None:
            lines.append(f"{1 / effects.time.ratio:.3g}× the samples per second")
    if effects.memory is not None:
        lines.append(f"measured: peak {moved(effects.memory)}")
    if effects.losses is not None and effects.losses.verdict in ("same", "close"):
        lines.append(f"losses: {effects.losses.how} ({plural(effects.losses.steps, 'step')})")
    return lines


def moved(effect: Effect) -> str:
    """`142.0 ms → 61.3 ms (-56.8% over the pairs, 95% interval -60% to -51%)`: medians of the runs, and the ratio that the test
    over the pairs goes by, which need not be that of the medians."""
    words = duration if effect.unit == "us" else size
    change = f"{_signed(effect.ratio)} over the pairs"
    if effect.interval is not None:
        change += ", 95% interval " + " to ".join(map(_signed, effect.interval))
    return f"{words(effect.before)} → {words(effect.after)} ({change})"


def _signed(ratio: float) -> str:
    return f"{'-' if ratio < 1 else '+'}{share(abs(1 - ratio))}"


def _together(terminal: Terminal, treatment: Treatment) -> None:
    if treatment.confirmed is not None:
        word = "together" if treatment.confirmed else "NOT confirmed"
        for line in measured(treatment.together):
            terminal.put(line, "bold", indent=_INDENT, first=word)
            word = ""
    for addition in outside(treatment.environment, treatment.arguments):
        terminal.put(f"start the command {addition}", indent=_INDENT, first="besides")


def outside(environment: Mapping[str, str], arguments: Sequence[str]) -> list[str]:
    """What a fix changes about how the command is started."""
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return [
        f"with {addition}"
        for addition in (variables, f"{shlex.join(arguments)} added" if arguments else "")
        if addition
    ]
