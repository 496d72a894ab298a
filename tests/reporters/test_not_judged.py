"""A capture that cannot be judged: title, findings and figures of every format say so."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

import trace_doctor
from trace_doctor.model import Input, Outcome, Result
from trace_doctor.reporters import FORMATS, render
from trace_doctor.reporters.diagnosis import headline, verdict

FAULT = (
    Path(__file__).parents[2]
    / "sample_traces"
    / "dataloader_starvation"
    / "simulated"
    / "fault"
    / "trace.json.gz"
)


@pytest.mark.parametrize("enough", [False, True])
def test_what_cannot_be_judged_is_no_clean_bill(enough: bool) -> None:
    cut = Input(path="a.json", kind="trace", events=9, too_little="its times are in another unit")
    inputs = [cut, *[Input(path="b.json", kind="trace", events=9)] * enough]
    result = Result(inputs=inputs, outcomes=[Outcome(code="TD101", name="x", outcome="passed")])
    assert headline(result).startswith(
        "No problems" if enough else "Not judged: its times are in another unit"
    )
    assert ("No problems" in render(result, "html")) == enough
    assert ("✔" in render(result, "text")) == enough


def starved(path: Path, *, whole: bool) -> Path:
    """A trace of a loader that is waited for; without its kernels nobody knows what waits."""
    trace = json.loads(gzip.decompress(FAULT.read_bytes()))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if whole or e.get("cat") != "kernel"]
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("whole", [True, False])
def test_a_finding_of_what_cannot_be_judged_claims_no_saving(tmp_path: Path, whole: bool) -> None:
    result = trace_doctor.analyze(starved(tmp_path / "t.json", whole=whole))
    [finding] = [f for f in result.findings if f.code == "TD101"]
    assert (finding.saving is not None, bool(result.what_if)) == (whole, whole)
    assert (result.summary.saving_up_to.share_of_step is not None) == whole
    assert headline(result).startswith(
        "Steps stall on data loading: up to" if whole else "Not judged: the kernels of "
    )
    for fmt in sorted(FORMATS):
        said = render(result, fmt, zoom=False)
        claims = re.findall(r"\bsaves (?:up to|about) |>up to \d+%|\d+ → \d+", said)
        assert bool(claims) == whole or (whole and fmt in ("json", "sarif")), (fmt, claims)


def test_the_title_is_of_the_capture_that_was_judged(tmp_path: Path) -> None:
    for name, whole in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        starved(tmp_path / name / "t.json", whole=whole)
    result = trace_doctor.analyze(tmp_path / "a", tmp_path / "b")
    assert [i.job for i in result.inputs] == [0, 1]
    assert sorted(verdict(result)) == [
        "a/t.json: not judged: the kernels of 224 of its 224 launches are missing",
        "b/t.json: steps stall on data loading: up to 53% of step time",
    ]
