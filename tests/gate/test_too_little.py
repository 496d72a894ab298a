"""A trace with too little in it and rules that could not look are no pass."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_captures import healthy

from trace_doctor.api import analyze
from trace_doctor.capture import Capture
from trace_doctor.engine.coverage import too_little
from trace_doctor.evidence.base import Facts
from trace_doctor.gate.decision import Terms, decide
from trace_doctor.gate.verify import verify
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.testing import RunBuilder, SnapshotBuilder

Run = Callable[..., Any]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def test_rules_that_could_not_look(logs: Path, run: Run) -> None:
    done = run("check", "logs", "--select", "TD403", "-o", "json")
    assert (done.code, "the only rule was skipped" in done.result.gate.verdict) == (3, True)
    assert run("check", "logs", "--select", "TD403,TD404", "--allow-partial").code == 3, (
        "no part of it was judged"
    )
    assert run("check", "logs", "--select", "TD403,TD201").code == 0


def test_a_selection_that_leaves_no_rule(logs: Path, run: Run) -> None:
    nothing = ("check", "logs", "--select", "TD201", "--ignore", "TD201")
    done = run(*nothing)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    config = logs.parent / "trace-doctor.toml"
    config.write_text('budgets.step_time = "1 s"\n')
    assert run(*nothing).code == 0
    config.write_text('budgets.peak_reserved = { max = "1 GiB", level = "warning" }\n')
    assert run(*nothing).code == 3
    config.unlink()
    assert run("check", "logs", "--baseline", "b.json", "--update-baseline").code == 0
    assert run(*nothing, "--baseline", "b.json").code == 0


HEAD = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['
OP = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'


def step(at: int, length: int) -> str:
    mark = OP.replace("cpu_op", "user_annotation").replace('"a"', '"ProfilerStep#1"')
    return mark.replace('"ts": 1', f'"ts": {at}').replace('"dur": 1', f'"dur": {length}')


def operators(count: int, dur: int = 1) -> list[str]:
    return [
        OP.replace('"ts": 1', f'"ts": {2 * n}').replace('"dur": 1', f'"dur": {dur}') for n in range(count)
    ]


TOO_LITTLE = {
    "no event": "",
    "metadata": '{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}',
    "one operator": OP,
    "an operator without a duration": OP.replace('"dur": 1', '"dur": 0'),
    "Python frames": OP.replace("cpu_op", "python_function"),
    "an annotation": OP.replace("cpu_op", "user_annotation"),
    "steps with nothing in them": ",".join(step(n, 1).replace("#1", f"#{n}") for n in range(1, 6)),
    "a step with the first operators of a file": ",".join([step(0, 100), *operators(9)]),
    "operators that all begin at once": ",".join([step(0, 100), *(OP for _ in range(20))]),
    "operators that take no time": ",".join([step(0, 100), *operators(20, dur=0)]),
}
WHY = {
    "no event": "no operator and no GPU work in it",
    "metadata": "no operator and no GPU work in it",
    "one operator": "no step and only 1 operator or GPU events",
    "an operator without a duration": "no operator and no GPU work in it",
    "Python frames": "no operator and no GPU work in it",
    "an annotation": "no operator and no GPU work in the analyzed window",
    "steps with nothing in them": "no operator and no GPU work in the analyzed window",
    "a step with the first operators of a file": "only 9 operators or GPU events",
    "operators that all begin at once": "all operators and GPU work begin at the same moment",
    "operators that take no time": "no operator and no GPU work in it takes any time",
}


@pytest.mark.parametrize("what", sorted(TOO_LITTLE))
def test_what_a_trace_has_too_little_of(tmp_path: Path, what: str) -> None:
    (tmp_path / "a.json").write_text(HEAD + TOO_LITTLE[what] + "]}")
    assert too_little([Facts(Capture(0, load_trace(tmp_path / "a.json", "a.json")))]) == WHY[what]


@pytest.mark.parametrize("what", sorted(TOO_LITTLE))
def test_a_trace_with_too_little_to_be_judged(logs: Path, run: Run, what: str) -> None:
    (logs / "rank1.json").write_text(HEAD + TOO_LITTLE[what] + "]}")
    done = run("check", "logs", "-o", "json")
    assert done.code == 3, done.result.gate.verdict
    assert "rank1.json cannot be judged" in done.result.gate.verdict
    assert "rank1.json cannot be judged" in run("analyze", "logs").out
    assert run("check", "logs", "--select", "TD201").code == 3, "whatever rules are asked"
    assert run("check", "logs", "--allow-partial").code == 0, "the other one was judged"
    (logs / "rank0.pt.trace.json").unlink()
    assert run("check", "logs").code == run("check", "logs", "--allow-partial").code == 3
    assert run("verify", "logs", "logs").code in (1, 3), (
        "a note that is still there beats what cannot be told"
    )
    assert run("diff", "logs", "logs").code == 3


def test_a_rank_of_which_little_is_left_beside_the_others(logs: Path, run: Run) -> None:
    """A whole trace of its first events: enough of them to be looked at, and no piece of the training of that rank."""
    for rank in range(3):
        healthy(rank, 3, steps=40).write(logs / f"rank{rank}.json")
    (logs / "rank0.pt.trace.json").unlink()
    assert run("check", "logs").code == 0
    trace = json.loads((logs / "rank1.json").read_text())
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("ph") == "X"][:40]
    (logs / "rank1.json").write_text(json.dumps(trace))
    done = run("check", "logs", "-o", "json")
    assert done.code == 3, done.result.gate.verdict
    assert "rank1.json cannot be judged" in done.result.gate.verdict
    assert "where other ranks have" in done.result.gate.verdict
    assert run("check", "logs", "--allow-partial").code == 0
    for rank in (0, 2):
        (logs / f"rank{rank}.json").unlink()
    assert run("check", "logs").code == 0, "alone nothing says that it is little"


def test_a_rank_of_which_a_few_steps_are_left_beside_the_others(logs: Path, run: Run) -> None:
    """As where the list of its events ends early and is closed: ranks make their steps together."""
    (logs / "rank0.pt.trace.json").unlink()
    for rank, steps in enumerate((40, 30, 5)):
        healthy(rank, 3, steps=steps).write(logs / f"rank{rank}.json")
    done = run("check", "logs", "-o", "json")
    assert (done.code, done.result.gate.undecided) == (
        3,
        ["rank2.json cannot be judged: 5 steps, where other ranks have 35"],
    )
    assert run("check", "logs", "--allow-partial").code == 0
    healthy(2, 3, steps=20).write(logs / "rank2.json")
    assert run("check", "logs").code == 0


def without(trace: Path, *cats: str) -> None:
    """Takes all events of these categories out of it."""
    content = json.loads(trace.read_text())
    content["traceEvents"] = [e for e in content["traceEvents"] if e.get("cat") not in cats]
    trace.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("cat", "why"),
    [
        ("cuda_runtime", "the launches of 24 of its 24 kernels are missing"),
        ("kernel", "the kernels of 24 of its 24 launches"),
    ],
)
@pytest.mark.parametrize("graphs", [False, True])
def test_one_side_of_a_gpu_trace_is_not_judged(
    logs: Path, run: Run, cat: str, why: str, graphs: bool
) -> None:
    """The profiler records a kernel with its launch: without one of them what the GPU waited for is not known."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            b.copy(20)
            for _ in range(4):
                with b.op("aten::mm"):
                    b.launch(300, "bf16_gemm", call="cudaGraphLaunch" if graphs else "cudaLaunchKernel")
            b.idle_until_done()
    trace = b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs").code == 0
    without(trace, cat)
    done = run("check", "logs", "--fail-on", "never", "-o", "json")
    assert done.code == 3
    assert why in done.result.gate.verdict
    assert run("check", "logs", "--select", "TD301").code == 3, "whatever rules are asked"


