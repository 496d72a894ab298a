"""Links of a project: what leads into the project leads into the copy, and nothing of ours is written through a link."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from repositories import committed

from trace_doctor.errors import UsageError
from trace_doctor.treatment.copy import extents
from trace_doctor.treatment.copy.worktree import source_of
from trace_doctor.treatment.scratch import LEVELS_UP, Scratch

PLACES = ("train.py", "src", "src/model.py", "exp", "exp/deep", "src/a", "exp/b", "exp/deep/c", "d", "src/e")
"""files and folders that are there, and names that links get"""
TARGETS = (
    "{O}", "{O}/src", "{O}/train.py", "{O}/src/../exp", "{O}/src/a", "{O}/exp/b/model.py", ".", "..", "../..",
    "../src", "../src/model.py", "src/model.py", "a", "../d/src", "d/src/a", "../../project/train.py", "{alias}/src",
    "../../alias/train.py", "{base}/alias", "../../elsewhere/back/src", "{elsewhere}/back", "{elsewhere}/real",
    "../../elsewhere", "exp/deep/c", "nowhere", "{O}/nowhere", "../../nowhere", "src/e/../../train.py", "/", "{base}",
)  # fmt: skip
links = st.dictionaries(st.sampled_from(PLACES[5:]), st.sampled_from(TARGETS), max_size=5)


def project_in(base: Path) -> Path:
    root = base / "project"
    (root / "src").mkdir(parents=True)
    (root / "exp" / "deep").mkdir(parents=True)
    (root / "train.py").write_text("original = 1\n")
    (root / "src" / "model.py").write_text("original = 2\n")
    (base / "elsewhere").mkdir()
    (base / "elsewhere" / "real").write_text("outside\n")
    (base / "elsewhere" / "back").symlink_to(root)
    (base / "alias").symlink_to("project")
    return root


def contents(root: Path) -> dict[str, tuple[int, bytes | str]]:
    return {
        str(p.relative_to(root)): (
            p.lstat().st_mtime_ns,
            os.readlink(p) if p.is_symlink() else p.read_bytes(),
        )
        for p in sorted(root.rglob("*"))
        if p.is_symlink() or p.is_file()
    }


def circular(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@settings(deadline=None, max_examples=60)
@given(links)
@example({"src/a": "{O}/train.py", "exp/b": "../src/a"})
@example({"src/a": "exp/../train.py", "d": "{elsewhere}"})
@example({"src/a": "b", "exp/b": "{O}/exp/b"})
@example({"exp/b": "{O}/exp/b/model.py", "d": "src/e/../../train.py", "src/e": "{O}/exp/b/model.py"})
def test_a_link_leads_in_the_copy_to_the_copy_of_what_it_leads_to(made: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        # away from other temporary files: what lies beside a project is linked
        base = Path(folder).resolve() / "a" / "b" / "c"
        root = project_in(base)
        names = {"O": root, "alias": base / "alias", "elsewhere": base / "elsewhere", "base": base}
        for name, target in made.items():
            (root / name).symlink_to(target.format(**names))
        before = contents(base)
        with Scratch(root, root) as scratch:
            for name in made:
                original, copy = os.path.realpath(root / name), os.path.realpath(scratch.cwd / name)
                if circular(
                    root / name
                ):  # nothing can be opened through it, and where it leads is a matter of taste
                    assert circular(scratch.cwd / name) or not Path(copy).is_relative_to(root)
                    continue
                wanted = Path(original)
                around = root.is_relative_to(wanted) and len(root.parts) - len(wanted.parts) <= LEVELS_UP
                if wanted.is_relative_to(root) or around:
                    wanted = scratch.inside(wanted)
                elif not os.path.exists(original) and Path(copy).is_relative_to(scratch.folder):
                    wanted = scratch.inside(wanted)  # what a run makes there stays in the copy
                assert copy == str(wanted), f"{name} -> {os.readlink(scratch.cwd / name)}"
                if not Path(original).is_relative_to(root) and wanted == Path(original):
                    assert any(f"{name} -> {original}" in note for note in scratch.notes)
            for path in (scratch.cwd / name for name in PLACES):
                if path.is_file() and Path(os.path.realpath(path)).is_relative_to(scratch.folder):
                    path.write_text("written by a run\n")
            scratch.prepare({"train.py": b"edited = 1\n"})
            assert (scratch.cwd / "train.py").read_text() == "edited = 1\n"
            scratch.prepare({})
            assert (scratch.cwd / "train.py").read_text() == "original = 1\n"
            assert scratch.changes() == []
        assert contents(base) == before


def test_a_script_reached_through_a_link_is_edited_in_the_copy(tmp_path: Path) -> None:
    root = project_in(tmp_path)
    (root / "exp" / "run.py").symlink_to("../src/model.py")
    (root / "exp" / "out.py").symlink_to(tmp_path / "elsewhere" / "real")
    committed(root)
    before = contents(tmp_path)
    with Scratch(root / "exp" / "run.py", root) as scratch:
        scratch.prepare({"run.py": b"edited = 1\n"})
        assert (scratch.cwd / "exp" / "run.py").read_text() == "edited = 1\n"
        assert (scratch.cwd / "exp" / "run.py").is_symlink()
        assert scratch.source.read_text() == "edited = 1\n"
    with Scratch(root / "exp", root) as scratch:
        assert "out of the project" in scratch.refuses("out.py")
        with pytest.raises(UsageError, match=r"out\.py: it is a link that leads out"):
            scratch.prepare({"out.py": b"edited = 1\n"})
    assert contents(tmp_path) == before


def test_a_script_that_is_a_link_runs_in_the_copy_or_not_at_all(tmp_path: Path) -> None:
    """Its folder alone would be copied with a link to the original, which would run whatever is edited."""
    root = project_in(tmp_path)
    (root / "exp" / "run.py").symlink_to("../src/model.py")
    command = ["python", "-u", "exp/run.py"]
    assert source_of(command, root, root) == root
    with pytest.raises(
        UsageError, match=r"exp/run\.py is a link to \.\./src/model\.py.*--source \. has both"
    ):
        source_of(command, root / "exp", root)
    committed(root)
    assert source_of(command, root / "exp", root) == root
    assert source_of(["python", "train.py"], root / "exp", root) == root / "exp"


@pytest.mark.parametrize("name", ["src/model.py", "train.py"])
def test_what_is_linked_is_not_edited(tmp_path: Path, name: str) -> None:
    root = project_in(tmp_path)
    before = contents(tmp_path)
    with (
        Scratch(root, root, link=[name.split("/")[0]]) as scratch,
        pytest.raises(UsageError, match="linked into the copy"),
    ):
        scratch.prepare({name: b"edited = 1\n"})
    assert contents(tmp_path) == before


@pytest.mark.parametrize("victim", ["project", "src", "src/model.py", ""])
def test_a_link_that_a_run_leaves_in_the_way_is_taken_away(tmp_path: Path, victim: str) -> None:
    """A run puts links to the originals in the place of what is in the copy: of the project, and of what it lies in."""
    root = project_in(tmp_path)
    before = contents(tmp_path)
    with Scratch(root, root) as scratch:
        copy = (
            scratch.cwd.parent if not victim else scratch.cwd if victim == "project" else scratch.cwd / victim
        )
        copy.rename(copy.with_name("moved"))
        copy.symlink_to(root.parent if not victim else root if victim == "project" else root / victim)
        scratch.prepare({"src/model.py": b"edited = 1\n", "train.py": b"edited = 2\n"})
        assert not copy.is_symlink()
        assert (scratch.cwd / "src" / "model.py").read_bytes() == b"edited = 1\n"
        assert scratch.changes() == []
    assert contents(tmp_path) == before


def test_a_folder_for_a_run_is_never_made_behind_a_link(tmp_path: Path) -> None:
    root = project_in(tmp_path)
    with Scratch(root, root) as scratch:
        assert scratch.new_folder("runs/1").is_dir() and scratch.new_folder("runs/2").is_dir()
        (scratch.folder / "runs").rename(scratch.folder / "aside")
        (scratch.folder / "runs").symlink_to(root)
        with pytest.raises(UsageError, match="cannot make a folder for a run"):
            scratch.new_folder("runs/3")
    assert sorted(p.name for p in root.iterdir()) == ["exp", "src", "train.py"]


def test_hard_links_are_parted(tmp_path: Path) -> None:
    root = project_in(tmp_path)
    os.link(root / "train.py", root / "twin.py")
    with Scratch(root, root) as scratch:
        (scratch.cwd / "twin.py").write_text("written\n")
        assert (scratch.cwd / "train.py").read_text() == "original = 1\n"
    assert (root / "twin.py").read_text() == "original = 1\n"


def test_links_in_linked_data_lead_into_the_copy_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "LARGE_FOLDER", 10)
    root = project_in(tmp_path)
    (root / "data" / "part").mkdir(parents=True)
    (root / "data" / "part" / "numbers.bin").write_bytes(b"x" * 20)
    (root / "data" / "part" / "labels").symlink_to("../../train.py")
    with Scratch(root, root) as scratch:
        assert os.path.realpath(scratch.cwd / "data/part/labels") == str(scratch.cwd / "train.py")
        assert os.path.realpath(scratch.cwd / "data/part/numbers.bin") == str(root / "data/part/numbers.bin")
        (scratch.cwd / "data" / "part" / "new").write_text("of a run")
        scratch.prepare({})
        assert sorted(p.name for p in (scratch.cwd / "data" / "part").iterdir()) == ["labels", "numbers.bin"]


def test_a_link_to_what_runs_write_outside_is_left_out(tmp_path: Path) -> None:
    root = project_in(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "model.pt").write_bytes(b"the user's")
    (root / "outputs").symlink_to(tmp_path / "store")
    (root / "latest").symlink_to("outputs")
    with Scratch(root, root) as scratch:
        (scratch.cwd / "latest" / "model.pt").write_bytes(b"of a run")
        assert any("left out" in note and "outputs" in note for note in scratch.notes)
        assert not any("latest" in note for note in scratch.notes)
    assert (tmp_path / "store" / "model.pt").read_bytes() == b"the user's"
    with Scratch(root, root, link=["outputs"]) as scratch:
        assert os.path.realpath(scratch.cwd / "latest") == str(tmp_path / "store")
        store = tmp_path / "store"
        named = f"copied when Python opens it for writing: latest -> {store}, outputs -> {store}"
        assert any(named in note for note in scratch.notes)
        (scratch.cwd / "outputs" / "model.pt").write_bytes(b"of a run")
        assert [c.name for c in scratch.changes()] == ["latest/model.pt"]


def test_a_project_behind_a_link_is_copied_from_where_it_is(tmp_path: Path) -> None:
    root = project_in(tmp_path)
    alias = tmp_path / "alias"
    given = [
        "python", f"{alias}/train.py", f"--config={alias}/src", f"data.path={alias}/src", f"-I{alias}/src",
        f"{alias}/a:{root}/b", f"{alias}/src/../train.py", f"file://{root}/a", "x" * 9_999 + "/",
    ]  # fmt: skip
    with Scratch(alias, alias) as scratch:
        here = scratch.cwd
        assert here.name == "project" and (here / "train.py").is_file()
        assert scratch.command(given, alias) == [
            "python", f"{here}/train.py", f"--config={here}/src", f"data.path={here}/src", f"-I{here}/src",
            f"{here}/a:{here}/b", f"{here}/train.py", f"file://{here}/a", "x" * 9_999 + "/",
        ]  # fmt: skip
    assert (root / "train.py").read_text() == "original = 1\n"
