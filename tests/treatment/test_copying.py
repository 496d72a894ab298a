"""What is copied, linked and left out, and what is said of it; hostile entries of a project end nothing."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from repositories import committed, git

from trace_doctor.errors import UsageError
from trace_doctor.treatment.copy import copying, extents
from trace_doctor.treatment.copy.confined import Confined
from trace_doctor.treatment.scratch import Scratch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("first = 1\n")
    return root


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has more than 3 bytes is large."""
    monkeypatch.setattr(extents, "LARGE_FILE", 3)
    monkeypatch.setattr(extents, "LARGE_FOLDER", 3)


def said(scratch: Scratch) -> str:
    return "\n".join(scratch.notes)


@pytest.mark.usefixtures("small")
def test_every_link_is_named_a_few_at_once_and_all_with_v(project: Path) -> None:
    for number in range(30):
        (project / f"data{number:02}.bin").write_bytes(b"1234")
    with Scratch(project, project) as scratch:
        line = next(note for note in scratch.notes if note.startswith("linked, copied when"))
        assert "data09.bin and 21 more (-v lists all)" in line and "data10" not in line
        listed = [d for d in scratch.details if d.startswith("linked, copied when")]
        assert listed[30].endswith(": train.py") and len(listed) == 31


@pytest.mark.usefixtures("small")
def test_copy_data_links_nothing_of_the_project(project: Path) -> None:
    (project / "images" / "a").mkdir(parents=True)
    (project / "images" / "a" / "1.bin").write_bytes(b"12345678")
    (project / "tokens.bin").write_bytes(b"12345678")
    (project / "outputs").mkdir()
    (project / "outputs" / "model.bin").write_bytes(b"12345678")
    with Scratch(project, project, copy_data=True) as scratch:
        assert not any(p.is_symlink() for p in scratch.cwd.rglob("*"))
        assert "linked, copied when" not in said(scratch)
        (scratch.cwd / "images" / "a" / "1.bin").write_bytes(b"of a run")
        scratch.prepare({})
        assert (scratch.cwd / "images" / "a" / "1.bin").read_bytes() == b"12345678"
        assert list((scratch.cwd / "outputs").iterdir()) == []


