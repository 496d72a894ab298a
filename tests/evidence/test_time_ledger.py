from __future__ import annotations

import gzip
import importlib.util
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.idle.overview import Overview
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.model import TimeLedgerRow
from trace_doctor.run import Cat, Run, Thread

_spec = importlib.util.spec_from_file_location("oracle", Path(__file__).with_name("oracle.py"))
assert _spec is not None
assert _spec.loader is not None
oracle = importlib.util.module_from_spec(_spec)
sys.modules["oracle"] = oracle
_spec.loader.exec_module(oracle)

Make = Callable[..., Facts]
CLOSE = 0.001


def spent(row: TimeLedgerRow) -> int:
    return row.compute_ns + row.exposed_comm_ns + row.exposed_copy_ns + row.idle_ns.total()


@pytest.mark.captures
def test_every_real_ledger_adds_up_and_fills_the_window(trace_facts: Facts) -> None:
    ledger, steps = trace_facts[TimeLedger], trace_facts[Steps]
    assert ledger.rows
    for row in ledger.rows:
        assert spent(row) == row.window_ns
        assert min(row.compute_ns, row.exposed_comm_ns, row.exposed_copy_ns, *_idle(row).values()) >= 0
    for device in {r.device for r in ledger.rows}:
        whole = sum(r.window_ns for r in ledger.rows if r.device == device)
        assert whole == steps.window[1] - steps.window[0]
    for lane in trace_facts[Overview].lanes():
        assert lane.shown == len(lane.segments) <= 600
        assert sum(s.dur_us for s in lane.segments) == pytest.approx(lane.dur_us)


@pytest.mark.captures
def test_every_real_ledger_agrees_with_the_oracle(trace_file: Path, trace_facts: Facts) -> None:
    events = oracle.read(trace_file)
    if events is None:
        pytest.skip("not valid JSON: the loader repairs it, the oracle does not")
    expected = oracle.compute(events)
    if expected is None:
        pytest.skip("no GPU work")
    window = expected.window[1] - expected.window[0]
    rows = [r for r in trace_facts[TimeLedger].rows if r.device >= 0]
    for device, times in expected.devices.items():
        mine = [r for r in rows if r.device == device]
        if len(expected.devices) == 1:  # of one GPU ROCm writes the number among the CPU sockets
            mine = rows
        if not mine:  # worked outside the window only
            assert times.compute + times.comm + times.copy == 0
            continue
        found = {
            "window": sum(r.window_ns for r in mine),
            "compute": sum(r.compute_ns for r in mine),
            "comm": sum(r.exposed_comm_ns for r in mine),
            "copy": sum(r.exposed_copy_ns for r in mine),
            "idle": sum(r.idle_ns.total() for r in mine),
        }
        wanted = {"window": window, **{k: getattr(times, k) for k in ("compute", "comm", "copy", "idle")}}
        assert found == pytest.approx(wanted, rel=CLOSE, abs=2)


@pytest.mark.captures
@pytest.mark.parametrize(
    ("name", "steps", "ms_a_step"),
    [
        ("pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz", 6, 59.3),
        ("pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz", 6, 1.17),
        ("AMD-AGI_TraceLens/h100_google_owlv2-large-patch14-ensemble__1016001.json.gz", 1, 619.0),
    ],
)
def test_idle_owned_by_data_loading(captures_dir: Path, name: str, steps: int, ms_a_step: float) -> None:
    path = captures_dir / "traces" / name
    facts = Facts(Capture(0, load_trace(path, path.name)))
    rows = facts[TimeLedger].rows
    owned = sum(r.idle_ns.data_loading for r in rows)
    events = oracle.read(path)
    assert events is not None
    expected = oracle.compute(events)
    assert expected is not None
    assert sum(r.steps for r in rows) == steps
    assert owned == pytest.approx(sum(d.idle_in_loader for d in expected.devices.values()), rel=0.02)
    assert owned / steps / 1e6 == pytest.approx(ms_a_step, rel=0.03)


# -- what must not matter ------------------------------------------------------------------------------------------

SOME = (
    "pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz",
    "facebookresearch_param/dlrm_kineto_worker0_step_12.1694128201545.pt.trace.json",
    "astra-sim_astra-sim/ab5d3e62_megatron-tp8_megatron_kineto_6.json",
    "Lightning-AI_pytorch-lightning/63b6988f_0_trace.json",
)


