"""Results made by hand: rich, minimal, of several ranks, snapshot only, CPU only."""

from __future__ import annotations

import math

import msgspec
import pytest

from trace_doctor import model as m

HOSTILE = (
    "</script><img src=x onerror=alert(1)>\x1b[31mred\x1b[0m \u202etxt.exe\u2028 `'\"&amp; <!-- ]]> 漢字"
)
DIFF = """--- a/train.py
+++ b/train.py
@@ -38,7 +38,8 @@
 def main():
     dataset = Images(ROOT)
-    loader = DataLoader(dataset, batch_size=32)
+    loader = DataLoader(dataset, batch_size=32, num_workers=4, pin_memory=True,
+                        persistent_workers=True)
     for images, labels in loader:
"""


def time_row(rank: int = 0, device: int = 0, phase: str = "steady", steps: int = 5) -> m.TimeLedgerRow:
    idle = m.IdleNs(
        data_loading=296_500_000,
        launch=45_000_000,
        dispatch=21_300_000,
        sync=9_000_000,
        unattributed=3_200_000,
    )
    compute, comm, copy = 502_700_000, 0 if rank == 0 else 31_000_000 * rank, 10_300_000
    return m.TimeLedgerRow(
        input=rank, rank=rank, device=device, phase=phase, steps=steps,  # type: ignore[arg-type]
        window_ns=compute + comm + copy + idle.total(), compute_ns=compute, exposed_comm_ns=comm,
        exposed_copy_ns=copy, idle_ns=idle, step_us=177_600.0,
    )  # fmt: skip


def lane(rank: int = 0, device: int = 0, steps: int = 5, detail: int = 40) -> m.Lane:
    segments, at = [], 0.0
    for step in range(steps):
        for kind, length in (("data_loading", 59_300.0), ("copy", 2_100.0)):
            segments.append(m.Segment(at, length, kind))
            at += length
        for i in range(detail):
            for kind, length in (
                ("compute", 2_400.0 + 37 * (i % 5)),
                (("launch", "dispatch", "sync")[(i + step) % 3], 260.0),
            ):
                segments.append(m.Segment(at, length, kind))
                at += length
    starts = [s for s in segments if s.kind == "data_loading"]
    gaps = [
        m.Gap(s.start_us, s.dur_us + 260.0 * (i > 0), s.kind, 1.0 if not i else 0.9956)
        for i, s in enumerate(starts)
    ]
    return m.Lane(
        input=rank, gaps=sorted(gaps, key=lambda g: -g.dur_us), rank=rank, device=device, label=f"rank {rank} GPU {device}", dur_us=at, segments=segments,
        shown=len(segments), of=len(segments) * 12, of_streams=9,
        streams=[m.Strip(stream=n, busy_us=sum(s.dur_us for s in mine), segments=mine, shown=len(mine), of=len(mine))
                 for n, kind in ((7, "compute"), (20, "comm"), (24, "copy"))
                 if (mine := [m.Segment(s.start_us, s.dur_us, kind) for s in segments if s.kind == "compute"][:30])],
    )  # fmt: skip


