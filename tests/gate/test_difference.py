"""What changed, what is noise, and what nobody can know: `diff` on results made by hand and on captures."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trace_doctor
from trace_doctor import model as m
from trace_doctor.gate.diff import MOST, difference
from trace_doctor.gate.verify import verify
from trace_doctor.model.difference import Change, Difference
from trace_doctor.reporters.difference import FORMATS, render
from trace_doctor.reporters.units import columns

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def capture(
    number: int = 0,
    *,
    compute: float = 60.0,
    idle: float = 40.0,
    deviation: float = 0.5,
    kernels: dict[str, float] | None = None,
    names: int | None = None,
    steps: int = 8,
) -> m.Result:
    """One recording of one rank: ms a step of compute and of loading."""
    listed = {"gemm": compute} if kernels is None else kernels
    total = compute + idle
    pace = m.Pace(steps=steps, median_us=total * 1e3, mad_us=deviation * 1e3)
    row = m.TimeLedgerRow(
        input=number, rank=0, device=0, phase="steady", steps=steps, window_ns=int(total * 1e6 * steps),
        compute_ns=int(compute * 1e6 * steps), exposed_comm_ns=0, exposed_copy_ns=0,
        idle_ns=m.IdleNs(data_loading=int(idle * 1e6 * steps)), step_us=total * 1e3,
        step_sd_us={"compute": deviation * 1e3, "data_loading": deviation * 1e3},
    )  # fmt: skip
    rows = [
        m.KernelRow(
            input=number, rank=0, device=0, name=name, kind="compute", count=steps, total_us=ms * 1e3 * steps,
            mean_us=ms * 1e3, share=0.1, step_us=ms * 1e3, step_sd_us=deviation * 1e3,
        )
        for name, ms in sorted(listed.items(), key=lambda kv: -kv[1])
    ]  # fmt: skip
    known = len(rows) if names is None else names
    return m.Result(
        inputs=[m.Input(path=f"run{number}/a.json", kind="trace", steps=steps, pace=pace, work=m.Work(kernel_names=known))],
        time_ledger=[row],
        kernels=rows,
        steps=[
            m.StepRow(input=number, rank=0, index=i, start_us=0.0, dur_us=1.0, pace_us=total * 1e3 + deviation * (-1) ** i)
            for i in range(steps)
        ],
    )  # fmt: skip


def several(*results: m.Result) -> m.Result:
    """Recordings of one job as one side."""
    joined: dict[str, Any] = {}
    for field in ("inputs", "time_ledger", "kernels", "steps"):
        joined[field] = [row for r in results for row in getattr(r, field)]
    return m.Result(**joined)


def change(made: list[Change], name: str) -> Change:
    return next(c for c in made if c.name == name)


def test_the_part_that_changed_is_told_and_the_others_are_noise() -> None:
    made = difference(capture(), capture(idle=10.0, compute=60.3))
    loading, compute = change(made.time, "data_loading"), change(made.time, "compute")
    assert (loading.verdict, loading.confidence, loading.change) == ("less", "medium", pytest.approx(-30_000))
    assert (compute.verdict, compute.confidence) == ("within_noise", None)
    assert made.step_time.verdict == "faster"
    assert made.verdict.startswith("29.7% faster")


def test_steps_that_vary_hide_a_change() -> None:
    made = difference(capture(deviation=15.0), capture(idle=30.0, deviation=15.0))
    assert change(made.time, "data_loading").verdict == "within_noise"


@pytest.mark.parametrize(
    ("cost_us", "fate", "words"),
    [(2_000.0, "within_noise", "1 finding gone, within noise"), (60_000.0, "gone", "1 finding fixed")],
)
def test_a_finding_that_costs_less_than_the_steps_vary_is_neither_fixed_nor_new(
    cost_us: float, fate: str, words: str
) -> None:
    """Its rule's threshold was crossed, that is all."""
    finding = m.Finding(
        id="TD101-1", code="TD101", name="x", title="X", severity="warning", confidence="high", message="", fingerprint="a",
        saving=m.Saving(time_us_per_step=cost_us, share_of_step=cost_us / 100_000, basis="replay"),
    )  # fmt: skip
    passed, fired = (m.Outcome(code="TD101", name="x", title="X", outcome=o) for o in ("passed", "fired"))
    noisy = capture(deviation=15.0)
    again = msgspec.structs.replace(noisy.steps[0], dur_us=noisy.steps[0].dur_us + 1)  # another run
    with_it = msgspec.structs.replace(
        noisy, findings=[finding], outcomes=[fired], steps=[again, *noisy.steps[1:]]
    )
    without = msgspec.structs.replace(noisy, outcomes=[passed])
    made = difference(with_it, without)
    assert [f.fate for f in made.findings] == [fate]
    assert words in made.verdict
    assert [f.within_noise for f in difference(without, with_it).new] == [fate == "within_noise"]
    verified = verify(with_it, without)
    assert verified.code == 0
    assert ("a step varies by more" in verified.verdict) == (fate == "within_noise")