@pytest.mark.captures
@pytest.mark.parametrize("name", SOME)
def test_clock_process_names_and_order_of_equal_events_do_not_matter(captures_dir: Path, name: str) -> None:
    run = load_trace(captures_dir / "traces" / name, name)
    before = Facts(Capture(0, run))[TimeLedger].rows

    later = replace(run, ts=run.ts + 123_456_789_012)
    assert Facts(Capture(0, later))[TimeLedger].rows == before

    renamed = [
        Thread(str(int(t.pid) + 7) if t.pid.isdigit() else "x" + t.pid, t.tid, t.label) for t in run.threads
    ]
    same_main = [
        replace(new, tid=new.pid) if old.pid == old.tid else new
        for old, new in zip(run.threads, renamed, strict=True)
    ]
    assert Facts(Capture(0, replace(run, threads=same_main)))[TimeLedger].rows == before

    shuffled = np.random.default_rng(0).permutation(len(run.threads))
    moved = [run.threads[i] for i in np.argsort(shuffled)]
    renumbered = replace(run, threads=moved, thread=shuffled[run.thread].astype(np.int32))
    assert Facts(Capture(0, renumbered))[TimeLedger].rows == before

    names = np.random.default_rng(1).permutation(len(run.names))
    texts = [run.names[i] for i in np.argsort(names)]
    recoded = replace(run, names=texts, name=names[run.name].astype(np.int32))
    assert Facts(Capture(0, recoded))[TimeLedger].rows == before


@pytest.mark.captures
@pytest.mark.parametrize("name", SOME)
def test_the_order_of_events_in_the_file_does_not_matter(
    captures_dir: Path, tmp_path: Path, name: str
) -> None:
    path = captures_dir / "traces" / name
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    random.Random(0).shuffle(trace["traceEvents"] if isinstance(trace, dict) else trace)
    other = tmp_path / "shuffled.json"
    other.write_text(json.dumps(trace))
    assert (
        Facts(Capture(0, load_trace(other, other.name)))[TimeLedger].rows
        == Facts(Capture(0, load_trace(path, path.name)))[TimeLedger].rows
    )


@pytest.mark.captures
@pytest.mark.parametrize("name", SOME[:3])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_pause_of_everything_adds_that_much_idle_and_no_work(
    captures_dir: Path, name: str, share: float
) -> None:
    """At a moment when no launch is under way and the device idles, the whole machine stands still for 5 ms."""
    run = load_trace(captures_dir / "traces" / name, name)
    facts = Facts(Capture(0, run))
    start, end = facts[Steps].window
    pause, device = 5_000_000, int(run.device[run.gpu[0]])
    rows = run.gpu
    busy = oracle_union(run.ts[rows], run.end[rows])
    at = next(a for _, a in busy if a > start + share * (end - start)) + 1
    later = np.where(run.ts >= at, run.ts + pause, run.ts)
    stretched = replace(run, ts=later, dur=np.where((run.ts < at) & (run.end > at), run.dur + pause, run.dur))
    before, after = (_whole(f[TimeLedger].rows, device) for f in (facts, Facts(Capture(0, stretched))))
    for part in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns"):
        assert after[part] == before[part]
    assert after["idle"] == before["idle"] + pause


def oracle_union(starts: np.ndarray, ends: np.ndarray) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for s, e in zip(starts.tolist(), ends.tolist(), strict=True):
        if merged and s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(e, merged[-1][1]))
        else:
            merged.append((s, e))
    return merged


def _whole(rows: tuple[TimeLedgerRow, ...], device: int) -> dict[str, int]:
    mine = [r for r in rows if r.device == device]
    parts = {
        p: sum(getattr(r, p) for r in mine) for p in ("compute_ns", "exposed_comm_ns", "exposed_copy_ns")
    }
    return {**parts, "idle": sum(r.idle_ns.total() for r in mine)}


def _idle(row: TimeLedgerRow) -> dict[str, int]:
    return {f: getattr(row.idle_ns, f) for f in row.idle_ns.__struct_fields__}


def test_a_device_that_did_nothing_cannot_be_chosen(facts: Make) -> None:
    made = facts([(Cat.CPU_OP, "aten::mm", 0, 5, {}), (Cat.KERNEL, "k", 6, 5, {})], options=Options(device=3))
    with pytest.raises(NotCaptured, match="device 3 did no work"):
        made[TimeLedger]


gpu_work = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 30), st.sampled_from(["gemm", "ncclKernel", "Memset"])),
    min_size=1,
    max_size=12,
)
host_work = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 60), st.integers(0, 1)), max_size=8)


@settings(deadline=None)
@given(gpu_work, host_work, st.lists(st.integers(0, 180), max_size=3, unique=True))
def test_any_ledger_adds_up(make_run: Callable[..., Run], gpu: list, host: list, marks: list) -> None:
    events = [(Cat.CPU_OP, "aten::mm", t, d, {"thread": th}) for t, d, th in host]
    for n, (t, d, name) in enumerate(gpu):
        cat = Cat.MEMSET if name == "Memset" else Cat.KERNEL
        events.append((cat, name, t + 3, d, {"correlation": n + 1, "stream": n % 3}))
        if n % 4:
            events.append((Cat.RUNTIME, "cudaLaunchKernel", t, 2, {"correlation": n + 1}))
    events += [(Cat.USER_ANNOTATION, f"ProfilerStep#{i}", t, 40, {}) for i, t in enumerate(sorted(marks))]
    assume(host or any(d for _, d, _ in gpu))
    facts = Facts(Capture(0, make_run(events)))
    rows = facts[TimeLedger].rows
    assert all(spent(r) == r.window_ns for r in rows)
    window = facts[Steps].window
    for device in {r.device for r in rows}:
        assert sum(r.window_ns for r in rows if r.device == device) == window[1] - window[0]
