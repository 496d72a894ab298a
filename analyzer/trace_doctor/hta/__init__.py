"""HolisticTraceAnalysis on our columns: its analyses without its parsing. Needs the extra `hta`.

HTA keeps a trace as a DataFrame with ids of names, indices of linked events and numbers of iterations. All of that is
filled from the columns of a `Run`; what HTA does afterwards (aligning ranks, leaving out the last step) it does itself.
Written against HTA 0.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from trace_doctor.arrays import I64, Bool
from trace_doctor.capture import Capture
from trace_doctor.errors import TraceDoctorError, UsageError, by_signal
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.run import GPU_CATS, Cat, Run

if TYPE_CHECKING:
    import pandas as pd
    from hta.trace_analysis import TraceAnalysis

CATEGORIES: dict[Cat, str] = {
    Cat.OTHER: "other",
    Cat.CPU_OP: "cpu_op",
    Cat.USER_ANNOTATION: "user_annotation",
    Cat.PYTHON: "python_function",
    Cat.RUNTIME: "cuda_runtime",
    Cat.DRIVER: "cuda_driver",
    Cat.OVERHEAD: "overhead",
    Cat.KERNEL: "kernel",
    Cat.MEMCPY: "gpu_memcpy",
    Cat.MEMSET: "gpu_memset",
    Cat.GPU_ANNOTATION: "gpu_user_annotation",
    Cat.SYNC: "cuda_sync",
}
"""Categories as Kineto calls those of NVIDIA GPUs, whoever recorded: the names that HTA looks for."""
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})(?!\d)")


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Raises UsageError where HTA is not there, or its code fails or exits as it is imported."""
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{what} needs HolisticTraceAnalysis ({error}): pip install 'trace-doctor[hta]'"
        ) from error
    except (Exception, SystemExit) as error:
        if by_signal(error):
            raise
        raise UsageError(
            f"{what}: HolisticTraceAnalysis cannot be imported ({type(error).__name__}: {error})"
        ) from error


def to_hta(*runs: Run, include_last_profiler_step: bool = False, args: bool = True) -> TraceAnalysis:
    """A `TraceAnalysis` over the traces of one or more ranks.

    `args` fills shapes, copied bytes and waits from the events' arguments; without it these columns hold HTA's
    defaults and loading takes no second look at the files. Raises TraceDoctorError where HTA is not installed, or where
    two runs have the same rank.
    """
    with importing("to_hta"):
        from hta.common.trace import Trace
        from hta.trace_analysis import TraceAnalysis
    ranks = [run.rank for run in runs]
    if not runs or len(set(ranks)) < len(ranks):
        raise TraceDoctorError(f"HTA wants one trace per rank, not ranks {sorted(ranks)}")
    trace = Trace(trace_files={}, trace_dir=".")
    trace.symbol_table.add_symbols(CATEGORIES.values())
    for run in sorted(runs, key=lambda r: r.rank):
        trace.symbol_table.add_symbols(run.names)
        trace.trace_files[run.rank] = run.path
        trace.meta_data[run.rank] = dict(run.meta)
        trace.traces[run.rank] = frame(run, trace.symbol_table.get_sym_id_map(), args=args)
    trace.align_and_filter_trace(include_last_profiler_step)
    for rank, events in trace.traces.items():
        indexed = events.set_index("index", drop=False)
        indexed.index.names = [None]
        trace.traces[rank] = indexed
    trace.is_parsed = True
    analysis: TraceAnalysis = object.__new__(TraceAnalysis)
    analysis.t = trace
    return analysis


def frame(run: Run, symbols: dict[str, int], *, args: bool = True) -> pd.DataFrame:
    """The events of a run as HTA keeps them, by their place in the file. Times are microseconds of the file's clock;
    where it has fractions, starts are rounded up and ends down, as HTA does."""
    import pandas as pd

    rows = np.flatnonzero((run.cat != Cat.SPAN) & run.own)
    rows = rows[np.argsort(run.offset[rows], kind="stable")]
    start, end = _microseconds(run, rows)
    linked = _linked(run, rows)
    category = np.array([symbols.get(CATEGORIES.get(Cat(c), "other"), -1) for c in range(int(max(Cat)) + 1)])
    names = np.array([symbols[name] for name in run.names] or [0], dtype=np.int64)
    pids = np.array([_number(t.pid) for t in run.threads] or [0], dtype=object)
    tids = np.array([_number(t.tid) for t in run.threads] or [0], dtype=object)
    # Annotations of the GPU have no stream in their arguments, which is where HTA looks.
    streams = np.where(run.cat == Cat.GPU_ANNOTATION, -1, run.stream)
    index = np.arange(1, len(rows) + 1)  # 0 stands for "no link in the trace"
    table = pd.DataFrame(
        {
            "index": index,
            "cat": category[run.cat[rows]],
            "name": names[run.name[rows]],
            "pid": pids[run.thread[rows]],
            "tid": tids[run.thread[rows]],
            "ts": start,
            "dur": end - start,
            "stream": streams[rows],
            "correlation": run.correlation[rows],
            **_arguments(run, rows, args=args),
            "external_id": run.external_id[rows],
            "index_correlation": linked,
            "iteration": _iterations(run, rows, streams[rows] > 0, start, end, linked),
            "end": end,
        }
    )
    return table


