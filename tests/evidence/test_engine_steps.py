"""The steps of inference engines: what their names say, and which time belongs to them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.names.engine_step_names import engine_step
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.registry import all_rules
from trace_doctor.testing import RunBuilder


def decode(requests: int) -> str:
    return f"execute_context_0(0)_generation_{requests}({requests})"


def prefill(requests: int, tokens: int) -> str:
    return f"execute_context_{requests}({tokens})_generation_0(0)"


def facts_of(b: RunBuilder) -> Facts:
    return Facts(Capture(0, run=b.run()))


def step(b: RunBuilder, name: str, us: float = 1000, *, graph: bool = True) -> None:
    """One step on the device, of which the host waits for the result."""
    with b.annotation(name):
        b.launch(us, "attention", call="cudaGraphLaunch" if graph else "cudaLaunchKernel")
        b.sync()
    with b.op("aten::to", us=100):
        pass


@pytest.mark.parametrize(
    ("name", "kind", "prefills", "decodes", "tokens"),
    [
        ("execute_context_2(6144)_generation_3(3)", "mixed", 2, 3, 6147),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "decode", 0, 32, 32),
        ("execute_15360_context_15(sq15360sk15360sqsq15728640sqsk15728640)_generation_0(sq0sk0sqsq0sqsk0)", "prefill", 15, 0, 15360),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 1, 0, 888),
        ("execute_context_0(0)_generation_0(0)", "idle", 0, 0, 0),
        ("execute_new_8_cached_56", "mixed", 8, 56, None),
        ("execute_new_0_cached_64", "running", 0, 64, None),
        ("step[DECODE bs=32]", "decode", 0, 32, 32),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15, 0, 15360),
        ("step[MIXED bs=5 toks=2051 c=2 g=3 c_sq=2048 g_sk=900]", "mixed", 2, 3, 2051),
        ("step[IDLE bs=0]", "idle", None, 0, None),
        ("step[TARGET_VERIFY bs=4]", "other", None, 4, None),
        ("prefill[bs=2 tok=14721 ctx=[7000, 7721]]", "prefill", 2, 0, 14721),
        ("decode[bs=117/128 tok=117 d=117]", "decode", 0, 117, 117),
        ("[Executor] _forward_step 7: 1 ctx reqs, 3 gen reqs", "mixed", 1, 3, None),
        ("execute_diffusion_1_256x256", "diffusion", 1, 0, None),
        ("capture_32_DECODE", "capture", None, None, None),
    ],
)  # fmt: skip
def test_what_engines_call_their_steps(
    name: str, kind: str, prefills: int | None, decodes: int | None, tokens: int | None
) -> None:
    assert engine_step(name) == (kind, prefills, decodes, tokens)


@pytest.mark.parametrize(
    "name", ["execute_model", "step", "step[decode]", "decode[1]", "model_inference", "ProfilerStep#1"]
)
def test_other_names_are_no_steps_of_an_engine(name: str) -> None:
    assert engine_step(name) is None


def test_a_table_of_kinds_and_a_first_prefill_that_is_no_warm_up() -> None:
    b = RunBuilder()
    step(b, prefill(4, 8000), 20_000, graph=False)
    for _ in range(6):
        step(b, decode(4))
    facts = facts_of(b)
    assert (facts[Steps].source, [s.kind for s in facts[Steps].steady]) == (
        "engine",
        ["prefill", *["decode"] * 5],
    )
    rows = {row.kind: row for row in facts[EngineSteps].rows()}
    assert (rows["decode"].count, rows["decode"].requests, rows["decode"].with_graph) == (5, 4, 5)
    assert (rows["prefill"].count, rows["prefill"].tokens, rows["prefill"].with_graph) == (1, 8000, 0)
    assert rows["decode"].median_us == pytest.approx(1110, abs=20)
    assert rows["prefill"].share > rows["decode"].share > 0.1


def test_one_mark_is_a_step() -> None:
    """A trace of one step, as tools cut them out."""
    b = RunBuilder()
    with b.annotation(decode(4)):
        b.launch(5000)
    facts = facts_of(b)
    assert [row.kind for row in facts[EngineSteps].rows()] == ["decode"]
    assert facts[Steps].steps[0].dur > 5_000_000, "it lasts until its GPU work is done"


def test_the_last_mark_is_a_step_where_no_other_is_of_its_kind() -> None:
    """A capture that ends in the only prefill, which takes most of it."""
    b = RunBuilder()
    for name in (decode(1), decode(1), prefill(1, 128)):
        with b.annotation(name):
            b.launch(100_000 if name == prefill(1, 128) else 5000)
    rows = {row.kind: row for row in facts_of(b)[EngineSteps].rows()}
    assert rows["decode"].count == 2
    assert rows["prefill"].median_us == pytest.approx(100_000, rel=0.01)
    assert rows["prefill"].share > 0.8


def test_marks_that_cross_are_no_steps() -> None:
    """As where a file holds two servers: it is not known what belongs to which."""
    b = RunBuilder()
    for _ in range(6):
        step(b, decode(4))
    marks = [e for e in b.events if e["name"] == decode(4)]
    assert facts_of(b)[Steps].source == "engine"
    marks[2]["dur"] = marks[3]["ts"] + marks[3]["dur"] / 2 - marks[2]["ts"]
    steps = facts_of(b)[Steps]
    assert (steps.source, "overlap" in steps.doubt) == ("none", True)


def test_a_program_that_trains_has_no_steps_of_an_engine() -> None:
    b = RunBuilder()
    for _ in range(3):
        step(b, decode(4))
        with b.optimizer_step():
            b.launch(10)
    facts = facts_of(b)
    assert facts[Steps].source == "optimizer"
    with pytest.raises(NotCaptured):
        facts[EngineSteps]


def _waits(pause: Callable[[RunBuilder], None], then: str, *, stacks: bool = False) -> EngineSteps:
    b = RunBuilder(stacks=stacks)
    for _ in range(4):
        step(b, decode(4))
    pause(b)
    for _ in range(4):
        step(b, then)
    return facts_of(b)[EngineSteps]


def _nothing(b: RunBuilder) -> None:
    b.wait(50_000)


def _queue(b: RunBuilder) -> None:
    with b.python("/usr/lib/python3.12/queue.py", 171, "get"):
        b.wait(5_000)


def _poll(b: RunBuilder) -> None:
    for _ in range(50):
        with b.python("sglang/srt/managers/scheduler.py", 900, "recv_requests"):
            b.wait(100)


def _schedule(b: RunBuilder) -> None:
    with b.python("vllm/v1/core/sched/scheduler.py", 200, "schedule"):
        b.wait(50_000)


@pytest.mark.parametrize(
    ("pause", "then", "stacks", "waits"),
    [
        (_nothing, prefill(1, 100), False, True),
        (_nothing, decode(5), False, True),
        (_nothing, decode(4), False, False),
        (_queue, prefill(1, 100), True, True),
        (_poll, prefill(1, 100), True, True),
        (_schedule, prefill(1, 100), True, False),
        (_queue, decode(4), True, False),
        (lambda b: b.wait(10_000), prefill(1, 100), False, False),
    ],
)
def test_a_server_waits_only_before_requests_that_are_new(
    pause: Callable[[RunBuilder], None], then: str, stacks: bool, waits: bool
) -> None:
    """What was decoded before a pause and is decoded after it was there all along. Stacks say what Python did."""
    steps = _waits(pause, then, stacks=stacks)
    assert bool(len(steps.waiting)) == waits
    longest = max(s.step.pace for s in steps.steps)
    assert (longest > 4_000_000) != waits


def test_the_parts_of_the_window_add_up_beside_waits_and_dummy_steps() -> None:
    b = RunBuilder()
    for n in range(8):
        step(b, "step[IDLE bs=0]" if n == 4 else decode(4))
        if n == 2:
            b.wait(40_000)
            step(b, prefill(1, 10))
    facts = facts_of(b)
    start, end = facts[Steps].window
    assert sum(row.window_ns for row in facts[TimeLedger].rows) == end - start
    rows = {row.kind: row for row in facts[EngineSteps].rows()}
    assert rows["waiting"].median_us == pytest.approx(40_000, rel=0.02)
    assert rows["dummy"].count == 1
    assert sum(row.share for row in rows.values()) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(("function", "dummies"), [("_dummy_run", 2), ("execute_model", 0)])
def test_functions_that_run_the_model_for_nobody_are_no_part_of_a_step(function: str, dummies: int) -> None:
    """As ranks without requests do, so that the others can go on."""
    b = RunBuilder(stacks=True)
    for n in range(9):
        step(b, decode(4))
        if n in (3, 6):
            with b.python("vllm/v1/worker/gpu_model_runner.py", 4000, function), b.op("aten::mm"):
                b.launch(2000)
                b.sync()
    engine = facts_of(b)[EngineSteps]
    assert sum(row.count for row in engine.rows() if row.kind == "dummy") == dummies
    assert (max(s.step.pace for s in engine.steps) < 1_500_000) == bool(dummies)


def test_replays_without_their_kernels_leave_the_idle_time_unknown() -> None:
    b = RunBuilder()
    for n in range(8):
        step(b, decode(4))
        if n > 3:
            b.events = [e for e in b.events if e["cat"] != "kernel" or e["ts"] < b.now - 1300]
    engine = facts_of(b)[EngineSteps]
    assert "missing in 3 of 7" in engine.lost_replays
    with pytest.raises(NotCaptured):
        engine.must_know_idle_time()
    assert [row.busy_share for row in engine.rows()] == [None]


def test_what_follows_a_replay_without_kernels_is_laid_to_nobody() -> None:
    """Whether the GPU worked there is not known: it is neither Python's nor a wait's."""
    b = RunBuilder()
    for _ in range(6):
        step(b, decode(4))
        b.wait(2000)
    graphs = [e["args"]["correlation"] for e in b.events if e["name"] == "cudaGraphLaunch"]
    whole = facts_of(b)[TimeLedger].row(0, "steady")
    b.events = [e for e in b.events if e["cat"] != "kernel" or e["args"]["correlation"] != graphs[2]]
    lost = facts_of(b)[TimeLedger].row(0, "steady")
    assert whole is not None and lost is not None
    assert whole.idle_ns.unattributed == 0
    # until the host's next wait for the GPU has ended nobody knows
    assert lost.idle_ns.unattributed == pytest.approx(1_000_000, rel=0.05)


def test_rules_about_training_alone_are_skipped() -> None:
    b = RunBuilder()
    for _ in range(6):
        step(b, decode(4))
    facts = facts_of(b)
    of_training = [rule for rule in all_rules() if rule.of_training]
    assert {"TD101", "TD304", "TD404", "TD408", "TD605"} <= {rule.code for rule in of_training}
    for rule in of_training:
        with pytest.raises(NotCaptured, match="an inference engine was recorded"):
            rule().claims(facts)


def test_a_file_of_graph_capture_alone_is_told_so_and_not_judged(tmp_path: Path) -> None:
    """vLLM and SGLang write such files: what is slow in them says nothing of serving, and nothing in them trains."""
    b = RunBuilder(stacks=True)
    with (
        b.python("vllm/v1/worker/gpu_model_runner.py", 5362, "capture_model"),
        b.annotation("capture_32_FULL"),
    ):
        for _ in range(40):
            with b.op("aten::mm", us=50):
                b.launch(5)
    b.write(tmp_path / "graph_capture_rank_0.json")
    result = analyze(tmp_path)
    why = "an inference engine captured CUDA graphs, and served no request"
    assert result.summary.verdict == f"Not judged: {why}."
    assert {f.code for f in result.findings} & {"TD001", "TD705"} == {"TD705"}
    of_training = {rule.code for rule in all_rules() if rule.of_training}
    assert {o.code for o in result.outcomes if o.reason == why} >= of_training


def _generate(tokens: int, *, trains: bool = False, begun: bool = True, marked: bool = False) -> RunBuilder:
    """Two calls of `generate()`, in which the model is called once for each token, with two layers in it."""
    b = RunBuilder(stacks=True)
    for _ in range(2):
        if begun:
            with b.op("aten::ones"):
                b.launch(3)
        with (
            b.step() if marked else nullcontext(),
            b.python("transformers/generation/utils.py", 2780, "_sample"),
        ):
            for _ in range(tokens):
                with b.event("nn.Module: LlamaForCausalLM_0", "python_function"):
                    for layer in range(2):
                        with b.event(f"nn.Module: Layer_{layer}", "python_function"), b.op("aten::mm"):
                            b.launch(20)
                with b.event("nn.Module: Sampler_0", "python_function"):
                    b.item()
        if trains:
            with b.optimizer_step():
                b.launch(10)
    return b


@pytest.mark.parametrize(
    ("tokens", "more", "kinds"),
    [
        (4, {}, [*["prefill", "decode", "decode", "decode"] * 2]),
        (4, {"begun": False}, [*["decode"] * 4, "prefill", *["decode"] * 3]),
        (2, {}, []),
        (4, {"trains": True}, []),
        (4, {"marked": True}, []),
    ],
)
def test_steps_of_generate_by_what_stacks_show(tokens: int, more: dict[str, bool], kinds: list[str]) -> None:
    """Of a loop that begins before the trace nobody knows which of its forwards computed the prompt."""
    steps = facts_of(_generate(tokens, **more))[Steps]
    assert ([s.kind for s in steps.steps] if steps.source == "engine" else []) == kinds


def test_between_two_calls_of_generate_nobody_waits_for_requests() -> None:
    assert not len(facts_of(_generate(4))[EngineSteps].waiting)


def test_denoising_steps_lie_between_two_ends_of_the_scheduler() -> None:
    b = RunBuilder(stacks=True)
    for _ in range(4):
        with b.op("aten::mm", us=50):
            b.launch(500)
        with b.python("diffusers/schedulers/scheduling_euler.py", 400, "step"):
            b.wait(30)
    steps = facts_of(b)[Steps]
    assert (steps.source, [s.kind for s in steps.steps]) == ("engine", ["diffusion"] * 3)
    assert [s.pace / 1e3 for s in steps.steps] == pytest.approx([500] * 3, rel=0.01)
    with b.op("aten::conv2d", us=1000):
        b.launch(500)
    assert facts_of(b)[Steps].source == "none", "most of the capture would not be judged"