def test_several_recordings_decide_by_their_median_and_are_surer() -> None:
    before = several(*(capture(n, idle=i) for n, i in enumerate((40.0, 40.4, 90.0))))
    after = several(*(capture(n, idle=i) for n, i in enumerate((10.0, 10.2, 10.1))))
    loading = change(difference(before, after).time, "data_loading")
    assert loading.before == pytest.approx(40_400)
    assert (
        loading.verdict == "within_noise"
    )  # one run of three took 90 ms: runs differ by more than what changed
    calm = several(*(capture(n, idle=i) for n, i in enumerate((40.0, 40.4, 40.2))))
    assert change(difference(calm, after).time, "data_loading").confidence == "high"


def test_only_steady_time_is_compared() -> None:
    one = capture()
    warm = msgspec.structs.replace(one.time_ledger[0], phase="warmup", compute_ns=10**12)
    made = difference(one, msgspec.structs.replace(one, time_ledger=[warm, *one.time_ledger]))
    assert change(made.time, "compute").change == 0


@pytest.mark.parametrize("more", [0, 1])
def test_long_lists_are_cut_and_that_is_said(more: int) -> None:
    names = {f"k{n:03}": 1.0 + n for n in range(MOST + more)}
    made = difference(capture(kernels=names), capture(kernels=names))
    assert len(made.kernels) == MOST
    assert made.limits == [f"showing {MOST} of {MOST + 1} kernels that a side lists"] * more


def test_few_steps_do_not_tell() -> None:
    made = difference(capture(steps=2), capture(steps=2, idle=1.0))
    assert {c.verdict for c in made.time} == {"too_few_steps"}
    assert made.step_time.verdict == "too_few_steps"


def test_another_device_lowers_the_confidence() -> None:
    after = capture(idle=10.0)
    inputs = [
        msgspec.structs.replace(i, device_name=name)
        for i, name in zip((*capture().inputs, *after.inputs), ("A100", "H100"), strict=True)
    ]
    before = msgspec.structs.replace(capture(), inputs=inputs[:1])
    made = difference(before, msgspec.structs.replace(after, inputs=inputs[1:]))
    assert made.warnings
    assert change(made.time, "data_loading").confidence == "low"


def test_a_kernel_that_a_cut_list_leaves_out_is_never_said_to_be_gone() -> None:
    before = capture(kernels={"gemm": 50.0, "softmax": 9.0})
    whole = difference(before, capture(kernels={"gemm": 50.0})).kernels
    cut = difference(before, capture(kernels={"gemm": 50.0, "copy": 4.0}, names=90)).kernels
    gone, hidden = change(whole, "softmax"), change(cut, "softmax")
    assert (gone.after, gone.at_most, gone.change) == (0.0, False, pytest.approx(-9_000))
    assert (hidden.after, hidden.at_most, hidden.change) == (4_000.0, True, pytest.approx(-5_000))
    assert change(cut, "copy").change == pytest.approx(4_000)  # BEFORE lists all: it was not there
    few = difference(capture(kernels={"gemm": 50.0, "copy": 4.0}, names=90), capture(kernels={"norm": 1.0}))
    assert change(few.kernels, "norm").change == 0.0, "it may have been shorter in BEFORE too"


@given(st.floats(1, 100), st.floats(0, 100), st.floats(0, 5))
@settings(max_examples=40, deadline=None)
def test_nothing_changed_between_a_result_and_itself(compute: float, idle: float, deviation: float) -> None:
    one = capture(compute=compute, idle=idle, deviation=deviation)
    made = difference(one, one)
    assert {c.verdict for c in (*made.time, *made.kernels)} == {"within_noise"}
    assert made.rules == made.new == []


