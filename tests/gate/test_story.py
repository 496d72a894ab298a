"""The story of a pull request, played on recorded twins: main makes the baseline, branches are held against it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.reporters import FORMATS

Run = Callable[..., Any]
Record = Callable[..., None]

ON_MAIN = ("--source", ".", "--baseline", "baseline.json", "--update-baseline", "-q")
ON_BRANCH = ("--source", ".", "--baseline", "baseline.json")
SCENARIOS = [("dataloader_starvation", "cpu", "TD101"), ("host_sync", "simulated", "TD201")]


@pytest.mark.parametrize(("scenario", "machine", "code"), SCENARIOS)
def test_a_planted_fault_fails_the_branch_and_is_annotated_at_its_line(
    repository: Path, run: Run, record: Record, scenario: str, machine: str, code: str
) -> None:
    record(scenario, machine, "healthy")
    assert run("check", "logs", *ON_MAIN).code == 0
    record(scenario, machine, "fault")
    done = run("check", "logs", *ON_BRANCH, "-o", "github")
    assert done.code == 1
    script = (repository / "train" / "fault.py").read_text().splitlines()
    line = next(n for n, text in enumerate(script, 1) if "# FAULT" in text)
    assert f"::warning file=train/fault.py,line={line},title={code} " in done.out
    assert done.out.startswith("::error title=trace-doctor::check failed: 1 new finding at warning or above")


@pytest.mark.parametrize(("scenario", "machine", "code"), SCENARIOS)
def test_a_noisy_healthy_rerun_passes(
    repository: Path, run: Run, record: Record, scenario: str, machine: str, code: str
) -> None:
    record(scenario, machine, "healthy")
    run("check", "logs", *ON_MAIN)
    for number in range(3):
        record(scenario, machine, "healthy", run=number, noise=0.05)
    done = run("check", "logs", *ON_BRANCH)
    assert done.code == 0, done.out
    assert "within noise" in " ".join(done.out.split())


def test_what_is_known_passes_and_only_the_new_fault_fails(
    repository: Path, run: Run, record: Record
) -> None:
    record("graph_break_print", "cpu", "fault")
    run("check", "logs", *ON_MAIN)
    assert run("check", "logs", *ON_BRANCH).code == 0
    config = 'budgets.step_time = "1 s"'  # a longer step is no matter here
    (repository / "trace-doctor.toml").write_text(config)
    record("graph_break_two", "cpu", "fault")
    done = run("check", "logs", *ON_BRANCH, "-o", "json")
    assert done.code == 1
    assert (len(done.result.gate.known), len(done.result.gate.failing)) == (1, 1)
    for form, known, new in (
        ("text", "known · ", "new · "),
        ("sarif", '"unchanged"', '"new"'),
        ("markdown", "| known |", "| new, fails |"),
    ):
        out = run("check", "logs", *ON_BRANCH, "-o", form).out
        assert (known in out, new in out) == (True, True), out


def test_an_edit_above_the_fault_does_not_make_it_new(repository: Path, run: Run, record: Record) -> None:
    record("host_sync", "simulated", "fault")
    run("check", "logs", *ON_MAIN)
    script = repository / "train" / "fault.py"
    script.write_text("# a comment\n" + script.read_text())
    assert run("check", "logs", *ON_BRANCH).code == 0


def test_a_regression_alone_fails(repository: Path, run: Run, record: Record) -> None:
    record("host_sync", "simulated", "healthy")
    run("check", "logs", *ON_MAIN)
    record("host_sync", "simulated", "fault")
    done = run("check", "logs", *ON_BRANCH, "--fail-on", "never", "-o", "json")
    assert done.code == 1
    assert done.result.gate is not None
    failed = {b.name: b for b in done.result.gate.budgets if b.status == "failed"}
    assert "step_time" in failed or "gpu_idle_share" in failed
    assert not done.result.gate.failing


def test_the_mended_branch_says_that_the_baseline_is_stale(
    repository: Path, run: Run, record: Record
) -> None:
    record("host_sync", "simulated", "fault")
    run("check", "logs", *ON_MAIN)
    record("host_sync", "simulated", "healthy")
    done = run("check", "logs", *ON_BRANCH)
    assert done.code == 0
    assert "fixed: TD201 host-device-sync" in done.out


def test_exit_codes_without_evidence(repository: Path, run: Run, record: Record) -> None:
    record("dataloader_starvation", "cpu", "healthy")
    assert run("check", "logs").code == 0, "an ordinary trace never exits 3 by itself"
    done = run("check", "logs", "--require", "TD403", "-o", "junit")
    assert done.code == 3
    assert 'type="undecided"' in done.out
    config = repository / "trace-doctor.toml"
    for budget in ('gpu_idle_share = "20%"', 'peak_reserved = "1 GiB"', 'step_time.max_regression = "5%"'):
        config.write_text(f"budgets.{budget}\n")
        assert run("check", "logs").code == 3, budget
    config.write_text('budgets.peak_reserved = { max = "1 GiB", level = "warning" }\n')
    assert run("check", "logs").code == 0
    for trace in (repository / "logs" / "0").glob("*.gz"):
        trace.write_bytes(b"\x1f\x8b not gzip")
    assert run("check", "logs").code == 2


def test_a_broken_baseline_is_a_mistake_in_one_line(repository: Path, run: Run, record: Record) -> None:
    record("dataloader_starvation", "cpu", "healthy")
    broken = {
        "": "--update-baseline writes it",
        "{}": "is no baseline",
        '{"baseline_version": 9}': "write it again",
        '{"baseline_version": 1, "figures": {"step_time": {"unit": "us", "values": []}}}': "missing required field",
        '{"baseline_version": 1, "ranks": 0, "devices": [], "decided": [], "findings": [], "figures": {}}': "write it again",
    }
    for text, says in broken.items():
        if text:
            (repository / "baseline.json").write_text(text)
        done = run("check", "logs", "--baseline", "baseline.json")
        assert done.code == 2
        assert says in done.err
        assert len(done.err.splitlines()) == 1
    assert run("check", "logs", "--update-baseline").code == 2


def _without_fixes(sarif: Path) -> Any:
    content = json.loads(sarif.read_text())
    for entry in content["runs"][0]["results"]:
        entry.pop("fixes", None)
    content.pop("properties")  # the digest
    return content


def test_an_update_by_some_rules_keeps_what_others_found(repository: Path, run: Run, record: Record) -> None:
    """A narrower run has not seen it gone."""
    record("host_sync", "simulated", "fault")
    update = ("check", "logs", "--baseline", "b.json", "--update-baseline")
    assert run(*update).code == 0
    before = json.loads(Path("b.json").read_text())["findings"]
    done = run(*update, "--select", "TD3")
    assert before and json.loads(Path("b.json").read_text())["findings"] == before
    assert f"kept in the baseline: {len(before)} finding" in done.err
    record("host_sync", "simulated", "healthy")
    assert run(*update).code == 0
    assert json.loads(Path("b.json").read_text())["findings"] == []


def test_the_format_never_changes_the_exit_code_and_a_saved_check_renders_again(
    repository: Path, run: Run, record: Record
) -> None:
    record("host_sync", "simulated", "fault")
    formats = tuple(FORMATS)
    outputs = [option for fmt in formats for option in ("-o", f"{fmt}=out.{fmt}")]
    assert run("check", "logs", "--source", ".", *outputs).code == 1
    saved = {fmt: "out.html" if fmt in ("sarif", "html") else "out.json" for fmt in formats}
    for fmt, file in saved.items():
        assert run("report", file, "-o", f"{fmt}=again").code == 0
        if fmt == "sarif":  # without the patches, which a viewer applies
            again, out = (_without_fixes(Path(name)) for name in ("again", "out.sarif"))
            assert again == out
        else:
            assert Path("again").read_bytes() == Path(f"out.{fmt}").read_bytes(), fmt
