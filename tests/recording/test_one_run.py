"""All files of a recording are one run: one capture for each rank, one finding for a fault, times of the light trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_captures import read_captures

from trace_doctor.api import analyze, diff
from trace_doctor.errors import NoCaptures
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.trace.call_sites import CallSites
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.model import Result
from trace_doctor.recording.options import capture_file, rank_file
from trace_doctor.reporters import render
from trace_doctor.run import Cat
from trace_doctor.testing import RunBuilder
from trace_doctor_rules.kernels.unaligned_dims import UnalignedDims

Written = Any  # conftest's


def test_the_light_trace_decides_times_and_the_detailed_one_places(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path / "run")
    capture = written.only(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    written.pack(
        written.trace(written.reads_the_loss, detailed=False, steps=range(20, 25)).write(tmp_path / "t"),
        alone / "trace.json.gz",
    )
    light = written.only(alone)
    facts, bare = Facts(capture), Facts(light)
    assert facts[Steps].steps == bare[Steps].steps
    assert int(capture.run.own.sum()) == len(light.run)  # type: ignore[union-attr]
    syncs = facts[Syncs].rows.tolist()
    sites = [facts[CallSites].site(row) for row in syncs]
    assert syncs and {(s.file, s.line, s.function) for s in sites if s} == {("train.py", 41, "log")}
    inputs = facts[OperatorInputs]
    run = facts.run
    products = inputs.typical(run.named(lambda n: n == "aten::mm", Cat.CPU_OP))
    assert [i.shape(0) for i in inputs.of(products.tolist())] == [(64, 64)]
    result, lone = analyze(folder), analyze(alone)
    assert sums(result) == sums(lone)
    assert result.summary.step_us == lone.summary.step_us


def sums(result: Result) -> list[tuple[int, int, int]]:
    return [(r.window_ns, r.compute_ns, r.idle_ns.total()) for r in result.time_ledger]


def test_a_fault_is_found_once_with_its_line_and_the_cost_of_the_light_trace(
    tmp_path: Path, written: Written
) -> None:
    result = analyze(written.recording(tmp_path))
    found = [f for f in result.findings if f.code == "TD201"]
    assert len(found) == 1
    assert (found[0].location.file, found[0].location.function) == ("train.py", "log")
    assert {f.input for f in result.findings} == {0}
    assert result.summary.step_us is not None
    for finding in result.findings:
        if finding.saving and finding.saving.time_us_per_step:
            assert finding.saving.time_us_per_step <= result.summary.step_us


def test_what_only_the_profiler_makes_is_not_blamed_on_the_script(tmp_path: Path, written: Written) -> None:
    """The detailed trace alone is bound by its launches."""
    folder = written.recording(tmp_path / "run", written.many_small)
    detailed = tmp_path / "detailed.json.gz"
    detailed.write_bytes((folder / capture_file(0, "detailed")).read_bytes())
    blamed = {f.code for f in analyze(detailed).findings}
    found = {f.code for f in analyze(folder).findings}
    assert "TD202" in blamed and "TD202" not in found


def test_files_and_roles(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path)
    result = analyze(folder)
    seen = [(i.path, i.kind, i.role, i.run_steps) for i in result.inputs]
    assert seen == [
        ("rank0.light.json.gz", "trace", "light", (20, 24)),
        ("rank0.detailed.json.gz", "trace", "detailed", (25, 27)),
    ]
    assert result.ignored == []
    assert {s.input for s in result.steps} == {0} and {r.input for r in result.time_ledger} == {0}


def test_ranks_stay_apart_and_are_one_job(tmp_path: Path, written: Written) -> None:
    result = analyze(written.recording(tmp_path, ranks=2))
    assert [(i.rank, i.role) for i in result.inputs] == [
        (0, "light"), (0, "detailed"), (1, "light"), (1, "detailed"),
    ]  # fmt: skip
    found = [f for f in result.findings if f.code == "TD201"]
    assert len(found) == 1 and "also on rank 1" in found[0].message


def test_without_manifests_every_trace_speaks_for_itself(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path)
    for name in ("recording.json", rank_file(0)):
        (folder / name).unlink()
    captures, _ = read_captures([folder])
    assert [c.path for c in captures] == ["rank0.detailed.json.gz", "rank0.light.json.gz"]
    assert all(not c.further and not c.step_ms for c in captures)


@pytest.mark.parametrize("missing", ["light", "detailed"])
def test_a_recording_that_ended_early_is_read_as_far_as_it_came(
    tmp_path: Path, missing: str, written: Written
) -> None:
    folder = written.recording(tmp_path)
    (folder / f"rank0.{missing}.json.gz").unlink()
    result = analyze(folder)
    assert [i.role for i in result.inputs] == [{"light": "detailed", "detailed": "light"}[missing]]
    assert result.summary.plain_step_us == pytest.approx(1050)


def test_a_recording_without_captures_says_why(tmp_path: Path) -> None:
    said = ["light, detailed: not captured: too few steps"]
    (tmp_path / rank_file(0)).write_text(json.dumps({"rank": 0, "warnings": said}))
    with pytest.raises(
        NoCaptures, match=r"in the recording .*: light, detailed: not captured: too few steps"
    ):
        analyze(tmp_path)


def test_what_a_recording_says_of_itself_is_shown(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path, ranks=2)
    (folder / "recording.json").write_text(json.dumps({"warnings": ["rank 2 reported nothing"]}))
    said = json.loads((folder / rank_file(1)).read_text())
    (folder / rank_file(1)).write_text(json.dumps({**said, "warnings": ["steps vary"]}))
    result = analyze(folder)
    assert [i.warnings for i in result.inputs if i.role == "light"] == [
        ["rank 2 reported nothing"],
        ["steps vary"],
    ]


def test_plain_steps_stand_beside_profiled_ones(tmp_path: Path, written: Written) -> None:
    result = analyze(written.recording(tmp_path, plain_ms=1.25))
    assert result.summary.plain_step_us == pytest.approx(1250)
    plain = result.inputs[0].plain
    assert plain is not None and (plain.steps, plain.mad_us) == (20, 0)
    assert result.inputs[1].plain is None
    [cost] = [f for f in result.findings if f.code == "TD003"]
    assert cost.message.startswith("Steps take 1.55 ms with and 1.25 ms without the profiler (+24%).")
    assert [row[0] for row in cost.evidence[0].rows] == ["timing", "light", "detailed"]
    for page in ("text", "markdown", "html"):
        said = " ".join(render(result, page).split())
        assert "1.25 ms" in said and ("with profiler" in said or "without the profiler" in said), page


def test_what_the_profiler_costs_is_measured_not_estimated(tmp_path: Path, written: Written) -> None:
    """A detailed trace by itself is told to have cost much; the recording it belongs to took that out."""
    folder = written.recording(tmp_path / "run", written.many_small, plain_ms=1.9)
    assert "TD003" not in {f.code for f in analyze(folder).findings}


def test_an_environment_of_the_recording_counts_for_all_its_files(tmp_path: Path, written: Written) -> None:
    result = analyze(written.recording(tmp_path))
    assert {i.torch_version.min for i in result.inputs} == {"2.9.1"}


def test_two_recordings_are_compared_by_their_plain_steps(tmp_path: Path, written: Written) -> None:
    """Where both have them; of a trace alone there are profiled steps only."""
    before, after = (
        written.recording(tmp_path / n, plain_ms=ms) for n, ms in (("before", 1.25), ("after", 1.0))
    )
    step = diff(before, after).step_time
    assert step.before and step.after and step.before.plain and step.after.plain
    assert (step.verdict, step.change_us, step.before.steps) == ("faster", pytest.approx(-250), 20)
    for name in ("recording.json", rank_file(0), capture_file(0, "detailed")):
        (after / name).unlink()
    step = diff(before, after).step_time
    assert step.before and not step.before.plain and step.verdict == "within_noise"


def test_where_the_light_trace_cannot_tell_the_detailed_one_is_asked(
    tmp_path: Path, written: Written
) -> None:
    """Two traces without a step in common: shapes cannot be lent, and the rule about them speaks from the other trace.
    Its time is told as a share of the light trace's step, and takes no part in the replay of that."""
    folder = written.recording(tmp_path / "run")
    case = next(c for c in UnalignedDims.INVALID if c.name == "as large as an aligned one, and slower")
    made = case.build()
    assert isinstance(made, RunBuilder)
    written.pack(made.write(tmp_path / "made"), folder / capture_file(0, "detailed"))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "trace.json.gz").write_bytes((folder / capture_file(0, "detailed")).read_bytes())
    result, other = analyze(folder), analyze(alone)
    told, seen = ({f.fingerprint: f for f in r.findings if f.code == "TD302"} for r in (result, other))
    assert told and told.keys() == seen.keys()
    assert result.summary.step_us and other.summary.step_us
    pace = min(1, result.summary.step_us / other.summary.step_us)
    for key, found in told.items():
        assert found.input == 0 and found.message == seen[key].message
        mine, theirs = found.saving, seen[key].saving
        assert mine and theirs and mine.share_of_step == theirs.share_of_step
        assert mine.time_us_per_step == pytest.approx((theirs.time_us_per_step or 0) * pace)
        assert all(found.id not in w.fixes for w in result.what_if)
    assert {r.input for r in result.time_ledger} == {0}
