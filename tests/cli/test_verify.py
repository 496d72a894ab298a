"""`trace-doctor verify` as a user runs it, on the sample captures and on real ones."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest
from warm_commands import warm

import trace_doctor
from trace_doctor.model import Result
from trace_doctor.model.verification import Verification

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PAIRS = sorted(p.parent.relative_to(SAMPLES).as_posix() for p in SAMPLES.glob("*/*/fault"))


def run(*args: str | Path, cwd: Path = SAMPLES) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR")}
    return subprocess.run(
        [*warm(), "verify", *map(str, args)], cwd=cwd, env=env, capture_output=True,
        text=True, encoding="utf-8", check=False,
    )  # fmt: skip


@functools.cache
def analyzed(pair: str, which: str) -> Result:
    return trace_doctor.analyze(SAMPLES / pair / which)


def verified(pair: str, before: str, after: str) -> Verification:
    return trace_doctor.verify(analyzed(pair, before), analyzed(pair, after))


@pytest.mark.parametrize("pair", PAIRS)
def test_every_planted_fault_is_gone_in_its_healthy_twin(pair: str) -> None:
    made = verified(pair, "fault", "healthy")
    assert made.code == 0, made.verdict
    left = [f for f in made.findings if f.fate != "gone"]
    assert all(f.after_severity == "info" for f in left), left
    assert [f for f in made.findings if f.fate == "gone"]
    assert {f.severity for f in made.new} <= {"info"}
    if not {f.code for f in made.findings} & {"TD001", "TD004"}:  # there the fault is how it was recorded
        assert all(w.endswith("expected only where the fix changes them") for w in made.warnings)


@pytest.mark.parametrize("pair", PAIRS)
def test_no_planted_fault_is_gone_from_its_own_capture(pair: str) -> None:
    made = verified(pair, "fault", "fault")
    assert {f.fate for f in made.findings} == {"still_there"}
    assert made.code == 1


def test_a_note_that_stays_is_no_failure_unless_it_was_asked_for() -> None:
    """The fragmented memory is gone; that activations fill most of the peak is a note in both captures."""
    both = (SAMPLES / "fragmentation/simulated/fault", SAMPLES / "fragmentation/simulated/healthy")
    made = trace_doctor.verify(*both)
    assert {f.code: f.fate for f in made.findings} == {"TD402": "gone", "TD406": "still_there"}
    assert made.verdict == "verify passed: the finding is fixed; 1 note is not"
    assert (made.code, trace_doctor.verify(*both, select=["TD406"]).code) == (0, 1)


def test_text_for_people_verdict_and_exit_code() -> None:
    done = run("dataloader_starvation/simulated/fault", "dataloader_starvation/simulated/healthy")
    assert done.returncode == 0, done.stderr
    assert "✔ fixed         TD101-1 dataloader-starvation" in done.stdout
    assert "predicted       up to 57 ms of the mean step (simulated), measured 57.0 ms" in done.stdout
    assert done.stderr == "verify passed: the finding is fixed\n"
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_capture_that_cannot_tell_is_no_success() -> None:
    done = run("memory_spike/simulated/fault", "dataloader_starvation/simulated/healthy")
    assert done.returncode == 3
    assert "? not captured  TD403-1" in done.stdout


NARROWED = {
    "ignore": 'ignore = ["TD101"]',
    "select": 'select = ["TD2"]',
    "min-saving": "min-saving = 0.9",
    "rules": "[rules.TD101]\nmin_share = 0.99",
    "suppressions": '[suppress]\nTD101 = "a smoke test"',
}


@pytest.mark.parametrize("setting", NARROWED)
def test_what_the_configuration_hides_is_not_gone(setting: str, tmp_path: Path) -> None:
    (tmp_path / "trace-doctor.toml").write_text(NARROWED[setting])
    fault = SAMPLES / "dataloader_starvation/simulated/fault"
    done = run(fault, fault, cwd=tmp_path)
    assert done.returncode == 3
    assert f"TD101 dataloader-starvation of BEFORE, hidden by {setting}\n" in done.stderr


def test_saved_results_say_the_same_as_their_captures(tmp_path: Path) -> None:
    sides = [SAMPLES / "graph_break_two" / "cpu" / twin for twin in ("fault", "healthy")]
    saved = [tmp_path / "before.json", tmp_path / "after.html"]
    for side, path, form in zip(sides, saved, ("json", "html"), strict=True):
        from trace_doctor.reporters import render

        path.write_text(render(trace_doctor.analyze(side), form), encoding="utf-8")
    live, again = run(*sides, "-o", "json"), run(*saved, "--format", "json=-")
    assert live.returncode == again.returncode == 0, again.stderr
    assert json.loads(live.stdout) == json.loads(again.stdout)


def test_selection_and_the_names_it_takes() -> None:
    both = ("graph_break_two/cpu/fault", "graph_break_item/cpu/fault", "--source", "graph_break_two/fault.py")
    assert run(*both, "--fail-on", "info").returncode == 1
    fates = {
        f["id"]: f["fate"]
        for select in ("TD501-1", "TD501-2")
        for f in json.loads(run(*both, "--select", select, "-o", "json").stdout)["findings"]
    }
    assert sorted(fates.values()) == ["gone", "still_there"]
    wrong = run(*both, "--select", "TD999")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("trace-doctor: no finding of BEFORE is TD999; it has TD501-1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere", "no_steps/cpu/fault"),
        ("no_steps/cpu/fault", "README.md"),
        ("no_steps/cpu/fault", "no_steps/cpu/fault", "-o", "html"),
        ("no_steps/cpu/fault", "no_steps/cpu/fault", "--fail-on", "sometimes"),
        ("no_steps/cpu/fault",),
    ],
)
def test_bad_input_exits_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_report_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("<html></html>")
    done = run(tmp_path / "r.html", "no_steps/cpu/fault")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_workers_of_a_public_pair(captures_dir: Path) -> None:
    """One script of Kineto's, recorded without workers and with four: the second gains less than the first
    promised at best, because one of its steps is long (a mean step: 178 and 141 ms, as torch-tb-profiler has them)."""
    folder = captures_dir / "traces" / "pytorch_kineto"
    before = folder / "resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz"
    after = folder / "resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz"
    made = trace_doctor.verify(before, after, select=["TD101"])
    assert [f.fate for f in made.findings] == ["gone"]
    assert made.step_time.verdict == "faster"
    assert made.promise.measured_us is not None
    assert made.promise.time_us_per_step is not None
    assert 0.6 < made.promise.measured_us / made.promise.time_us_per_step < 1
