"""`trace-doctor fix` as a user runs it: what is edited, asked, interrupted and completed."""

from __future__ import annotations

from pathlib import Path

import pytest
from fix_commands import SCRIPT, run, script
from repositories import committed

from trace_doctor.fixes.journal import Edit, open_journal


def test_apply_makes_no_unsafe_fixes_and_counts_them(job: Path) -> None:
    done = run("fix", "result.json", "--source", "job", "--apply", "--allow-dirty", cwd=job)
    assert done.returncode == 0, done.stderr
    assert script(job) == SCRIPT
    assert done.stderr.splitlines()[-1].startswith("3 more fixes with --unsafe-fixes")


def test_apply_with_unsafe_fixes_and_again(job: Path) -> None:
    for _ in range(2):
        done = run(
            "fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty", cwd=job
        )
        assert done.returncode == 0, done.stderr
        once = script(job)
        assert once.count("num_workers=4") == once.count("zero_grad") == once.count("setdefault") == 1
    assert done.stderr.splitlines()[-1] == "nothing to change"
    assert "fixes already in the script" in done.stderr, "what was applied is no fix without a place"
    assert "Next: record again" not in done.stderr


@pytest.mark.parametrize(
    ("answers", "made"), [("y\nn\ny\n", (True, False, True)), ("n\ny\nq\n", (False, True, False))]
)
def test_interactive_applies_what_was_accepted(job: Path, answers: str, made: tuple[bool, ...]) -> None:
    done = run("fix", "result.json", "--source", "job", "-i", "--allow-dirty", cwd=job, answers=answers)
    assert done.returncode == 0, done.stderr
    assert tuple(w in script(job) for w in ("num_workers", "expandable", "zero_grad")) == made


def test_dirty_tree_is_refused_in_one_line(job: Path) -> None:
    committed(job)
    (job / "result.json").write_bytes((job / "result.json").read_bytes() + b"\n")
    done = run("fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "-q", cwd=job)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--allow-dirty" in done.stderr
    assert script(job) == SCRIPT
    done = run("fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty", cwd=job)
    assert done.returncode == 0
    assert "not in a git work tree" not in done.stderr


def test_outside_of_git_there_is_no_way_back(job: Path) -> None:
    for how in ("--apply", "-i"):
        done = run(
            "fix", "result.json", "--source", "job", how, "--unsafe-fixes", "-q", cwd=job, answers="y\ny\n"
        )
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert "no undo: pass --allow-dirty" in done.stderr
    assert script(job) == SCRIPT
    done = run("fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty", cwd=job)
    assert done.returncode == 0, done.stderr
    assert "expandable" in script(job)


def test_an_interrupted_edit_is_named_and_only_apply_completes_it(job: Path) -> None:
    root, state = (job / "job").resolve(), {"XDG_STATE_HOME": str(job / "state")}
    (root / "model.py").write_text("x = 1\n")
    edited = SCRIPT.replace("import torch", "import torch  # edited")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", state["XDG_STATE_HOME"])
        contents = [("train.py", SCRIPT.encode(), edited.encode()), ("model.py", b"x = 1\n", b"x = 2\n")]
        with open_journal(Edit.of(root, contents)):
            (root / "model.py").write_text("x = 2\n")
    for arguments in (["result.json", "--source", "job"], ["result.json", "--source", "job", "--patch", "p"]):
        done = run("fix", *arguments, cwd=job, **state)
        assert done.returncode == 0
        assert "was interrupted (model.py edited; train.py not yet)" in done.stderr
    done = run("fix", "result.json", "--source", "job", "-i", "--allow-dirty", cwd=job, answers="", **state)
    assert (done.returncode, done.stdout) == (2, "")
    assert "was interrupted" in done.stderr
    assert script(job) == SCRIPT
    done = run(
        "fix",
        "result.json",
        "--source",
        "job",
        "--apply",
        "--unsafe-fixes",
        "--allow-dirty",
        cwd=job,
        **state,
    )
    assert done.returncode == 0, done.stderr
    assert "an interrupted edit was completed: train.py, model.py" in done.stderr
    assert "# edited" in script(job) and "expandable" in script(job)
    assert list((job / "state" / "trace-doctor").iterdir()) == []


@pytest.mark.parametrize(
    ("answers", "made"), [("", False), ("y\n", True), ("what?\ny\n", True), ("Y\n", True)]
)
def test_the_end_of_the_answers_is_q(job: Path, answers: str, made: bool) -> None:
    done = run("fix", "result.json", "--source", "job", "-i", "--allow-dirty", cwd=job, answers=answers)
    assert done.returncode == 0, done.stderr
    assert "Aborted" not in done.stderr
    assert ("num_workers=4" in script(job)) == made
    assert "expandable" not in script(job)


def test_interactive_into_a_patch_file_holds_what_was_accepted(job: Path) -> None:
    done = run(
        "fix", "result.json", "--source", "job", "-i", "--patch", "p.patch", cwd=job, answers="n\ny\nn\n"
    )
    assert done.returncode == 0, done.stderr
    assert script(job) == SCRIPT
    patch = (job / "p.patch").read_text()
    assert ("expandable" in patch, "num_workers" in patch, "zero_grad" in patch) == (True, False, False)


def test_a_read_only_script_is_refused_in_one_line(job: Path) -> None:
    (job / "job" / "train.py").chmod(0o444)
    done = run(
        "fix", "result.json", "--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty", "-q", cwd=job
    )
    assert (done.returncode, done.stderr) == (2, "trace-doctor: train.py is read-only: nothing was written\n")
    assert script(job) == SCRIPT
