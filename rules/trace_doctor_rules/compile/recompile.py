"""TD502 recompile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from trace_doctor import (
    Claim,
    Context,
    Rule,
    Saving,
    Table,
    threshold,
)
from trace_doctor.evidence.compile.cache_misses import CacheMiss
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.compile.recompiles import Compilation
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.intervals import clip, intersect, intervals, total
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor.user_frames import Frame
from trace_doctor_rules._shared import table
from trace_doctor_rules.compile._recompile_fixes import because, fixes


def _step(b: RunBuilder, frame: int, recompile: int, *, compile_us: float = 0, ids: bool = True) -> None:
    """One step that runs compiled code, compiling it first where `compile_us` is given."""
    with b.step():
        if compile_us:
            if ids:
                with b.annotation(f"dynamo_data: compile_id={frame}/{recompile}"):
                    b.wait(5)
            with b.event("_compile.compile_inner (dynamo_timed)"):
                b.wait(compile_us)
        with b.region(frame, recompile), b.python("train.py", 20, "forward"):
            size = 8 + recompile
            with b.op("CompiledFunction", dims=[[32, 32], [size, 32]], types=["float", "float"], us=10):
                b.compute(200)
        if b.meta["deviceProperties"]:
            b.sync()


def _recompiling(
    *, ids: bool = True, shapes: bool = False, healthy: int = 2, times: int = 3, gpu: bool = True
) -> RunBuilder:
    """Every other step of the rest is compiled; without healthy steps before, every one."""
    b = RunBuilder(gpu="NVIDIA H100 80GB HBM3" if gpu else None, shapes=shapes, stacks=True)
    for _ in range(healthy):
        _step(b, 0, 0)
    for n in range(1, times + 1):
        _step(b, 0, n, compile_us=5000, ids=ids)
        if healthy:
            _step(b, 0, n)
    return b


def _warming_up() -> RunBuilder:
    """The first steps compile, with one automatic change to dynamic shapes; then nothing does."""
    b = RunBuilder()
    for recompile in (0, 1):
        _step(b, 0, recompile, compile_us=8000)
    for _ in range(6):
        _step(b, 0, 1)
    return b


def _recompiled_earlier() -> RunBuilder:
    """The code that runs is the second that was made; nothing is compiled here."""
    b = RunBuilder()
    for _ in range(4):
        _step(b, 0, 1)
    return b


def _graph_capture() -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        _step(b, 0, 0)
        with b.event("CUDAGraphNode.record (dynamo_timed)"):
            b.wait(3000)
    return b


def _evaluation() -> RunBuilder:
    """Another function is compiled for the first time in a late step: no recompilation."""
    b = RunBuilder()
    for _ in range(3):
        _step(b, 0, 0)
    _step(b, 1, 0, compile_us=5000)
    for _ in range(3):
        _step(b, 0, 0)
    return b


def _unnumbered(*compiling: int, steps: int = 8) -> RunBuilder:
    """As torch before 2.5 marks it: regions without ids, and another name of what compiles a function."""
    b = RunBuilder()
    for n in range(steps):
        with b.step():
            if n in compiling:
                with b.event("_compile.<locals>.compile_inner (dynamo_timed)"):
                    b.wait(5000)
            with b.event("Torch-Compiled Region"), b.op("CompiledFunction", us=10):
                b.launch(200)
            b.sync()
    return b


def _looked_up(*, found: bool, regions: bool = True) -> RunBuilder:
    """Each call asks for compiled code that fits; past the limit there is none, and the function itself runs."""
    b = RunBuilder(stacks=True)
    for _ in range(5):
        with b.step():
            with b.event("TorchDynamo Cache Lookup"), b.python("torch/_dynamo/guards.py", 2545, "fn"):
                b.wait(50)
            called, what = b.python("train.py", 20, "forward"), "CompiledFunction" if found else "aten::mm"
            with b.region(0) if regions and found else nullcontext(), called, b.op(what, us=10):
                b.launch(200)
            b.sync()
    return b


class Recompile(Rule):
    """torch.compile compiles the same function again and again.

    What it does
    Finds functions that are compiled again after the warm-up, the time it takes, and what made the code at hand unfit.

    Why is this bad
    Compiling takes seconds; the step waits for it. After `torch._dynamo.config.recompile_limit` versions (8) the
    function is run without the compiler from then on, silently.

    Evidence
    `_compile.compile_inner (dynamo_timed)` and the compilation of backward in steps after the warm-up, with the id of
    the code they make, `frame/recompile` with recompile ≥ 1, from the `…_data: compile_id=` annotations (torch 2.13) or
    the code that runs next. Where nothing has ids (torch before 2.5): compilations in three steps after the warm-up.
    `TorchDynamo Cache Lookup` with neither compiled code nor a compilation behind it: the limit is reached. The
    cause is PyTorch's own account where a TORCH_TRACE log lies beside the trace, else the
    shapes of the function's inputs before and after where `record_shapes=True` recorded them.

    How the saving is estimated
    Measured: the time inside these events, with a GPU only as far as it idles meanwhile, over the steady steps.

    Fix
    Shapes: `torch._dynamo.mark_dynamic(x, dim)` or `dynamic=True`, or pad to a few sizes. Python numbers that change
    (a loss scale, a learning rate, a step counter): pass them as tensors. Flags such as `requires_grad` or a dtype:
    keep them the same from call to call.

    Fix safety
    Unsafe: code for dynamic shapes can be slower than code for one, and its results may differ in the last bits. Marking
    one dimension is shown only: it is the other way to the same end.

    When to ignore
    When the recorded steps hold the only change of shape of the whole training (the last, smaller batch of an epoch).

    References
    https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
    """

    code = "TD502"
    name = "recompile"
    title = "Compiled code is thrown away and made again"
    about = ("compile",)
    needs = (Steps, CompileEvents, Moments)
    wants = (GpuTimeline,)

    min_recompiles: int = threshold(
        2,
        "recompilations of one function below which it is only a hint",
        unit="count",
        source="one is what automatic dynamic shapes cost once per training",
    )

    min_steps: int = threshold(
        3,
        "steps after the warm-up that compile, where compilations carry no numbers (torch before 2.5)",
        unit="count",
        source="a second function, an evaluation or a smaller last batch compile in one step each",
    )
    min_misses: int = threshold(
        3,
        "calls in steady steps that fit no compiled version, none being made, of one function",
        unit="count",
        source="none in 100 real captures with lookups; where the limit is reached, every call",
    )
    first_steps: int = threshold(
        2,
        "steps that may compile in a capture without a warm-up before it, where compilations carry no numbers",
        unit="count",
        source="code for one shape, then for any",
    )

    VALID = [
        Valid("compiles in its first steps only", _warming_up),
        Valid("was recompiled before the capture", _recompiled_earlier),
        Valid("every lookup finds its code", lambda: _looked_up(found=True)),
        Valid("without regions, as torch 2.0 has it", lambda: _looked_up(found=True, regions=False)),
        Valid("looked up in vain, not that often", lambda: _looked_up(found=False), thresholds={"min_misses": 1000}),
        Valid("without numbers, in what may be its first steps", lambda: _unnumbered(3, 5, 7), thresholds={"first_steps": 100}),
        Valid("captures CUDA graphs", _graph_capture),
        Valid("compiles a second function late", _evaluation),
        Valid("without numbers, a second function late", lambda: _unnumbered(2, 7)),
        Valid("without numbers, in its first steps only", lambda: _unnumbered(0, 1, steps=2)),
    ]  # fmt: skip
    INVALID = [
        Invalid("three times in eight steps", _recompiling, message="recompiled 3 times", confidence="high", saving_us=3 * 5000 / 8, file="train.py"),
        Invalid("ids from the code that runs next", lambda: _recompiling(ids=False), message="3 times"),
        Invalid(
            "shapes recorded",
            lambda: _recompiling(shapes=True),
            message="[8, 32] became [9, 32]",
            codemod="set-call-args",
            before="import torch\nmodel = torch.compile(model)\n",
            after="import torch\nmodel = torch.compile(model, dynamic=True)\n",
        ),
        Invalid("without numbers", lambda: _unnumbered(3, 5, 7), message="3 times", confidence="medium"),
        Invalid("without numbers, in every step", lambda: _unnumbered(*range(8)), message="8 times"),
        Invalid("past the limit", lambda: _looked_up(found=False), message="fit none of its compiled", confidence="high", file="train.py", line=20),
        Invalid("on a CPU", lambda: _recompiling(gpu=False), message="in 8 steps", saving_us=3 * 5000 / 8),
        Invalid("the only step", lambda: _recompiling(healthy=0, times=1), message="once in 1 step;"),
        Invalid("once", lambda: _recompiling(healthy=4, times=1), severity="info", confidence="medium"),
        Invalid("in every step of the capture", lambda: _recompiling(healthy=0, times=4), message="4 times"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        steady = [(int(s), int(e)) for s, e in ctx[Steps].spans("steady")]
        inside = [c for c in ctx[CompileEvents].compilations if any(s <= c.start < e for s, e in steady)]
        frames: dict[str, list[Compilation]] = {}
        for c in inside:
            if c.frame_id is not None and c.recompile_id:
                frames.setdefault(c.frame_id, []).append(c)
        for frame_id, some in frames.items():
            if any(c.of_frame for c in some):
                yield self._claim(ctx, frame_id, some, steady)
        unnumbered = [c for c in inside if c.frame_id is None and c.of_frame]
        started = steady if any(step.warmup for step in ctx[Steps].steps) else steady[self.first_steps :]
        if sum(any(s <= c.start < e for c in unnumbered) for s, e in started) >= self.min_steps:
            yield self._claim(ctx, None, unnumbered, steady)
        missed: dict[Frame | None, list[CacheMiss]] = {}
        for miss in ctx[CompileEvents].misses:
            missed.setdefault(miss.frame, []).append(miss)
        for frame, calls in missed.items():
            if len(calls) >= self.min_misses:
                yield self._given_up(ctx, frame, calls)

    def _given_up(self, ctx: Context, frame: Frame | None, calls: Sequence[CacheMiss]) -> Claim:
        """None of the versions fits, and none is made: the function runs without the compiler."""
        moments, count = ctx[Moments], ctx[Steps].count
        what = f"{frame.function} ({frame.file}:{frame.line})" if frame else "A compiled function"
        return Claim(
            message=f"{what} runs without the compiler: {len(calls)} calls in {count} step{'s' * (count > 1)} fit none of its compiled "
            "versions, and no other is made (torch._dynamo.config.recompile_limit is reached).",
            confidence="high" if frame else "medium",
            severity="warning",
            location=location(frame, ts_us=moments.ts_us(calls[0].start)),
            spans=[moments.span(c.start, c.end, "looked up in vain") for c in calls[:10]],
            fixes=fixes(frame.file if frame else None, (), same_shapes=False),
            key=f"{frame.function if frame else ''} uncompiled",
        )

    def _claim(
        self, ctx: Context, frame_id: str | None, some: list[Compilation], steady: Sequence[tuple[int, int]]
    ) -> Claim:
        times = [c for c in some if c.of_frame]
        ns = _blocking_ns(ctx, some, steady)
        length = total(intervals(steady))
        frame = next((c.frame for c in times if c.frame), None)
        changed = tuple(dict.fromkeys(why for c in times for why in c.changed[:1]))
        often = len(times) >= self.min_recompiles
        moments = ctx[Moments]
        return Claim(
            message=_message(frame_id, times, changed, ns, ns / max(length, 1), len(steady)),
            confidence="high" if frame_id is not None and (often or changed) else "medium",
            severity=None if often else "info",
            saving=Saving(
                time_us_per_step=ns / ctx[Steps].count / 1e3,
                share_of_step=ns / max(length, 1),
                basis="measured",
                how=f"time inside {len(some)} compilations of this function, averaged over {ctx[Steps].count} steady steps",
            ),
            location=location(frame, ts_us=moments.ts_us(some[0].start)),
            evidence=[_table(some, steady)],
            spans=[moments.span(c.start, c.end, f"{c.what} {c.compile_id}") for c in some[:10]],
            fixes=fixes(frame.file if frame else None, changed, any(c.same_shapes for c in times)),
            removal=Removal(host_spans=tuple((c.thread, c.start, c.end) for c in some)),
            owned=tuple((c.start, c.end) for c in some),
            key=frame.function if frame else frame_id or "unnumbered",
        )


def _blocking_ns(ctx: Context, some: Sequence[Compilation], steady: Sequence[tuple[int, int]]) -> int:
    """Time of these compilations in the steady steps; with a GPU only while (the busiest) one has nothing to do."""
    spans = intersect(intervals((c.start, c.end) for c in some), intervals(steady))
    gpu = ctx.get(GpuTimeline)
    if gpu is None or not len(spans):
        return total(spans)
    first, last = int(spans[0, 0]), int(spans[-1, 1])
    busiest = max(gpu.devices, key=lambda d: total(clip(gpu.busy(d), first, last)))
    return total(intersect(spans, gpu.gaps(busiest, first, last)))


# -- words -----------------------------------------------------------------------------------------------------


def _message(
    frame_id: str | None,
    times: Sequence[Compilation],
    changed: Sequence[str],
    ns: int,
    share: float,
    steps: int,
) -> str:
    """One sentence: what is compiled again, how often, why, what it costs."""
    frame = times[0].frame
    what = (
        f"{frame.function} ({frame.file}:{frame.line})"
        if frame
        else f"The compiled function of region {frame_id}"
        if frame_id is not None
        else "Some function (this torch does not number them)"
    )
    often = "once" if len(times) == 1 else f"{len(times)} times"
    why = f", first because {because(changed[0])}" if changed else "; what changed was not captured"
    window = f"{steps} step{'s' if steps > 1 else ''}"
    return f"{what} is recompiled {often} in {window}{why}: {two_figures(ns / 1e3)} of compiling, {share:.0%} of their time."


def _table(some: Sequence[Compilation], steady: Sequence[tuple[int, int]]) -> Table:
    def step(c: Compilation) -> int:
        return next(i for i, (s, e) in enumerate(steady) if s <= c.start < e)

    return table(
        "Compilations after the warm-up",
        {"makes": "code", "event": "code", "steady step": "count", "takes": "us", "because": "text"},
        [
            [
                c.compile_id,
                c.what,
                step(c),
                c.ns / 1e3,
                because(c.changed[0]) if c.changed and c.of_frame else None,
            ]
            for c in some
        ],
    )
