"""What each file of a capture is: the inputs of the result, and whether the selection leaves anything to look at."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from trace_doctor.engine.examined import Examined
from trace_doctor.errors import NotCaptured, UsageError
from trace_doctor.evidence.base import Evidence, Facts, Options
from trace_doctor.evidence.operators import Operators
from trace_doctor.evidence.overview import Overview
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.workload import Workload
from trace_doctor.model import Input, Pace, Work
from trace_doctor.run import Capture


def inputs_of(facts: Facts, shapes: int) -> list[Input]:
    capture, found = facts.capture, []
    if (run := capture.run) is not None:
        steps = facts.get(Steps)
        found.append(
            Input(
                path=run.path,
                kind="trace",
                rank=capture.rank,
                rank_how=run.rank_how,
                device_name=next(iter(run.device_names.values()), None),
                torch_version=run.torch_version,
                events=len(run) + len(run.memory),
                steps=len(steps.steps) if steps else 0,
                recorded=run.recorded,
                pace=_pace(steps),
                step_source=steps.source if steps and steps.source != "none" else None,
                work=_work(facts, shapes),
                warnings=list(run.warnings),
            )
        )
    if (snapshot := capture.snapshot) is not None:
        found.append(
            Input(
                path=snapshot.path,
                kind="snapshot",
                rank=capture.rank,
                rank_how=snapshot.rank_how,
                torch_version=snapshot.torch_version,
                events=len(snapshot),
                warnings=list(snapshot.warnings),
            )
        )
    found += [
        Input(
            path=log.path, kind="torch_trace", rank=capture.rank, events=len(log), warnings=list(log.warnings)
        )
        for log in capture.torch_logs
    ]
    return found


def _work(facts: Facts, shapes: int) -> Work:
    work, overview, operators = facts.get(Workload), facts.get(Overview), facts.get(Operators)
    return Work(
        kernels=work.kernels if work else None,
        operators=work.operators if work else None,
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
    return Pace(steps=len(times), median_us=middle, mad_us=median(abs(t - middle) for t in times))


def must_select(examined: Sequence[Examined], options: Options) -> None:
    """Steps or a device that no capture has would leave nothing to look at, and look like a clean bill."""
    if examined and options.steps is not None and not any(e.facts.get(Steps) for e in examined):
        raise UsageError(f"--steps: {_missing(examined[0].facts, Steps)}")
    if options.device is not None:
        there = sorted({d for e in examined for d in _devices(e.facts.capture)})
        if there and options.device not in there:
            raise UsageError(f"--device {options.device}: the captures have {', '.join(map(str, there))}")


def _missing(facts: Facts, kind: type[Evidence]) -> str:
    try:
        facts[kind]
    except NotCaptured as missing:
        return missing.reason
    return ""


def _devices(capture: Capture) -> set[int]:
    """Devices that worked or whose memory was recorded."""
    found: set[int] = set()
    if capture.run is not None:
        found |= set(np.unique(capture.run.device[capture.run.gpu]).tolist())
    if capture.snapshot is not None:
        found |= set(capture.snapshot.devices)
    return found
