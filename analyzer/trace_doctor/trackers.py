"""A result in an experiment tracker: its figures as scalars, its page as an artifact. No tracker is imported here: `log` is given
one that is in use.

    result = trace_doctor.analyze("logs")
    log(result, SummaryWriter("runs/1"))                # TensorBoard, of PyTorch or tensorboardX
    log(result, wandb.init(mode="offline"))             # Weights & Biases: a run
    log(result, mlflow)                                 # MLflow: the active run, or a new one
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from trace_doctor.errors import UsageError
from trace_doctor.files import replacing
from trace_doctor.model import IDLE_CAUSES, PART_NAMES, Result
from trace_doctor.reporters import render
from trace_doctor.reporters.saved import is_page_of_ours
from trace_doctor.reporters.seals import sealed

PAGE = "trace-doctor-report.html"
_MIB = 1 << 20


def scalars(result: Result) -> dict[str, float]:
    """Figures of a result by name. Only what was recorded: a figure that is not known is left out.

    `step_ms` and `plain_step_ms` (without the profiler), `gpu_busy_share`, `peak_allocated_mib`, `peak_reserved_mib`,
    `breakdown/<part>` (share of the steady steps of all devices), `findings/<severity>` (how many), and `saving/<code>`: the largest share of a step
    that a finding of the rule says may be saved.
    """
    s = result.summary
    known = {
        "step_ms": _per(s.step_us, 1e3),
        "plain_step_ms": _per(s.plain_step_us, 1e3),
        "gpu_busy_share": s.gpu_busy_share,
        "peak_allocated_mib": _per(s.peak_allocated_bytes, _MIB),
        "peak_reserved_mib": _per(s.peak_reserved_bytes, _MIB),
    }
    steady = [row for row in result.time_ledger if row.phase == "steady"]
    window = sum(row.window_ns for row in steady)
    for part in PART_NAMES if window else ():
        ns = sum(
            getattr(row.idle_ns, part) if part in IDLE_CAUSES else getattr(row, f"{part}_ns")
            for row in steady
        )
        known[f"breakdown/{part}"] = ns / window
    severities = Counter(f.severity for f in result.findings)
    if not all(
        i.too_little for i in result.inputs
    ):  # none found in what could not be judged is not none there
        known |= {f"findings/{level}": float(severities[level]) for level in ("critical", "warning", "info")}
    for finding in result.findings:
        if finding.saving is not None and (predicted := finding.saving.share_of_step):
            name = f"saving/{finding.code}"
            known[name] = max(predicted, known.get(name) or 0.0)
    return {name: float(value) for name, value in known.items() if value is not None}


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def log(
    result: Result, tracker: Any, *, step: int | None = None, prefix: str = "trace_doctor/", page: bool = True
) -> None:
    """Logs `scalars(result)` under the prefix, at this step of the run, with the verdict as text, and the report as `PAGE`: an artifact
    of MLflow and of Weights & Biases; TensorBoard has none, and it lies next to its events.

    `tracker` is a `SummaryWriter`, a run of `wandb`, or the module `mlflow`. Raises UsageError for anything else, and
    where a report cannot be written, or would replace what is none; what the tracker raises passes through. The page holds file names, but no line of the script unless the result was made with its source.
    """
    figures = {f"{prefix}{name}": value for name, value in scalars(result).items()}
    verdict = result.summary.verdict
    if hasattr(tracker, "add_scalar") and hasattr(tracker, "add_text"):
        if page:  # first: it may be refused
            folder = getattr(tracker, "log_dir", None) or tracker.logdir  # of PyTorch, of tensorboardX
            _write_page(result, Path(folder))
        for name, value in figures.items():
            tracker.add_scalar(name, value, step)
        tracker.add_text(f"{prefix}verdict", verdict, step)
        tracker.flush()
        return
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(tracker, "log_metrics") and hasattr(tracker, "log_artifact"):
            tracker.log_metrics(figures, step=step)
            tracker.set_tag(f"{prefix}verdict", verdict)
            if page:
                tracker.log_artifact(str(_write_page(result, Path(folder))))
        elif hasattr(tracker, "log_artifact") and hasattr(tracker, "summary"):
            tracker.log(figures, step=step)
            tracker.summary[f"{prefix}verdict"] = verdict
            if page:
                artifact = sys.modules["wandb"].Artifact("trace-doctor-report", type="report")
                artifact.add_file(str(_write_page(result, Path(folder))))
                tracker.log_artifact(artifact)
        else:
            raise UsageError(
                f"no tracker: a {type(tracker).__name__}; give a SummaryWriter, a run of wandb, or the module mlflow"
            )


def _write_page(result: Result, folder: Path) -> Path:
    path = folder / PAGE
    if path.exists() and not is_page_of_ours(path, Result):
        raise UsageError(f"{path} exists and is no report of ours: it is not overwritten")
    with replacing(path) as file:
        file.write(sealed("html", render(result, "html")))
    return path