def test_a_large_checkpoint_in_a_folder_of_checkpoints_is_not_linked(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too small a folder to be data, one file in it large enough: a link would let a run overwrite it."""
    monkeypatch.setattr(extents, "LARGE_FILE", 3)
    (project / "checkpoints").mkdir()
    (project / "checkpoints" / "last.pt").write_bytes(b"12345678")
    with Scratch(project, project) as scratch:
        assert not os.path.lexists(scratch.cwd / "checkpoints" / "last.pt")
        assert "checkpoints/last.pt" in said(scratch)
        (scratch.cwd / "checkpoints" / "last.pt").write_bytes(b"of a run")
    assert (project / "checkpoints" / "last.pt").read_bytes() == b"12345678"


@pytest.mark.usefixtures("small")
def test_copy_data_without_room_is_refused_before_it_is_begun(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tokens.bin").write_bytes(b"12345678")
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=7))
    monkeypatch.setattr(copying, "_clone", lambda file, copy: False)
    with pytest.raises(UsageError, match=r"--copy-data: 18 B of data, and 7 B are free"):
        Scratch(project, project, copy_data=True)


def test_shards_beside_a_script_are_linked_where_they_are_much_together(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is large by itself, and the folder holds a script: `data/prepare.py` next to what it made."""
    monkeypatch.setattr(extents, "LARGE_FOLDER", 50)
    monkeypatch.setattr(extents, "MANY_FILES", 4)
    for name in (
        "data/a.bin",
        "data/b.bin",
        "data/shards/c.bin",
        "many/1",
        "many/2",
        "many/3",
        "many/4",
        "many/5",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_bytes(b"x" * (30 if "bin" in name else 1))
    (project / "data" / "prepare.py").write_text("")
    with Scratch(project, project) as scratch:
        linked = {p.relative_to(scratch.cwd).as_posix() for p in scratch.cwd.rglob("*") if p.is_symlink()}
        # the rest fits; the folders are the copy's own, so that a new file does not reach the user's
        assert len(linked & {"data/a.bin", "data/b.bin", "data/shards/c.bin"}) == 2
        assert {n for n in linked if n.startswith("many/")} == {f"many/{n}" for n in range(1, 6)}
        for folder in ("data", "many", "data/shards"):
            (scratch.cwd / folder / "new").write_bytes(b"of a run")
        assert scratch.changes() == []
        scratch.prepare({})
        assert not list(scratch.cwd.rglob("new"))


def test_of_a_large_repository_only_what_is_imported_is_copied(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "MANY_FILES", 3)
    texts = {
        "app/train/main.py": "import torch\nfrom libs.text import tokens\n",
        "libs/__init__.py": "",
        "libs/text/__init__.py": "from . import more\n",
        "libs/text/more.py": "from ...shared import tools\nimport util\n",
        "libs/text/tokens.py": "",
        "libs/audio/wave.py": "",
        "shared/tools.py": "",
        "util.py": "",
        "website/page.py": "",
        "app/serve/main.py": "",
        "app/train/configs/a.yaml": "",
    }
    for name, text in texts.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    committed(project)
    with Scratch(project / "app/train", project) as scratch:
        links = {p.relative_to(scratch.cwd).as_posix() for p in scratch.cwd.rglob("*") if p.is_symlink()}
        assert links == {"libs/audio", "website", "app/serve"}
        assert "not imported, linked" in said(scratch)
        assert all((scratch.cwd / name).is_file() for name in texts)
        scratch.prepare({})
    monkeypatch.setattr(extents, "MANY_FILES", 20)  # a small one is copied whole
    with Scratch(project / "app/train", project) as scratch:
        assert not [p for p in scratch.cwd.rglob("*") if p.is_symlink()]


def test_a_copy_that_does_not_fit_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=copying.RESERVE + 5))
    monkeypatch.setattr(copying, "_clone", lambda file, copy: False)
    with pytest.raises(
        UsageError, match=r"no room for the copy: .* are free where it is made; --scratch DIR"
    ):
        Scratch(project, project)


