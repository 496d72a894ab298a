"""What a result shows of one capture: rows and series, as long as they may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from msgspec import Struct, structs

from trace_doctor.engine.coverage import too_little, work_events
from trace_doctor.engine.detail import detail_of
from trace_doctor.engine.input_rows import devices_of, inputs_of
from trace_doctor.engine.sizes import MAX_STEPS, Sizes
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.operators import Operators
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.memory.held import MemoryHeld, PinnedMemory
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import (
    CollectiveRow,
    EngineRow,
    Input,
    KernelRow,
    Lane,
    MemoryHeldRow,
    MemoryLedgerRow,
    MemorySeries,
    OperatorRow,
    ReplayQuality,
    StepRow,
    TimeLedgerRow,
)
from trace_doctor.model.detail import Detail


class Display(Struct, frozen=True, kw_only=True):
    """Rows say nothing of the place of their capture among others: `input` is 0 in all of them."""

    inputs: tuple[Input, ...]
    """its files, as the result names them"""
    devices: tuple[int, ...]
    """that worked, or whose memory was recorded"""
    shortage: str
    """why the capture tells nothing, whatever rules are asked; "" where it does"""
    work_events: int
    """operators, calls and GPU events in its window; 0 without a trace"""
    no_steps: str
    """why there is no window to look at; "" where there is one"""
    doubts: tuple[str, ...]
    """how far damage may put the ledger off, and which step outweighs all others"""
    replay: ReplayQuality
    time_ledger: tuple[TimeLedgerRow, ...] = ()
    memory_ledger: tuple[MemoryLedgerRow, ...] = ()
    memory_held: tuple[MemoryHeldRow, ...] = ()
    memory_pinned: tuple[MemoryHeldRow, ...] = ()
    memory_timeline: tuple[MemorySeries, ...] = ()
    steps: tuple[StepRow, ...] = ()
    """the first of them"""
    step_count: int = 0
    engine_steps: tuple[EngineRow, ...] = ()
    timeline: tuple[Lane, ...] = ()
    kernels: tuple[KernelRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    detail: tuple[Detail, ...] = ()
    """one, where it is asked for"""

    def too_little(self, why: str) -> Self:
        """The same of a capture that tells nothing."""
        inputs = tuple(structs.replace(i, too_little=why) for i in self.inputs)
        return structs.replace(self, shortage=why, inputs=inputs)


def display_of(facts: Facts, further: Sequence[Facts], sizes: Sizes) -> Display:
    """What is shown of a capture; `further` are the other files of its recording."""
    time, memory, memory_held = facts.get(TimeLedger), facts.get(MemoryLedger), facts.get(MemoryHeld)
    overview, operators, steps = facts.get(Overview), facts.get(Operators), _steps(facts)
    shortage = too_little((facts, *further))
    replay, engine = facts.get(Replay), facts.get(EngineSteps)
    return Display(
        inputs=tuple(inputs_of(facts, further, sizes.shapes, shortage)),
        devices=tuple(sorted(devices_of(facts.capture))),
        shortage=shortage,
        work_events=work_events((facts, *further)),
        no_steps=_missing_steps(facts),
        doubts=tuple(filter(None, (_damage(facts), _outweighed(facts), _lost_replays(facts, engine)))),
        replay=ReplayQuality(
            base_error=replay.base_error if replay else None,
            unexplained_share=replay.unexplained_share if replay else None,
        ),
        time_ledger=tuple(time.rows) if time else (),
        memory_ledger=tuple(memory.rows) if memory else (),
        memory_held=tuple(memory_held.rows) if memory_held else (),
        memory_pinned=pinned.rows if (pinned := facts.get(PinnedMemory)) else (),
        memory_timeline=tuple(memory.series) if memory else (),
        steps=tuple(steps[:MAX_STEPS]),
        step_count=len(steps),
        engine_steps=tuple(engine.rows()) if engine else (),
        timeline=tuple(overview.lanes(sizes.segments, sizes.strip_segments)) if overview else (),
        kernels=tuple(overview.kernels(sizes.kernels)) if overview else (),
        operators=tuple(operators.rows(sizes.operators)) if operators else (),
        collectives=tuple(overview.collectives()) if overview else (),
        detail=(detail_of(facts, sizes),) if sizes.detail else (),
    )


def _steps(facts: Facts) -> list[StepRow]:
    if (steps := facts.get(Steps)) is None or steps.source == "none":
        return []
    zero = steps.window[0]
    return [
        StepRow(
            rank=facts.rank,
            index=s.index,
            start_us=(s.start - zero) / 1e3,
            dur_us=(s.end - s.start) / 1e3,
            pace_us=s.pace / 1e3,
            warmup=s.warmup,
            kind=s.kind,
        )
        for s in steps.steps
    ]


def _missing_steps(facts: Facts) -> str:
    try:
        facts[Steps]
    except NotCaptured as missing:
        return missing.reason
    return ""


def _damage(facts: Facts) -> str:
    health = facts.get(CaptureHealth)
    if health is None or facts.get(TimeLedger) is None:
        return ""
    parts = []
    if health.may_be_off:
        parts.append(f"its step time breakdown may be off by about {health.may_be_off:.2%} of the window")
    if health.damage.truncated:
        parts.append(
            "what came behind the cut is unknown: steps that reach there look emptier than they were"
        )
    return f"{facts.capture.path}: damaged; {'; '.join(parts)}" if parts else ""


def _lost_replays(facts: Facts, engine: EngineSteps | None) -> str:
    return (
        f"{facts.capture.path}: {engine.lost_replays}: its idle time is unknown"
        if engine and engine.lost_replays
        else ""
    )


def _outweighed(facts: Facts) -> str:
    steps = facts.get(Steps)
    if steps is None or (longest := steps.longest_of_all) is None:
        return ""
    pace, median = two_figures(longest.pace / 1e3), two_figures(steps.median_ns / 1e3)
    return (
        f"{facts.capture.path}: step {longest.index} takes {pace}, longer than the other {steps.count - 1} together (median "
        f"{median}): shares of the step are mostly of that one"
    )
