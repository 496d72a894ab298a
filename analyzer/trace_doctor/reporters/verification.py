"""A verification for a terminal: what became of each finding, what is new, promised beside measured, doubts."""

from __future__ import annotations

from trace_doctor.model.verification import Verification
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
from trace_doctor.reporters.terminal import Paper
from trace_doctor.reporters.units import duration, estimate_duration, estimate_size, share, size


def render(verification: Verification, options: Options) -> str:
    """Text of at most `options.width` columns. The same verification gives the same text."""
    paper = Paper(options.width, color=options.color, ascii=options.ascii)
    header(paper, verification)
    for one in verification.findings:
        followed(paper, one)
    for new in verification.new:
        appeared(paper, new)
    paper.blank()
    step_time(paper, verification.step_time)
    memory(paper, verification)
    _promise(paper, verification)
    doubts(paper, verification)
    return paper.text()


def _promise(paper: Paper, made: Verification) -> None:
    """What the findings that are gone promised, beside what was measured."""
    promise, peaks = made.promise, made.memory
    if promise.time_us_per_step:
        said = f"up to {estimate_duration(promise.time_us_per_step)} a step ({promise.basis})"
        if promise.measured_us is not None:
            said += f", measured {duration(promise.measured_us)}"
            step = made.step_time.before
            if step is not None and promise.time_us_per_step > step.median_us:
                said += ": it lies in few long steps, which the median leaves out"
            else:
                said += _kept(promise.measured_us, promise.time_us_per_step, made.step_time.noise_us or 0.0)
        paper.put(said, indent=INDENT, first="promised")
    if promise.bytes:
        said = f"up to {estimate_size(promise.bytes)} of the peak"
        if promise.measured_bytes is not None:
            said += f", measured {size(promise.measured_bytes)}"
            said += _kept(promise.measured_bytes, promise.bytes, 0.02 * (peaks.allocated_before or 0))
        paper.put(said, indent=INDENT, first="promised")


def _kept(measured: float, promised: float, noise: float) -> str:
    if abs(measured) <= noise:
        return ": within noise"
    if measured > promised + noise:
        return ": more than promised, so something else changed as well"
    return f": {share(measured / promised, 0)} of it" if measured > 0 else ": none of it"
