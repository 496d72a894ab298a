"""A branch of fixes: what it holds, and that nothing else of the repository moves, runs or is trusted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fix_commands import OF_CAPTURE, SCRIPT, finding
from repositories import committed, git

from trace_doctor.errors import UsageError
from trace_doctor.fixes.branch import check_branch, check_files, make_branch
from trace_doctor.fixes.plan import Plan, plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import Fix, Result

NAME = "trace-doctor/fixes"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the script in a folder of it, and somebody who commits."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    root = tmp_path / "project"
    (root / "job").mkdir(parents=True)
    (root / "job" / "train.py").write_text(SCRIPT)
    (root / "job" / "train.py").chmod(0o755)
    (root / "other.py").write_text("a = 1\n")
    committed(root)
    git(root, "config", "user.name", "Ada")
    git(root, "config", "user.email", "ada@example.org")
    return root


def two_fixes(root: Path) -> Plan:
    fixes = {
        "TD101": Fix(title="Load in workers", kind="patch", codemod="dataloader-args", params={"num_workers": 4}),
        "TD404": Fix(title="Free gradients", kind="patch", codemod="zero-grad", params={"mode": "add"}),
    }  # fmt: skip
    result = Result(findings=[finding(code, fix) for code, fix in fixes.items()], inputs=[OF_CAPTURE])
    made = plan(result, root / "job")
    assert len(made.of("ready")) == 2
    return made


def messages(of: Plan) -> list[tuple[PlannedFix, str]]:
    return [(item, f"{item.fix.title}\n\nmeasured: # not a comment\n") for item in of.of("ready")]


def state(root: Path) -> dict[str, bytes]:
    """All files of the repository and of the work tree but objects, the new branch and its log."""
    new = (f"refs/heads/{NAME}", f"logs/refs/heads/{NAME}")
    return {
        name: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
        for name in [path.relative_to(root).as_posix()]
        if not name.startswith(".git/objects/") and not name.endswith(new)
    }


def test_each_fix_is_a_commit_and_all_of_them_are_the_patch(project: Path) -> None:
    made = two_fixes(project)
    commits = make_branch(made, NAME, messages(made))
    assert git(project, "rev-list", "--reverse", f"HEAD..{NAME}").split() == commits
    titles = git(project, "log", "--reverse", "--format=%an <%ae> %s", f"HEAD..{NAME}").splitlines()
    assert titles == ["Ada <ada@example.org> Load in workers", "Ada <ada@example.org> Free gradients"]
    assert "# not a comment" in git(project, "log", "-1", "--format=%b", NAME)
    assert git(project, "diff", "--name-only", "HEAD", commits[0]) == "job/train.py\n"
    first, both = (git(project, "show", f"{c}:job/train.py") for c in commits)
    assert "num_workers=4" in first and "zero_grad" not in first
    assert "num_workers=4" in both and "zero_grad" in both
    assert git(project, "ls-tree", NAME, "job/train.py").startswith("100755")
    git(project, "fsck", "--strict")
    (project / "fixes.patch").write_bytes(made.patch())
    git(project, "apply", "fixes.patch")
    assert (project / "job" / "train.py").read_text() == both


def test_nothing_else_moves_and_nothing_of_the_repository_runs(project: Path, tmp_path: Path) -> None:
    """Also where the work tree has other changes, staged and not."""
    ran = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0" >> {ran}\ncat\n')
    program.chmod(0o755)
    (project / ".gitattributes").write_text("*.py filter=own\n")
    for name in ("pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-index-change"):
        (project / ".git" / "hooks" / name).write_text(program.read_text())
        (project / ".git" / "hooks" / name).chmod(0o755)
    (project / "other.py").write_text("a = 2\n")
    (project / "staged.py").write_text("b = 1\n")
    subprocess.run(["git", "-c", "core.hooksPath=/dev/null", "add", "staged.py"], cwd=project, check=True)
    for key, value in (
        ("filter.own.clean", str(program)), ("filter.own.smudge", str(program)), ("core.fsmonitor", str(program)),
        ("gpg.program", str(program)), ("commit.gpgSign", "true"), ("core.editor", str(program)), ("core.splitIndex", "true"),
    ):  # fmt: skip
        with (project / ".git" / "config").open("a") as config:
            section, _, last = key.rpartition(".")
            head = f'[{section.replace(".", chr(32) + chr(34), 1)}"]' if "." in section else f"[{section}]"
            config.write(f"{head}\n\t{last} = {value}\n")
    before = state(project)
    made = two_fixes(project)
    assert len(make_branch(made, NAME, messages(made))) == 2
    assert state(project) == before
    assert not ran.exists()


@pytest.mark.parametrize("how", ["changed", "staged and changed back", "untracked", "link"])
def test_a_file_that_differs_from_head_is_refused(project: Path, how: str) -> None:
    script = project / "job" / "train.py"
    if how == "untracked":
        git(project, "rm", "-q", "--cached", "job/train.py")
        git(project, "commit", "-qm", "without")
    elif how == "link":
        script.rename(project / "job" / "real.txt")
        script.symlink_to("real.txt")
        git(project, "add", "-A")
        git(project, "commit", "-qm", "link")
        script.unlink()
        (project / "job" / "real.txt").rename(script)
    else:
        script.write_text(SCRIPT + "# mine\n")
        if how == "staged and changed back":
            git(project, "commit", "-qam", "mine")
            script.write_text(SCRIPT)
    made = two_fixes(project)
    files = [file for file, _ in made.outputs.values()]
    for attempt in (lambda: check_files(made, files), lambda: make_branch(made, NAME, messages(made))):
        with pytest.raises(UsageError, match=r"train\.py (?:differs from HEAD|is not committed)"):
            attempt()
    assert NAME not in git(project, "branch", "--list")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("main-or-so", "there is a branch"), ("taken", "there is a branch taken/below"), ("main-or-so/below", "there is a branch"),
        ("-d", "no name"), ("a..b", "no name"), ("@{-1}", "no name"), ("", "no name"), ("a\nb", "no name"), ("HEAD", "no name"),
        ("@", "no name"), ("refs/heads/x", "no name"), ("x" * 300, "no name"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_is_refused_before_any_trial(project: Path, name: str, why: str) -> None:
    git(project, "branch", "main-or-so")
    git(project, "branch", "taken/below")
    git(project, "checkout", "-q", "main-or-so")
    git(project, "checkout", "-q", "-")
    with pytest.raises(UsageError, match=why):
        check_branch(project / "job", name)


def test_without_git_a_commit_or_an_identity_it_is_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no git work tree"):
        check_branch(tmp_path, NAME)
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    with pytest.raises(UsageError, match="with a commit"):
        check_branch(tmp_path / "empty", NAME)
    git(project, "config", "--unset", "user.email")
    with pytest.raises(UsageError, match=r"user\.email"):
        check_branch(project, NAME)
