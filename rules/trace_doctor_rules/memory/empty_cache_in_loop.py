"""TD409 empty-cache-in-loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Literal

from trace_doctor import Claim, Context, NotCaptured, Rule, Table, Unit, threshold
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.memory.allocator import AllocatorActivity
from trace_doctor.evidence.memory.stages import MemoryStacks
from trace_doctor.evidence.memory.whole_steps import WholeSteps, must_hold_steps
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.call_sites import CallSites, Site, location
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import MIB, Invalid, RunBuilder, SnapshotBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table, target
from trace_doctor_rules.memory._driver_time import cost_of
from trace_doctor_rules.memory._empty_cache_in_loop_evidence import Burst, CacheEmptying
from trace_doctor_rules.memory._shared import size, times

_VERIFY = "no segment is freed between steps"


def _loop(
    rounds: int,
    *,
    lines: Sequence[int] = (21,),
    cached: int = 500,
    stacks: Literal["all"] | None = "all",
    quiet: int = 0,
) -> SnapshotBuilder:
    """A step, then empty_cache() on one of the lines of the script; some more steps without."""
    b = SnapshotBuilder(stacks=stacks)
    b.held(1000 * MIB)
    for i in range(rounds + quiet):
        with b.forward():
            b.temporary(cached * MIB)
        with b.optimizer_step():
            b.temporary(2 * MIB)
        if i < rounds:
            b.empty_cache(line=lines[i % len(lines)])
    return b


def _pressure() -> SnapshotBuilder:
    b = SnapshotBuilder()
    for i in range(8):
        with b.forward(line=40):
            b.temporary((300 + 40 * (i % 2)) * MIB)
            b.release_cached()
        with b.optimizer_step():
            b.temporary(MIB)
    return b


def _nothing_between() -> SnapshotBuilder:
    """Called three times in a row, of which only the first finds anything."""
    b = SnapshotBuilder()
    for step in range(5):
        with b.forward():
            b.temporary(500 * MIB)
        with b.optimizer_step():
            b.temporary(MIB)
        for _ in range(3 if not step else 0):
            b.empty_cache(line=21)
    return b


def _steps(
    *, stacks: bool, inside: bool = False, steps: int = 6, within: str = "train.py", marked: bool = True
) -> RunBuilder:
    """A trace whose steps take a segment inside an operator and free it outside of all, or inside of one. `within`: the
    file from which empty_cache() is called."""
    b = RunBuilder(stacks=stacks)
    with b.python("train.py", 12, "train"):
        for _ in range(steps):
            with b.step() if marked else nullcontext():
                with b.op("aten::empty"):
                    b.runtime("cudaMalloc", 150)
                for _ in range(5):
                    b.run_op("aten::mm", 60)
                if inside:
                    with b.op("aten::empty"):
                        b.runtime("cudaFree", 200)
                        b.runtime("cudaMalloc", 150)
                    continue
                with b.python(within, 190, "__enter__"), b.python("torch/cuda/memory.py", 212, "empty_cache"):
                    b.runtime("cudaFree", 200)
                    b.runtime("cudaFree", 200)
    return b


_BEFORE = f"""import torch
{11 * chr(10)}
def main():
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in loader:
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()
"""
_AFTER = _BEFORE.replace("        torch.cuda.empty_cache()\n", "")


class EmptyCacheInLoop(Rule):
    """torch.cuda.empty_cache() runs repeatedly.

    What it does
    Counts how often empty_cache(), called from one line of the script, really returns segments to the driver, with
    allocations in between.

    Why is this bad
    The allocator caches freed memory because the driver is slow: `cudaFree` waits until the device is idle, and `cudaMalloc`
    takes hundreds of microseconds. Emptied in a loop, the cache is rebuilt every time. This frees no memory that the job itself
    could not use: a request that finds no room empties the cache by itself.

    Evidence
    A snapshot's freed segments with frames of empty_cache(). In a trace: calls of `cudaFree` (`cuMemUnmap`, hip equivalents)
    inside a Python frame of empty_cache(). Without Python frames: calls outside all operators, because under memory pressure
    malloc makes them inside the requesting operator. Not counted: one call before the loop, a call that finds nothing to
    free, and the calls of `torch.cuda.graph` before each capture. A snapshot of fewer than three whole steps is skipped if it
    shows no repeated call.

    How the saving is estimated
    With a trace: the steady steps are simulated without the driver calls, including those that reallocate the memory. A
    snapshot has no durations: the freed bytes are given, and no time is claimed.

    Fix
    Remove the call. HF Trainer: leave `torch_empty_cache_steps` unset.

    Fix safety
    Unsafe: the process keeps the memory, so that other processes on the device see less of it.

    When to ignore
    When another process needs the memory in between.

    References
    https://docs.pytorch.org/docs/stable/generated/torch.cuda.memory.empty_cache.html
    https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-memory-management
    """

    code = "TD409"
    name = "empty-cache-in-loop"
    title = "empty_cache() called in the loop"
    about = ("allocator",)
    needs = (CacheEmptying, AllocatorActivity)
    wants = (MemoryStacks, WholeSteps, Steps, Replay, IdleLedger, Moments, CallSites)

    min_bursts: int = threshold(
        3,
        "times that one line frees segments, with allocations in between",
        source="one before the loop and one after it are normal; 13 real records with a call have one",
    )
    min_share: float = threshold(
        0.10,
        "bytes freed, as a share of peak reserved memory (snapshot)",
        unit="share",
        source="TD401's threshold",
    )

    VALID = [
        Valid("once before the loop", lambda: _loop(1, quiet=4)),
        Valid("twice", lambda: _loop(2, quiet=4)),
        Valid("in a history of two steps", lambda: _loop(2), skipped="fewer than 3 whole steps"),
        Valid("three calls on three lines", lambda: _loop(3, lines=(21, 35, 50), quiet=1)),
        Valid("called again without anything in between", _nothing_between),
        Valid("a few MiB", lambda: _loop(6, cached=12)),
        Valid("malloc under memory pressure", _pressure),
        Valid("cudaFree inside an operator", lambda: _steps(stacks=False, inside=True)),
        Valid("cudaFree, but no frame of empty_cache()", lambda: _steps(stacks=True, inside=True)),
        Valid("every capture of a CUDA graph empties it", lambda: _steps(stacks=True, within="torch/cuda/graphs.py")),
        Valid("neither frames nor steps", lambda: _steps(stacks=False, marked=False), skipped="neither frames nor steps"),
        Valid("two steps", lambda: _steps(stacks=True, steps=2)),
        Valid("given back again and again without frames", lambda: _loop(6, stacks=None), skipped="no frames recorded"),
        Valid("given back twice without frames", lambda: _loop(2, stacks=None, quiet=4)),
        Valid("no history", SnapshotBuilder, skipped="no allocation history"),
    ]  # fmt: skip
    INVALID = [
        Invalid("in a trace without steps", lambda: _steps(stacks=True, marked=False), message="frees 12 segments in 6 calls. The"),
        Invalid(
            "a snapshot",
            lambda: _loop(6),
            message="torch.cuda.empty_cache() in main() (/home/me/train.py:21) frees 2.93 GiB in 6 calls. The memory is reallocated 5 times.",
            shown="1 | 1 | 524288000",
            thresholds={"min_bursts": 6},
            severity="warning",
            confidence="high",
            codemod="remove-call",
            file="/home/me/train.py",
            line=21,
            before=_BEFORE,
            after=_AFTER,
        ),
        Invalid(
            "a trace with stacks",
            lambda: _steps(stacks=True),
            message="frees 12 segments in 6 calls over 6 steps.",
            shown="1 | 2 | 4",
            thresholds={"min_bursts": 6},
            confidence="high",
            file="train.py",
            saving_us=274.5,
        ),
        Invalid("a trace without stacks", lambda: _steps(stacks=False), confidence="medium", message="likely torch.cuda.empty_cache(), frees 12 segments in 6 calls over 6 steps."),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        emptying = ctx[CacheEmptying]
        if not any(emptying.by_device.values()) and emptying.unnamed >= self.min_bursts:
            raise NotCaptured(
                "no frames recorded where segments are freed repeatedly",
                "torch.cuda.memory._record_memory_history(context='all')",
            )
        found = False
        for device, bursts in emptying.by_device.items():
            if emptying.source == "trace":
                steady_bursts = self._steady(ctx, bursts, named=emptying.named)
                if len(steady_bursts) >= self.min_bursts:
                    yield self._of_trace(ctx, steady_bursts, named=emptying.named)
            elif steady_bursts := self._one_line(ctx, device, bursts):
                found = True
                yield self._of_snapshot(ctx, device, steady_bursts)
        if not found and emptying.source == "snapshot":
            must_hold_steps(ctx.get(WholeSteps), self.min_bursts)

    def _one_line(self, ctx: Context, device: int, bursts: Sequence[Burst]) -> list[Burst]:
        """Those of the line that makes most of them, where they are enough."""
        stacks = ctx[MemoryStacks]
        lines = [stacks.user_site(b.stack) for b in bursts]
        site, count = Counter(lines).most_common(1)[0] if lines else (None, 0)
        own = [b for b, line in zip(bursts, lines, strict=True) if line == site]
        freed_bytes = sum(b.bytes or 0 for b in own)
        most = next((d.max_reserved for d in ctx[AllocatorActivity].devices if d.device == device), None)
        return own if count >= self.min_bursts and freed_bytes >= self.min_share * (most or 0) else []

    def _steady(self, ctx: Context, bursts: Sequence[Burst], *, named: bool) -> list[Burst]:
        """Those of steady steps. Where only the absence of an operator tells, there have to be steps, and the burst in
        each of them counts once."""
        steps = ctx.get(Steps)
        if steps is None or not steps.steps:
            if not named and len(bursts) >= self.min_bursts:
                raise NotCaptured(
                    "neither frames nor steps recorded where segments are freed repeatedly",
                    "call prof.step() after each step",
                )
            return list(bursts)
        within = [[b for b in bursts if start <= b.start < end] for start, end in steps.spans("steady")]
        return [b for inside in within for b in (inside if named else inside[:1])]

    def _of_snapshot(self, ctx: Context, device: int, bursts: Sequence[Burst]) -> Claim:
        site = ctx[MemoryStacks].user_site(bursts[0].stack)
        freed_bytes = sum(b.bytes or 0 for b in bursts)
        activity = ctx[AllocatorActivity]
        episodes = [
            (e.given, e.taken + 1)
            for d in activity.devices
            if d.device == device
            for e in d.episodes
            if e.cause == "empty_cache"
        ]
        claim = Claim(
            message=f"torch.cuda.empty_cache(){f' in {site}' if site else ''} frees {size(freed_bytes)} in {len(bursts)} calls."
            + (f" The memory is reallocated {times(len(episodes))}." if episodes else ""),
            confidence="high",
            location=location(site, device=device),
            evidence=[_table(bursts)],
            fixes=[techniques.keep_the_cache(_VERIFY, target(site))],
            owned=episodes or [(b.start, b.end) for b in bursts],
            key="snapshot",
        )
        return cost_of(ctx, activity.calls).added_to(claim)

    def _of_trace(self, ctx: Context, bursts: Sequence[Burst], *, named: bool) -> Claim:
        steps, sites = ctx.get(Steps), ctx.get(CallSites)
        called = Counter(s for b in bursts if sites is not None and (s := sites.site(b.row)) is not None)
        site: Site | None = next(iter(called.most_common(1)), (None, 0))[0]
        of = f" over {steps.count} steps" if steps is not None and steps.steps else ""
        who = (
            f"torch.cuda.empty_cache(){f' in {site}' if site else ''}"
            if named
            else "A call outside all operators, likely torch.cuda.empty_cache(),"
        )
        segments = sum(b.segments for b in bursts)
        claim = Claim(
            message=f"{who} frees {segments} segments in {len(bursts)} calls{of}. The next operators reallocate them.",
            confidence="high" if named else "medium",
            location=location(site),
            evidence=[_table(bursts)],
            fixes=[techniques.keep_the_cache(_VERIFY, target(site))],
            key="trace",
        )
        return cost_of(ctx, ctx[AllocatorActivity].calls).added_to(claim)


def _table(bursts: Sequence[Burst]) -> Table:
    of_trace = all(b.bytes is None for b in bursts)
    rows = [
        (i, b.segments, (b.end - b.start) / 1e3 if of_trace else b.bytes) for i, b in enumerate(bursts, 1)
    ]
    last: dict[str, Unit] = {"duration": "us"} if of_trace else {"bytes": "bytes"}
    return table("Memory freed by empty_cache()", {"call": "count", "segments": "count", **last}, rows, 20)
