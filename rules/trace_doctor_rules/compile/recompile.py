"""TD502 recompile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trace_doctor import Claim, Context, Rule, Saving, Table, threshold
from trace_doctor.evidence.compile.cache_misses import UncompiledCalls
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.compile.recompiles import Compilation
from trace_doctor.evidence.durations import three_figures
from trace_doctor.evidence.intervals import clip, intersect, intervals, total
from trace_doctor.evidence.replay.what_if import Removal
from trace_doctor.evidence.trace.call_sites import location
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules._shared import table
from trace_doctor_rules.compile import _recompile_cases as cases
from trace_doctor_rules.compile._recompile_fixes import because, fixes


class Recompile(Rule):
    """torch.compile compiles the same function again and again.

    What it does
    Finds functions that recompile after the warm-up, the time it takes, and the guard that failed.

    Why is this bad
    Compilation takes seconds, and the step waits for it. After `torch._dynamo.config.recompile_limit` versions no other
    is compiled: what fits none of them falls back to eager, silently.

    Evidence
    `_compile.compile_inner (dynamo_timed)` and the compilation of backward in steps after the warm-up, with the id of
    the code they compile, `frame/recompile` with recompile ≥ 1, from the `…_data: compile_id=` annotations (torch 2.13)
    or the code that runs next. Where nothing has ids (torch before 2.5): compilations in three steps after the warm-up.
    `TorchDynamo Cache Lookup`, outside of any compilation, with eager operators after it and neither compiled code nor a
    compilation: such calls fall back to eager. The message says that the limit is reached where no later call of the
    function runs compiled code, or where the log says it. Elsewhere the finding is info, because Dynamo may have been
    told not to compile (`torch.compiler.set_stance`, a dispatch mode). Versions are counted where the capture holds the
    first one. The cause is PyTorch's own account where a TORCH_TRACE log is next to the trace, else the shapes of the
    function's inputs before and after, where `record_shapes=True` recorded them.

    How the saving is estimated
    Measured: the time inside these events, with a GPU only as far as it idles meanwhile, over the steady steps.

    Fix
    Shapes: `torch._dynamo.mark_dynamic(x, dim)` or `dynamic=True`, or pad to a few sizes. Python numbers that change
    (a loss scale, a learning rate, a step counter): pass them as tensors. Flags such as `requires_grad` or a dtype:
    keep them the same from call to call.

    Fix safety
    Unsafe: code for dynamic shapes can be slower than code for one, and may not be bitwise identical. Marking one
    dimension is shown only: it is the alternative.

    When to ignore
    When the recorded steps hold the only change of shape of the whole training (the last, smaller batch of an epoch).

    References
    https://docs.pytorch.org/docs/stable/compile/programming_model.recompilation.html
    https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html
    """

    code = "TD502"
    name = "recompile"
    title = "Repeated recompilation"
    about = ("compile",)
    needs = (Steps, CompileEvents, Moments)
    wants = (GpuTimeline,)
    to_pass = (RecordedOperators,)

    min_recompiles: int = threshold(
        2,
        "recompilations of one function below which severity is info",
        unit="count",
        source="automatic dynamic shapes recompile once per training",
    )

    min_steps: int = threshold(
        3,
        "steps after the warm-up that compile, where compilations carry no numbers (torch before 2.5)",
        unit="count",
        source="a second function, an evaluation or a smaller last batch compile in one step each",
    )
    min_misses: int = threshold(
        3,
        "calls of one function in steady steps that fit no compiled version, without a compilation",
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
        Valid("compiles in its first steps only", cases.warming_up),
        Valid("was recompiled before the capture", cases.recompiled_earlier),
        Valid("every lookup finds its code", lambda: cases.looked_up(lookups="11111")),
        Valid("without regions, as torch 2.0 has it", lambda: cases.looked_up(lookups="11111", regions=False)),
        Valid("looked up in vain, not that often", cases.looked_up, thresholds={"min_misses": 1000}),
        Valid("no operator runs where no code is found", lambda: cases.looked_up(runs=False)),
        Valid("the compiler looks up", cases.looked_up_by_the_compiler, thresholds={"min_steps": 1000}),
        Valid("without numbers, in what may be its first steps", lambda: cases.unnumbered(3, 5, 7), thresholds={"first_steps": 100}),
        Valid("captures CUDA graphs", cases.graph_capture),
        Valid("compiles a second function late", cases.evaluation),
        Valid("without numbers, a second function late", lambda: cases.unnumbered(2, 7)),
        Valid("without numbers, in its first steps only", lambda: cases.unnumbered(0, 1, steps=2)),
    ]  # fmt: skip
    INVALID = [
        Invalid("three times in eight steps", cases.recompiling, message="forward() (train.py:20) recompiled 3 times in 8 steps. Compilation takes 15 ms", confidence="high", saving_us=3 * 5000 / 8, file="train.py"),
        Invalid("ids from the code that runs next", lambda: cases.recompiling(ids=False), message="3 times"),
        Invalid(
            "shapes recorded",
            lambda: cases.recompiling(shapes=True),
            message="[8, 32] became [9, 32]",
            codemod="set-call-args",
            before="import torch\nmodel = torch.compile(model)\n",
            after="import torch\nmodel = torch.compile(model, dynamic=True)\n",
        ),
        Invalid("without numbers", lambda: cases.unnumbered(3, 5, 7), message="Functions without frame ids compiled 3 times after the warm-up in 8 steps.", confidence="medium"),
        Invalid("without numbers, in every step", lambda: cases.unnumbered(*range(8)), message="8 times"),
        Invalid("past the limit", cases.looked_up, message="falls back to eager in 5 calls in 5 steps: none of its compiled versions fits and no new one is compiled. No later call", confidence="high", severity="warning", file="train.py", line=20),
        Invalid("past the limit, no stacks", lambda: cases.looked_up(stacks=False), message="No later call", confidence="medium", severity="warning"),
        Invalid("past the limit of a capture that holds all versions", lambda: cases.looked_up(version=0), message="none of its 1 compiled versions fits"),
        Invalid("past the limit, the first version older than the capture", lambda: cases.looked_up(version=1), message="its compiled versions fits"),
        Invalid("a later call finds its code", lambda: cases.looked_up(lookups="0001001"), message="in 5 calls in 7 steps: none of its compiled versions fits and no new one is compiled. Other calls", confidence="medium", severity="info"),
        Invalid("a later call finds its code, no stacks", lambda: cases.looked_up(lookups="0001001", stacks=False), confidence="low", severity="info"),
        Invalid("on a CPU", lambda: cases.recompiling(gpu=False), message="in 8 steps", saving_us=3 * 5000 / 8),
        Invalid("the only step", lambda: cases.recompiling(healthy=0, times=1), message="once in 1 step. "),
        Invalid("once", lambda: cases.recompiling(healthy=4, times=1), severity="info", confidence="medium"),
        Invalid("in every step of the capture", lambda: cases.recompiling(healthy=0, times=4), message="4 times"),
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
        for calls in ctx[CompileEvents].uncompiled:
            if calls.limit or len(calls.misses) >= self.min_misses:
                yield self._uncompiled(ctx, calls)

    def _uncompiled(self, ctx: Context, calls: UncompiledCalls) -> Claim:
        """None of the versions fits, and none is made: the function runs without the compiler."""
        moments, frame, misses = ctx[Moments], calls.frame, calls.misses
        proven = calls.limit is not None or not calls.found_later
        return Claim(
            message=_uncompiled_message(calls, ctx[Steps].count),
            confidence="high" if frame and proven else "medium" if frame or proven else "low",
            severity="warning" if proven and misses else "info",
            location=location(frame, ts_us=moments.ts_us(misses[0].start) if misses else None),
            spans=[moments.span(m.start, m.end, "no compiled version fits") for m in misses[:10]],
            fixes=fixes(frame.file if frame else None, calls.changed[:1], same_shapes=False),
            owned=[(m.start, m.end) for m in misses],
            key=f"{frame.function if frame else ''} uncompiled",
        )

    def _claim(
        self, ctx: Context, frame_id: str | None, some: list[Compilation], steady: Sequence[tuple[int, int]]
    ) -> Claim:
        times = [c for c in some if c.of_frame]
        ns = _blocking_ns(ctx, some, steady)
        count, step_ns = ctx[Steps].count, ctx[Steps].step_ns
        share = ns / max(step_ns * count, 1)
        frame = next((c.frame for c in times if c.frame), None)
        changed = tuple(dict.fromkeys(why for c in times for why in c.changed[:1]))
        often = len(times) >= self.min_recompiles
        moments = ctx[Moments]
        return Claim(
            message=_message(frame_id, times, changed, ns, share, len(steady)),
            confidence="high" if frame_id is not None and (often or changed) else "medium",
            severity=None if often else "info",
            saving=Saving(
                time_us_per_step=ns / count / 1e3,
                share_of_step=share,
                basis="measured",
                how=f"time inside {len(some)} compilation{'s' * (len(some) > 1)} of this function, averaged over {count} steady step{'s' * (count > 1)}",
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
    """What recompiles, how often, why, what it costs."""
    frame = times[0].frame
    what = (
        f"{frame}"
        if frame
        else f"The compiled function of region {frame_id}"
        if frame_id is not None
        else "Functions without frame ids"
    )
    often = "once" if len(times) == 1 else f"{len(times)} times"
    why = f" because {because(changed[0])}" if changed else ""
    unknown = "" if changed else " The cause was not recorded."
    window = f"{steps} step{'s' if steps > 1 else ''}"
    again = f"recompiled {often}" if frame_id is not None else f"compiled {often} after the warm-up"
    return (
        f"{what} {again} in {window}{why}. "
        f"Compilation takes {three_figures(ns / 1e3)}, {share:.0%} of that time.{unknown}"
    )


def _uncompiled_message(calls: UncompiledCalls, steps: int) -> str:
    """What falls back to eager, how often, and as far as it is known why."""
    frame, limit, number = calls.frame, calls.limit, len(calls.misses)
    what = f"{frame}" if frame else "A compiled function"
    count = calls.versions or 0
    versions = f"its {f'{count} ' if count else ''}compiled versions"
    if limit is not None:
        value = f" ({limit.value})" if limit.value else ""
        why = f"The log of PyTorch says torch._dynamo.config.{limit.setting}{value} was reached"
        why += f", last because {because(calls.changed[0])}" if calls.changed else ""
    elif calls.found_later:
        why = "Other calls run compiled code. The cause was not recorded"
    else:
        why = "No later call runs compiled code, as when torch._dynamo.config.recompile_limit is reached"
    fits = f"none of {versions} fits and no new one is compiled"
    if not number:
        return f"{what} falls back to eager where {fits}. {why}."
    return f"{what} falls back to eager in {number} calls in {steps} step{'s' * (steps > 1)}: {fits}. {why}."


def _table(some: Sequence[Compilation], steady: Sequence[tuple[int, int]]) -> Table:
    def step(c: Compilation) -> int:
        return next(i for i, (s, e) in enumerate(steady) if s <= c.start < e)

    return table(
        "Compilations after the warm-up",
        {"compile id": "code", "event": "code", "steady step": "count", "time": "us", "cause": "text"},
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
