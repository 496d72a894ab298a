"""What a run writes stays in the copy: real processes write through its links, and the user's files stay as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trace_doctor.errors import UsageError
from trace_doctor.model.treatment import Method, Treatment
from trace_doctor.recording.agent.copy_up import COPIED, REFUSED, CopyUp
from trace_doctor.recording.options import BOOTSTRAP
from trace_doctor.treatment import TreatOptions, treat
from trace_doctor.treatment.copy import extents
from trace_doctor.treatment.scratch import Scratch
from trace_doctor.treatment.treat import look_at_writes


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With data that is linked: by file, as a folder (`many`), out of the project, and next to it."""
    monkeypatch.setattr(extents, "LARGE_FOLDER", 3)
    monkeypatch.setattr(extents, "MOST_LINKS", 2)
    root = tmp_path / "around" / "project"
    for name in ("data/a.txt", "many/1", "many/2", "many/3/4", "../store/x.txt", "../beside/y.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("the user's")
    (root / "images").symlink_to(tmp_path / "around" / "store")
    (root / "train.py").write_text("")
    return root


def contents(root: Path) -> dict[str, str]:
    return {str(p): p.read_text() for p in root.parent.rglob("*") if p.is_file()}


def run(scratch: Scratch, code: str, allow: bool = False) -> subprocess.CompletedProcess[str]:
    scratch.keep_writes(allow)
    variables = {
        **os.environ,
        "PYTHONPATH": str(BOOTSTRAP),
        "TRACE_DOCTOR_RECORD": str(scratch.folder / "none"),
    }
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=scratch.cwd,
        env=scratch.environment(variables),
        capture_output=True,
        text=True,
    )


WRITES = """
import os, pathlib, shutil, sqlite3
open("data/a.txt", "a").write(" and more")
pathlib.Path("data/new.txt").write_text("new")
pathlib.Path("many/1").write_text("other")
pathlib.Path("many/3/5").write_text("new")
os.truncate("images/x.txt", 3)
os.remove("many/2")
pathlib.Path("../beside/y.txt").touch()
pathlib.Path("../beside/z.txt").write_text("new")
try:
    shutil.rmtree("many/3")
except OSError:
    pass
sqlite3.connect("images/x.db").execute("create table t (a)")
print(open("data/a.txt").read(), open("many/1").read(), open("images/x.txt").read(), os.path.exists("many/2"))
"""


def test_what_a_run_writes_through_any_link_stays_in_the_copy(project: Path) -> None:
    before = contents(project)
    with Scratch(project, project) as scratch:
        assert (scratch.cwd / "many").is_symlink() and (scratch.cwd / "data" / "a.txt").is_symlink()
        done = run(scratch, WRITES)
        assert done.stdout == "the user's and more other the False\n", done.stderr
        assert contents(project) == before and scratch.changes() == []
        assert str(project / "data" / "a.txt") in scratch.writes_of_runs(COPIED)
        scratch.prepare({})
        assert run(scratch, WRITES).stdout == done.stdout  # the next run finds all as it was
    assert contents(project) == before


def test_a_write_that_the_copy_has_no_room_for_and_one_to_the_project_itself_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_doctor.treatment.scratch.RESERVE", 1 << 62)
    own = f"open({str(project / 'train.py')!r}, 'w')"
    with Scratch(project, project) as scratch:
        for code, path in (("open('data/a.txt', 'a')", "data/a.txt"), (own, "train.py")):
            done = run(scratch, code)
            assert "trace-doctor treat: " in done.stderr and done.returncode == 1
            assert str(project / path) in scratch.writes_of_runs(REFUSED)
        assert scratch.changes() == []
        assert run(scratch, "open('data/a.txt', 'a').write(' and more')", allow=True).returncode == 0
    assert (project / "data" / "a.txt").read_text() == "the user's and more"


def test_treat_stops_before_any_trial_where_runs_would_write_to_the_users_files(
    project: Path, tmp_path: Path
) -> None:
    (project / "train.py").write_text(f"open({str(project / 'own.txt')!r}, 'w').write('of a run')")
    (project / "own.txt").write_text("the user's")
    with pytest.raises(UsageError, match=r"writes to files of yours .*own\.txt; .*--allow-data-writes"):
        treat([sys.executable, "train.py"], project, cwd=project)
    assert (project / "own.txt").read_text() == "the user's"