def test_nothing_is_fixed_in_the_same_recording() -> None:
    """As where AFTER was diagnosed with other settings."""
    after = capture()
    found = m.Finding(
        id="TD201-1", code="TD201", name="host-device-sync", title="t", severity="warning", confidence="high", message="m", fingerprint="f",
    )  # fmt: skip
    outcome = m.Outcome(code="TD201", name="host-device-sync", title="t", outcome="passed")
    before = msgspec.structs.replace(
        after, findings=[found], outcomes=[msgspec.structs.replace(outcome, outcome="fired")]
    )
    done = difference(before, msgspec.structs.replace(after, outcomes=[outcome]))
    assert (done.code, [f.fate for f in done.findings]) == (3, ["not_captured"])
    assert "fixed" not in done.verdict


def test_a_trace_and_a_snapshot_have_nothing_in_common() -> None:
    trace = capture()
    snapshot = msgspec.structs.replace(
        trace,
        inputs=[msgspec.structs.replace(i, kind="snapshot") for i in trace.inputs],
        time_ledger=[],
        steps=[],
    )
    done = difference(trace, snapshot)
    assert (done.code, done.undecided) == (
        3, ["BEFORE is a trace, AFTER a memory snapshot: they have nothing in common"],
    )  # fmt: skip
    assert difference(trace, capture(1)).code == 0


def test_why_a_rule_could_not_look_stands_beside_what_it_said_before() -> None:
    fired, blind, passed = (
        m.Result(outcomes=[m.Outcome(code="TD101", name="x", outcome=o, reason=why)])
        for o, why in (("fired", None), ("skipped", "no stacks"), ("passed", "never shown"))
    )
    reasons = [
        difference(*sides).rules[0].reason for sides in ((fired, blind), (blind, fired), (passed, fired))
    ]
    assert reasons == ["no stacks", "no stacks", None]


def test_what_is_not_captured_is_said(tmp_path: Path) -> None:
    made = difference(m.Result(), capture())
    assert made.time == made.kernels == made.peak == []
    text = render(made, "text")
    assert text.count("not captured") >= 4


