"""What is taken away of a copy: all but what runs have mounted in it, and what cannot be is named."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from repositories import committed, git
from warm_commands import FRESH
from without_compiler import WITHOUT_COMPILER

from trace_doctor.errors import UsageError
from trace_doctor.treatment.copy import confined, removal
from trace_doctor.treatment.copy.confined import Confined
from trace_doctor.treatment.scratch import Scratch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "data" / "a.txt").write_text("a")
    (root / "train.py").write_text("first = 1\n")
    return root


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Files of the user's outside of the project."""
    folder = tmp_path / "store"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "precious").write_text("the user's")
    (folder / "precious").write_text("the user's")
    return folder


def whole(store: Path) -> bool:
    return [p.read_text() for p in (store / "precious", store / "deep" / "precious")] == ["the user's"] * 2


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[None]:
    """For tests that mount; in the end nothing is mounted any more."""
    source, place = tmp_path / "try", tmp_path / "try-place"
    source.mkdir()
    place.mkdir()
    try:
        done = subprocess.run(["mount", "--bind", source, place], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    yield
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    for at in reversed([line.split()[4] for line in lines]):
        if Path(at).is_relative_to(tmp_path):
            subprocess.run(["umount", "--lazy", at], check=True)


def bind(source: Path, at: Path) -> None:
    at.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", source, at], check=True)


PLACES = ("m", "data", "new/deep/m", ".", "../beside")
"""of the copy, as a run sees them: new ones, one that the project has, where it runs, and beside the project"""


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize("in_git", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_what_a_run_has_mounted_is_neither_emptied_nor_entered(
    project: Path, store: Path, place: str, in_git: bool
) -> None:
    if in_git:
        committed(project)
    with Scratch(project, project, folder=project.parent) as scratch:
        bind(store, scratch.cwd / place)
        with pytest.raises(UsageError, match="a run has mounted something there"):
            scratch.prepare({})
        assert whole(store)
    assert whole(store)
    assert len(scratch.mounted) == 1
    assert Path(scratch.mounted[0], "precious").read_text() == "the user's"
    [line] = scratch.leftovers()
    assert scratch.mounted[0] in line and "unmount it before you delete" in line
    assert not list(scratch.folder.rglob("train.py")), "what is not mounted is gone"
    if in_git and place != ".":
        assert git(project, "worktree", "list").count("\n") == 1


@pytest.mark.usefixtures("mounts")
def test_nor_what_is_mounted_among_its_temporary_files_or_over_a_file(project: Path, store: Path) -> None:
    with Scratch(project, project, folder=project.parent) as scratch:
        bind(store, scratch.new_folder("tmp") / "drive")
        subprocess.run(["mount", "--bind", store / "precious", scratch.cwd / "train.py"], check=True)
    assert whole(store)
    assert len(scratch.mounted) == 2


STEPS = f"""{WITHOUT_COMPILER}
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(12):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    "steps",
    [
        "",
        pytest.param(
            STEPS,
            marks=[
                pytest.mark.torch,
                pytest.mark.skipif(
                    importlib.util.find_spec("torch") is None, reason="takes steps with PyTorch"
                ),
            ],
        ),
    ],
    ids=["fails", "trains"],
)
def test_treat_names_what_a_run_has_mounted_and_ends_with_2(project: Path, store: Path, steps: str) -> None:
    mount = (
        f"import os, subprocess\nos.mkdir('m')\nsubprocess.run(['mount', '--bind', {str(store)!r}, 'm'])\n"
    )
    (project / "train.py").write_text(mount + steps)
    temporary = project.parent / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [*FRESH, "treat", "--", sys.executable, "train.py"],
        cwd=project, env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("a run has mounted something in the copy, which is left: ") == 1
    assert ("what was done behind that cannot be told" in " ".join(done.stdout.split())) == bool(steps)
    assert whole(store)


@pytest.mark.usefixtures("mounts")
def test_nobody_is_told_to_delete_what_is_mounted_over_the_copy(project: Path, store: Path) -> None:
    with Scratch(project, project, folder=project.parent) as scratch:
        subprocess.run(["mount", "--bind", store, scratch.folder], check=True)
    [line] = scratch.leftovers()
    assert line.endswith(": what lies there now may be yours and is left")
    assert scratch.mounted == [str(scratch.folder)]
    assert whole(store)


@pytest.mark.parametrize("instead", ["folder", "link", "nothing"])
def test_what_lies_where_the_copy_was_is_left(project: Path, store: Path, instead: str) -> None:
    """An empty folder as well, which could be deleted."""
    with Scratch(project, project, folder=project.parent) as scratch:
        scratch.folder.rename(away := scratch.folder.with_name("away"))
        if instead == "folder":
            scratch.folder.mkdir()
        elif instead == "link":
            scratch.folder.symlink_to(store)
    [line] = scratch.leftovers()
    assert line.endswith(": what lies there now may be yours and is left")
    assert os.path.lexists(scratch.folder) == (instead != "nothing")
    assert whole(store) and not list(away.iterdir())


@pytest.mark.usefixtures("mounts")
def test_another_file_system_is_not_entered(project: Path) -> None:
    with Scratch(project, project, folder=project.parent) as scratch:
        (scratch.cwd / "m").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", scratch.cwd / "m"], check=True)
        (scratch.cwd / "m" / "precious").write_text("of a run")
    assert Path(scratch.mounted[0], "precious").read_text() == "of a run"


@pytest.mark.parametrize("deep", [1, 3, 50])
def test_a_mount_is_told_by_its_number_where_the_device_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deep: int
) -> None:
    """As Linux tells it of a folder that is mounted a second time."""
    root = tmp_path / "root"
    here = root.joinpath(*(f"d{n}" for n in range(deep)), "m")
    here.mkdir(parents=True)
    (here / "precious").write_text("the user's")
    (root / "d0" / "of-a-run").write_text("")
    number, real = here.stat().st_ino, removal.mount_of

    def mount_of(opened: int) -> removal.Mount:
        device, mount = real(opened)
        return device, b"elsewhere" if os.fstat(opened).st_ino == number else mount

    monkeypatch.setattr(removal, "mount_of", mount_of)
    monkeypatch.setattr(confined, "mount_of", mount_of)
    tree = Confined(root)
    name = str(here.relative_to(root))
    for refused in (
        lambda: tree.entries(name),
        lambda: tree.make_folder(f"{name}/new"),
        lambda: tree.remove("d0"),
    ):
        with pytest.raises(OSError, match="a run has mounted something there"):
            refused()
    left = tree.clear()
    tree.close()
    assert [(one.name.split("/")[-1], one.mounted) for one in left] == [(left[0].name.split("/")[-1], True)]
    assert (root / left[0].name / "precious").read_text() == "the user's"
    assert not list(root.rglob("of-a-run"))


@pytest.mark.parametrize("in_git", [False, True])
def test_what_cannot_be_deleted_is_named_and_all_else_is_gone(project: Path, in_git: bool) -> None:
    if in_git:
        committed(project)
    with Scratch(project, project, folder=project.parent) as scratch:
        held = scratch.cwd / "held"
        held.write_text("x")
        (scratch.cwd / "other" / "deep").mkdir(parents=True)
        try:
            done = subprocess.run(["chattr", "+i", held], capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"no file can be made immutable here: {error}")
        if done.returncode:
            pytest.skip(f"no file can be made immutable here: {done.stderr.strip()}")
    try:
        [line] = scratch.leftovers()
        assert "could not be deleted" in line and "held (Operation not permitted)" in line
        assert str(scratch.folder) in line and scratch.mounted == []
        assert [p.name for p in scratch.folder.rglob("*") if p.is_file()] == ["held"]
    finally:
        subprocess.run(["chattr", "-R", "-i", scratch.folder], check=True)


def test_what_was_taken_away_whole_leaves_no_line(project: Path) -> None:
    with Scratch(project, project) as scratch:
        deep = scratch.cwd.joinpath(*["d"] * 300)
        deep.mkdir(parents=True)
        (deep / "x").write_text("")
        deep.chmod(0)
    assert scratch.leftovers() == [] and scratch.mounted == [] and not scratch.folder.exists()