@pytest.mark.parametrize(
    ("keeps", "code"),
    [(lambda n: n % 10, 3), (lambda n: not 300 < n < 600, 0)],
    ids=["each tenth", "a piece"],
)
def test_events_that_were_lost_one_by_one(
    logs: Path, run: Run, keeps: Callable[[int], object], code: int
) -> None:
    """The profiler numbers operators and annotations; numbers that lie elsewhere leave one large hole."""
    trace = healthy(steps=60).write(logs / "rank0.pt.trace.json")
    content = json.loads(trace.read_text())
    numbers = iter(range(10_000))
    for event in content["traceEvents"]:
        if event["cat"] in ("cpu_op", "user_annotation"):
            number = next(numbers)
            event["args"]["Ev Idx"] = number + 300 * (number > 150) if code == 0 else number
    trace.write_text(json.dumps(content))
    assert run("check", "logs").code == 0
    content["traceEvents"] = [e for e in content["traceEvents"] if keeps(e["args"].get("Ev Idx", 1))]
    trace.write_text(json.dumps(content))
    done = run("check", "logs", "-o", "json")
    assert (done.code, "Python frames are missing" in done.result.gate.verdict) == (code, code == 3)


def altered(trace: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(trace.read_text())
    for event in content["traceEvents"]:
        change(event)
    trace.write_text(json.dumps(content))


def _late(seconds: float) -> Callable[[dict[str, Any]], None]:
    return lambda e: e.update(ts=e["ts"] + seconds * 1e6) if e["cat"] in ("kernel", "gpu_memcpy") else None


def _named(cat: str, known: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda e: e.update(name=name) if e["cat"] == cat and known in e["name"] else None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_late(50e-6), "calls that wait for the GPU return 0.05 ms before its work ends"),
        (_late(8), "half of its GPU work begins 8 s and more after its launch"),
        (_named("cuda_runtime", "", "x"), "none of its 48 runtime calls has a known name"),
        (_named("gpu_memcpy", "", "x"), "the names of its 6 copies do not say from where to where"),
    ],
    ids=["GPU later", "GPU much later", "runtime calls", "copies"],
)
def test_what_rules_cannot_take_for_what_it_is_is_not_judged(
    logs: Path, run: Run, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            for _ in range(6):
                with b.op("aten::mm"):
                    b.launch(300, "bf16_gemm")
            b.item()
    trace = b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs", "--fail-on", "never").code == 0
    altered(trace, change)
    done = run("check", "logs", "--fail-on", "never", "-o", "json")
    assert done.code == 3
    assert why in done.result.gate.verdict


def test_copies_without_their_calls_are_not_judged(logs: Path, run: Run) -> None:
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            with b.op("aten::mm"):
                b.launch(300, "bf16_gemm")
            b.item()
    trace = b.write(logs / "rank0.pt.trace.json")
    content = json.loads(trace.read_text())
    calls = ("cudaMemcpyAsync", "cudaStreamSynchronize")
    content["traceEvents"] = [e for e in content["traceEvents"] if e["name"] not in calls]
    trace.write_text(json.dumps(content))
    done = run("check", "logs", "--fail-on", "never", "-o", "json")
    assert (done.code, "the launches of 6 of its 6 copies are missing" in done.result.gate.verdict) == (
        3,
        True,
    )


def test_what_is_launched_into_a_graph_has_no_kernels(logs: Path, run: Run) -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            b.runtime("cudaStreamBeginCapture", 5)
            for _ in range(20):
                b.runtime("cudaLaunchKernel", 2)
            b.runtime("cudaStreamEndCapture", 5)
            for _ in range(10):
                b.launch(300, "bf16_gemm")
            b.idle_until_done()
    b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs").code == 0


@pytest.mark.parametrize(("whole", "code"), [(3, 0), (2, 0), (1, 3)])
def test_graphs_whose_kernels_are_missing(logs: Path, run: Run, whole: int, code: int) -> None:
    b = RunBuilder()
    for step in range(3):
        with b.step():
            for _ in range(10):
                b.launch(30, "bf16_gemm")
            if step < whole:
                b.launch(600, "bf16_gemm", call="cudaGraphLaunch_v10000")
            else:
                b.runtime("cudaGraphLaunch_v10000", 5)
            b.idle_until_done()
    b.write(logs / "rank0.pt.trace.json")
    done = run("check", "logs", "--fail-on", "never")
    assert (done.code, "launches of CUDA graphs are missing" in done.err + done.out) == (code, code == 3)


def thousandth(trace: Path) -> None:
    content = json.loads(trace.read_text())
    for event in content["traceEvents"]:
        event |= {field: event[field] / 1000 for field in ("ts", "dur") if field in event}
    trace.write_text(json.dumps(content))


def test_operators_that_begin_closer_than_any_can_are_in_another_unit(logs: Path, run: Run) -> None:
    """None of them takes less than 0.4 ms."""
    b = RunBuilder(gpu=None)
    for _ in range(6):
        with b.step():
            for _ in range(20):
                with b.op("aten::linear", us=100), b.op("aten::matmul", us=100), b.op("aten::mm", us=400):
                    pass
    trace = b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs", "--fail-on", "never").code == 0
    thousandth(trace)
    done = run("check", "logs", "--fail-on", "never", "-o", "json")
    assert (done.code, "the median operator begins" in done.result.gate.verdict) == (3, True)


@pytest.mark.parametrize(
    ("gpu", "us", "what"),
    [
        (None, 30, "the median operator takes"),
        (None, 300, "a tenth of its operators take at most"),
        ("NVIDIA H100 80GB HBM3", 30, "the median operator takes"),
    ],
)
def test_times_that_no_machine_can_reach_are_in_another_unit(
    logs: Path, run: Run, gpu: str | None, us: int, what: str
) -> None:
    b = RunBuilder(gpu=gpu)
    for _ in range(6):
        with b.step():
            for _ in range(20):
                with b.op("aten::mm", us=us):
                    if gpu:
                        b.launch(150, "bf16_gemm")
            for _ in range(4):
                with b.op("aten::view", us=2):
                    pass
            b.wait(1000)
    trace = b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs").code == 0
    thousandth(trace)
    done = run("check", "logs", "-o", "json")
    assert done.code == 3, done.result.gate.verdict
    assert f"its times are in another unit: {what}" in done.result.gate.verdict


def test_a_step_that_outweighs_all_others_is_named(logs: Path, run: Run) -> None:
    """It dilutes what is a share of the step; it stays one of them."""
    b = RunBuilder()
    for n in range(8):
        with b.step():
            with b.op("aten::mm"):
                b.launch(300, "bf16_gemm")
            b.idle_until_done()
            b.wait(50_000 if n == 5 else 100)
    b.write(logs / "rank0.pt.trace.json")
    done = run("check", "logs", "-o", "json")
    assert any("step 5 takes 50 ms, longer than the other" in limit for limit in done.result.limits)
    assert done.code == 3 and "step 5 takes 17 times as long" in done.result.gate.verdict
    assert run("check", "logs", "--allow-partial").code == 0
    assert "step 5 takes 50 ms" in " ".join(run("check", "logs").out.split())


def test_a_file_that_ends_before_its_first_step_does(logs: Path, run: Run) -> None:
    """Its rule is not asked: what is left of the file decides nothing all the same."""
    trace = json.loads((logs / "rank0.pt.trace.json").read_text())
    events = trace["traceEvents"]
    of_step = [json.dumps(e) for e in events if e["ts"] < events[0]["ts"] + events[0]["dur"]]
    cut = [*of_step, json.dumps(events[0])]
    (logs / "rank1.json").write_text(HEAD + ",".join(cut)[:-9])
    done = run("check", "logs", "--select", "TD201", "-o", "json")
    assert (done.code, "before its first step" in done.result.gate.verdict) == (3, True)
    behind = [json.dumps(e) for e in events if e["ts"] < events[0]["ts"] + 2 * events[0]["dur"]]
    (logs / "rank1.json").write_text(HEAD + ",".join([*behind, cut[-1]])[:-9])
    assert run("check", "logs", "--select", "TD201").code == 0, "a step of it is whole"


def test_two_traces_in_one_file_have_no_step_time(logs: Path, run: Run) -> None:
    """One behind the other: their launches and GPU work are told apart by numbers that begin anew."""
    first = logs / "rank0.pt.trace.json"
    second = json.loads(first.read_text())
    for event in second["traceEvents"]:
        event["ts"] = event.get("ts", 0) + 10_000_000
    first.write_text(first.read_text() + json.dumps(second))
    (logs.parent / "trace-doctor.toml").write_text('budgets.step_time = "20 s"\n')
    done = run("check", "logs", "-o", "json")
    assert (done.code, done.result.inputs[0].pace) == (3, None)
    assert [b.status for b in done.result.gate.budgets] == ["undecided"]
    assert "several traces" in done.result.gate.verdict


@pytest.mark.parametrize(
    ("marked", "other"),
    [(True, {"pid": 200, "tid": 200}), (False, {"pid": 200, "tid": 200}), (True, {"tid": 200})],
)
def test_the_traces_of_two_ranks_in_one_list_are_not_judged(
    logs: Path, run: Run, marked: bool, other: dict[str, int]
) -> None:
    """What the second rank does may hide behind the work of the first, whose thread is the busiest."""
    first = logs / "rank0.pt.trace.json"
    trace = json.loads(first.read_text())
    events = [e for e in trace["traceEvents"] if marked or not e.get("name", "").startswith("ProfilerStep")]
    second = [
        {**e, **(other if e.get("cat") != "kernel" else {"pid": 1}), "ts": e["ts"] + 3}
        for e in events
        if "ts" in e
    ]
    first.write_text(json.dumps({**trace, "traceEvents": events}))
    assert run("check", "logs").code == 0
    first.write_text(json.dumps({**trace, "traceEvents": events + second}))
    done = run("check", "logs", "-o", "json")
    assert done.code == 3
    assert "merged traces of several ranks" in done.result.gate.verdict
    memory = SnapshotBuilder()
    memory.train()
    memory.write(logs / "snapshot.pickle")
    assert run("check", "logs").code == 3, "a snapshot says nothing of the trace"


def test_a_few_events_of_another_process_are_no_second_trace(logs: Path, run: Run) -> None:
    """Of a damaged event the process may be wrong."""
    first = logs / "rank0.pt.trace.json"
    trace = json.loads(first.read_text())
    operators = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    for event in operators[:3]:
        event["pid"] = 7
    first.write_text(json.dumps(trace))
    assert run("check", "logs").code == 0


def test_a_gap_between_two_windows_of_the_profiler_hides_nothing(logs: Path, run: Run) -> None:
    def job(apart: float) -> None:
        b = RunBuilder()
        for number in (*range(8), *range(40, 48)):
            if number == 40:
                b.wait(apart)
            with b.step(number):
                b.loader(400)
                with b.op("aten::mm"):
                    b.launch(300, "bf16_gemm")
                b.idle_until_done()
        b.write(logs / "rank0.pt.trace.json")

    job(60e6)
    done = run("check", "logs", "-o", "json")
    assert (done.code, [f.code for f in done.result.findings]) == (1, ["TD101"])
    assert "only steps 40 to 47 were judged" in done.result.gate.verdict
    assert {row.phase for row in done.result.time_ledger if row.window_ns > 1e9} == set()
    assert "only steps 40 to 47 were judged" in " ".join(run("analyze", "logs").out.split())
    nothing = ("check", "logs", "--fail-on", "never")
    assert (run(*nothing).code, run(*nothing, "--allow-partial").code) == (3, 0)
    assert run(*nothing, "--steps", "0:8").code == 0, "what was asked for was judged"


def test_an_own_rule_that_fails_has_not_looked(logs: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from trace_doctor.registry import resolve

    def broken(self: Any, ctx: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(resolve("TD201")[0], "check", broken)
    assert run("check", "logs").code == 3
    assert run("check", "logs", "--ignore", "TD201").code == 0


@pytest.mark.parametrize(
    ("scenario", "rule", "entries", "segments"),
    [
        ("activation_bound", "TD406", slice(5), slice(None)),
        ("stale_graph", "TD411", slice(-10, None), slice(None)),
        ("memory_spike", "TD404", slice(None), slice(0)),
    ],
)
def test_a_snapshot_with_too_little_in_it(
    repository: Path, run: Run, scenario: str, rule: str, entries: slice, segments: slice
) -> None:
    whole = SAMPLES / scenario / "simulated" / "fault" / "snapshot.pickle.gz"
    assert run("check", whole, "--select", rule, "--require", rule).code in (0, 1)
    snapshot = pickle.loads(gzip.decompress(whole.read_bytes()))
    snapshot["device_traces"] = [trace[entries] for trace in snapshot["device_traces"]]
    snapshot["segments"] = snapshot["segments"][segments]
    (repository / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    (repository / "trace-doctor.toml").write_text('[budgets]\npeak_allocated = "900 GiB"\n')
    done = run("check", "snapshot.pickle", "--select", rule, "--require", rule)
    assert (done.code, "cannot be judged" in done.out) == (3, True), done.out


@pytest.mark.parametrize(
    ("scenario", "rule", "lengths"),
    [
        ("allocator_churn_shapes", "TD401", (26, 60, 90)),
        ("fragmentation", "TD402", (24,)),
        ("memory_spike", "TD403", (24, 111)),
        ("zero_grad_misplaced", "TD404", (30, 100)),
        ("zero_grad_set_to_none_false", "TD404", (30,)),
        ("memory_growth", "TD405", (83, 111)),
        ("empty_cache_in_loop", "TD409", (25, 60)),
        ("stale_graph", "TD411", (23, 30, 48)),
    ],
)
def test_what_is_left_of_a_history_passes_no_rule_that_the_whole_one_breaks(
    tmp_path: Path, scenario: str, rule: str, lengths: tuple[int, ...]
) -> None:
    whole = SAMPLES / scenario / "simulated" / "fault" / "snapshot.pickle.gz"
    snapshot = pickle.loads(gzip.decompress(whole.read_bytes()))
    before = analyze(whole)
    assert decide(before, Terms(require=[rule])).code == 1
    for length in lengths:
        cut = tmp_path / "snapshot.pickle"
        cut.write_bytes(
            pickle.dumps(
                {**snapshot, "device_traces": [trace[-length:] for trace in snapshot["device_traces"]]}
            )
        )
        after = analyze(cut)
        assert decide(after, Terms(require=[rule])).code in (1, 3), length
        assert verify(before, after).code in (1, 3), length


@pytest.mark.parametrize(
    ("scenario", "rule", "without"),
    [
        ("out_of_memory", "TD410", "oom"),
        ("activation_bound", "TD406", "oom"),
        ("optimizer_state_bound", "TD407", "oom"),
        ("allocator_churn_shapes", "TD401", "segment"),
    ],
)
def test_a_history_without_its_failures_or_its_segments(
    tmp_path: Path, scenario: str, rule: str, without: str
) -> None:
    whole = SAMPLES / scenario / "simulated" / "fault" / "snapshot.pickle.gz"
    snapshot = pickle.loads(gzip.decompress(whole.read_bytes()))
    traces = [[e for e in t if not e["action"].startswith(without)] for t in snapshot["device_traces"]]
    cut = tmp_path / "snapshot.pickle"
    cut.write_bytes(pickle.dumps({**snapshot, "device_traces": traces}))
    assert decide(analyze(cut), Terms(require=[rule])).code == 3


@pytest.mark.parametrize(("cat", "by_us"), [("cuda_runtime", -3.6e9), ("kernel", 3.6e9)])
def test_one_damaged_time_hides_no_fault(tmp_path: Path, cat: str, by_us: float) -> None:
    whole = SAMPLES / "dataloader_starvation" / "simulated" / "fault" / "trace.json.gz"
    trace = json.loads(gzip.decompress(whole.read_bytes()))
    of_kind = [e for e in trace["traceEvents"] if e.get("cat") == cat]
    of_kind[len(of_kind) // 2]["ts"] += by_us
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    decided = decide(analyze(tmp_path / "trace.json"))
    assert decided.code == 3 and "though the GPU was idle" in decided.verdict


def _launched_later(event: dict[str, Any]) -> None:
    event["ts"] += 1e5 if event.get("cat") == "cuda_runtime" else 0


def _a_hundred_times_as_long(event: dict[str, Any]) -> None:
    event["dur"] = event.get("dur", 0) * (100 if event.get("cat") in ("kernel", "gpu_memcpy") else 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [(_launched_later, "before its launches"), (_a_hundred_times_as_long, "at the same time")],
)
def test_times_that_contradict_each_other_hide_no_fault(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    whole = SAMPLES / "dataloader_starvation" / "simulated" / "fault" / "trace.json.gz"
    trace = json.loads(gzip.decompress(whole.read_bytes()))
    for event in trace["traceEvents"]:
        change(event)
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    decided = decide(analyze(tmp_path / "trace.json"))
    assert (decided.code, why in decided.verdict) == (3, True), decided.verdict


def test_what_is_not_judged_saves_nothing(logs: Path, run: Run) -> None:
    """The figure would stand beside the sentence that the capture cannot be judged."""
    sample = Path(__file__).parents[2] / "sample_traces" / "single_tensor_optimizer" / "simulated" / "fault"
    content = json.loads(gzip.decompress((sample / "trace.json.gz").read_bytes()))
    shutil.rmtree(logs)
    logs.mkdir()
    for file, shift in (("as_it_was", 0), ("shifted", 5_000)):
        for event in content["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                event["ts"] -= shift
        (logs / f"{file}.json").write_text(json.dumps(content))
    results = [run("check", f"logs/{name}.json", "-o", "json").result for name in ("as_it_was", "shifted")]
    assert [bool(r.inputs[0].too_little) for r in results] == [False, True]
    assert all(r.findings for r in results)
    assert [any(f.saving for f in r.findings) for r in results] == [True, False]
    assert [r.summary.saving_up_to.share_of_step is not None for r in results] == [True, False]


@pytest.mark.parametrize("times", ["still", "backwards"])
def test_a_history_whose_times_do_not_follow_is_not_judged(logs: Path, run: Run, times: str) -> None:
    """The growth that it holds could not be seen."""
    sample = Path(__file__).parents[2] / "sample_traces" / "memory_growth" / "simulated" / "fault"
    content = pickle.loads(gzip.decompress((sample / "snapshot.pickle.gz").read_bytes()))
    shutil.rmtree(logs)
    logs.mkdir()
    (logs / "snapshot.pickle").write_bytes(pickle.dumps(content))
    assert run("check", "logs").code == 1
    for entries in content["device_traces"]:
        for n, entry in enumerate(entries):
            entry["time_us"] = 0 if times == "still" else len(entries) - n
    (logs / "snapshot.pickle").write_bytes(pickle.dumps(content))
    done = run("check", "logs")
    assert done.code == 3 and "the times of its history" in " ".join(done.out.split())
