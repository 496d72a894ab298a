"""`trace-doctor fix` as a user runs it: what is edited, asked, interrupted and completed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_commands import OF_CAPTURE, SCRIPT, finding, run, script
from msgspec.structs import replace
from repositories import committed

from trace_doctor.cli import main
from trace_doctor.fixes import exchange
from trace_doctor.fixes.journal import Edit, open_journal
from trace_doctor.model import Fix, Result, Target


@pytest.mark.parametrize(
    ("some", "why"), [((), "all 3 fixes are"), (("--select", "TD101"), "the only fix is")]
)
def test_apply_says_that_unsafe_fixes_are_not_applied_and_why(
    job: Path, some: tuple[str, ...], why: str
) -> None:
    done = run("fix", "result.json", "--source", "job", "--apply", "--allow-dirty", *some, cwd=job)
    assert done.returncode == 0, done.stderr
    assert script(job) == SCRIPT
    assert "nothing to change" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"not applied: {why} unsafe; add --unsafe-fixes"
    assert "TD101-1 risk: " in done.stderr


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


EDITS = ("--source", "job", "--apply", "--unsafe-fixes", "--allow-dirty")


@pytest.fixture
def two_scripts(tmp_path: Path) -> Path:
    """A program of two scripts, and a saved result with a fix for each."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "load.py").write_text(
        "from torch.utils.data import DataLoader\n\nloader = DataLoader([1, 2], batch_size=1)\n"
    )
    (tmp_path / "job" / "train.py").write_text(
        "from load import loader\n\nfor x in loader:\n    loss = f(x)\n    loss.backward()\n    optimizer.step()\n"
    )
    load, train = Target(file="load.py", line=3), Target(file="train.py", line=6)
    fixes = {
        "TD101": Fix(title="Load in workers", kind="patch", codemod="dataloader-args", params={"num_workers": 4}, target=load),
        "TD404": Fix(title="Free gradients", kind="patch", codemod="zero-grad", params={"mode": "add"}, target=train),
    }  # fmt: skip
    result = Result(findings=[finding(code, fix) for code, fix in fixes.items()], inputs=[OF_CAPTURE])
    (tmp_path / "result.json").write_bytes(result.to_json())
    return tmp_path


def test_a_capture_of_another_job_says_nothing_of_the_script(two_scripts: Path) -> None:
    """The second capture has no frames: its optimizer is looked for in all scripts, not in the one that the first names."""
    job = two_scripts / "job"
    (job / "load.py").write_text(
        (job / "load.py").read_text() + "import torch\n\nopt = torch.optim.SGD(m.parameters())\n"
    )
    (job / "train.py").write_text(
        "import torch\n\nopt = torch.optim.SGD(m.parameters())\nfor x in y:\n    f(x).backward()\n    opt.step()\n"
    )
    first = Fix(
        title="Load in workers",
        kind="patch",
        codemod="dataloader-args",
        params={"num_workers": 4},
        target=Target(file="load.py", line=3),
    )
    second = Fix(title="Fuse", kind="patch", codemod="optimizer-args", params={"fused": True})
    result = Result(
        findings=[finding("TD101", first), replace(finding("TD304", second), input=1)],
        inputs=[OF_CAPTURE, replace(OF_CAPTURE, path="t.json", job=1)],
    )
    (two_scripts / "result.json").write_bytes(result.to_json())
    done = run("fix", "result.json", *EDITS, cwd=two_scripts)
    assert (done.returncode, "Fuse  [manual]: train.py:3: " in done.stderr) == (0, True), done.stderr
    assert "fused" not in (job / "load.py").read_text() and "num_workers=4" in (job / "load.py").read_text()


def _killed(job: Path, at: int, after: bool) -> int:
    """Edits two scripts in a process that is killed before, or after, the n-th call that changes a name, asks the disk to keep
    something, or takes a file away; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.chdir(job)
        count = 0

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def killing(*args: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                if count == at and not after:
                    os.kill(os.getpid(), signal.SIGKILL)
                done = call(*args, **more)
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return done

            return killing

        for name in ("fsync", "replace", "rename", "link", "unlink"):
            setattr(os, name, counted(getattr(os, name)))
        exchange._try_exchange = counted(exchange._try_exchange)
        sys.argv = ["trace-doctor", "fix", "result.json", *EDITS]
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 70)
    finally:
        os._exit(71)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked and killed as POSIX does")
@pytest.mark.parametrize(("after", "again"), [(False, "fix"), (True, "treat")])
def test_killed_at_any_rename_or_sync_the_next_edit_completes_all(
    two_scripts: Path, after: bool, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = two_scripts / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.delenv("TRACE_DOCTOR_APPLY", raising=False)
    scripts = [two_scripts / "job" / name for name in ("load.py", "train.py")]
    old = [path.read_bytes() for path in scripts]
    assert _killed(two_scripts, 0, after) == 0
    new = [path.read_bytes() for path in scripts]
    assert all(x != y for x, y in zip(old, new, strict=True))
    for at in range(1, 100):
        for path, content in zip(scripts, old, strict=True):
            path.write_bytes(content)
        code = _killed(two_scripts, at, after)
        now = [path.read_bytes() for path in scripts]
        assert all(n in (x, y) for n, x, y in zip(now, old, new, strict=True)), at
        if code == 0:
            break
        assert code == -signal.SIGKILL
        mixed = now not in (old, new)
        if again == "treat" and mixed:  # the edit, before it runs a command that trains nothing
            run(
                "treat",
                "--source",
                "job",
                "--apply",
                "--allow-dirty",
                "--",
                sys.executable,
                "-c",
                "",
                cwd=two_scripts,
            )
        else:
            done = run("fix", "result.json", *EDITS, cwd=two_scripts)
            assert done.returncode == 0, (at, done.stderr)
        assert [path.read_bytes() for path in scripts] == new, at
        assert [p.name for p in (two_scripts / "job").iterdir()] == ["load.py", "train.py"], at
        assert list((state / "trace-doctor").iterdir()) == [], at
    assert at > 10