def test_a_working_folder_behind_a_link_is_not_written(project: Path) -> None:
    """There a name has no place in the copy any more."""
    before = contents(project)
    with Scratch(project, project) as scratch:
        read = run(scratch, "import os; os.chdir('images'); print(open('x.txt').read())")
        assert (read.stdout, read.returncode) == ("the user's\n", 0), read.stderr
        done = run(scratch, "import os; os.chdir('images'); open('x.txt', 'w')")
        assert done.returncode == 1 and "trace-doctor treat: it is behind a link of the copy" in done.stderr
        assert [Path(p).name for p in scratch.writes_of_runs(REFUSED)] == ["x.txt"]
        assert run(scratch, "import os; os.chdir('images'); open('x.txt', 'a')", allow=True).returncode == 0
    assert contents(project) == before


def test_what_was_decided_for_another_script_is_not_gone_on_with(project: Path) -> None:
    def fingerprint(command: str = "python train.py") -> str:
        with Scratch(project, project) as scratch:
            return scratch.fingerprint(command)

    before = fingerprint()
    (project / "data" / "a.txt").write_text("other data")
    assert fingerprint() == before and fingerprint("python train.py --fast") != before
    (project / "train.py").write_text("x = 1")
    assert fingerprint() != before
    method = Method(
        warmup_steps=1, timed_steps=9, figure="median", repeats=6, alpha=0.03, least_gain=0.01, loss_tolerance=0.02
    )  # fmt: skip
    past = Treatment(code=0, verdict="", method=method, fingerprint=before)
    with pytest.raises(UsageError, match="--resume: the command or a script has changed since"):
        treat([sys.executable, "train.py"], project, TreatOptions(resume=past), cwd=project)


def test_a_write_that_python_does_not_hear_of_is_found_before_any_trial(project: Path) -> None:
    said: list[str] = []
    with Scratch(project, project) as scratch:
        scratch.keep_writes(allow=False)
        look_at_writes(scratch, False, said.append)
        subprocess.run("echo of a run > data/a.txt", shell=True, cwd=scratch.cwd, check=True)
        with pytest.raises(UsageError, match=r"writes to files of yours .*data/a\.txt"):
            look_at_writes(scratch, False, said.append)
        look_at_writes(scratch, True, said.append)
        assert said == []


def test_what_is_linked_on_purpose_is_written_and_readers_are_left_alone(project: Path) -> None:
    with Scratch(project, project, link=["data"]) as scratch:
        done = run(scratch, "open('data/a.txt', 'w').write('meant'); print(open('many/1').read())")
        assert done.stdout == "the user's\n", done.stderr
        assert (scratch.cwd / "many").is_symlink()
    assert (project / "data" / "a.txt").read_text() == "meant"


def test_two_processes_may_take_the_place_of_the_same_link(tmp_path: Path) -> None:
    """One of them comes too late: the other has made the file its own meanwhile."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("the user's")
    (tmp_path / "copy" / "data").symlink_to(tmp_path / "mine")
    keeper = CopyUp(str(tmp_path / "copy"), str(tmp_path / "project"), [], str(tmp_path / "log"))
    real = os.listdir

    def meanwhile(folder: str) -> list[str]:
        os.unlink(tmp_path / "copy" / "data")
        (tmp_path / "copy" / "data").mkdir()
        (tmp_path / "copy" / "data" / "a").write_text("of the other")
        return real(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", meanwhile)
        keeper.before_write(tmp_path / "copy" / "data" / "a", os.O_WRONLY)
    assert [p.name for p in (tmp_path / "copy").iterdir()] == ["data"]
    assert (tmp_path / "copy" / "data" / "a").read_text() == "of the other"


def test_a_log_that_cannot_be_written_allows_no_write(tmp_path: Path) -> None:
    mine = tmp_path / "project" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("the user's")
    keeper = CopyUp(str(tmp_path / "copy"), str(mine.parent), [], str(tmp_path / "no folder" / "log"))
    with pytest.raises(OSError, match="file of the project"):
        keeper.before_write(str(mine), os.O_WRONLY)
