"""TD505 cold-start."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Context, Fix, Rule, threshold
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.intervals import clip, intervals, total
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import advice, table
from trace_doctor_rules.compile._cold_start_evidence import RepeatedBlocks


def _first_steps(compile_s: float, *, steps: int = 3, step_s: float = 0.5, blocks: int = 12) -> RunBuilder:
    b = RunBuilder(stacks=True)
    for n in b.steps(steps):
        b.loader(5)
        if n == 0:
            with b.event("_compile.compile_inner (dynamo_timed)", "cpu_op"):
                b.wait(compile_s * 1e6)
        for i in range(blocks):
            with b.event(f"nn.Module: DecoderLayer_{i}", "python_function"), b.op("aten::mm"):
                b.launch(step_s * 1e6 / blocks)
        b.sync()
    return b


class ColdStart(Rule):
    """Compilation takes most of the captured time.

    What it does
    Reports captures in which torch.compile runs longer than everything else. Recompilation is reported by TD502.

    Why is this bad
    Every start of the job waits for it, also each restart after a failure, and on many ranks all wait for the slowest.
    A model of equal blocks compiles in a fraction of that time block by block. Such a capture also tells little about the
    steps that follow.

    Evidence
    The outermost events of Dynamo, Inductor and Triton in the whole window, warm-up included. Modules in the stacks show
    whether the model repeats a block.

    How the saving is estimated
    No saving is claimed: it is time at the start, not of a step.

    Fix
    Compile the repeated block once (regional compilation), and persist the compiler caches. Where compilation takes only
    seconds, record later.

    Fix safety
    Unsafe: nothing is fused across blocks, and results are not bitwise identical.

    When to ignore
    When the capture was made to study compilation.

    References
    https://docs.pytorch.org/tutorials/recipes/regional_compilation.html
    https://docs.pytorch.org/tutorials/recipes/torch_compile_caching_tutorial.html
    """

    code = "TD505"
    name = "cold-start"
    title = "Compilation dominates the capture"
    about = ("compile", "cold_start")
    needs = (CompileEvents, Steps)
    wants = (RepeatedBlocks,)
    to_pass = (RecordedOperators,)
    yields_to = ("TD502",)

    min_share: float = threshold(
        0.5,
        "compilation, as a share of the captured window",
        unit="share",
        source="more than all else together",
    )
    min_seconds: float = threshold(
        10.0,
        "compilation time below which only the capture starts too early",
        unit="s",
        source="as long as starting the process takes",
    )

    min_instances: int = threshold(
        4, "instances of a module that make it a repeated block", source="rule of thumb"
    )

    VALID = [
        Valid("long, but not most", lambda: _first_steps(12, steps=30, step_s=1)),
        Valid(
            "nothing, however little would be told", lambda: _first_steps(0), thresholds={"min_share": 0.0}
        ),
    ]
    INVALID = [
        Invalid(
            "twenty seconds",
            lambda: _first_steps(20),
            message="DecoderLayer",
            severity="info",
        ),
        Invalid(
            "no repeated block",
            lambda: _first_steps(20, blocks=1),
            severity="info",
            message="takes 20 s of",
            fixes=("caches",),
        ),
        Invalid(
            "seconds, but most of them",
            lambda: _first_steps(5),
            message="torch.compile takes 5 s of the 6.5 s captured (77%).",
            fixes=("Start recording after", "repeated block", "caches"),
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        compilations, window = ctx[CompileEvents].compilations, ctx[Steps].window
        spans = clip(intervals((c.start, c.end) for c in compilations), *window)
        took, length = total(spans), window[1] - window[0]
        if not took or took < self.min_share * length:
            return
        blocks = ctx.get(RepeatedBlocks)
        repeated = blocks.largest(self.min_instances) if blocks is not None else None
        repeats = f" The model repeats {repeated[0]} {repeated[1]} times." if repeated else ""
        longest = sorted(compilations, key=lambda c: c.start - c.end)[:10]
        verify = "Start again: the first steps take less time."
        yield Claim(
            message=f"torch.compile takes {took / 1e9:.3g} s of the {length / 1e9:.3g} s captured ({took / length:.0%}).{repeats}",
            confidence="high",
            severity="info",
            evidence=[
                table(
                    "Longest compilations",
                    {"function": "text", "event": "code", "time": "us"},
                    [[c.frame.function if c.frame else "not recorded", c.what, c.ns / 1e3] for c in longest],
                )
            ],
            fixes=[
                *([] if took >= self.min_seconds * 1e9 else [_RECORD_LATER]),
                *([techniques.compile_blocks(verify)] if repeated else []),
                _keep_caches(verify),
            ],
            owned=[(int(s), int(e)) for s, e in spans],
            key="compile",
        )


_RECORD_LATER = advice(
    title="Start recording after compilation",
    text="with profile(schedule=schedule(wait=3, warmup=2, active=5, repeat=1)) as prof:   # or call the model a few times before\n"
    "    for batch in loader:\n        train_step(batch)\n        prof.step()",
    verify="A new capture shows steps and no compilation.",
)


def _keep_caches(verify: str) -> Fix:
    return Fix(
        title="Persist compiler caches",
        kind="env",
        safety="display",
        text=(
            "TORCHINDUCTOR_CACHE_DIR=/a/folder/that/stays TRITON_CACHE_DIR=/a/folder/that/stays/triton\n"
            "# or ship them: torch.compiler.save_cache_artifacts() at the end, "
            "torch.compiler.load_cache_artifacts(data) at the start"
        ),
        verify=verify,
        risk="caches fit one version of PyTorch, Triton and GPU",
    )
