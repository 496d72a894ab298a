"""A verification for a terminal: what became of each finding, what is new, promised beside measured, doubts."""

from __future__ import annotations

from collections.abc import Callable

from trace_doctor.model import Saving
from trace_doctor.reporters import Options
from trace_doctor.reporters.paper import Paper
from trace_doctor.reporters.units import duration, estimate_duration, estimate_size, plural, share, size
from trace_doctor.reporters.words import SYMBOL, saving_words, where_briefly
from trace_doctor.verification import Appeared, Fate, Followed, StepChange, StepTime, Verification

_FATES: dict[Fate, tuple[str, str, str]] = {
    "gone": ("✔", "gone", "good"),
    "smaller": ("▲", "smaller", "warning"),
    "still_there": ("✖", "still there", "critical"),
    "not_captured": ("?", "not captured", "dim"),
}
_INDENT = 16
_VERDICTS = {
    "faster": "faster",
    "slower": "SLOWER",
    "within_noise": "within noise",
    "too_few_steps": "too few steps to tell",
}


def render(verification: Verification, options: Options) -> str:
    """Text of at most `options.width` columns. The same verification gives the same text."""
    paper = Paper(options.width, color=options.color, ascii=options.ascii)
    _header(paper, verification)
    for followed in verification.findings:
        _followed(paper, followed)
    for appeared in verification.new:
        _appeared(paper, appeared)
    paper.blank()
    _step_time(paper, verification.step_time)
    _memory(paper, verification)
    _promise(paper, verification)
    if verification.warnings:
        paper.blank()
    for warning in verification.warnings:
        paper.put(warning, "warning", indent=2, first="!")
    return paper.text()


def _header(paper: Paper, made: Verification) -> None:
    for label, side, time in (
        ("before", made.before, made.step_time.before),
        ("after", made.after, made.step_time.after),
    ):
        shown = side.paths[:2] + ([f"and {len(side.paths) - 2:,} more"] if len(side.paths) > 2 else [])
        facts = [
            ", ".join(shown) or "no capture",
            *side.device_names[:2],
            plural(side.ranks, "rank") if side.ranks > 1 else "",
            f"{plural(time.steps, 'steady step')} of {duration(time.median_us)}" if time else "no steps",
            plural(side.findings, "finding"),
        ]
        paper.put(" · ".join(f for f in facts if f), indent=9, first=label)
    paper.blank()
    counts = [(made.count(fate), word) for fate, (_, word, _) in _FATES.items()]
    said = [f"{n} {word}" for n, word in counts if n] + [f"{len(made.new)} new"] * bool(made.new)
    paper.put(f"Findings: {', '.join(said) or 'none before, none after'}", "bold")
    paper.blank()


def _followed(paper: Paper, followed: Followed) -> None:
    symbol, word, style = _FATES[followed.fate]
    _head(paper, f"{symbol} {word}", followed.id, followed.name, where_briefly(followed.location), style)
    if followed.after_saving is not None:
        before, now = (_cost(s) for s in (followed.promised, followed.after_saving))
        paper.put(f"costs {before} before, {now} after", indent=_INDENT)
    elif promised := saving_words(followed.promised):
        paper.put(f"promised {promised}", indent=_INDENT)
    if followed.reason:
        paper.put(followed.reason, indent=_INDENT)
    if followed.capture:
        paper.put(f"record: {followed.capture}", "dim", indent=_INDENT)


def _head(paper: Paper, first: str, id: str, name: str, where: str, style: str) -> None:
    paper.put("  ".join(p for p in (f"{id} {name}", where) if p), style, indent=_INDENT, first=first)


def _cost(saving: Saving | None) -> str:
    return saving_words(saving).removeprefix("up to ") or "nothing known"


def _signed(value: float, words: Callable[[float], str]) -> str:
    return f"{'-' if value < 0 else '+'}{words(abs(value))}"


def _appeared(paper: Paper, new: Appeared) -> None:
    word = "new" if new.checked_before else "unseen before"
    first = f"{SYMBOL[new.severity]} {word}"
    _head(paper, first, new.id, new.name, where_briefly(new.location), new.severity)
    paper.put(new.message, indent=_INDENT)
    if not new.checked_before:
        paper.put("BEFORE could not have shown it: it may be old", "dim", indent=_INDENT)


def _step_time(paper: Paper, change: StepChange) -> None:
    if change.before is None or change.after is None or change.change_us is None:
        paper.put(f"not captured: {change.how}", indent=_INDENT, first="step time")
        return
    a, b = change.before, change.after
    relative = share(abs(change.change_us) / a.median_us) if a.median_us else "?"
    paper.put(
        f"{duration(a.median_us)} → {duration(b.median_us)}  ({'-' if change.change_us < 0 else '+'}{relative}): "
        f"{_VERDICTS[change.verdict]}",
        "good" if change.verdict == "faster" else "critical" if change.verdict == "slower" else "",
        indent=_INDENT,
        first="step time",
    )
    noise = f"; less than {duration(change.noise_us or 0.0)} is noise"
    paper.put(f"median of {_spread(a)} before, of {_spread(b)} after{noise}", "dim", indent=_INDENT)


def _spread(time: StepTime) -> str:
    several = f" in {time.captures} recordings" if time.captures > 1 else ""
    return f"{plural(time.steps, 'steady step')}{several} (spread ±{duration(time.spread_us)})"


def _memory(paper: Paper, made: Verification) -> None:
    memory = made.memory
    for label, a, b in (
        ("peak memory", memory.allocated_before, memory.allocated_after),
        ("reserved", memory.reserved_before, memory.reserved_after),
    ):
        if a is not None and b is not None:
            relative = (
                f"  ({_signed(b - a, size)}, {'-' if b < a else '+'}{share(abs(b - a) / a)})"
                if a and a != b
                else ""
            )
            paper.put(f"{size(a)} → {size(b)}{relative or '  (the same)'}", indent=_INDENT, first=label)
        elif label == "peak memory":
            sides = [n for n, v in (("before", a), ("after", b)) if v is None]
            paper.put(f"not captured {' and '.join(sides)}", "dim", indent=_INDENT, first=label)


def _promise(paper: Paper, made: Verification) -> None:
    """What the findings that are gone promised, beside what was measured."""
    promise, memory = made.promise, made.memory
    if promise.time_us_per_step:
        said = f"up to {estimate_duration(promise.time_us_per_step)} a step ({promise.basis})"
        if promise.measured_us is not None:
            said += f", measured {_signed(-promise.measured_us, duration)}"
            step = made.step_time.before
            if step is not None and promise.time_us_per_step > step.median_us:
                said += ": it lies in few long steps, which the median leaves out"
            else:
                said += _kept(promise.measured_us, promise.time_us_per_step, made.step_time.noise_us or 0.0)
        paper.put(said, indent=_INDENT, first="promised")
    if promise.bytes:
        said = f"up to {estimate_size(promise.bytes)} of the peak"
        if promise.measured_bytes is not None:
            said += f", measured {_signed(-promise.measured_bytes, size)}"
            said += _kept(promise.measured_bytes, promise.bytes, 0.02 * (memory.allocated_before or 0))
        paper.put(said, indent=_INDENT, first="promised")


def _kept(measured: float, promised: float, noise: float) -> str:
    if abs(measured) <= noise:
        return ": within noise"
    if measured > promised + noise:
        return ": more than promised, so something else changed as well"
    return f": {share(measured / promised, 0)} of it" if measured > 0 else ": none of it"