def test_what_is_no_file_is_named_and_nothing_waits_for_it(project: Path) -> None:
    os.mkfifo(project / "pipe")
    (project / "to_pipe").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(project / "s"))
        with Scratch(project, project) as scratch:
            assert "pipes, sockets and devices, left out: pipe, s" in said(scratch)
            os.mkfifo(scratch.cwd / "of_a_run")
            os.mkfifo(scratch.cwd / "train.tmp")
            (scratch.cwd / "train.tmp").replace(scratch.cwd / "train.py")
            scratch.prepare({})
            assert (scratch.cwd / "train.py").read_text() == "first = 1\n"
            assert not (scratch.cwd / "of_a_run").exists()
            os.mkfifo(project / "fifo")
            (project / "fifo").replace(project / "train.py")
            assert [c.name for c in scratch.changes()] == ["train.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_named(project: Path) -> None:
    (project / "secret.txt").write_text("x")
    (project / "secret.txt").chmod(0)
    (project / "closed").mkdir()
    (project / "closed").chmod(0)
    try:
        with Scratch(project, project) as scratch:
            assert "not readable, left out: closed, secret.txt" in said(scratch)
    finally:
        (project / "closed").chmod(0o700)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_no_text_are_copied_and_shown(project: Path) -> None:
    name = os.fsdecode(b"caf\xe9.py")
    (project / name).write_text("second = 2\n")
    (project / "link").symlink_to(os.fsdecode(b"/nowhere/\xe9"))
    with Scratch(project, project) as scratch:
        assert (scratch.cwd / name).read_text() == "second = 2\n"
        assert all(note.isprintable() for note in scratch.notes)
        (project / name).write_text("other\n")
        [change] = scratch.changes()
        change.name.encode()
        assert change.name.isprintable()


def deepened(folder: Path, name: str, levels: int) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        deeper = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


@pytest.fixture
def deep(project: Path) -> Iterator[Path]:
    """A project with folders deeper than Python recurses, which what takes away the folders of tests cannot delete."""
    deepened(project, "d", 1_050)
    yield project
    tree = Confined(project)
    tree.remove("d")
    tree.close()


def test_a_tree_of_any_depth_is_copied_reset_and_taken_away(deep: Path) -> None:
    """A run can go deeper still, and what it leaves is gone as well."""
    with Scratch(deep, deep) as scratch:
        place = scratch.folder
        assert (scratch.cwd / "/".join("d" * 1_050)).is_dir()
        deepened(scratch.cwd, "deep", 1_050)  # more than a path may have, and than Python recurses
        scratch.prepare({})
        assert sorted(os.listdir(scratch.cwd)) == ["d", "train.py"]
        assert scratch.changes() == []
    assert not place.exists()


def test_a_file_that_always_changes_is_named_and_has_an_end(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "now.log").write_text("1")
    (project / "once.bin").write_bytes(b"1")
    appended: list[str] = []

    def meanwhile(file: BinaryIO, copy: BinaryIO) -> bool:
        """Another process appends to the file while it is copied: always to one, once to the other."""
        [name] = [
            n
            for n in ("now.log", "once.bin")
            if os.path.samestat(os.fstat(file.fileno()), os.stat(project / n))
        ]
        if name == "now.log" or name not in appended:
            with (project / name).open("a") as log:
                log.write("more")
        appended.append(name)
        return False

    monkeypatch.setattr(copying, "_clone", meanwhile)
    with Scratch(project, project) as scratch:
        assert "changed while it was copied: now.log" in said(scratch)
        assert (scratch.cwd / "once.bin").read_bytes() == b"1more"


def test_a_file_in_the_place_of_a_folder_and_the_other_way_round_are_put_back(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "model.py").write_text("second = 2\n")
    with Scratch(project, project) as scratch:
        here = scratch.cwd
        shutil.rmtree(here / "src")
        (here / "src").write_text("a file now")
        (here / "train.py").unlink()
        (here / "train.py").mkdir()
        scratch.prepare({})
        assert (here / "train.py").read_text() == "first = 1\n"
        assert (here / "src" / "model.py").read_text() == "second = 2\n"


def test_a_folder_that_a_run_closed_is_put_back(project: Path) -> None:
    (project / "src").mkdir()
    (project / "src" / "model.py").write_text("second = 2\n")
    with Scratch(project, project) as scratch:
        for folder in ("src", "src/new", "other", "other/deep"):
            (scratch.cwd / folder).mkdir(exist_ok=True)
        for folder in ("src/new", "src", "other/deep", "other"):
            (scratch.cwd / folder).chmod(0)
        scratch.prepare({})
        assert (scratch.cwd / "src").stat().st_mode & 0o700 == 0o700
        assert sorted(p.name for p in scratch.cwd.rglob("*")) == ["model.py", "src", "train.py"]


def test_a_file_that_a_run_changed_without_a_trace_in_its_time_is_put_back(project: Path) -> None:
    with Scratch(project, project) as scratch:
        was = (scratch.cwd / "train.py").stat()
        (scratch.cwd / "train.py").write_text("other = 1\n"[: was.st_size])
        os.utime(scratch.cwd / "train.py", ns=(was.st_atime_ns, was.st_mtime_ns))
        scratch.prepare({})
        assert (scratch.cwd / "train.py").read_text() == "first = 1\n"


def test_a_script_that_names_the_projects_own_path_is_named(project: Path) -> None:
    (project / "a.yaml").write_text(f"data: {project}/data\n")
    (project / "b.yaml").write_text(f"data: {project}-2/data\n")
    with Scratch(project, project) as scratch:
        [line] = [note for note in scratch.notes if "own path" in note]
        assert line.endswith(": a.yaml")


@pytest.mark.usefixtures("small")
def test_a_command_that_runs_in_linked_data_is_refused_where_it_is_one_link(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "data").mkdir()
    (project / "data" / "numbers.bin").write_bytes(b"12345")
    with Scratch(project, project / "data") as scratch:
        scratch.prepare({})
        assert (scratch.cwd / "numbers.bin").is_symlink()
    monkeypatch.setattr(extents, "MOST_LINKS", 0)
    with pytest.raises(UsageError, match=r"runs in .*data, which is linked into the copy: see --copy-data"):
        Scratch(project, project / "data")
    with Scratch(project, project / "data", copy_data=True) as scratch:
        scratch.prepare({})
        assert scratch.cwd.is_dir()


def test_temporary_files_in_the_project_are_no_place_for_the_copy(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(project / "tmp"))
    with pytest.raises(UsageError, match="temporary files lie in the project"):
        Scratch(project, project)
    assert list((project / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", ["nowhere", "..", "../project", "/etc"])
def test_what_is_to_be_linked_must_be_there(project: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"--link .*{name.split('/')[-1]}.*no such file or folder"):
        Scratch(project, project, link=[name])


def test_a_submodule_and_a_linked_work_tree_are_copied_with_their_files(project: Path) -> None:
    """The copy of a submodule has no repository of its own: nothing in it leads to that of the original."""
    (project / "lib").mkdir()
    (project / "lib" / "model.py").write_text("second = 2\n")
    committed(project / "lib")
    git(project / "lib", "worktree", "add", "-q", "../wt")
    with Scratch(project, project) as scratch:
        assert (scratch.cwd / "lib" / "model.py").is_file() and not (scratch.cwd / "lib" / ".git").exists()
        assert not (scratch.cwd / "wt" / ".git").exists()
    with Scratch(project / "wt", project / "wt") as scratch:
        assert git(scratch.cwd, "rev-parse", "HEAD") == git(project / "lib", "rev-parse", "HEAD")
        assert scratch.changes() == []


def test_the_environment_leads_into_the_copy(project: Path) -> None:
    (project / "src").mkdir()
    root = str(project)
    given = {
        "PYTHONPATH": f"{root}/src:src:/usr/lib", "CONFIG": f'{{"a": "{root}/a.yaml"}}', "OTHER": f"{root}-2:x",
        "PATH": f"{root}/.venv/bin:/usr/bin", "DATA": f"file://{root}/src", "EMPTY": "", "HOME": str(project.parent), "MANY": f"{root}/a:{project.parent}:{root}", "RUN": f"cd {root}; make",
    }  # fmt: skip
    with Scratch(project, project) as scratch:
        here, made = str(scratch.cwd), scratch.environment(given)
    assert {n: made[n] for n in given} == {
        n: v.replace(root, here) if n != "OTHER" else v for n, v in given.items()
    }


REFUSED = "Not a directory|symbolic|exists|not a regular file|leads out|No such"


class TestConfined:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Iterator[Confined]:
        (tmp_path / "tree" / "real").mkdir(parents=True)
        (tmp_path / "victim").mkdir()
        (tmp_path / "victim" / "file").write_text("the user's")
        (tmp_path / "tree" / "way").symlink_to(tmp_path / "victim")
        (tmp_path / "tree" / "real" / "file").symlink_to(tmp_path / "victim" / "file")
        made = Confined(tmp_path / "tree")
        yield made
        made.close()

    @pytest.mark.parametrize(
        "name", ["way/file", "way/new", "real/file", "../victim/file", "/tmp/x", "real/../way/file"]
    )
    def test_no_name_leads_out_of_the_folder(self, tree: Confined, tmp_path: Path, name: str) -> None:
        with pytest.raises(OSError, match=REFUSED):
            tree.replace(name, b"ours")
        with pytest.raises(OSError, match=REFUSED), tree.new_file(name) as file:
            file.write(b"ours")
        with pytest.raises(OSError, match=REFUSED):
            tree.make_folder(f"{name}/deeper")
        if name != "real/file":
            with pytest.raises(OSError, match=REFUSED):
                tree.remove(name)
        assert [p.name for p in (tmp_path / "victim").iterdir()] == ["file"]
        assert (tmp_path / "victim" / "file").read_text() == "the user's"

    def test_a_link_is_removed_and_not_what_it_leads_to(self, tree: Confined, tmp_path: Path) -> None:
        tree.remove("way")
        tree.remove("real")
        assert list((tmp_path / "tree").iterdir()) == []
        assert (tmp_path / "victim" / "file").read_text() == "the user's"
