"""TD405 memory-growth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from trace_doctor import Claim, Context, Fix, NotCaptured, Rule, Table, Target, Unit, threshold
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.trace.call_sites import Site, location
from trace_doctor.evidence.trace.steps import COUNTED
from trace_doctor.testing import GIB, MIB, Invalid, RunBuilder, SnapshotBuilder, Valid
from trace_doctor_rules._shared import patch, table
from trace_doctor_rules.memory._memory_growth_evidence import Growth, explaining_frame, growth, own_frames
from trace_doctor_rules.memory._shared import MiB, holders, peak_saving, size
from trace_doctor_rules.memory._trace_growth_evidence import ADVICE as TRACE_ADVICE
from trace_doctor_rules.memory._trace_growth_evidence import AllocationRecord, TraceGrowth


def _steps(
    count: int = 6,
    *,
    kept: int = 0,
    every: int = 1,
    stacks: str | None = "all",
    optimizer: bool = True,
    places: int = 1,
    calls: int = 1,
) -> SnapshotBuilder:
    """Training steps that keep `kept` MiB of each (n-th) step in a list. `calls`: how often the function that does is open."""
    b = SnapshotBuilder(stacks=stacks)  # type: ignore[arg-type]
    b.held(200 * MIB)
    for step in range(count):
        with b.forward(line=31):
            activation = b.alloc(100 * MIB)
        if kept and step % every == 0:
            for n in range(places):
                with b.script_line(44 + n, f"train_{n}", calls=calls):
                    b.alloc(kept // places * MIB)
        with b.backward():
            gradient = b.alloc(50 * MIB)
            b.free(activation)
        if optimizer:
            with b.optimizer_step():
                b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
    return b


def _of_a_library() -> SnapshotBuilder:
    """Growth whose frames hold no line of the script."""
    b = _steps(kept=40)
    for frame in [f for e in b.entries for f in e["frames"] if f["filename"].startswith("/home/me/")]:
        frame["filename"] = "/usr/lib/python3/dist-packages/trainer/loop.py"
    return b


def _cache_that_fills() -> SnapshotBuilder:
    """A buffer that grows for two steps and is full then."""
    b = SnapshotBuilder()
    b.held(200 * MIB)
    for step in range(6):
        with b.forward(line=31):
            b.temporary(100 * MIB)
        if step < 3:
            with b.script_line(50, "fill_replay_buffer"):
                b.alloc(60 * MIB)
        with b.backward():
            gradient = b.alloc(50 * MIB)
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
    return b


def _one_forward() -> SnapshotBuilder:
    """Activations that one forward keeps for its backward are no leak."""
    b = SnapshotBuilder()
    b.held(200 * MIB)
    for layer in range(30):
        with b.forward(line=10 + layer):
            b.alloc(100 * MIB)
    return b


def _traced(
    kept: int,
    *,
    every: int = 1,
    stacks: bool = True,
    steps: int = 6,
    gpu: bool = True,
    addresses: bool = True,
) -> RunBuilder:
    """Steps of a trace whose losses are kept in a list, with all that they hold: `kept` MiB of each (n-th)."""
    b = RunBuilder(memory=True, stacks=stacks, gpu="NVIDIA H100 80GB HBM3" if gpu else None)
    with b.python("train.py", 12, "train"):
        for step in range(steps):
            with b.step(), b.op("aten::mm", us=20):
                b.memory(100 * MIB, addr=addresses << 20)
                if kept and step % every == 0:
                    b.memory(kept * MIB, addr=addresses * (step + 2) << 30)
                b.memory(-100 * MIB, addr=addresses << 20)
                b.wait(1)
    return b


class MemoryGrowth(Rule):
    """Allocated memory grows from step to step.

    What it does
    Compares allocated bytes after each optimizer step (without one: after each backward). It then finds the code whose
    allocations of every step are still alive at the end.

    Why is this bad
    The job runs out of memory after hours. Usually a tensor that still has its graph is kept in a list, in a running sum or in
    a log. Each one retains all activations of its step.

    Evidence
    A snapshot's history of at least four steps: memory grows at every step boundary, and the blocks allocated in between and
    alive at the end come from one frame. In a trace alone: its `[memory]` events (`profile_memory=True`), where each of at
    least four steps leaves as many bytes that nothing frees. Not counted: library workspaces, activations of one forward,
    caches that fill once, and buffers that are replaced.

    How the saving is estimated
    The reduction of peak allocated bytes when these blocks are freed at once. An upper bound, because some may be needed until
    the end of their step. A long run loses more: the message gives bytes per step, and the steps until the device is full
    where its size is known.

    Fix
    Keep numbers, not tensors with a graph: `total += loss.detach()` or `loss.item()`, `outputs.append(out.detach().cpu())`.

    Fix safety
    Unsafe: code that later calls backward() through the kept tensor needs its graph.

    When to ignore
    When the script fills a buffer on purpose. `record_shapes=True` of the profiler keeps tensors alive as well.

    References
    https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
    """

    code = "TD405"
    name = "memory-growth"
    title = "Memory grows every step"
    needs = (AllocationRecord,)
    about = ("activations", "temporaries", "unknown")

    min_boundaries: int = threshold(
        4, "step boundaries", source="growth three times in a row; warm-up causes one or two"
    )
    min_share: float = threshold(
        0.01,
        "growth per step, as a share of the peak",
        unit="share",
        source="sound records: +19 MiB once, then flat",
    )
    min_bytes: int = threshold(
        16 * MiB,
        "growth per step; less is an info finding",
        unit="bytes",
        source="above any library workspace but cuBLAS's own",
        note_from=MiB / 4,
    )
    one_frame: float = threshold(
        0.80,
        "part of the growth in every step that one frame explains",
        unit="share",
        source="below, there is no single cause",
    )

    VALID = [
        Valid("flat", _steps),
        Valid("a cache that fills once", _cache_that_fills),
        Valid("kept in every third step", lambda: _steps(8, kept=40, every=3)),
        Valid("little", lambda: _steps(kept=4), thresholds={"min_share": 0.0}),
        Valid("a small part", lambda: _steps(kept=40), thresholds={"min_share": 0.5}),
        Valid("in two places", lambda: _steps(kept=40, places=2)),
        Valid("in two functions that call themselves", lambda: _steps(kept=40, places=2, calls=3)),
        Valid("a trace, a small part", lambda: _traced(40), thresholds={"min_share": 0.5}),
        Valid("one forward", _one_forward, skipped="steps in the allocation history"),
        Valid("two steps", lambda: _steps(2, kept=40), skipped="steps in the allocation history"),
        Valid("no frames", lambda: _steps(kept=40, stacks=None), skipped="frames"),
        Valid("frames of libraries alone", _of_a_library, skipped="no frame of your own code"),
        Valid("a trace, flat", lambda: _traced(0)),
        Valid("a trace, every third step", lambda: _traced(40, every=3)),
        Valid("a trace without addresses", lambda: _traced(40, addresses=False), skipped="no memory snapshot"),
        Valid("a trace of three steps", lambda: _traced(40, steps=3), skipped="steps"),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "a list of outputs",
            lambda: _steps(kept=40),
            message="Allocated memory grows by 40.0 MiB per step over 6 steps in train_0() (/home/me/train.py:44).",
            confidence="high",
            thresholds={"min_boundaries": 6},
            file="/home/me/train.py",
            line=44,
            codemod="detach-accumulation",
            saving_bytes=200 * MIB,
        ),
        Invalid("known device", lambda: _steps(kept=40), options={"device_bytes": GIB}, message="The GPU is full in"),
        Invalid(
            "a trace",
            lambda: _traced(40),
            message="Allocated memory of GPU 0 grows by 40.0 MiB per step over 6 steps in train() (train.py).",
            thresholds={"min_boundaries": 6},
            severity="warning",
            file="train.py",
            codemod="detach-accumulation",
        ),
        Invalid("a trace without stacks", lambda: _traced(40, stacks=False), message="over 6 steps. Nothing"),
        Invalid("a trace of a CPU", lambda: _traced(40, gpu=False), message="of the host grows"),
        Invalid("a little, which is a note", lambda: _traced(8, gpu=False), message="by 8.00 MiB per step", thresholds={"min_bytes": MiB / 4}),
        Invalid("no optimizer", lambda: _steps(kept=40, optimizer=False), message="Measured after backward."),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        evidence, trace = ctx[AllocationRecord].blocks, ctx[AllocationRecord].trace
        if trace is not None:
            yield from self._of_trace(trace)
        if evidence is None:
            return
        if evidence.frames_kind in ("none", "cpp"):
            raise NotCaptured("no Python frames recorded", CAPTURE_ADVICE)
        by_device = [(d, growth(d)) for d in evidence.devices]
        long_enough = [
            (d, g) for d, g in by_device if g is not None and len(g.boundaries) >= self.min_boundaries
        ]
        if not long_enough:
            raise NotCaptured(
                f"fewer than {self.min_boundaries} steps in the allocation history", CAPTURE_ADVICE
            )
        for device, g in long_enough:
            least = max(self.min_bytes, self.min_share * device.history.peak_bytes)
            if not (g.rises >= least).all():
                continue
            if not own_frames(device, g):
                raise NotCaptured("no frame of your own code where memory grows", CAPTURE_ADVICE)
            site_and_blocks = explaining_frame(device, g, self.one_frame)
            if site_and_blocks is not None:
                yield self._claim(ctx, device, g, *site_and_blocks, sure=evidence.frames_kind == "all")

    def _of_trace(self, trace_growth: TraceGrowth) -> Iterator[Claim]:
        """Without a snapshot: the trace's own events tell how much, and stacks in which function."""
        if max(len(d.live) for d in trace_growth.devices) < self.min_boundaries:
            raise NotCaptured(f"fewer than {self.min_boundaries} steps in the trace", TRACE_ADVICE)
        steps = trace_growth.steps
        for risen in trace_growth.devices:
            least = max(self.min_bytes, self.min_share * risen.peak)
            if not (risen.rises >= least).all() or not trace_growth.explained(risen, self.one_frame):
                continue
            site, per_step = trace_growth.site(risen, self.one_frame), int(np.median(risen.rises))
            where = f" in {site}" if site is not None else ""
            device = None if risen.device < 0 else risen.device
            of = "the host" if device is None else f"GPU {device}"
            live = [[s.index, held] for s, held in zip(steps.steps, risen.live.tolist(), strict=True)]
            yield Claim(
                message=f"Allocated memory of {of} grows by {size(per_step)} per step over {len(live)} steps{where}. "
                "Nothing frees what each step leaves allocated.",
                confidence="medium",
                severity="warning",
                location=location(site, device=device),
                evidence=[
                    replace(
                        table(
                            "Memory at the end of each step",
                            {steps.heading: "count", "allocated": "bytes"},
                            live,
                            20,
                        ),
                        of=len(live),
                    )
                ],
                fixes=[_fix(site)],
                key="growth",
            )

    def _claim(
        self, ctx: Context, device: DeviceBlocks, g: Growth, site: Site, blocks: np.ndarray, *, sure: bool
    ) -> Claim:
        history = device.history
        per_step = int(np.median(g.rises))
        ends = np.array(g.boundaries)
        without = history.peak_without(blocks)
        fall = history.peak_bytes - without
        until = _steps_left(device, ctx.options.device_bytes, per_step)
        outlook = f" The GPU is full in {until:,} steps." if until is not None else ""
        return Claim(
            message=f"Allocated memory grows by {size(per_step)} per step over {len(ends)} steps in {site}. "
            f"Measured after {g.of}.{outlook}",
            confidence="high" if sure else "medium",
            severity=None if fall else "warning",
            saving=peak_saving(
                history.peak_bytes,
                without,
                f"with nothing retained; a longer run gains {size(per_step)} more per step",
            )
            if fall
            else None,
            location=location(site, device=device.device),
            evidence=[_table(g), holders(device.holders(blocks), "Retained by the steps")],
            fixes=[_fix(site)],
            key="growth",
        )


def _steps_left(device: DeviceBlocks, device_bytes: int | None, per_step: int) -> int | None:
    """Steps until the reserved memory fills the device, where its size is known."""
    history = device.history
    if device_bytes is None:
        return None
    return max(0, int((device_bytes - int(history.live[-1])) // per_step))


def _table(g: Growth) -> Table:
    rows = list(zip(range(len(g.live)), g.live.tolist(), [None, *g.rises.tolist()], strict=True))
    heads: dict[str, Unit] = {COUNTED: "count", "allocated": "bytes", "growth": "bytes"}
    return table(f"Memory after each {g.of}", heads, rows, 20)


def _fix(site: Site | None) -> Fix:
    return patch(
        title="Detach before storing",
        safety="unsafe",
        codemod="detach-accumulation",
        target=None if site is None else Target(file=site.file, line=site.line, function=site.function),
        text="total += loss.detach()          # or loss.item()\noutputs.append(out.detach().cpu())",
        verify="a new snapshot of at least four steps ends every step with the same allocated bytes",
        risk="code that calls backward() through the kept tensor needs its graph",
    )
