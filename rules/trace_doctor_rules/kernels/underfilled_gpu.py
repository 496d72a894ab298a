"""TD308 underfilled-gpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from trace_doctor import Claim, Context, Fix, Location, NotCaptured, Rule, Table, threshold
from trace_doctor.arrays import Bool
from trace_doctor.evidence.compute.gpu_counters import MEMORY_THROUGHPUT, SM_ACTIVE, GpuCounters
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.intervals import pairs, union
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules._shared import table
from trace_doctor_rules.kernels._shared import ROWS, by_model, longest_of, negligible, with_sources
from trace_doctor_rules.kernels._underfilled_gpu_evidence import KernelGrids

GIB = 1 << 30


def _training(
    *,
    blocks: int = 16,
    share: float = 0.8,
    peak: int = 8 * GIB,
    memory: bool = True,
    size: int = 80 * GIB,
    marked: bool = True,
    blocks_per_sm: float | None = None,
    grid: Any = None,
    active: float | None = None,
    sampled: int = 40,
) -> RunBuilder:
    """Steps of 1 ms of kernels, of which `share` have so few blocks; the GPU has 132 multiprocessors. `blocks_per_sm`: the blocks of
    each that the file says itself. `active`: percent of the SMs that are active while these run, sampled in so many of them."""
    b = RunBuilder(memory=memory, gpu_bytes=size)
    more: dict[str, Any] = {} if blocks_per_sm is None else {"blocks per SM": blocks_per_sm}
    for n in range(4):
        if active is not None:
            b.events += _samples(b, active, share, min(10, sampled - 10 * n))
        with b.step() if marked else nullcontext():
            if memory:
                b.memory(peak if n == 0 else 512, reserved=peak)
            for _ in range(10):
                with b.op("aten::mm", us=2):
                    b.launch(
                        100 * share,
                        "sm90_xmma_gemm_bf16bf16",
                        grid=[blocks, 1, 1] if grid is None else grid,
                        **more,
                    )
                with b.op("aten::gelu", us=2):
                    b.launch(100 * (1 - share), grid=[1024, 1, 1] if grid is None else grid)
            if active is not None:
                b.sync()
    return b


def _samples(b: RunBuilder, active: float, share: float, kernels: int) -> list[dict[str, Any]]:
    """Ten samples of two counters in each of so many kernels with few blocks of the next step, and one behind it."""
    now, events = b.now, b.events
    b.events = []
    for kernel in range(kernels):
        for part in range(11):
            b.now = now + 9 + 100 * kernel + 10 * share * part
            b.counter(SM_ACTIVE, active)
            b.counter(MEMORY_THROUGHPUT[0], active / 2)
        b.now = now + 9 + 100 * kernel + 99.5
        b.counter(SM_ACTIVE, 100.0)
    samples, b.events, b.now = b.events, events, now
    return samples


def _unknown_chip() -> RunBuilder:
    b = _training()
    del b.meta["deviceProperties"][0]["numSms"]
    return b


class UnderfilledGpu(Rule):
    """Most kernels have fewer thread blocks than the GPU has SMs, and most of its memory is unused.

    What it does
    Adds up the time of kernels with too few thread blocks for all SMs, where memory allows larger batches.

    Why is this bad
    A thread block runs on one streaming multiprocessor (SM). A kernel with 16 blocks uses 16 of 132 SMs, however long it
    runs. In the same time the GPU could do several times the work.

    Evidence
    `blocks per SM` of the kernels of a typical step (else their grid over the number of SMs), the longest first until
    98% of their time. Where `SM Active (%)` was sampled while kernels of these names ran, that counts instead. The peak of allocated memory against the memory of the device, from the trace's `[memory]` totals
    or a snapshot.

    How the saving is estimated
    A model, per unit of work: with a batch that fills the SMs, a kernel that used a share of them does the same work in
    that share of its time. It is never more than the captured steps gain without these kernels (replay). A step itself
    does not become shorter: it does more work.

    Fix
    Increase the batch size as far as memory allows. With gradient accumulation, use fewer and larger micro-batches.

    Fix safety
    Unsafe: a larger batch changes the training. Adapt the learning rate and its schedule.

    When to ignore
    In inference of single requests, and where the batch size is part of the experiment.

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution
    """

    code = "TD308"
    name = "underfilled-gpu"
    title = "Small kernels leave SMs idle"
    needs = (Steps, Kernels, KernelGrids, Replay, Moments)
    wants = (MemoryLedger, GpuCounters, KernelSites)

    min_share: float = threshold(
        0.50,
        "kernels with few thread blocks, as a share of kernel time",
        unit="share",
        source="70 real captures: 47 have at most 40%, 22 have 66 to 100%, one lies between",
    )
    max_blocks_per_sm: float = threshold(
        0.8,
        "thread blocks per SM below which a kernel underfills the GPU",
        source="kernels that keep one block on each SM use 128 of 132 and the like on purpose",
    )
    max_peak: float = threshold(
        0.50,
        "peak allocated memory, as a share of the device",
        unit="share",
        source="a batch twice as large still fits",
    )

    VALID = [
        Valid("many blocks", lambda: _training(blocks=1024)),
        Valid("one block on nearly every multiprocessor", lambda: _training(blocks=128)),
        Valid("less than half of the time", lambda: _training(share=0.4)),
        Valid("SMs are active, as sampled", lambda: _training(active=92.0)),
        Valid("memory is full", lambda: _training(peak=60 * GIB)),
        Valid("no memory recorded", lambda: _training(memory=False), skipped="memory"),
        Valid("as many blocks as asked for", _training, thresholds={"max_blocks_per_sm": 16 / 132}),
        Valid("memory of unknown size", lambda: _training(size=0), skipped="device memory size"),
        Valid("no grids", lambda: _training(grid=[]), skipped="blocks"),
        Valid("grids that are no list", lambda: _training(grid=16), skipped="blocks"),
        Valid("grids of no numbers", lambda: _training(grid=["16", 1, 1]), skipped="blocks"),
        Valid("multiprocessors that are not known", _unknown_chip, skipped="blocks"),
        Valid("no GPU", without_gpu, skipped="no GPU work"),
    ]
    INVALID = [
        Invalid("16 blocks on 132 multiprocessors", _training, message="fill 12% of the SMs. Only 10% of GPU memory", confidence="low", saving_us=703, thresholds={"min_share": 0.8}),
        Invalid(
            "SM activity was sampled",
            lambda: _training(active=14.0),
            message="take 82% of kernel time and keep 14% of the SMs active, as sampled, at 7% of the memory throughput. Only",
            confidence="medium",
        ),
        Invalid("SM activity was sampled too rarely", lambda: _training(active=92.0, sampled=1), message="fill 12%", confidence="low"),
        Invalid("told by the file", lambda: _training(blocks=1024, blocks_per_sm=0.1), message="fill 10%"),
        Invalid("told wrong", lambda: _training(blocks_per_sm=-1), message="fill 12%"),
        Invalid("without marks of steps", lambda: _training(marked=False), message="fill 12%"),
        Invalid("a device of a known size", lambda: _training(peak=10 * GIB), options={"device_bytes": 24 * GIB}, message="Only 42% of GPU memory"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        kernels, grids = ctx[Kernels], ctx[KernelGrids]
        ns = kernels.ns[grids.places].astype(np.float64)
        few = grids.blocks_per_sm < self.max_blocks_per_sm
        share = float(ns[few].sum() / max(ns.sum(), 1.0))
        if share < self.min_share:
            return
        peak, size = _memory(ctx, kernels)
        if peak > self.max_peak * size:
            return
        used = float((ns * grids.blocks_per_sm)[few].sum() / ns[few].sum())
        active, throughput = _sampled(ctx, kernels, grids, few)
        if active is not None and active >= self.max_blocks_per_sm:
            return  # they run alongside others, or their blocks are larger than the file says
        used = used if active is None else active
        units = "CUs" if kernels.is_amd else "SMs"
        mask = np.zeros(len(kernels.rows), dtype=bool)
        mask[grids.places[few]] = True
        saving = by_model(
            kernels, ctx[Replay], mask, 1 - used,
            f"they fill {used:.0%} of the {units}; a batch that fills all does the same work in that share of the time",
            one_step=True,
        )  # fmt: skip
        yield Claim(
            message=(
                f"Kernels with few thread blocks take {share:.0%} of kernel time and "
                f"{_filled(used, units, sampled=active is not None)}{_throughput(throughput)}. "
                f"Only {peak / size:.0%} of GPU memory is allocated at the peak, so larger batches fit."
                f"{negligible(saving.share_of_step) or ' The saving is per unit of work.'}"
            ),
            confidence="low" if active is None else "medium",
            saving=saving,
            location=_location(ctx.get(KernelSites), kernels, mask),
            evidence=[
                with_sources(_table(kernels, grids, few, f"of {units}"), kernels, mask, ctx.get(KernelSites))
            ],
            spans=ctx[Moments].longest(longest_of(kernels, mask), "few thread blocks", device=kernels.device),
            fixes=[_fix(1 / max(used, 1e-3), size / max(peak, 1))],
            key="underfilled",
        )


def _location(sites: KernelSites | None, kernels: Kernels, mask: Bool) -> Location:
    """Where the kernel comes from that takes most of their time, if more than the stacks around its launch tells it."""
    rows = kernels.rows[mask & kernels.named(kernels.by_name(mask)[0][0].__eq__)]
    longest = int(rows[kernels.run.dur[rows].argmax()])
    known = sites is not None and sites.beyond_launches
    return location(sites.site(longest) if sites is not None and known else None, device=kernels.device)


def _sampled(
    ctx: Context, kernels: Kernels, grids: KernelGrids, few: np.ndarray
) -> tuple[float | None, float | None]:
    """Share of the SMs that were active, and of the memory throughput, while kernels of these names ran; None where neither was
    sampled often enough."""
    counters, run = ctx.get(GpuCounters), kernels.run
    if counters is None:
        return None, None
    names = np.unique(run.name[kernels.rows[grids.places[few]]])
    rows = kernels.rows[np.isin(run.name[kernels.rows], names)]
    spans = union(pairs(run.ts[rows], run.end[rows]))
    shares = (counters.mean(kernels.device, spans, *which) for which in ((SM_ACTIVE,), MEMORY_THROUGHPUT))
    active, throughput = (None if percent is None else percent / 100 for percent in shares)
    return active, throughput


def _filled(used: float, units: str, *, sampled: bool) -> str:
    return (
        f"keep {used:.0%} of the {units} active, as sampled" if sampled else f"fill {used:.0%} of the {units}"
    )


def _throughput(share: float | None) -> str:
    return "" if share is None else f", at {share:.0%} of the memory throughput"


def _memory(ctx: Context, kernels: Kernels) -> tuple[int, int]:
    """Peak of allocated bytes of the device, and its size. Raises NotCaptured where one is not known."""
    size = ctx.options.device_bytes or kernels.memory_bytes
    ledger = ctx.get(MemoryLedger)
    row = next((r for r in ledger.rows if r.device == kernels.device), None) if ledger is not None else None
    if row is None or not row.peak_bytes:
        raise NotCaptured("memory not recorded", "profile(..., profile_memory=True)")
    if not size:
        raise NotCaptured("device memory size not recorded", "the setting device-memory with the bytes")
    return row.peak_bytes, size


def _table(kernels: Kernels, grids: KernelGrids, few: np.ndarray, filled: str) -> Table:
    by_name: dict[str, tuple[int, int, float]] = {}
    for place, blocks in zip(grids.places[few].tolist(), grids.blocks_per_sm[few].tolist(), strict=True):
        name, ns = kernels.run.text(int(kernels.rows[place])), int(kernels.ns[place])
        count, time, weighted = by_name.get(name, (0, 0, 0.0))
        by_name[name] = (count + 1, time + ns, weighted + ns * blocks)
    ranked = sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))
    return table(
        "Kernels with few thread blocks",
        {"kernel": "code", "count/step": "count", "time/step": "us", filled: "share"},
        [
            [name[:160], count, time / 1e3, weighted / max(time, 1)]
            for name, (count, time, weighted) in ranked
        ],
        ROWS,
    )


def _fix(fills: float, fits: float) -> Fix:
    factor = min(fills, fits)
    return Fix(
        title=f"Increase batch size up to {factor:.1f}×",
        kind="advice",
        text=(
            f"DataLoader(..., batch_size=<up to {factor:.1f}× as large>)\n"
            f"# {fills:.1f}× the work fills the SMs; memory holds {fits:.1f}× the peak, and parameters and optimizer\n"
            "# state do not grow. With gradient accumulation: fewer and larger micro-batches"
        ),
        verify="Record the same steps with larger batches: the time per sample is shorter.",
        risk="fewer and larger steps: the learning rate and its schedule have to follow",
    )
