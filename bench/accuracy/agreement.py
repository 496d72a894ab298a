"""What other tools say of the same file, beside what trace-doctor says, as Markdown tables.

    python bench/accuracy/agreement.py hta TRACE...           HTA: temporal breakdown, overlap of communication
    python bench/accuracy/agreement.py tb TRACE...            torch-tb-profiler: breakdown of the step, recommendations
    python bench/accuracy/agreement.py memory SNAPSHOT...     torch.cuda._memory_viz: segments, live bytes
    python bench/accuracy/agreement.py patterns               torch.profiler's pattern matchers, live on a small script

The peers run in the interpreter that `--peer-python` names (default: this one), so that they need no common environment.
`memory` unpickles its files as `_memory_viz` does, which runs whatever they say: give it your own.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import logging
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


# -- the peers: run as `agreement.py --peer NAME FILE` by an interpreter that has them ------------------------------


def peer_hta(path: Path) -> Figures:
    """Shares of the time that HTA looks at, and of communication that computing hides."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="/")
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]
    return {
        "window_us": float(row["kernel_time(us)"]),
        "compute": float(row["compute_time_pctg"]) / 100,
        "other": float(row["non_compute_time_pctg"]) / 100,
        "idle": float(row["idle_time_pctg"]) / 100,
        "overlap": float(overlap["comp_comm_overlap_pctg"]) / 100,
    }


def peer_tb(path: Path) -> Figures:
    """Mean step in us by part, and the texts of the recommendations."""
    import re

    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.event_parser import ProfileRole

    with tempfile.TemporaryDirectory() as folder:
        data = RunProfileData.parse("worker", None, str(path), folder)
    costs = {role.name: data.avg_costs.costs[role] for role in ProfileRole}
    return {"costs": costs, "says": [re.sub(r"<[^>]+>", "", text) for text in data.recommendations]}


def peer_memory(path: Path) -> Figures:
    """Bytes of all segments at the end of the recording, and of what is allocated and requested in them."""
    from torch.cuda._memory_viz import calc_active, segsum

    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        snapshot = pickle.load(file)
    segsum(snapshot)  # what `_memory_viz segment_plot` prints: raises where the sums contradict each other
    segments = snapshot["segments"]
    return {
        "reserved": sum(s["total_size"] for s in segments),
        "active": sum(calc_active(s) for s in segments),
        "requested": sum(
            b.get("requested_size", b["size"])
            for s in segments
            for b in s["blocks"]
            if b["state"] == "active_allocated"
        ),
    }


PEERS: dict[str, Callable[[Path], Figures]] = {"hta": peer_hta, "tb": peer_tb, "memory": peer_memory}


def ask(peer: str, path: Path, python: str) -> Figures:
    """What the peer says; `{"failed": its last line}` where it gives up."""
    done = subprocess.run(
        [python, __file__, "--peer", peer, str(path)], check=False, capture_output=True, text=True, encoding="utf-8"
    )  # fmt: skip
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    figures: Figures = json.loads(done.stdout)
    return figures


# -- beside trace-doctor ---------------------------------------------------------------------------------------------


