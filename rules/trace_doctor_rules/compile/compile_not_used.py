"""TD503 compile-not-used."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from trace_doctor import NOTE_FROM, Claim, Context, Location, Rule, Saving, threshold
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.host.host_bound import HostBound
from trace_doctor.evidence.replay.what_if import Replay
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.compile._compile_not_used_evidence import PointwiseRuns

_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"


def _training(
    *, chain: int = 6, host_us: float = 2, compiled: str = "", count: int = 20, kernel_us: float = 60
) -> RunBuilder:
    """Layers of one product and a chain of elementwise kernels behind it."""
    given_up = compiled == "given up"
    b = RunBuilder(stacks=given_up)
    for _ in range(5):
        wrapper = b.python("torch/_dynamo/eval_frame.py", 1076, "compile_wrapper")
        with b.step(), wrapper:
            for _ in range(count):
                if compiled.startswith("triton"):
                    b.launch(50, compiled, call="cuLaunchKernel")
                elif compiled and not given_up:
                    with b.event(compiled):
                        b.launch(50, call="cuLaunchKernel")
                b.run_op("aten::mm", kernel_us * 2, "sgemm", host_us=host_us)
                for _ in range(chain):
                    b.run_op("aten::add", kernel_us, _ADD, host_us=host_us)
    return b


def _small_kernels() -> RunBuilder:
    return _training(chain=1, host_us=40, count=10, kernel_us=3)


_SCRIPT = """import torch
model = torch.nn.Linear(8, 8).cuda()
for x, y in batches:
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
"""
_PATCHED = _SCRIPT.replace("for x, y", "model = torch.compile(model)\nfor x, y")


class CompileNotUsed(Rule):
    """The model is not compiled, though compilation would likely save time.

    What it does
    Finds steps without any compiled code in which chains of elementwise kernels take much of the time, or in which the
    GPU waits for the launches of few small kernels (many are reported by TD202).

    Why is this bad
    Each elementwise kernel reads its input from memory and writes its output back. A chain of them moves the same data
    several times. The compiler fuses it into one kernel, with fewer launches.

    Evidence
    No compiled region, compiled graph, fused Triton kernel, CUDA graph or compilation anywhere in the capture.
    Elementwise kernels that follow each other on one stream, outside the optimizer. Or, as for TD202: small kernels, and
    a GPU that waits for the host's own work.

    How the saving is estimated
    A model: the steps are simulated as if each chain took as long as its longest kernel, or with half of the host's own
    work. The capture does not show what the compiler makes of the model: confidence is low, and severity stays info.

    Fix
    Use model = torch.compile(model). Where launches take the time, mode="reduce-overhead" captures them in CUDA graphs.

    Fix safety
    Unsafe: results may not be bitwise identical. The first steps compile, and changing shapes recompile.

    When to ignore
    When the model does not compile, or its shapes change all the time.

    References
    https://docs.pytorch.org/tutorials/intermediate/torch_compile_tutorial.html
    """

    code = "TD503"
    name = "compile-not-used"
    title = "Model is not compiled"
    server_fixes = (techniques.compile_in_engine("Record the same load again: TD503 is gone"),)
    about = ("dispatch", "launch")
    needs = (Steps, GpuTimeline, CompileEvents, PointwiseRuns, HostBound, Replay, Moments)
    yields_to = ("TD501", "TD202", "TD701")

    min_saving: float = threshold(
        0.03,
        "modeled saving of fusing the chains, as a share of the step",
        unit="share",
        source="the severity `warning` would begin there; real training runs dominated by matmuls stay below 1%",
        note_from=NOTE_FROM,
    )
    min_chains: int = threshold(
        10, "chains of two or more elementwise kernels", unit="count", source="fewer are a loss function"
    )
    min_share: float = threshold(
        0.30,
        "idle in which the GPU waits for the host's own work, where kernels are few",
        unit="share",
        source="inference of small models in real captures: 40 to 83%",
    )
    min_kernels: int = threshold(20, "kernels for that", unit="count", source="fewer are a probe")
    max_kernel_us: float = threshold(20.0, "median kernel for that", unit="us", source="as TD202")

    VALID = [
        Valid("products, nothing to fuse", lambda: _training(chain=1)),
        Valid("compiled regions", lambda: _training(compiled="Torch-Compiled Region: 0/0")),
        Valid(
            "fused kernels of a compiled graph", lambda: _training(compiled="## Call CompiledFxGraph x ##")
        ),
        Valid("little to be had", _training, thresholds={"min_saving": 0.9}),
        *(
            Valid(
                f"small kernels, and a limit of {value:g} for {name}",
                _small_kernels,
                thresholds={name: value},
            )
            for name, value in (("min_share", 0.99), ("min_kernels", 1000), ("max_kernel_us", 1.0))
        ),
        Valid("kernels of a compiler", lambda: _training(compiled="triton_poi_fused_add_0")),
        Valid("compilations", lambda: _training(compiled="_compile.compile_inner (dynamo_timed)")),
        Valid("a compiled function that was given up whole", lambda: _training(compiled="given up")),
        Valid("few chains", lambda: _training(count=1)),
    ]
    INVALID = [
        Invalid(
            "chains of six",
            _training,
            message="Without torch.compile, 120 elementwise kernels per step (100 fusible) take 75% of kernel time.",
            thresholds={"min_chains": 100},
            confidence="low",
            severity="info",
            codemod="compile-model",
            before=_SCRIPT,
            after=_PATCHED,
        ),
        Invalid(
            "small kernels that wait for launches",
            _small_kernels,
            message="% of the step waiting for 20 kernel launches.",
            fixes=('mode="reduce-overhead"',),
            thresholds={"min_kernels": 100},
            confidence="low",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        if _compiles(ctx):
            return
        chains, bound, count = ctx[PointwiseRuns], ctx[HostBound], ctx[Steps].count
        outcome = ctx[Replay].without(chains.removal)
        if chains.runs >= self.min_chains and outcome.share_of_step >= self.min_saving:
            message = (
                f"Without torch.compile, {chains.kernels / count:,.0f} elementwise kernels per step "
                f"({len(chains.spare) / count:,.0f} fusible) take {chains.ns / max(chains.compute, 1):.0%} of kernel time."
            )
            times = [(int(chains.run.ts[r]), int(chains.run.end[r])) for r in chains.spare.tolist()]
            yield self._claim(ctx, message, outcome.saving(), times)
            return
        small = bound.kernels >= self.min_kernels and bound.median_kernel_us < self.max_kernel_us
        waits = bound.own_share >= self.min_share and bound.own > bound.other
        if small and waits and bound.lasting >= self.min_saving:
            message = (
                f"Without torch.compile, the GPU idles {bound.own_share:.0%} of the step waiting for "
                f"{bound.kernels / count:,.0f} kernel launches."
            )
            owned = [(int(s), int(e)) for s, e in bound.owned]
            yield self._claim(ctx, message, bound.halved.saving(), owned, "reduce-overhead")

    def _claim(
        self,
        ctx: Context,
        message: str,
        saving: Saving,
        owned: list[tuple[int, int]],
        mode: str | None = None,
    ) -> Claim:
        """Without a removal: what is only modeled is no part of the combined replay. Where launches are what takes
        the time, `mode` is the one that records them in CUDA graphs."""
        chains, moments = ctx[PointwiseRuns], ctx[Moments]
        count = ctx[Steps].count
        elementwise = table(
            "Elementwise kernels",
            {
                "kernels/step": "count",
                "time/step": "us",
                "of kernel time": "share",
                "fusible/step": "count",
            },
            [
                [
                    round(chains.kernels / count, 1),
                    chains.ns / count / 1e3,
                    chains.ns / max(chains.compute, 1),
                    round(len(chains.spare) / count, 1),
                ]
            ],
        )
        return Claim(
            message=message,
            confidence="low",
            severity="info",
            saving=replace(saving, basis="model", how=f"a model of what the compiler fuses: {saving.how}"),
            location=Location(ts_us=moments.ts_us(owned[0][0])),
            evidence=[elementwise],
            fixes=[techniques.compile_model(_VERIFY, mode)],
            owned=owned,
            key="compile",
        )


_VERIFY = "Record the same steps again: `Torch-Compiled Region` appears and the step is shorter."


def _compiles(ctx: Context) -> bool:
    events = ctx[CompileEvents]
    return bool(
        events.regions.all
        or events.graphs_run
        or events.wrappers_run
        or events.compilations
        or events.uncompiled
        or ctx[PointwiseRuns].fused
    )
