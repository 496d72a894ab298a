"""What each file of a capture is: the inputs of the result."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from msgspec import structs

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.operators import Operators
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.profiler_cost import PlainPace, doubt_of_times
from trace_doctor.evidence.idle.start_up import StartUp
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.workload import Workload
from trace_doctor.model import Input, Pace, Work
from trace_doctor.run import Cat, Run
from trace_doctor.snapshot import Snapshot


def inputs_of(facts: Facts, further: Sequence[Facts], shapes: int, shortage: str) -> list[Input]:
    """The files of a capture. The first one is what its rows and findings are about; `further` were asked where it
    could not tell. `shortage`: why the capture tells nothing."""
    capture, files = facts.capture, []
    if (run := capture.run) is not None:
        steps, start = facts.get(Steps), facts.get(StartUp)
        files.append(
            structs.replace(
                _trace(run, capture, steps),
                steps=len(steps.steps) if steps else 0,
                pace=_pace(steps),
                plain=_plain(facts.get(PlainPace)),
                step_source=steps.source if steps and steps.source != "none" else None,
                start_up_share=start.share if start is not None else None,
                queued_share=start.queued_share if start is not None else None,
                work=_work(facts, shapes),
            )
        )
    if capture.snapshot is not None:
        files.append(_snapshot(capture.snapshot, capture))
    if (flight := capture.flight) is not None:
        files.append(
            Input(
                path=flight.path,
                kind="flight_recorder",
                rank=capture.rank,
                rank_how=flight.rank_how,
                events=len(flight),
                warnings=list(flight.warnings),
            )
        )
    for each in further:
        other = each.capture
        if other.run is not None:
            files.append(_trace(other.run, capture, each.get(Steps)))
        if other.snapshot is not None:
            files.append(_snapshot(other.snapshot, capture))
    files += [
        Input(
            path=log.path,
            kind="torch_trace",
            rank=capture.rank if log.rank is None else log.rank,
            events=len(log),
            warnings=list(log.warnings),
        )
        for log in capture.torch_logs
    ]
    warnings = [*capture.warnings, *filter(None, [doubt_of_times(facts)])]
    if warnings and files:
        files[0] = structs.replace(files[0], warnings=[*files[0].warnings, *warnings])
    return [structs.replace(file, too_little=shortage) for file in files]


def _trace(run: Run, capture: Capture, steps: Steps | None) -> Input:
    has_numbers = steps is not None and steps.source == "profiler_step" and capture.record is not None
    return Input(
        path=run.path,
        kind="trace",
        role=capture.roles.get(run.path),
        seconds=_seconds(run.span_ns, capture),
        run_steps=(steps.steps[0].index, steps.steps[-1].index) if steps and has_numbers else None,
        rank=capture.rank,
        rank_how=run.rank_how,
        device_name=next(iter(run.device_names.values()), None),
        torch_version=run.torch_version,
        events=_events(run),
        recorded=run.recorded,
        waited_for_cpu=capture.record.waited_for_cpu if capture.record is not None else None,
        warnings=list(run.warnings),
    )


def _events(run: Run) -> int:
    """All of them, or none where the only ones are of other programs that write the same format."""
    ours = run.own & ~run.is_cat(Cat.OTHER, Cat.SPAN)
    return (int(np.count_nonzero(run.own)) if ours.any() else 0) + len(run.memory)


def _snapshot(snapshot: Snapshot, capture: Capture) -> Input:
    return Input(
        path=snapshot.path,
        kind="snapshot",
        role=capture.roles.get(snapshot.path),
        seconds=_seconds(snapshot.span_ns, capture),
        run_steps=_memory_steps(capture),
        rank=capture.rank,
        rank_how=snapshot.rank_how,
        torch_version=snapshot.torch_version,
        events=len(snapshot),
        warnings=list(snapshot.warnings),
    )


def _seconds(span: tuple[int, int] | None, capture: Capture) -> tuple[float, float] | None:
    """A stretch of the recording, on the clock that all its files share."""
    if span is None or capture.began_ns is None:
        return None
    return (span[0] - capture.began_ns) / 1e9, (span[1] - capture.began_ns) / 1e9


def _memory_steps(capture: Capture) -> tuple[int, int] | None:
    """The steps of the phase that recorded memory: a snapshot has no numbers of steps."""
    phase = capture.record.phase("memory") if capture.record is not None else None
    is_valid = phase is not None and 0 <= phase.first_step <= phase.last_step
    return (phase.first_step, phase.last_step) if phase is not None and is_valid else None


def _work(facts: Facts, shapes: int) -> Work:
    work, overview, operators = facts.get(Workload), facts.get(Overview), facts.get(Operators)
    return Work(
        kernels=work.kernels if work else None,
        operators=work.operators if work else None,
        launches=work.launches if work else None,
        kernel_names=overview.kernel_names if overview else None,
        operator_names=len(operators.names) if operators else None,
        shapes=list(work.shapes[:shapes]) if work else [],
    )


def _pace(steps: Steps | None) -> Pace | None:
    """Steady steps alone: without any there is nothing to compare."""
    times = [s.pace / 1e3 for s in steps.steps if not s.warmup] if steps and steps.source != "none" else []
    if not times:
        return None
    middle = median(times)
    return Pace(
        steps=len(times),
        median_us=middle,
        mad_us=median(abs(t - middle) for t in times),
        mean_us=fmean(times),
    )


def _plain(pace: PlainPace | None) -> Pace | None:
    if pace is None:
        return None
    return Pace(
        steps=pace.steps, median_us=pace.median_ns / 1e3, mad_us=pace.mad_ns / 1e3, mean_us=pace.mean_ns / 1e3
    )


def devices_of(capture: Capture) -> set[int]:
    """Devices that worked or whose memory was recorded."""
    devices: set[int] = set()
    if capture.run is not None:
        devices |= set(np.unique(capture.run.device[capture.run.gpu]).tolist())
    if capture.snapshot is not None:
        devices |= set(capture.snapshot.devices)
    return devices