def compare_hta(paths: list[Path], python: str) -> list[str]:
    """HTA counts from the first to the last GPU event and leaves the last step out; the ledger counts steps."""
    lines = [
        "| capture | | time counted, ms | compute | communication, copies | idle | communication hidden |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for path in paths:
        theirs, ours = ask("hta", path, python), _ledger(path)
        if "failed" in theirs:
            lines.append(f"| {_name(path)} | HTA | failed: {theirs['failed']} | | | | |")
        else:
            lines.append(f"| {_name(path)} | HTA | {_hta_row(theirs)} |")
        lines.append(f"| | trace-doctor, the events that HTA keeps | {_hta_row(ours['same'])} |")
        lines.append(f"| | trace-doctor, steady steps | {_hta_row(ours['steps'])} |")
    return lines


def _hta_row(row: Figures) -> str:
    shares = (row[k] for k in ("compute", "other", "idle", "overlap"))
    return f"{row['window_us'] / 1e3:.3f} | " + " | ".join(
        "–" if s is None or s != s else f"{s:.2%}" for s in shares
    )


def _ledger(path: Path) -> Figures:
    """The time ledger of the steady steps, and the same parts over what HTA keeps: where there are two steps or more,
    the GPU work that was launched before the last one."""
    import numpy as np

    from trace_doctor import load
    from trace_doctor.capture import Capture
    from trace_doctor.evidence.base import Facts
    from trace_doctor.evidence.idle.time_ledger import TimeLedger
    from trace_doctor.evidence.intervals import intersect, pairs, subtract, total, union
    from trace_doctor.evidence.trace.gpu_timeline import COMM, COMPUTE, GpuTimeline
    from trace_doctor.evidence.trace.launches import Launches
    from trace_doctor.evidence.trace.steps import Steps
    from trace_doctor.run import Run

    run = load(path)
    assert isinstance(run, Run)
    facts = Facts(Capture(rank=run.rank, run=run))
    timeline, marks = facts[GpuTimeline], facts[Steps].steps
    row = next(r for r in facts[TimeLedger].rows if r.phase == "steady" and r.device == timeline.devices[0])
    kept = run.dur[run.gpu] > 0
    if len(marks) > 1:
        launch = facts[Launches].launch
        names = run.name_ids(lambda name: name.startswith("ProfilerStep"))
        last = run.ts[np.isin(run.name, names)].max()  # marks on the GPU too: HTA takes them for the host's
        kept &= (launch >= 0) & (run.ts[launch] < last)

    def spans(*kinds: int) -> Any:
        rows = run.gpu[kept & ([k in kinds for k in timeline.kind] if kinds else True)]
        return union(pairs(run.ts[rows], run.end[rows]))

    def parts(window: int, computing: int, other: int, hidden: float | None) -> Figures:
        return {
            "window_us": window / 1e3,
            "compute": computing / window,
            "other": other / window,
            "idle": 1 - (computing + other) / window,
            "overlap": hidden,
        }

    def share_hidden(comm: Any, compute: Any) -> float | None:
        return total(intersect(comm, compute)) / total(comm) if total(comm) else None

    busy, compute, comm = spans(), spans(COMPUTE), spans(COMM)
    window = int(busy[-1, 1] - busy[0, 0])
    device = timeline.devices[0]
    hidden = share_hidden(timeline.work(device, COMM), timeline.work(device, COMPUTE))
    return {
        "steps": parts(row.window_ns, row.compute_ns, row.exposed_comm_ns + row.exposed_copy_ns, hidden),
        "same": parts(window, total(compute), total(subtract(busy, compute)), share_hidden(comm, compute)),
    }


def compare_tb(paths: list[Path], python: str) -> list[str]:
    """The plugin gives each moment of a step to the first of its parts; here a host's moment is looked at where the GPU
    idles only."""
    from trace_doctor import analyze

    lines = ["| capture | | step, ms | kernels | copies | communication | waits for data | the rest |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    words = []
    for path in paths:
        theirs = ask("tb", path, python)
        if "failed" in theirs:
            lines.append(f"| {_name(path)} | torch-tb-profiler | failed: {theirs['failed']} | | | | | |")
        else:
            c = theirs["costs"]
            rest = c["Runtime"] + c["CpuOp"] + c["Other"]
            parts = (c["Kernel"], c["Memcpy"] + c["Memset"], c["Communication"], c["DataLoader"], rest)
            lines.append(f"| {_name(path)} | torch-tb-profiler | {_step_row(c['Total'], parts)} |")
            words += [f"- {_name(path)}, torch-tb-profiler: {w}" for w in theirs["says"] or ["nothing"]]
        result = analyze(path)
        row = next(r for r in result.time_ledger if r.phase == "steady")
        data = row.idle_ns.data_loading
        known = row.compute_ns + row.exposed_copy_ns + row.exposed_comm_ns + data
        parts = (row.compute_ns, row.exposed_copy_ns, row.exposed_comm_ns, data, row.window_ns - known)
        steps = max(row.steps, 1) * 1e3
        lines.append(f"| | trace-doctor | {_step_row(row.window_ns / steps, [p / steps for p in parts])} |")
        said = [f"{f.code} ({f.severity}): {f.message}" for f in result.findings]
        words += [f"- {_name(path)}, trace-doctor: {w}" for w in said or ["nothing"]]
    return [*lines, "", *words]


def _step_row(step_us: float, parts: Any) -> str:
    return f"{step_us / 1e3:.2f} | " + " | ".join(f"{p / 1e3:.2f}" for p in parts)


def compare_memory(paths: list[Path], python: str) -> list[str]:
    """The state at the end of the recording, in bytes: here the ledger's own history up to its last entry."""
    from trace_doctor import load
    from trace_doctor.snapshot import Snapshot

    lines = ["| snapshot | | segments, bytes | requested by live blocks, bytes |", "|---|---|--:|--:|"]
    for path in paths:
        theirs = ask("memory", path, python)
        said = theirs.get("failed") or f"{theirs['reserved']:,} | {theirs['requested']:,}"
        lines.append(f"| {_name(path)} | `_memory_viz` | {said} |")
        snapshot = load(path)
        assert isinstance(snapshot, Snapshot)
        lines.append(f"| | trace-doctor | {_history(snapshot)} |")
    return lines


def _history(snapshot: Any) -> str:
    from trace_doctor.capture import Capture
    from trace_doctor.evidence.base import Facts
    from trace_doctor.evidence.memory.timeline import MemoryTimeline

    timeline = Facts(Capture(rank=snapshot.rank, snapshot=snapshot))[MemoryTimeline]
    histories = timeline.devices
    live = sum(int(h.live[-1]) for h in histories)
    if any(h.reserved is None for h in histories):
        return f"not captured | {live:,}"
    return f"{sum(int(h.reserved[-1]) for h in histories if h.reserved is not None):,} | {live:,}"


def compare_patterns(folder: Path) -> list[str]:
    """One small script with four faults that torch.profiler's matchers know, recorded for each of the two."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._pattern_matcher import (
        ForLoopIndexingPattern,
        GradNotSetToNonePattern,
        OptimizerSingleTensorPattern,
        SynchronizedDataLoaderPattern,
    )

    from trace_doctor import analyze

    def watched(with_stack: bool) -> profile:
        with profile(
            activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=with_stack
        ) as profiler:
            _train(torch, profiler)
        return profiler

    patterns = (
        (SynchronizedDataLoaderPattern, "TD101"),
        (ForLoopIndexingPattern, "TD204"),
        (OptimizerSingleTensorPattern, "TD304"),
        (GradNotSetToNonePattern, "TD404"),
    )
    bare, full = watched(with_stack=False), watched(with_stack=True)
    trace = folder / "trace.json"
    with contextlib.redirect_stdout(None):
        matches = [[_matches(pattern(p)) for p in (bare, full)] for pattern, _ in patterns]
    full.export_chrome_trace(str(trace))
    result = analyze(trace)
    ours = {f.code: f"{f.code} ({f.severity}): {f.message}" for f in result.findings}
    outcomes = {o.code: f"{o.code} {o.outcome}" + f": {o.reason}" * bool(o.reason) for o in result.outcomes}
    lines = ["| torch.profiler, live | without stacks | with | trace-doctor, trace with stacks |"]
    lines.append("|---|--:|--:|---|")
    for (pattern, code), (without, with_) in zip(patterns, matches, strict=True):
        said = ours.pop(code, outcomes.get(code))
        lines.append(f"| {pattern.__name__} | {without} | {with_} | {said} |")
    lines += [f"| – | | | {text} |" for text in ours.values()]
    return lines


def _matches(pattern: Any) -> int | str:
    """How often. Names of Python frames may point to freed strings (torch's own comment); its matchers then raise."""
    try:
        return len(pattern.matched_events())
    except UnicodeDecodeError:
        return "raises"


def _train(torch: Any, profiler: Any) -> None:
    """Loads in the training process, indexes in a loop, steps tensor by tensor, keeps gradients as zeros."""
    data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for inputs, wanted in torch.utils.data.DataLoader(data, batch_size=32):
        rows = torch.empty_like(inputs)
        for i in range(len(inputs)):
            rows[i] = inputs[i] * 2
        loss = (model(rows) - wanted).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        profiler.step()


def _name(path: Path) -> str:
    return f"`{path.parent.name}/{path.name}`"


def main() -> None:
    if sys.argv[1:2] == ["--peer"]:
        logging.disable(logging.CRITICAL)
        with contextlib.redirect_stdout(sys.stderr):
            figures = PEERS[sys.argv[2]](Path(sys.argv[3]))
        print(json.dumps(figures))
        return
    options = _options()
    if options.peer == "patterns":
        with tempfile.TemporaryDirectory() as folder:
            lines = compare_patterns(Path(folder))
    else:
        compare = {"hta": compare_hta, "tb": compare_tb, "memory": compare_memory}[options.peer]
        lines = compare([path.resolve() for path in options.paths], options.peer_python)
    print("\n".join(lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=[*PEERS, "patterns"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peer")
    return parser.parse_intermixed_args()


if __name__ == "__main__":
    main()
