"""TD308 underfilled-gpu."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from trace_doctor import Claim, Context, Fix, Location, NotCaptured, Rule, Table, threshold
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.memory.ledger import MemoryLedger
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid, without_gpu
from trace_doctor_rules._shared import table
from trace_doctor_rules.kernels._shared import ROWS, by_model, longest_of, promise
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
    told: float | None = None,
    grid: Any = None,
) -> RunBuilder:
    """Steps of 1 ms of kernels, of which `share` have so few blocks; the GPU has 132 multiprocessors. `told`: the blocks of
    each that the file says itself."""
    b = RunBuilder(memory=memory, gpu_bytes=size)
    more: dict[str, Any] = {} if told is None else {"blocks per SM": told}
    for n in range(4):
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
    return b


def _unknown_chip() -> RunBuilder:
    b = _training()
    del b.meta["deviceProperties"][0]["numSms"]
    return b


class UnderfilledGpu(Rule):
    """Most kernels have fewer blocks than the GPU has multiprocessors, and most of its memory is free.

    What it does
    Adds up the time of kernels whose blocks leave part of the GPU without work, where memory would allow larger batches.

    Why is this bad
    A block runs on one multiprocessor. A kernel with 16 blocks uses 16 of 132 of them, however long it runs: the same time
    would do for several times the work.

    Evidence
    `blocks per SM` of the kernels of a typical step (else their grid over the number of multiprocessors), the longest
    first until 98 % of their time. The peak of allocated memory against the memory of the device, from the trace's
    `[memory]` totals or a snapshot.

    How the saving is estimated
    A model, per unit of work: with a batch that fills the GPU, a kernel that used a share of it does the same work in that
    share of its time. Never more than the captured steps would gain without these kernels (replay). A step itself does
    not become shorter, it does more.

    Fix
    Larger batches, as far as memory lets them; where gradients are accumulated over several small batches, fewer and
    larger ones.

    Fix safety
    Unsafe: larger batches are another training; learning rate and schedule have to follow.

    When to ignore
    In inference of single requests, and where the batch size is part of the experiment.

    References
    https://docs.nvidia.com/deeplearning/performance/dl-performance-gpu-background/index.html#gpu-execution
    """

    code = "TD308"
    name = "underfilled-gpu"
    title = "Kernels leave most of the GPU idle, and memory is free"
    needs = (Steps, Kernels, KernelGrids, Replay, Moments)
    wants = (MemoryLedger,)

    min_share: float = threshold(
        0.50,
        "kernels with few blocks, as a share of all kernels",
        unit="share",
        source="70 real captures: 47 have at most 40 %, 22 have 66 to 100 %, one lies between",
    )
    max_blocks_per_sm: float = threshold(
        0.8,
        "blocks for each multiprocessor below which a kernel underfills the GPU",
        source="kernels that keep one block on each use 128 of 132 and the like on purpose",
    )
    max_peak: float = threshold(
        0.50,
        "peak of allocated memory, as a share of the device",
        unit="share",
        source="a batch twice as large still fits",
    )

    VALID = [
        Valid("many blocks", lambda: _training(blocks=1024)),
        Valid("one block on nearly every multiprocessor", lambda: _training(blocks=128)),
        Valid("less than half of the time", lambda: _training(share=0.4)),
        Valid("memory is full", lambda: _training(peak=60 * GIB)),
        Valid("no memory recorded", lambda: _training(memory=False), skipped="memory"),
        Valid("as many blocks as asked for", _training, thresholds={"max_blocks_per_sm": 16 / 132}),
        Valid("memory of unknown size", lambda: _training(size=0), skipped="memory of the device"),
        Valid("no grids", lambda: _training(grid=[]), skipped="blocks"),
        Valid("grids that are no list", lambda: _training(grid=16), skipped="blocks"),
        Valid("grids of no numbers", lambda: _training(grid=["16", 1, 1]), skipped="blocks"),
        Valid("multiprocessors that are not known", _unknown_chip, skipped="blocks"),
        Valid("no GPU", without_gpu, skipped="no GPU work"),
    ]
    INVALID = [
        Invalid("16 blocks on 132 multiprocessors", _training, message="10% of the memory", confidence="low", saving_us=703, thresholds={"min_share": 0.8}),
        Invalid("told by the file", lambda: _training(blocks=1024, told=0.1), message="use 10%"),
        Invalid("told wrong", lambda: _training(told=-1), message="use 12%"),
        Invalid("without marks of steps", lambda: _training(marked=False), message="use 12%"),
        Invalid("a device of a known size", lambda: _training(peak=10 * GIB), options={"device_bytes": 24 * GIB}, message="42% of the memory"),
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
        mask = np.zeros(len(kernels.rows), dtype=bool)
        mask[grids.places[few]] = True
        saving = by_model(
            kernels, ctx[Replay], mask, 1 - used,
            f"they use {used:.0%} of the multiprocessors; a batch that fills the GPU does so much more in the same time",
            one_step=True,
        )  # fmt: skip
        yield Claim(
            message=(
                f"Kernels with too few blocks for the GPU take {share:.0%} of the kernels' time and use {used:.0%} of its "
                f"multiprocessors, while {peak / size:.0%} of the memory is used: with larger batches, for the same work, "
                f"{promise(saving)}."
            ),
            confidence="low",
            saving=saving,
            location=Location(device=kernels.device),
            evidence=[_table(kernels, grids, few)],
            spans=ctx[Moments].longest(longest_of(kernels, mask), "too few blocks", device=kernels.device),
            fixes=[_fix(1 / max(used, 1e-3), size / max(peak, 1))],
            key="underfilled",
        )


def _memory(ctx: Context, kernels: Kernels) -> tuple[int, int]:
    """Peak of allocated bytes of the device, and its size. Raises NotCaptured where one is not known."""
    size = ctx.options.device_bytes or kernels.memory_bytes
    ledger = ctx.get(MemoryLedger)
    row = next((r for r in ledger.rows if r.device == kernels.device), None) if ledger is not None else None
    if row is None or not row.peak_bytes:
        raise NotCaptured(
            "memory was not recorded, so whether a larger batch fits is not known",
            "profile(..., profile_memory=True)",
        )
    if not size:
        raise NotCaptured(
            "the memory of the device is not known", "--device-memory, where the file has no deviceProperties"
        )
    return row.peak_bytes, size


def _table(kernels: Kernels, grids: KernelGrids, few: np.ndarray) -> Table:
    by_name: dict[str, tuple[int, int, float]] = {}
    for place, blocks in zip(grids.places[few].tolist(), grids.blocks_per_sm[few].tolist(), strict=True):
        name, ns = kernels.run.text(int(kernels.rows[place])), int(kernels.ns[place])
        count, time, weighted = by_name.get(name, (0, 0, 0.0))
        by_name[name] = (count + 1, time + ns, weighted + ns * blocks)
    ranked = sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))
    return table(
        "Kernels with few blocks (in a typical step)",
        {"kernel": "code", "times": "count", "time": "us", "of the multiprocessors": "share"},
        [
            [name[:160], count, time / 1e3, weighted / max(time, 1)]
            for name, (count, time, weighted) in ranked
        ],
        ROWS,
    )


def _fix(fills: float, fits: float) -> Fix:
    factor = min(fills, fits)
    return Fix(
        title=f"Take batches up to {factor:.1f} times as large",
        kind="advice",
        text=(
            f"DataLoader(..., batch_size=<up to {factor:.1f} times as large>)\n"
            f"# {fills:.1f} times as much work would fill the GPU; memory holds {fits:.1f} times the peak, and parameters and\n"
            "# optimizer state do not grow. Accumulating gradients: fewer, larger batches of the same sum"
        ),
        verify="record the same steps with larger batches: time for each sample is shorter",
        risk="fewer and larger steps: the learning rate and its schedule have to follow",
    )