def memory_series(points: int = 600, oom: bool = False) -> m.MemorySeries:
    mib = 2**20
    wave = [max(0.0, math.sin(i / points * 6 * math.pi)) for i in range(points)]
    live = {
        "parameters": [1614 * mib] * points,
        "optimizer_state": [0 if i < points // 6 else 3229 * mib for i in range(points)],
        "gradients": [int(1614 * mib * (1 if i % (points // 3) > points // 5 else 0)) for i in range(points)],
        "activations": [int(w * 6200 * mib) for w in wave],
        "temporaries": [int((i % 7) * 40 * mib) for i in range(points)],
    }
    total = [sum(v[i] for v in live.values()) for i in range(points)]
    peak = max(range(points), key=total.__getitem__)
    high, reserved = 0, []
    for t in total:
        high = max(high, t)
        reserved.append(int(high * 1.12))
    marks = [m.MemoryMark(i * 1000.0, "step", f"step {i}") for i in range(0, points, points // 3)]
    marks += [m.MemoryMark(i * 1000.0, "segment_alloc") for i in range(10, points // 2, 25)]
    marks += [m.MemoryMark(points * 700.0, "segment_free")]
    if oom:
        marks.append(m.MemoryMark((points - 1) * 1000.0, "oom", "asked for 512 MiB"))
    return m.MemorySeries(
        rank=0, device=0, unit="us", at=[i * 1000.0 for i in range(points)], live_by_category=live,
        reserved=reserved, peak_index=peak, marks=marks, shown=points, of=1_000_000,
    )  # fmt: skip


def memory_row(series: m.MemorySeries) -> m.MemoryLedgerRow:
    at_peak = {k: v[series.peak_index] for k, v in series.live_by_category.items()}
    return m.MemoryLedgerRow(
        rank=0, device=0, peak_bytes=sum(at_peak.values()), by_category=m.CategoryBytes(**at_peak),
        max_reserved_bytes=max(r or 0 for r in series.reserved), max_live_bytes=sum(at_peak.values()),
        how="gradients survive their backward; state survives its step; parameters match them in size",
        by_frame=[("model.py:88 Block.forward", 4_200 * 2**20), ("torch/optim/adamw.py:120", 3_229 * 2**20)],
    )  # fmt: skip


def finding(
    code: str = "TD101",
    name: str = "dataloader-starvation",
    *,
    severity: m.Severity = "critical",
    number: int = 1,
    text: str = "",
    saving: m.Saving | None = None,
    fixes: list[m.Fix] | None = None,
) -> m.Finding:
    return m.Finding(
        id=f"{code}-{number}", code=code, name=name, title="The GPU waits for data", severity=severity,
        confidence="high", fingerprint=f"{code}:{number}",
        message=text or "The GPU is idle for 59.3 ms of each 177.6 ms step while DataLoader.__next__ runs in the main process (num_workers=0).",
        location=m.Location(file="train.py", line=41, function="main", rank=0, device=0, step=3),
        saving=saving or m.Saving(time_us_per_step=59_012.3, share_of_step=0.3323, basis="replay",
            how="Re-timing the captured steps without the loader's time: 177.6 ms → 118.6 ms."),
        evidence=[m.Table(title="Loader calls", columns=[m.Column("call", "location"), m.Column("calls", "count"),
            m.Column("per step", "us"), m.Column("idle it owns", "us"), m.Column("of the step", "share")],
            rows=[["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" + text, 5, 61_400.2, 59_300.0, 0.3339],
                  ["collate_fn", 5, 4_120.0, None, 0.0232]], of=12)],
        spans=[m.Span(ts_us=1_621_401_187_223_005.0, dur_us=59_300.0, label="wait for batch 3" + text, device=0, stream=7, step=3),
               m.Span(ts_us=1_621_401_187_400_605.0, dur_us=58_100.0, label="wait for batch 4", device=0, stream=7, step=4)],
        fixes=fixes if fixes is not None else [m.Fix(title="Load in worker processes", kind="patch", safety="unsafe", codemod="dataloader-args",
            params={"num_workers": 4, "pin_memory": True}, target=m.Target(file="train.py", line=41), diff=DIFF + text,
            text="DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=True)" + text,
            verify="Capture again: data loading owns less than 5% of the step.",
            risk="Workers draw random numbers of their own; more host memory.")],
        thresholds={"min_share": 0.05, "min_saving": 0.03}, why="While the GPU waits for the next batch it does nothing.\n\n- A single process loads, decodes and collates between steps.\n- Workers do it during the step.",
    )  # fmt: skip


def other_findings(text: str = "") -> list[m.Finding]:
    return [
        finding("TD404", "retained-gradients", severity="warning", text=text or "Gradients of the last step (1.58 GiB) are alive during the whole forward: zero_grad runs after it.",
            saving=m.Saving(bytes=1_614 * 2**20, share_of_peak=0.127, basis="measured", how="The fall of max(live) when the gradients are freed before the forward."),
            fixes=[m.Fix(title="Move zero_grad to right after step", kind="patch", safety="unsafe", codemod="zero-grad", text="optimizer.step()\noptimizer.zero_grad(set_to_none=True)")]),
        finding("TD401", "allocator-churn", severity="info", text=text or "Reserved memory is given back and taken again in 39 episodes.",
            saving=m.Saving(time_us_per_step=2_310.0, share_of_step=0.013, bytes=40 * 2**20, basis="bound"),
            fixes=[m.Fix(title="Let segments grow", kind="env", safety="unsafe", text="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
                   m.Fix(title="Pad to a few shapes", kind="advice", safety="display", text="Bucket the sequence lengths.")]),
    ]  # fmt: skip


def outcomes(text: str = "") -> list[m.Outcome]:
    stacks = "needs Python stacks (with_stack=True)" + text
    return [
        m.Outcome(code="TD101", name="dataloader-starvation", title="The GPU waits for data", outcome="fired"),
        m.Outcome(code="TD201", name="host-device-sync", title="The host waits for the GPU", outcome="passed"),
        m.Outcome(code="TD202", name="launch-bound", title="The host cannot keep up", outcome="passed", refers_to=["TD101-1"]),
        m.Outcome(code="TD403", name="memory-spike", title="A short peak", outcome="skipped", reason="needs a memory snapshot" + text,
            capture='torch.cuda.memory._record_memory_history(stacks="all")\ntorch.cuda.memory._dump_snapshot("snapshot.pickle")'),
        m.Outcome(code="TD203", name="slow-launch-thread", title="Host work between steps", outcome="skipped", reason=stacks, capture="profile(..., with_stack=True)"),
        m.Outcome(code="TD204", name="tensor-indexing-loop", title="A loop over a tensor", outcome="skipped", reason=stacks, capture="profile(..., with_stack=True)"),
        m.Outcome(code="TD502", name="recompile", title="Compiled again and again", outcome="error", reason="Traceback\nValueError: no such region" + text),
    ]  # fmt: skip


def rich(text: str = "", ranks: int = 1, oom: bool = False) -> m.Result:
    """A result with everything in it; `text` is put wherever foreign text can come from."""
    series = memory_series(oom=oom)
    row = time_row()
    return m.Result(
        tool=m.Tool(version="0.1.0"),
        inputs=[m.Input(path=f"resnet50_num_workers_0/rank{r}.pt.trace.json.gz" + text, kind="trace", rank=r, device_name="Tesla V100-DGXS-32GB" + text,
                        events=57_343, steps=6, recorded=m.Recorded(shapes=True, stacks=False, memory=False),
                        torch_version=m.TorchVersion(min="1.10", how="has no frame ids" + text), warnings=[text] if text else []) for r in range(ranks)]
        + [m.Input(path="snapshot.pickle", kind="snapshot", rank=0, events=1_000_000, warnings=["the ring buffer lost its start"])],
        summary=m.Summary(step_us=177_600.0, gpu_busy_share=0.566, gpu_idle_share=0.434, peak_allocated_bytes=series.live_by_category["parameters"][0] * 7,
                          peak_reserved_bytes=14 * 2**30, replay=m.ReplayQuality(base_error=0.0012, unexplained_share=0.004),
                          saving_up_to=m.SavingUpTo(time_us_per_step=59_900.0, share_of_step=0.337, bytes=1_614 * 2**20),
                          verdict=text or "The GPU is idle for 43% of each step, mostly waiting for data."),
        time_ledger=[x for r in range(ranks) for x in (time_row(r), time_row(r, phase="warmup", steps=1))],
        memory_ledger=[memory_row(series)],
        ownership=[m.OwnershipRow(input=r, rank=r, device=0, part="data_loading", total_ns=295_000_000, unowned_ns=200_000_000, findings=["TD101-1"],
                                  blocks=[m.UnownedBlock(name="aten::copy_" + text, total_us=9_000.0, count=3, steps=3, longest_us=4_000.0, ts_us=1_621_401_187_223_005.0,
                                                         before="gemm" + text, behind="add" + text)]) for r in range(ranks)],
        steps=[m.StepRow(input=r, rank=r, index=i, start_us=i * 164_000.0, dur_us=164_000.0, warmup=i == 0) for r in range(ranks) for i in range(5)],
        timeline=[lane(r) for r in range(ranks)],
        memory_timeline=[series],
        kernels=[m.KernelRow(rank=0, device=0, name=n + text, kind="compute", count=265, total_us=t, mean_us=t / 265, share=t / 500_000)
                 for n, t in (("volta_scudnn_128x64_relu_interior_nn_v1", 91_000.0), ("void at::native::vectorized_elementwise_kernel<4, at::native::threshold_kernel_impl<float>(at::TensorIterator&, float, float)::{lambda(float, float)#1}, at::detail::Array<char*, 3> >(int, float)", 44_000.5), ("ncclKernel_AllReduce_RING_LL_Sum_float", 3.2))],
        collectives=[m.CollectiveRow(rank=0, device=0, name="all_reduce" + text, count=12, total_us=12_000.0, exposed_us=3_100.0)],
        what_if=[m.WhatIf(fixes=[], step_us=177_600.0, basis="measured"), m.WhatIf(fixes=["TD101-1"], step_us=118_588.0), m.WhatIf(fixes=["TD101-1", "TD401-1"], step_us=117_700.0)],
        findings=[finding(text=text), *other_findings(text)], outcomes=outcomes(text),
        source_excerpts={"train.py": [(n, f"line {n} {text}") for n in range(36, 47)]},
        config={"select": ["TD1" + text], "rules.TD101.min_share": 0.05, "origin": {"select": "pyproject.toml"}},
        ignored=[m.Ignored(path="notes.txt" + text, reason="no JSON" + text)],
        limits=["timeline: showing 410 of 4,920 segments" + text] if row else [],
    )  # fmt: skip


def of_job(text: str = "", ranks: int = 128) -> m.Result:
    """A job of several process groups: rank 37 delays it, rank 5 lacks a step, rank 128 was not read."""
    full = rich(text, ranks=8)
    rows = [
        m.ExcessRow(ranks=[r], worst=r, excess_us=[9_000 if r == 37 else r % 7 * 40, None if r == 5 else -30])
        for r in range(ranks)
    ]
    message = "A step takes 178 ms; 7.10 ms (4.0%) for rank 37 (compute), in 5 of 5 steps."
    delayed = msgspec.structs.replace(
        finding("TD602", "straggler", fixes=[], saving=m.Saving(time_us_per_step=7_100.0, share_of_step=0.04, basis="replay")),
        title="Straggler delays all ranks", message=message + text, location=m.Location(ranks=[37]), spans=[],
    )  # fmt: skip
    job = m.JobDelays(
        world=ranks + 1,
        read=ranks,
        unread=[ranks],
        gain_us=7_100.0,
        step_us=178_000.0,
        slowdown=1.05,
        slowdown_own=1.04,
        slowdown_transfer=1.0,
        roots=[m.JobRoot(kind="rank", ranks=[37], gain_us=7_100.0, steps=5, cause="compute" + text)],
        steps=[0, 1],
        of_steps=5,
        rows=rows,
        usual=[3, 4],
        groups=[
            m.GroupLag(
                ranks=list(range(32, 40)),
                size=8,
                read=8,
                kinds=["all-reduce" + text],
                wait_us=6_000.0,
                transfer=1.0,
                last=37,
                last_in=240,
                collectives=240,
            ),
            m.GroupLag(ranks=[64, ranks], size=2, read=1, kinds=["send"], collectives=10),
        ],
        of_groups=160,
    )
    return msgspec.structs.replace(full, findings=[delayed, *full.findings[1:]], jobs=[job])  # fmt: skip


@pytest.fixture
def job_result() -> m.Result:
    return of_job()


def snapshot_only() -> m.Result:
    full = rich(oom=True)
    return m.Result(
        tool=full.tool, inputs=full.inputs[-1:], memory_ledger=full.memory_ledger, memory_timeline=full.memory_timeline,
        summary=m.Summary(peak_allocated_bytes=full.summary.peak_allocated_bytes, peak_reserved_bytes=14 * 2**30,
                          verdict="Out of memory: 512 MiB were asked for, 310 MiB were free."),
        findings=[finding("TD410", "out-of-memory", text="512 MiB were asked for with 310 MiB free and 1.2 GiB cached.", saving=m.Saving(basis="measured"), fixes=[])],
        outcomes=[m.Outcome(code="TD101", name="dataloader-starvation", outcome="skipped", reason="no profiler trace of this rank", capture="record a trace")],
    )  # fmt: skip


def cpu_only() -> m.Result:
    full = rich()
    idle = m.IdleNs(data_loading=700_000, python=200_000)
    row = m.TimeLedgerRow(rank=0, device=-1, phase="steady", steps=3, window_ns=3_000_000, compute_ns=2_100_000,
                          exposed_comm_ns=0, exposed_copy_ns=0, idle_ns=idle, step_us=1_000.0)  # fmt: skip
    return m.Result(
        tool=full.tool, inputs=[m.Input(path="cpu.pt.trace.json", kind="trace", events=900, steps=3)], time_ledger=[row],
        summary=m.Summary(step_us=1_000.0, gpu_busy_share=0.7, verdict=""), outcomes=outcomes()[1:3],
        timeline=[m.Lane(rank=0, device=-1, label="CPU", dur_us=3_000.0, shown=2, of=2,
                         segments=[m.Segment(0.0, 900.0, "data_loading"), m.Segment(900.0, 2_100.0, "compute")])],
    )  # fmt: skip


def unrelated() -> m.Result:
    """Two captures of the same rank: a GPU one and a CPU one, with a snapshot of a third."""
    gpu, cpu, snap = rich(), cpu_only(), snapshot_only()
    replace = msgspec.structs.replace
    inputs = [
        replace(gpu.inputs[0], path="a/train.json"),
        replace(cpu.inputs[0], path="b/train.json"),
        snap.inputs[0],
    ]
    return replace(
        gpu, inputs=inputs,
        time_ledger=gpu.time_ledger + [replace(r, input=1) for r in cpu.time_ledger],
        timeline=gpu.timeline + [replace(x, input=1) for x in cpu.timeline],
        memory_ledger=[replace(r, input=2) for r in snap.memory_ledger],
        memory_timeline=[replace(r, input=2) for r in snap.memory_timeline],
        what_if=[*gpu.what_if, m.WhatIf(input=1, fixes=[], step_us=1_000.0), m.WhatIf(input=1, fixes=["TD401-1"], step_us=900.0)],
    )  # fmt: skip


RESULTS = {
    "unrelated": unrelated,
    "rich": rich,
    "ranks": lambda: rich(ranks=8),
    "many ranks": lambda: rich(ranks=40),
    "hostile": lambda: rich(HOSTILE),
    "snapshot only": snapshot_only,
    "cpu only": cpu_only,
    "empty": m.Result,
}


@pytest.fixture(params=list(RESULTS))
def result(request: pytest.FixtureRequest) -> m.Result:
    """Each of the results in turn."""
    made: m.Result = RESULTS[request.param]()
    return made


@pytest.fixture
def rich_result() -> m.Result:
    return rich()


@pytest.fixture
def hostile_result() -> m.Result:
    return rich(HOSTILE)


@pytest.fixture
def snapshot_result() -> m.Result:
    return snapshot_only()


@pytest.fixture
def cpu_result() -> m.Result:
    return cpu_only()


@pytest.fixture
def many_ranks() -> m.Result:
    return rich(ranks=40)
