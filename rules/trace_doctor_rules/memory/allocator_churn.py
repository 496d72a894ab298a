"""TD401 allocator-churn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext

import numpy as np

from trace_doctor import Claim, Context, Fix, NotCaptured, Rule, Table, threshold
from trace_doctor.evidence.distributed.ranks import listed
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.memory.allocator import (
    AllocatorActivity,
    DeviceActivity,
    DriverCalls,
    Episode,
    asked_again,
)  # fmt: skip
from trace_doctor.evidence.memory.blocks import DeviceBlocks, MemoryBlocks
from trace_doctor.evidence.memory.timeline import CAPTURE_ADVICE
from trace_doctor.evidence.memory.whole_steps import WholeSteps, must_hold_steps
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import MIB, Invalid, RunBuilder, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import site_of, table, target
from trace_doctor_rules.memory._driver_time import cost_of
from trace_doctor_rules.memory._shared import already, expandable_segments, size, times

WHY = {
    "pressure": "The device has no memory left for a new segment, so malloc frees cached ones first.",
    "empty_cache": "The script calls torch.cuda.empty_cache().",
    "gc_threshold": "garbage_collection_threshold is set.",
    "unknown": "What freed the memory was not recorded.",
}
_VERIFY = "a new snapshot has no segment_free with emptyCache frames between steps"


def _pressure(rounds: int, *, grow: bool = False, annotate: bool = True, quiet: int = 0) -> SnapshotBuilder:
    """Every step needs another size, and nothing cached fits; in some more the last one does."""
    b = SnapshotBuilder(annotate=annotate)
    b.held(200 * MIB)
    for i in range(rounds + quiet):
        with b.forward(line=40):
            block = b.alloc((300 + 40 * (i if grow else min(i, rounds) % 2)) * MIB)
            b.free(block)
            if not grow and i < rounds:
                b.release_cached()
        with b.optimizer_step():
            b.temporary(MIB)
    return b


def _without_takes(b: SnapshotBuilder) -> SnapshotBuilder:
    b.entries = [e for e in b.entries if e["action"] != "segment_alloc"]
    return b


def _empty_cache(rounds: int, *, quiet: int = 0) -> SnapshotBuilder:
    b = SnapshotBuilder()
    for i in range(rounds + quiet):
        with b.forward():
            b.temporary(500 * MIB)
        with b.optimizer_step():
            b.temporary(MIB)
        if i < rounds:
            b.empty_cache(line=21)
    return b


def _oom_retries() -> SnapshotBuilder:
    """Before each failure malloc gives back all it can; the next batch is smaller and takes it again."""
    b = SnapshotBuilder()
    for _ in range(4):
        with b.forward():
            b.temporary(500 * MIB)
            b.release_cached()
            b.oom(4000 * MIB, device_free=100 * MIB)
        with b.optimizer_step():
            b.temporary(MIB)
    return b


def _warm_up() -> SnapshotBuilder:
    """The first step tries algorithms with workspaces of many sizes and gives them back."""
    b = SnapshotBuilder()
    for _ in range(4):
        with b.forward():
            b.temporary(400 * MIB)
        b.release_cached()
    b.train(4)
    return b


def _calls(
    steps: int, *, totals: bool = False, only_growth: bool = False, marked: bool = True, in_turn: bool = False
) -> RunBuilder:
    """`in_turn`: one step takes, the next one frees."""
    b = RunBuilder(memory=totals)
    for i in range(steps):
        with b.step() if marked else nullcontext():
            with b.op("aten::empty"):
                if not (in_turn and i % 2):
                    b.runtime("cudaMalloc", 150)
                if totals:
                    b.memory(MIB, reserved=(1000 + (100 * i if only_growth else 0)) * MIB)
            for _ in range(5):
                b.run_op("aten::mm", 60)
            if not only_growth and not (in_turn and not i % 2):
                b.runtime("cudaFree", 200)
            if totals:
                b.memory(-MIB, reserved=(1000 + 100 * i if only_growth else 700) * MIB)
    return b


def _idle() -> RunBuilder:
    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(60)
    return b


def _settled() -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(5)
    return b


class AllocatorChurn(Rule):
    """The caching allocator repeatedly returns device memory to the driver and requests it again.

    What it does
    Follows reserved memory and counts cycles: segments are freed, then memory is allocated again below an earlier maximum.
    In a trace without totals it counts the steps that both allocate and free through the driver.

    Why is this bad
    `cudaMalloc` and `cudaFree` are slow, and `cudaFree` waits until the device is idle. Every cycle blocks the host and
    drains the GPU's queue. A settled allocator calls neither.

    Evidence
    Segment events of a snapshot (`segment_alloc`, `segment_free`, `segment_map`, `segment_unmap`), or Total Reserved of a
    trace's `[memory]` events, or the driver calls. Not counted: first growth, however long, a single empty_cache(), the
    retries before an out-of-memory error, and the first step. The frames of the freed segments give the cause: `emptyCache`,
    or `malloc` itself under memory pressure. A snapshot of fewer than three whole steps that shows no such cycles is skipped.

    How the saving is estimated
    With a trace: the steady steps are simulated without the allocation calls. An upper bound, because some may be needed
    once. A snapshot has no durations: the reallocated bytes are given, and no time is claimed.

    Fix
    `expandable_segments:True` lets a segment grow in place, so that blocks of every size share the same memory. Set it in the
    environment or before torch is imported. Variable shapes: pad or bucket them, or run the largest shape first. Remove
    `torch.cuda.empty_cache()` from the loop.

    Fix safety
    Unsafe: where memory lies does not change results, but what else sets or reads the variable does not show in a script.
    Without empty_cache() other processes may see more memory as used.

    When to ignore
    When another process needs the memory in between, which is what empty_cache() is for.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html
    """

    code = "TD401"
    name = "allocator-churn"
    title = "Allocator repeatedly frees and reallocates memory"
    about = ("allocator",)
    needs = (AllocatorActivity,)
    wants = (MemoryBlocks, WholeSteps, Steps, Replay, IdleLedger, Moments, CallSites)
    yields_to = ("TD409",)

    min_episodes: int = threshold(
        3,
        "separate cycles of freeing and reallocating",
        source="92 real snapshots: ramps have none, churn has 39",
    )
    min_share: float = threshold(
        0.10,
        "bytes reallocated, as a share of peak reserved memory",
        unit="share",
        source="92 real snapshots: start-up ramps have exactly none",
    )
    min_steps: int = threshold(
        3,
        "steady steps that both allocate and free through the driver, in a trace without totals",
        source="one or two may be an evaluation or a checkpoint: a note, with low confidence",
    )
    min_cost: float = threshold(
        0.01,
        "what driver calls of fewer steps cost, as a share of the steady steps",
        unit="share",
        source="less is no reason to look",
    )
    warm_up_of: int = threshold(
        3,
        "steps in a snapshot from which on the first counts as warm-up",
        source="of two steps either may be the first",
    )

    VALID = [
        Valid("a ramp: ever larger, nothing given back", lambda: _pressure(8, grow=True)),
        Valid("two episodes", lambda: _pressure(3, quiet=3)),
        Valid(
            "without the entries of allocated segments",
            lambda: _without_takes(_pressure(8)),
            skipped="none that is allocated",
        ),
        Valid("in a history of two steps", lambda: _pressure(2), skipped="fewer than 3 whole steps"),
        Valid("one empty_cache", lambda: _empty_cache(1, quiet=4)),
        Valid("retries before out-of-memory errors", _oom_retries),
        Valid("only in the first of several steps", _warm_up),
        Valid("a settled allocator", _settled),
        Valid("cudaMalloc in every step, growing", lambda: _calls(6, totals=True, only_growth=True)),
        Valid("cudaMalloc without cudaFree", lambda: _calls(6, only_growth=True, marked=False)),
        Valid(
            "driver calls in two steps that cost next to nothing",
            lambda: _calls(2),
            thresholds={"min_cost": 0.99},
        ),
        Valid("taken in one step and freed in another", lambda: _calls(8, in_turn=True)),
        Valid("driver calls without steps", lambda: _calls(6, marked=False), skipped="no step markers"),
        Valid("a small part", lambda: _pressure(8), thresholds={"min_share": 99.0}),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]
    INVALID = [
        Invalid(
            "malloc under memory pressure",
            lambda: _pressure(8),
            message="no memory left",
            shown="forward() (/home/me/model.py:40) | ",
            confidence="high",
            severity="warning",
            codemod="allocator-setting",
            file="/home/me/model.py",
            line=40,
        ),
        Invalid("empty_cache in the loop", lambda: _empty_cache(6), message="empty_cache", codemod="remove-call", file="/home/me/train.py", line=21),
        Invalid("beside a trace without such calls", lambda: (_idle(), _pressure(8)), severity="warning"),
        Invalid(
            "driver calls in every step",
            lambda: _calls(6),
            message="cudaFree and cudaMalloc in 6 of 6 steps",
            confidence="medium",
            shown="cudaMalloc | 6 | 900.0",
            thresholds={"min_steps": 6},
        ),
        Invalid("driver calls in two steps", lambda: _calls(2), message="in 2 of 2 steps. Low confidence", confidence="low"),
        Invalid("reserved totals of a trace", lambda: _calls(6, totals=True), message="frees and reallocates", confidence="high"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        activity, found = ctx[AllocatorActivity], False
        for device in activity.devices:
            episodes = self._steady(ctx, device)
            again = sum(e.bytes for e in episodes)
            if len(episodes) >= self.min_episodes and again >= self.min_share * device.max_reserved:
                found = True
                yield self._claim(ctx, activity, device, episodes, again)
        of_snapshots = [d for d in activity.devices if d.source == "snapshot"]
        if not found and any(d.gives >= self.min_episodes and not d.takes for d in of_snapshots):
            raise NotCaptured(
                "segments that are freed repeatedly, and none that is allocated", CAPTURE_ADVICE
            )
        if not found and of_snapshots:
            must_hold_steps(ctx.get(WholeSteps), self.min_episodes)
        if not activity.devices and activity.calls is not None:
            yield from self._from_calls(ctx, activity.calls, activity.settings)

    def _steady(self, ctx: Context, device: DeviceActivity) -> list[Episode]:
        """Without those of warm-up: the first of several steps of a snapshot, or what a trace calls warm-up."""
        if device.source == "trace":
            steps = ctx.get(Steps)
            spans = steps.spans("steady") if steps is not None else []
            return [e for e in device.episodes if any(a <= e.taken < b for a, b in spans)]
        blocks = _blocks(ctx, device.device)
        ends = blocks.phases.step_ends if blocks is not None else []
        return [e for e in device.episodes if len(ends) < self.warm_up_of or e.given >= ends[0]]

    def _claim(
        self,
        ctx: Context,
        activity: AllocatorActivity,
        device: DeviceActivity,
        episodes: Sequence[Episode],
        again: int,
    ) -> Claim:
        blocks = _blocks(ctx, device.device) if device.source == "snapshot" else None
        causes = [e.cause for e in episodes]
        cause = max(sorted(set(causes)), key=causes.count)
        site = _site(blocks, episodes, cause)
        why = f" {WHY[cause]}" if device.source == "snapshot" else ""
        evidence = [_summary(device, episodes, again)]
        if blocks is not None:
            evidence.append(_askers(blocks, episodes))
        claim = Claim(
            message=f"The allocator frees and reallocates device memory {times(len(episodes))}, {size(again)} in total "
            f"({again / device.max_reserved:.1f}× peak reserved).{why}{already(activity.settings)}",
            confidence="high",
            location=location(site, device=device.device),
            evidence=evidence,
            fixes=_fixes(cause, site, activity.settings),
            owned=() if blocks is None else [(e.given, e.taken + 1) for e in episodes],
            key=cause,
        )
        return cost_of(ctx, activity.calls).added_to(claim)

    def _from_calls(
        self, ctx: Context, calls: DriverCalls, settings: Mapping[str, object]
    ) -> Iterator[Claim]:
        """A trace without totals: steps that both take and free."""
        if calls.takes.all() or not calls.takes.any():
            return
        steps = ctx.get(Steps)
        if steps is None or not steps.steps:
            raise NotCaptured(
                "no step markers to tell repeated reallocation from warm-up",
                "prof.step() after every step, or profile_memory=True",
            )
        within = [calls.within(*span) for span in steps.spans("steady")]
        both = [c for c in within if c.takes.any() and not c.takes.all()]
        if not both:
            return
        cost, few = cost_of(ctx, calls), len(both) < self.min_steps
        if few and (cost.saving is None or (cost.saving.share_of_step or 0.0) < self.min_cost):
            return
        site = site_of(ctx, int(both[0].row[both[0].takes][0]))
        claim = Claim(
            message=f"The allocator calls {listed(sorted(set(calls.name)))} in {len(both)} of {steps.count} steps."
            + (
                " Low confidence: so few steps may be an evaluation or a first batch of its size."
                if few
                else ""
            ),
            confidence="low" if few else "medium",
            location=location(site),
            evidence=[_call_table(calls)],
            fixes=_fixes("unknown", site, settings),
            key="calls",
        )
        yield cost.added_to(claim)


def _blocks(ctx: Context, device: int) -> DeviceBlocks | None:
    blocks = ctx.get(MemoryBlocks)
    return next((d for d in blocks.devices if d.device == device), None) if blocks is not None else None


def _site(blocks: DeviceBlocks | None, episodes: Sequence[Episode], cause: str) -> Site | None:
    """The line to look at: the call of empty_cache, else where most memory is asked for again."""
    if blocks is None:
        return None
    if cause == "empty_cache":
        stacks = [e.stack for e in episodes if e.cause == cause]
        return blocks.stacks.user_site(max(sorted(set(stacks)), key=stacks.count))
    by_stack = asked_again(blocks.history, episodes)
    best = max(sorted(by_stack), key=lambda stack: sum(by_stack[stack]), default=None)
    return None if best is None else blocks.stacks.user_site(best)


def _askers(blocks: DeviceBlocks, episodes: Sequence[Episode]) -> Table:
    by_stack = asked_again(blocks.history, episodes)
    order = sorted(by_stack, key=lambda stack: (-sum(by_stack[stack]), stack))
    rows = [
        (blocks.place(s), len(by_stack[s]), min(by_stack[s]), max(by_stack[s]), len(set(by_stack[s])))
        for s in order
    ]
    return table(
        "Allocations that caused reallocation",
        {
            "allocated at": "location",
            "reallocations": "count",
            "smallest": "bytes",
            "largest": "bytes",
            "distinct sizes": "count",
        },
        rows,
        10,
    )


def _summary(device: DeviceActivity, episodes: Sequence[Episode], again: int) -> Table:
    return table(
        f"Allocator segments, device {device.device} ({device.source})",
        {"metric": "text", "count": "count", "bytes": "bytes"},
        [
            ["peak reserved", None, device.max_reserved],
            ["segments allocated", device.takes, None],
            ["segments freed", device.gives, None],
            ["free and reallocate cycles", len(episodes), again],
            ["largest cycle", 1, max(e.bytes for e in episodes)],
        ],
    )


def _call_table(calls: DriverCalls) -> Table:
    took = (calls.end - calls.start) / 1e3
    rows = []
    for name in sorted(set(calls.name)):
        own = np.array([n == name for n in calls.name])
        rows.append((name, int(own.sum()), float(took[own].sum())))
    return table("Driver calls in the capture", {"call": "text", "calls": "count", "time": "us"}, rows)


def _fixes(cause: str, site: Site | None, settings: Mapping[str, object]) -> list[Fix]:
    fixes = [techniques.keep_the_cache(_VERIFY, target(site))] if cause == "empty_cache" else []
    shapes = techniques.steady_shapes("segments are allocated in the first step only")
    return [*fixes, *expandable_segments(settings), shapes]
