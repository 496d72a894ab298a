"""TD701 decode-outside-graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Context, Location, NotCaptured, Rule, threshold
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.serving.engine_idle import EngineIdle
from trace_doctor.evidence.serving.engine_steps import EngineStep, EngineSteps
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import spans_of, table
from trace_doctor_rules.serving._cases import DECODES, engine, generate
from trace_doctor_rules.serving._shared import confidence, cost, decodes_of, idle_of

_LARGER = (*DECODES, *((0, 64),) * 6)


class DecodeOutsideGraphs(Rule):
    """The kernels of decode steps are launched one by one.

    What it does
    Finds decode steps that launch no CUDA graph, and adds up the time in which the GPU idles between their kernels.

    Why is this bad
    A decode step is hundreds of kernels of some microseconds each. Launched one by one, each waits for the host. In a graph
    they follow one another.

    Evidence
    Decode steps, as the engine's annotation names them, with 50 single launches or more and no launch of a graph; and idle
    time of the GPU between the first and the last kernel of such a step, of which the host is the reason. Prefill steps are
    no part of it: their kernels are long, and their sizes differ. Where kernels of graphs are missing in the trace, the rule
    is skipped.

    How the saving is estimated
    An upper bound: all idle time of these steps, and of those right after them, whose launches come earlier.

    Fix
    Let the engine capture graphs for all batch sizes that it serves: it runs larger batches without one.

    Fix safety
    Only shown: it is an option of the server.

    When to ignore
    When a batch of that size is rare, or the memory of its graph is needed for the KV cache.

    References
    https://docs.vllm.ai/en/latest/design/cuda_graphs.html
    https://docs.sglang.ai/advanced_features/server_arguments.html
    """

    code = "TD701"
    name = "decode-outside-graphs"
    title = "Decode steps run without CUDA graphs"
    about = ("dispatch", "python", "launch")
    needs = (Steps, EngineSteps, EngineIdle, Moments)

    min_share: float = threshold(
        0.03,
        "idle between the kernels of these steps",
        unit="share",
        source="the severity `warning` begins there",
        note_from=NOTE_FROM,
    )
    min_launches: int = threshold(
        50,
        "single launches of such a step",
        unit="count",
        source="a model of eight layers has more; fewer kernels are no model",
    )

    VALID = [
        Valid("all decodes replay a graph", engine),
        Valid("kernels that hide their launches", lambda: engine(graphs_up_to=0, kernel_us=40, host_us=2)),
        Valid("some launches of no model", lambda: engine(graphs_up_to=0, kernels=20, kernel_us=5, host_us=20)),
        Valid("prefills", lambda: engine([(100, 0)] * 6, kernel_us=5, host_us=20), skipped="no decode step"),
        Valid("graphs whose kernels were not recorded", lambda: engine(_LARGER, graphs_up_to=8, kernel_us=5, host_us=20, lost=True), skipped="kernels of CUDA graphs are missing"),
        Valid("a small part", lambda: engine(graphs_up_to=0, kernel_us=5, host_us=20), thresholds={"min_share": 0.95}),
    ]  # fmt: skip
    INVALID = [
        Invalid(
            "no graph at all",
            lambda: engine(graphs_up_to=0, kernel_us=5, host_us=20),
            message="None of 11 decode steps launches a CUDA graph",
            confidence="high",
            saving_us=59 * 19,
            fixes=("--enforce-eager",),
        ),
        Invalid(
            "batches larger than the largest graph",
            lambda: engine(_LARGER, graphs_up_to=8, kernel_us=5, host_us=20),
            message="5 of 17 decode steps launch no CUDA graph, with 64 requests. Graphs cover up to 8.",
            shown="without | 5 | 64",
        ),
        Invalid("with stacks", lambda: engine(graphs_up_to=0, kernel_us=5, host_us=20, stacks=True), confidence="medium"),
        Invalid("generate() of transformers", lambda: generate(kernel_us=5, host_us=20), message="None of 9 decode", fixes=('cache_implementation="static"',)),
        Invalid("one step", lambda: engine([(0, 8)], graphs_up_to=0, kernel_us=5, host_us=20), confidence="low"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        engine_steps, idle, steps = ctx[EngineSteps], ctx[EngineIdle], ctx[Steps]
        decodes = decodes_of(engine_steps)
        eager = [s for s in decodes if not s.graphs and s.launches >= self.min_launches]
        if not any(s.graphs or s.launches for s in decodes):
            raise NotCaptured(
                "the launches of decode steps are not in the trace",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        inside = engine_steps.mask(eager)[idle.step] & ~idle.between
        idles = cost(idle.us(inside), steps)
        if not eager or idles.share < self.min_share:
            return
        with_graph = [s for s in decodes if s.graphs]
        yield Claim(
            message=f"{_which(eager, with_graph, len(decodes))} The GPU idles {milliseconds(idle.us(inside) / len(eager))} in each between kernels.",
            confidence=confidence(len(eager), engine_steps),
            saving=cost(idle_of(engine_steps, eager), steps).saving(
                "all idle time of decode steps without a graph, and of the steps right after them"
            ),
            location=Location(device=engine_steps.device),
            evidence=[
                table(
                    "Decode steps",
                    {"CUDA graph": "text", "steps": "count", "requests at most": "count", "median": "us", "kernels": "count"},
                    [_row(name, some) for name, some in (("with", with_graph), ("without", eager)) if some],
                )
            ],
            spans=ctx[Moments].longest([(s.step.begun, s.step.done) for s in eager], "decode without a graph", engine_steps.device),
            fixes=[(techniques.static_cache if engine_steps.is_generate else techniques.decode_in_graphs)(_VERIFY)],
            owned=spans_of(idle.pieces(inside)),
            key="decode",
        )  # fmt: skip


_VERIFY = "Record the same load again: decode steps launch a graph"


def _which(eager: Sequence[EngineStep], with_graph: Sequence[EngineStep], count: int) -> str:
    if not with_graph:
        return (
            f"None of {count} decode steps launches a CUDA graph."
            if count > 1
            else "The decode step launches no CUDA graph."
        )
    sizes, covered = _requests(eager), _requests(with_graph)
    text = f"{len(eager)} of {count} decode steps launch no CUDA graph"
    if sizes:
        text += f", with {_range(sizes)} requests"
    return (
        f"{text}. Graphs cover up to {max(covered)}."
        if sizes and covered and min(sizes) > max(covered)
        else f"{text}."
    )


def _requests(steps: Sequence[EngineStep]) -> list[int]:
    return [n for s in steps if (n := s.name.requests) is not None]


def _range(sizes: Sequence[int]) -> str:
    return f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"


def _row(name: str, steps: Sequence[EngineStep]) -> list[str | float | int | None]:
    pace = float(np.median([s.step.pace for s in steps])) / 1e3
    return [
        name,
        len(steps),
        max(_requests(steps), default=None),
        pace,
        int(np.median([s.kernels for s in steps])),
    ]