@pytest.mark.parametrize("fmt", FORMATS)
def test_formats_are_the_same_each_time_and_hold_hostile_names(fmt: str) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\x1b[31m|`\u202e"
    made = difference(capture(kernels={hostile: 9.0}), capture(kernels={hostile: 1.0}))
    page = render(made, fmt)
    assert page == render(Difference.from_json(made.to_json()), fmt)
    assert "\x1b" not in page
    if fmt == "html":
        assert "<img" not in page
        assert page.count("<h1") == 1
    if fmt == "text":
        assert all(columns(line) <= 80 for line in page.splitlines())
    if fmt == "json":
        jsonschema.validate(json.loads(page), m.json_schema(Difference))


@pytest.mark.parametrize(
    ("scenario", "block", "name"),
    [("host_sync", "operators", "cudaMemcpyAsync"), ("memory_spike", "peak", "temporaries")],
)
def test_the_repaired_twin_of_a_sample(scenario: str, block: str, name: str) -> None:
    twins = [SAMPLES / scenario / "simulated" / twin for twin in ("fault", "healthy")]
    made = trace_doctor.diff(*twins)
    assert [f.fate for f in made.findings] == ["gone"]
    assert change(getattr(made, block), name).verdict == "less"
    back = trace_doctor.diff(*twins[::-1])
    assert change(getattr(back, block), name).verdict == "more"
    assert [f.code for f in back.new] == [f.code for f in made.findings]


def test_the_command(run: Callable[..., Any], repository: Path) -> None:
    twins = [SAMPLES / "host_sync" / "simulated" / twin for twin in ("fault", "healthy")]
    done = run("diff", *twins, "-o", "text", "-o", "html=d.html", "-o", "markdown=d.md", "-o", "json=d.json")
    assert done.code == 0
    assert "within noise" in done.out
    assert "1 finding fixed" in done.out
    assert (
        Difference.from_json((repository / "d.json").read_bytes()).verdict
        in (repository / "d.md").read_text()
    )
    assert run("diff", twins[0], "absent").code == 2
    assert run("diff", *twins, "-o", "sarif").code == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, 4 << 30, ""),
        (4 << 30, None, ""),
        (0, 4 << 30, ""),
        (4 << 30, 4 << 30, ""),
        (4 << 30, 3 << 30, "peak 25.0% lower"),
        (4 << 30, 5 << 30, "peak 25.0% higher"),
    ],
)
def test_the_verdict_speaks_of_peaks_that_both_sides_have(
    before: int | None, after: int | None, words: str
) -> None:
    def side(peak: int | None) -> m.Result:
        made = capture()
        summary = msgspec.structs.replace(made.summary, peak_allocated_bytes=peak)
        return msgspec.structs.replace(made, summary=summary)

    verdict = difference(side(before), side(after)).verdict
    assert (words in verdict) if words else ("peak" not in verdict)


NAMES = ("gemm", "softmax", "norm", "gelu", "copy", "adam")


@pytest.mark.parametrize(
    ("pace", "one", "verdict"),
    [(0.75, 1.0, "machine"), (1.3, 1.0, "machine"), (1.0, 0.4, "faster"), (0.4, 1.0, "faster")],
    ids=["a faster clock", "a slower clock", "one kernel of six", "more than a clock does"],
)
def test_the_same_work_at_another_pace_is_the_machines(pace: float, one: float, verdict: str) -> None:
    """Identical code twice: all kernels change by the factor of the step. A fix is about some of them."""
    times = dict.fromkeys(NAMES, 10.0) | {"gemm": 50.0}
    after = {name: ms * pace * (one if name == "gemm" else 1.0) for name, ms in times.items()}
    sides = [capture(compute=sum(k.values()), idle=0.0, kernels=k) for k in (times, after)]
    made = difference(*sides)
    assert made.step_time.verdict == verdict
    assert ("likely the machine" in made.verdict) == (verdict == "machine")
    assert ("likely the machine" in render(made, "text")) == (verdict == "machine")


def _paced(*milliseconds: float) -> m.Result:
    base = capture(steps=len(milliseconds))
    rows = [
        m.StepRow(input=0, rank=0, index=i, start_us=0.0, dur_us=1.0, pace_us=ms * 1e3)
        for i, ms in enumerate(milliseconds)
    ]
    return msgspec.structs.replace(base, steps=rows)


def test_steps_that_drift_are_no_independent_samples() -> None:
    """The same steps by turns, and first the long and then the short ones: the second recording knows its median less surely."""
    mixed, drifting = _paced(*[100.0, 104.0] * 6), _paced(*[104.0] * 6, *[100.0] * 6)
    after = _paced(*[94.0] * 12)
    assert difference(mixed, after).step_time.verdict == "faster"
    made = difference(drifting, after)
    assert made.step_time.verdict == "within_noise"
    assert "differences between runs (clock, neighbors) are not covered" in " ".join(
        render(made, "text").split()
    )


def test_parts_say_which_steps_they_are_of() -> None:
    """A step of 62.5 ms without the profiler is no step with 70.4 ms of compute."""
    plain = m.Pace(steps=8, median_us=62_500.0, mad_us=100.0)
    sides = [
        msgspec.structs.replace(r, inputs=[msgspec.structs.replace(r.inputs[0], plain=plain)])
        for r in (capture(compute=70.4, idle=2.0), capture(compute=70.4, idle=2.0))
    ]
    assert "by part: 72.4 ms → 72.4 ms, with the profiler" in render(difference(*sides), "text")


def test_times_that_contradict_the_trace_are_not_used(repository: Path, run: Callable[..., Any]) -> None:
    """Divided by ten they made the same recording ten times as fast."""
    sample = SAMPLES / "straggler" / "cpu" / "fault"
    shutil.copytree(sample, repository / "after")
    times = repository / "after" / "steps.csv"
    with times.open() as file:
        head, *rows = list(csv.reader(file))
    at = head.index("milliseconds")
    with times.open("w") as file:
        csv.writer(file).writerows([head, *([*r[:at], float(r[at]) / 10, *r[at + 1 :]] for r in rows)])
    done = run("diff", sample, "after")
    assert "faster" not in done.out
    assert "times of its steps in the recording are not used" in run("analyze", "after").out
    assert "are not used" not in run("analyze", sample).out