def _microseconds(run: Run, rows: I64) -> tuple[I64, I64]:
    start, end = run.ts[rows] - run.base_ns, run.end[rows] - run.base_ns
    return -(-start // 1000), end // 1000


def _linked(run: Run, rows: I64) -> I64:
    """For launching calls the index of their GPU work and the other way round; 0 where the other is not in the trace,
    -1 for events without correlation. Of the many kernels of one call HTA keeps the last."""
    place = np.zeros(len(run), dtype=np.int64)
    place[rows] = np.arange(1, len(rows) + 1)
    linked = np.minimum(run.correlation, 0)
    launches = Facts(Capture(rank=run.rank, run=run))[Launches].launch.astype(np.int64)
    known = launches >= 0
    work, calls = run.gpu[known], launches[known]
    linked[work] = place[calls]
    linked[calls] = place[work]
    return np.asarray(linked[rows])


def _iterations(run: Run, rows: I64, on_gpu: Bool, start: I64, end: I64, linked: I64) -> I64:
    """The number of the step in which a host event starts; GPU work has that of its launch; -1 outside."""
    numbers = np.full(len(run.names) or 1, -1, dtype=np.int64)
    for i, name in enumerate(run.names):
        if match := _STEP.match(name):
            numbers[i] = int(match.group(1))
    found_in = np.full(len(rows), -1, dtype=np.int64)
    for mark in np.flatnonzero(numbers[run.name[rows]] >= 0).tolist():
        inside = (start >= start[mark]) & (start < end[mark])
        found_in[inside] = numbers[run.name[rows[mark]]]
    above = linked[on_gpu]
    found_in[on_gpu] = np.where(above > 0, found_in[np.maximum(above - 1, 0)], -1)
    return found_in


def _arguments(run: Run, rows: I64, *, args: bool) -> dict[str, Any]:
    """Columns that HTA takes from the arguments, with its defaults where there is none."""
    columns: dict[str, Any] = {
        "bytes": np.full(len(rows), -1, dtype=np.int64),
        "memory_bw_gbps": np.zeros(len(rows)),
        "wait_on_stream": np.full(len(rows), -1, dtype=np.int64),
        "wait_on_cuda_event_record_corr_id": np.full(len(rows), -1, dtype=np.int64),
        "input_dims": np.full(len(rows), "-1", dtype=object),
        "input_type": np.full(len(rows), "-1", dtype=object),
        "input_strides": np.full(len(rows), "-1", dtype=object),
    }
    if not args:
        return columns
    cat = run.cat[rows]
    copies = np.flatnonzero(np.isin(cat, [c for c in GPU_CATS if c != Cat.KERNEL]))
    for at, arguments in zip(copies.tolist(), run.args(rows[copies]), strict=True):
        columns["bytes"][at] = arguments.get("bytes", -1)
        columns["memory_bw_gbps"][at] = arguments.get("memory bandwidth (GB/s)", 0.0)
    waits = np.flatnonzero(cat == Cat.SYNC)
    for at, arguments in zip(waits.tolist(), run.args(rows[waits]), strict=True):
        for name in ("wait_on_stream", "wait_on_cuda_event_record_corr_id"):
            columns[name][at] = arguments.get(name, -1)
    if run.recorded.shapes is not False:
        operators = np.flatnonzero(cat == Cat.CPU_OP)
        keys = (
            ("input_dims", "Input Dims"),
            ("input_type", "Input type"),
            ("input_strides", "Input Strides"),
        )
        for at, arguments in zip(operators.tolist(), run.args(rows[operators]), strict=True):
            for name, key in keys:
                if key in arguments:
                    columns[name][at] = arguments[key]
    return columns


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text
