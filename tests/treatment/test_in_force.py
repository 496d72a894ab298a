"""Whether an edit was in force: its lines ran, its value arrived, its finding is smaller. The recording is written by hand."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trace_doctor.fixes import plan
from trace_doctor.model import Finding, Fix, Location, Outcome, Result, Saving
from trace_doctor.treatment.acceptance import InForce, judge
from trace_doctor.treatment.candidates import Candidate, Setup, Value, candidates
from trace_doctor.treatment.loop import Loop
from trace_doctor.treatment.measurement import Measured
from trace_doctor.treatment.trial import Clock, Rules, Trial

SCRIPT = """\
from torch.utils.data import DataLoader

def loader():
    return DataLoader([1, 2], batch_size=1)

for x in loader():
    loss = model(x)
    loss.backward()
    optimizer.step()
"""
RULES = Rules(repeats=6, least_gain=0.01, loss_tolerance=0.02, without_losses=True)


def diagnosed(share: float) -> Result:
    fix = Fix(title="t", kind="patch", safety="unsafe", codemod="dataloader-args", params={"num_workers": 2})
    finding = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", location=Location(), fixes=[fix], saving=Saving(share_of_step=share),
    )  # fmt: skip
    return Result(
        findings=[finding] if share else [],
        outcomes=[Outcome(code="TD101", name="n", outcome="fired" if share else "passed")],
    )


def tried(folder: Path) -> tuple[Setup, Candidate]:
    (folder / "train.py").write_text(SCRIPT)
    edits = plan(diagnosed(0.5), folder)
    [candidate], _ = candidates(edits)
    return Setup(edits), candidate


def recorded(folder: Path, script: bytes, ran: set[int], **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [f"{hashlib.sha256(script).hexdigest()}\ttrain.py", *(f"{n}\ttrain.py" for n in sorted(ran))]
    (folder / "lines.tsv").write_text("\n".join(rows) + "\n")
    (folder / "rank0.recording.json").write_text(json.dumps({"rank": 0, "settings": settings}))
    return folder


def test_an_edit_whose_line_did_not_run_or_whose_value_did_not_arrive_is_not_in_force(tmp_path: Path) -> None:
    setup, candidate = tried(tmp_path)
    data = setup.with_(candidate).files()["train.py"]
    assert b"num_workers=2" in data

    def shown(ran: set[int], now: float, **settings: Any) -> InForce:
        folder = recorded(tmp_path / "logs", data, ran, **settings)
        return InForce.of(folder, setup, candidate, diagnosed(0.5), diagnosed(now))

    everything = set(range(1, 10))
    assert "train.py:4 did not run" in shown(everything - {4}, 0.5).missed
    assert "num_workers was 0" in shown(everything, 0.5, num_workers=[0, 0]).missed
    for settings in ({}, {"num_workers": [0, 2]}, {"num_workers": [4]}):
        assert not shown(everything, 0.5, **settings).missed
    assert shown(everything, 0.5).is_smaller is False
    assert shown(everything, 0.0).is_smaller is True
    assert not shown(set(), 0.5).missed, "without lines nobody can tell"


def test_no_gain_says_whether_the_edit_changed_what_it_was_for() -> None:
    run = Measured({(0, 1): 100.0}, {}, None)
    trial = Trial(RULES, [run] * 6, [run] * 6)
    shown = InForce("", "TD101 claims 45.0% of the step with it, 50.0% without", False)
    assert judge(trial, shown)[1].startswith("no effect: in force, TD101 claims 45.0%")
    shown = InForce("", "TD101 claims 3.0% of the step with it, 50.0% without", True)
    assert judge(trial, shown)[1].startswith("in force, TD101 claims 3.0%")


def test_what_is_not_in_force_is_tried_at_the_next_place_and_not_measured(tmp_path: Path) -> None:
    setup, candidate = tried(tmp_path)
    other = Candidate(candidate.item, arguments=("--elsewhere",))
    asked: list[tuple[str, ...]] = []

    class Runner:
        def record(self, setup: Setup, name: str, *, short: bool = False) -> Path:
            raise NotImplementedError

        def time(self, setup: Setup) -> Measured:
            asked.append(tuple(setup.arguments))
            return Measured({(0, 1): 50.0 if setup.fixes else 100.0}, {}, None)

    def prove(without: Setup, candidate: Candidate) -> InForce:
        return InForce() if candidate is other else InForce("train.py:4 did not run in the recording with it")

    def elsewhere(missed: Candidate, all_missed: object) -> Candidate | None:
        return other if missed is candidate else None

    loop = Loop(Runner(), RULES, Clock(1e9), setup, prove=prove, elsewhere=elsewhere)
    loop.run([candidate])
    first = loop.attempts[0]
    assert first.fate == "not_in_force" and first.reason.startswith("train.py:4")
    assert loop.attempts[1].fate == "kept"
    assert set(asked) == {(), ("--elsewhere",)}


def test_a_value_that_the_command_passes_is_searched_through_its_option(tmp_path: Path) -> None:
    """`-n 0` of the command outdoes the default of the parser that an edit could set."""
    setup, candidate = tried(tmp_path)
    values = [
        Value("num_workers", n, Candidate(candidate.item, arguments=("--workers", n)), predicted)
        for n, predicted in (("1", 0.8), ("2", 0.5))
    ]
    proved: list[tuple[str, ...]] = []

    class Runner:
        def record(self, setup: Setup, name: str, *, short: bool = False) -> Path:
            raise NotImplementedError

        def time(self, setup: Setup) -> Measured:
            return Measured({(0, 1): 50.0 if setup.arguments == ["--workers", "2"] else 100.0}, {}, None)

    def prove(without: Setup, candidate: Candidate) -> InForce:
        proved.append(candidate.arguments)
        return InForce() if candidate.arguments else InForce("num_workers was 0 in the recording with it")

    loop = Loop(
        Runner(), RULES, Clock(1e9), setup, prove=prove, values_of=lambda c, axis: () if axis else values
    )
    loop.run([candidate])
    [attempt] = loop.attempts
    assert attempt.fate == "kept" and attempt.arguments == ["--workers", "2"]
    assert proved == [(), ("--workers", "2")]
