"""HTA's critical path through one step of each trace: a second opinion, computed only where it is asked for."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence

from trace_doctor.errors import UsageError
from trace_doctor.hta import importing, to_hta
from trace_doctor.model import CriticalPath, PathPart, StepRow
from trace_doctor.run import Run

_MARK = "ProfilerStep"
_MOST_PARTS = 12
_KINDS = {
    "cpu_bound": "host",
    "gpu_compute_bound": "kernels",
    "gpu_communication_bound": "communication",
    "gpu_kernel_kernel_overhead": "between kernels",
    "gpu_kernel_launch_overhead": "launch delay",
}
"""HTA's words in those of the report."""


def critical_paths(
    runs: Sequence[tuple[int, Run]], steps: Sequence[StepRow]
) -> tuple[list[CriticalPath], list[str]]:
    """One path per (number of the input, trace), through the steady step nearest the median, and one line for each trace
    that has none."""
    paths, missing = [], []
    for number, run in runs:
        step = _typical([s for s in steps if s.input == number])
        if step is None or step.index < 0:
            missing.append(f"critical path of {run.path}: HTA needs two steps marked by prof.step()")
            continue
        try:
            paths.append(_path(number, run, step))
        except Exception as error:  # whatever a foreign analysis raises on a trace that it does not expect
            missing.append(f"critical path of {run.path}: HTA failed ({type(error).__name__}: {error})")
    return paths, missing


def usable() -> None:
    """Raises UsageError where HTA is not there, or where its critical path does not work with this pandas."""
    with importing("--critical-path"):
        import pandas
        from hta.analyzers import critical_path_analysis  # noqa: F401
    if int(pandas.__version__.split(".")[0]) >= 3:
        raise UsageError(
            f"HTA's critical path does not work with pandas {pandas.__version__}: pip install 'pandas<3'"
        )


def _typical(steps: Sequence[StepRow]) -> StepRow | None:
    """HTA leaves the last marked step out; warm-up says little."""
    steady = [s for s in steps[:-1] if not s.warmup] or list(steps[:-1])
    lengths = sorted(s.dur_us for s in steady)
    return min(steady, key=lambda s: (abs(s.dur_us - lengths[len(lengths) // 2]), s.index), default=None)


def _path(number: int, run: Run, step: StepRow) -> CriticalPath:
    with _quiet():
        analysis = to_hta(run)
        events = analysis.t.get_trace(run.rank)
        symbols = analysis.t.symbol_table.get_sym_id_map()
        marks = events[events["name"].isin([i for name, i in symbols.items() if _MARK in name])]
        instance = marks["name"].tolist().index(symbols[f"{_MARK}#{step.index}"])
        graph, complete = analysis.critical_path_analysis(run.rank, _MARK, instance)
        edges = graph.get_critical_path_breakdown()
    if not complete or edges is None:
        raise ValueError("no path from the begin of the step to its end")
    by_kind = edges.groupby("bound_by")["duration"].sum()
    by_name = edges.groupby(["s_name", "bound_by"])["duration"].agg(["sum", "count"]).reset_index()
    parts = [
        PathPart(
            name=str(r.s_name),
            kind=_KINDS.get(r.bound_by, "other"),
            count=int(r["count"]),
            us=float(r["sum"]),
        )
        for _, r in by_name.iterrows()
    ]
    return CriticalPath(
        input=number,
        rank=run.rank,
        step=step.index,
        path_us=float(edges["duration"].sum()),
        by_kind={
            _KINDS.get(str(kind), "other"): float(us)
            for kind, us in sorted(by_kind.items(), key=lambda x: (-x[1], x[0]))
            if us
        },
        parts=sorted((p for p in parts if p.us), key=lambda p: (-p.us, p.name, p.kind))[:_MOST_PARTS],
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """HTA logs and prints as it goes."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
