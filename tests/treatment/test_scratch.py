"""The copy that trials run in: all the script needs is there, nothing of the user's is touched, nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import committed, git

from trace_doctor.errors import UsageError
from trace_doctor.treatment.copy import extents
from trace_doctor.treatment.scratch import Scratch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with a committed script, a change that is not committed, and files that git ignores."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "train.py").write_text("first = 1\n")
    (root / "gone.py").write_text("")
    (root / ".gitignore").write_text("data\n")
    committed(root)
    (root / "src" / "train.py").write_text("second = 2\n")
    (root / "src" / "new.py").write_text("")
    (root / "gone.py").unlink()
    (root / "data").mkdir()
    (root / "data" / "numbers.bin").write_bytes(b"12345")
    return root


def contents(root: Path) -> dict[str, bytes | str]:
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in sorted(root.rglob("*"))
        if (p.is_file() or p.is_symlink()) and ".git" not in p.relative_to(root).parts
    }


@pytest.fixture
def unchanged(project: Path) -> Iterator[None]:
    before, status = contents(project), git(project, "status", "--porcelain")
    yield
    assert contents(project) == before
    assert git(project, "status", "--porcelain") == status
    assert git(project, "worktree", "list").count("\n") == 1


@pytest.mark.usefixtures("unchanged")
def test_a_work_tree_has_what_is_not_committed_and_what_git_ignores(project: Path) -> None:
    with Scratch(project / "src", project) as scratch:
        assert contents(scratch.cwd) == contents(project)
        assert git(scratch.cwd, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
        assert git(scratch.cwd, "status", "--porcelain", "-uno") == git(
            project, "status", "--porcelain", "-uno"
        )
        assert scratch.source == scratch.cwd / "src"
        place = scratch.folder
    assert not place.exists()


@pytest.mark.usefixtures("unchanged")
def test_git_forgets_the_copy_also_where_a_run_moved_it(project: Path) -> None:
    with Scratch(project, project) as scratch:
        scratch.prepare({})
        git(scratch.cwd, "worktree", "move", ".", "../moved")
    assert scratch.leftovers() == []


def test_a_work_tree_that_a_run_made_elsewhere_is_left_and_named(project: Path, tmp_path: Path) -> None:
    with Scratch(project, project) as scratch:
        scratch.prepare({})
        git(scratch.cwd, "worktree", "add", "-q", "--detach", str(tmp_path / "elsewhere"))
    assert scratch.leftovers() == [
        f"a run made or moved a git work tree, which is left: {tmp_path / 'elsewhere'}"
    ]
    assert git(project, "worktree", "list").count("\n") == 2


@pytest.mark.usefixtures("unchanged")
def test_what_a_run_left_is_gone_before_the_next(project: Path) -> None:
    with Scratch(project, project) as scratch:
        scratch.prepare({"src/train.py": b"third = 3\n"})
        here = scratch.cwd
        (here / "runs" / "deep").mkdir(parents=True)
        (here / "runs" / "deep" / "model.pt").write_bytes(b"x")
        (here / "data" / "numbers.bin").write_bytes(b"overwritten")
        (here / "src" / "new.py").unlink()
        (here / "src" / "__pycache__").mkdir()
        assert (here / "src" / "train.py").read_bytes() == b"third = 3\n"
        scratch.prepare({})
        assert contents(here) == contents(project)
        assert not (here / "runs").exists() and not (here / "src" / "__pycache__").exists()


def test_a_file_that_the_user_changes_meanwhile_is_not_mistaken_for_the_old_one(project: Path) -> None:
    with Scratch(project, project) as scratch:
        scratch.prepare({"src/train.py": b"third = 3\n"})
        (project / "src" / "train.py").write_text("edited meanwhile\n")
        with pytest.raises(UsageError, match=r"src/train\.py was changed"):
            scratch.prepare({})


def test_an_interruption_leaves_neither_files_nor_a_work_tree(project: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Scratch(project, project) as scratch:
        raise KeyboardInterrupt
    assert not scratch.folder.exists()
    assert git(project, "worktree", "list").count("\n") == 1


def test_without_git_the_folder_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "job"
    source.mkdir()
    (source / "train.py").write_text("pass\n")
    with Scratch(source / "train.py", tmp_path) as scratch:
        assert scratch.source.read_text() == "pass\n"
        assert scratch.cwd == scratch.source.parent.parent
        assert not (scratch.source.parent / ".git").exists()


def test_large_data_is_linked_and_large_results_are_left_out(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "LARGE_FILE", 100)
    monkeypatch.setattr(extents, "LARGE_FOLDER", 100)
    (project / "tokens.bin").write_bytes(b"x" * 101)
    (project / "checkpoint-5.pt").write_bytes(b"x" * 101)
    for name in ("images", "outputs"):
        (project / name).mkdir()
        (project / name / "a").write_bytes(b"x" * 60)
        (project / name / "b").write_bytes(b"x" * 60)
    with Scratch(project, project) as scratch:
        here = scratch.cwd
        assert (here / "tokens.bin").is_symlink() and (here / "images" / "a").is_symlink()
        assert not (here / "checkpoint-5.pt").exists()
        assert list((here / "outputs").iterdir()) == []
        said = "\n".join(scratch.notes)
        assert "images, tokens.bin" in said and "checkpoint-5.pt, outputs" in said
        assert scratch.changes() == []
        (here / "tokens.bin").write_bytes(b"y")
        assert [(c.name, c.how, c.through) for c in scratch.changes()] == [
            ("tokens.bin", "changed", "tokens.bin")
        ]
    with Scratch(project, project, link=["outputs"]) as scratch:
        assert (scratch.cwd / "outputs").is_symlink()


def test_a_virtual_environment_is_linked_and_links_keep_their_target(project: Path) -> None:
    (project / "venv").mkdir()
    (project / "venv" / "pyvenv.cfg").write_text("")
    (project / "src" / "shared").symlink_to("../data")
    with Scratch(project, project) as scratch:
        assert (scratch.cwd / "venv").is_symlink()
        assert (scratch.cwd / "src" / "shared" / "numbers.bin").read_bytes() == b"12345"


def test_paths_of_the_command_lead_into_the_copy(project: Path) -> None:
    outside = project.parent / "elsewhere"
    outside.mkdir()
    given = [
        "python", "src/train.py", f"{project}/src/train.py", f"--data={project}/data", "--out", "../elsewhere",
        str(outside), "--lr=3",
    ]  # fmt: skip
    with Scratch(project, project) as scratch:
        here = scratch.cwd
        assert scratch.command(given, project) == [
            "python", "src/train.py", f"{here}/src/train.py", f"--data={here}/data", "--out", str(outside),
            str(outside), "--lr=3",
        ]  # fmt: skip
        path = os.pathsep.join([f"{project}/src", "src", str(outside)])
        assert scratch.environment({"PYTHONPATH": path})["PYTHONPATH"] == os.pathsep.join(
            [f"{here}/src", "src", str(outside)]
        )


def test_relative_paths_out_of_the_project_lead_where_they_did(project: Path) -> None:
    """Data beside the project and beside where the command runs; what a run writes there is gone before the next."""
    elsewhere, runs = project.parent / "data", project.parent / "here"
    for folder in (elsewhere, runs / "own", runs / "outputs"):
        folder.mkdir(parents=True)
        (folder / "a").write_text(folder.name)
    with Scratch(project, runs) as scratch:
        assert (scratch.source / "../data/a").read_text() == "data"
        assert (scratch.cwd / "own/a").read_text() == "own"
        assert not (scratch.cwd / "outputs").exists(), "a run could overwrite what another has written"
        (scratch.cwd / "outputs").mkdir()
        (scratch.cwd / "model.pt").write_text("x")
        scratch.prepare({})
        assert {p.name for p in scratch.cwd.iterdir()} == {"own"}
        assert Path(scratch.environment({})["TMPDIR"]).is_relative_to(scratch.folder)
    assert (elsewhere / "a").read_text() == "data" and (runs / "outputs/a").read_text() == "outputs"


def test_two_at_once_in_one_project_are_refused(project: Path, tmp_path: Path) -> None:
    """Each would take what the other writes there for a change."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with Scratch(project, project):
        with pytest.raises(UsageError, match="another treat runs in"):
            Scratch(project / "src", project, folder=temporary)
        assert [*temporary.iterdir()] == []
    with Scratch(project, project, folder=temporary):
        pass


def test_a_scratch_folder_inside_the_project_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match="lies in the folder"):
        Scratch(project, project, folder=project / "src")
