"""A verification for a terminal: what became of each finding, what is new, promised beside measured, doubts."""

from __future__ import annotations

from trace_doctor.model import HowKnown
from trace_doctor.model.verification import Verification
from trace_doctor.reporters import Options
from trace_doctor.reporters.compared import INDENT, appeared, doubts, followed, header, memory, step_time
from trace_doctor.reporters.labels import BASIS, how_known, interval
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.units import duration, estimate_duration, share, size


def render(verification: Verification, options: Options) -> str:
    """Text of at most `options.width` columns. The same verification gives the same text."""
    terminal = Terminal(options.width, color=options.color, ascii=options.ascii)
    header(terminal, verification)
    for one in verification.findings:
        followed(terminal, one)
    for new in verification.new:
        appeared(terminal, new)
    terminal.blank()
    step_time(terminal, verification.step_time)
    memory(terminal, verification)
    _promise(terminal, verification)
    doubts(terminal, verification)
    return terminal.text()


def _promise(terminal: Terminal, verification: Verification) -> None:
    """What the findings that are gone promised, beside what was measured."""
    promise, peaks = verification.promise, verification.memory
    if promise.time_us_per_step:
        inside = [
            interval(promise, promise.time_us_per_step, estimate_duration),
            BASIS[promise.basis] if promise.basis else "",
        ]
        sentence = f"{how_known(promise)} {estimate_duration(promise.time_us_per_step)} of the mean step"
        sentence += f" ({', '.join(p for p in inside if p)})"
        if promise.measured_us is not None:
            sentence += f", measured {duration(promise.measured_us)}"
            sentence += _how_kept(
                promise.measured_us, promise.time_us_per_step, verification.step_time.noise_us or 0.0, promise
            )
        terminal.put(sentence, indent=INDENT, first="predicted")
    if promise.bytes:
        sentence = f"up to {size(promise.bytes)} of the peak"
        if promise.measured_bytes is not None:
            sentence += f", measured {size(promise.measured_bytes)}"
            sentence += _how_kept(promise.measured_bytes, promise.bytes, 0.02 * (peaks.allocated_before or 0))
        terminal.put(sentence, indent=INDENT, first="predicted")


def _how_kept(measured: float, promised: float, noise: float, known: HowKnown | None = None) -> str:
    if abs(measured) <= noise:
        return ": within noise"
    if measured > promised * ((known and known.high) or 1.0) + noise:
        return ": more than predicted, so something else changed as well"
    if measured >= promised:
        return " (all of it)"  # no more than steps vary: a share above 100% would say otherwise
    return f" ({share(measured / promised, 0)} of it)" if measured > 0 else " (none of it)"
