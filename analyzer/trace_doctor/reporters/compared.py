"""What a terminal shows of two results compared, whether to verify a fix or to see a difference."""

from __future__ import annotations

from collections.abc import Callable

from trace_doctor.model.comparison import Appeared, Comparison, Fate, Followed, StepChange, StepTime
from trace_doctor.reporters.labels import SYMBOL, claim_words, cost_words, where_briefly
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.units import duration, plural, share, size

FATES: dict[Fate, tuple[str, str, str]] = {
    "gone": ("✔", "fixed", "good"),
    "within_noise": ("?", "within noise", "dim"),
    "smaller": ("▲", "smaller", "warning"),
    "still_there": ("✖", "not fixed", "critical"),
    "not_captured": ("?", "not captured", "dim"),
}
INDENT = 16
ONE_RUN = "one run each: differences between runs (clock, neighbors) are not covered"
VERDICTS = {
    "faster": "faster",
    "slower": "SLOWER",
    "within_noise": "within noise",
    "machine": "likely the machine, not the code",
    "too_few_steps": "too few steps to tell",
}


def header(terminal: Terminal, comparison: Comparison) -> None:
    """Two lines: what was compared, and how many findings came to which fate."""
    for label, side, time in (
        ("before", comparison.before, comparison.step_time.before),
        ("after", comparison.after, comparison.step_time.after),
    ):
        paths = side.paths[:2] + ([f"and {len(side.paths) - 2:,} more"] if len(side.paths) > 2 else [])
        facts = [
            ", ".join(paths) or "no capture",
            *side.device_names[:2],
            plural(side.ranks, "rank") if side.ranks > 1 else "",
            f"{_steps(time)} of {duration(time.median_us)}" if time else "no steps",
            plural(side.findings, "finding"),
        ]
        terminal.put(" · ".join(f for f in facts if f), indent=9, first=label)
    terminal.blank()
    counts = [(comparison.count(fate), word) for fate, (_, word, _) in FATES.items()]
    counts_in_words = [f"{n} {word}" for n, word in counts if n] + [f"{len(comparison.new)} new"] * bool(
        comparison.new
    )
    terminal.put(f"Findings: {', '.join(counts_in_words) or 'none before, none after'}", "bold")
    terminal.blank()


def followed(terminal: Terminal, one: Followed) -> None:
    """A finding of BEFORE and what became of it."""
    symbol, word, style = FATES[one.fate]
    _head(terminal, f"{symbol} {word}", one.id, one.name, where_briefly(one.location), style)
    if one.after_saving is not None:
        before, now = (cost_words(s) or "an unknown amount" for s in (one.promised, one.after_saving))
        terminal.put(f"cost {before} before, {now} after", indent=INDENT)
    elif promised := claim_words(one.promised):
        terminal.put(f"predicted: {promised}", indent=INDENT)
    if one.reason:
        terminal.put(one.reason, indent=INDENT)
    if one.capture:
        terminal.put(f"record: {one.capture}", "dim", indent=INDENT)


def _head(terminal: Terminal, first: str, id: str, name: str, where: str, style: str) -> None:
    terminal.put("  ".join(p for p in (f"{id} {name}", where) if p), style, indent=INDENT, first=first)


def signed(value: float, words: Callable[[float], str]) -> str:
    """A change in words, with its sign in front."""
    return f"{'-' if value < 0 else '+'}{words(abs(value))}"


def appeared(terminal: Terminal, new: Appeared) -> None:
    """A finding that BEFORE did not have."""
    word = appeared_word(new)
    symbol, style = ("?", "dim") if new.within_noise else (SYMBOL[new.severity], new.severity)
    _head(terminal, f"{symbol} {word}", new.id, new.name, where_briefly(new.location), style)
    terminal.put(new.message, indent=INDENT)
    if not new.checked_before:
        terminal.put("BEFORE could not show it: it may predate the fix", "dim", indent=INDENT)


def appeared_word(new: Appeared) -> str:
    """What a finding is that AFTER alone has."""
    if new.within_noise:
        return "within noise"
    return "new" if new.checked_before else "newly checked"


def step_time(terminal: Terminal, change: StepChange) -> None:
    """The median step on both sides, and what counts as noise; or why it was not captured."""
    if change.before is None or change.after is None or change.change_us is None:
        terminal.put(f"not captured: {change.how}", indent=INDENT, first="step time")
        return
    a, b = change.before, change.after
    relative = share(abs(change.change_us) / a.median_us) if a.median_us else "?"
    terminal.put(
        f"{duration(a.median_us)} → {duration(b.median_us)}  ({'-' if change.change_us < 0 else '+'}{relative}): "
        f"{VERDICTS[change.verdict]}",
        "good" if change.verdict == "faster" else "critical" if change.verdict == "slower" else "",
        indent=INDENT,
        first="step time",
    )
    noise = f"; noise threshold {duration(change.noise_us or 0.0)}"
    terminal.put(f"median of {_spread(a)} before, of {_spread(b)} after{noise}", "dim", indent=INDENT)
    if change.verdict == "machine" and change.machine_us is not None and a.median_us:
        factor = 1 + change.machine_us / a.median_us
        terminal.put(f"the same kernels and operators take {factor:.2f} times as long", "dim", indent=INDENT)
    if a.captures == b.captures == 1:
        terminal.put(ONE_RUN, "dim", indent=INDENT)


def _spread(time: StepTime) -> str:
    several = f" in {time.captures} recordings" if time.captures > 1 else ""
    return f"{_steps(time)}{several} (spread ±{duration(time.spread_us)})"


def _steps(time: StepTime) -> str:
    return (
        f"{plural(time.steps, 'step')} without profiler" if time.plain else plural(time.steps, "steady step")
    )


def memory(terminal: Terminal, comparison: Comparison) -> None:
    """Peaks on both sides; "not captured" for a side without."""
    peaks = comparison.memory
    for label, a, b in (
        ("peak memory", peaks.allocated_before, peaks.allocated_after),
        ("reserved", peaks.reserved_before, peaks.reserved_after),
    ):
        if a is not None and b is not None:
            relative = (
                f"  ({signed(b - a, size)}, {'-' if b < a else '+'}{share(abs(b - a) / a)})"
                if a and a != b
                else ""
            )
            terminal.put(f"{size(a)} → {size(b)}{relative or '  (the same)'}", indent=INDENT, first=label)
        elif label == "peak memory":
            sides = [n for n, v in (("before", a), ("after", b)) if v is None]
            terminal.put(f"not captured {' and '.join(sides)}", "dim", indent=INDENT, first=label)


def doubts(terminal: Terminal, comparison: Comparison) -> None:
    """Why the two may not be of one job."""
    if comparison.warnings or comparison.undecided or comparison.partial:
        terminal.blank()
    for reason in comparison.undecided:
        terminal.put(reason, "critical", indent=2, first="?")
    for reason in comparison.partial:
        terminal.put(f"accepted by --allow-partial: {reason}", "warning", indent=2, first="!")
    for warning in comparison.warnings:
        terminal.put(warning, "warning", indent=2, first="!")
