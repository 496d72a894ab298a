"""What `treat` has decided outlives the process, and scripts are edited when all else is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_commands import SCRIPT, finding, script
from typer.testing import CliRunner

from trace_doctor.cli.app import application
from trace_doctor.fixes.plan import plan
from trace_doctor.model import Fix, Result
from trace_doctor.model.treatment import Attempt, Method, Treatment
from trace_doctor.reporters.saved import read_treatment
from trace_doctor.treatment import Treated

METHOD = Method(
    warmup_steps=1, timed_steps=9, figure="median", repeats=6, alpha=0.03, least_gain=0.01, loss_tolerance=0.02
)  # fmt: skip


class Killed(BaseException):
    """Nothing runs after it."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(SCRIPT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path / "job")
    return tmp_path


@pytest.fixture
def treat(job: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """The command with trials that one fix is kept in; `killed` before the second."""

    def run(*options: str, killed: bool = False) -> tuple[int, str]:
        workers = Fix(
            title="load in workers", kind="patch", codemod="dataloader-args", params={"num_workers": 2}
        )
        found = finding("TD101", workers)
        edits = plan(Result(findings=[found]), job / "job", unsafe=True)
        kept = Attempt(
            **found.mention(), label="TD101-1", kind="patch", safety="unsafe", fix=workers.title,
            fate="kept", reason="faster",
        )  # fmt: skip
        treatment = Treatment(code=0, verdict="helped", method=METHOD, attempts=[kept], fingerprint="f")

        def trials(*_: Any, after_each: Callable[[Treatment], None], **__: Any) -> Treated:
            after_each(treatment)
            if killed:
                raise Killed
            return Treated(treatment, edits)

        monkeypatch.setattr("trace_doctor.treatment.treat", trials)
        command = ["treat", "--source", ".", "--allow-dirty", *options, "--", "python", "train.py"]
        done = CliRunner().invoke(application(), command)
        return done.exit_code, done.output + done.stderr

    return run


def saved(job: Path) -> list[Path]:
    return list((job / "state").rglob("treat/*.json"))


def test_a_killed_treat_is_gone_on_with(job: Path, treat: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(Killed):
        treat(killed=True)
    [file] = saved(job)
    assert [a.fate for a in read_treatment(file).attempts] == ["kept"]
    assert file.parent.stat().st_mode & 0o077 == 0
    assert list((job / "job").iterdir()) == [job / "job" / "train.py"]
    code, said = treat()
    assert code == 0 and f"--resume {file} goes on" in " ".join(said.split()).replace("- ", "-")
    assert saved(job) == [] and "killed" not in treat()[1]


def test_scripts_are_edited_after_all_else_is_written(
    job: Path, treat: Callable[..., tuple[int, str]]
) -> None:
    assert treat("--apply", "-o", "json=/dev/full")[0] != 0
    assert script(job) == SCRIPT and len(saved(job)) == 1
    code, said = treat("--apply")
    assert code == 0 and "num_workers=2" in script(job), said
