"""The user's files are compared in the end: what a run, or somebody else, did to them is told."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from access_lists import set_list

from trace_doctor.model.treatment import FileChange, Method, Treatment
from trace_doctor.reporters import Options
from trace_doctor.reporters.html import treatment
from trace_doctor.reporters.treatment import text as treatment_text
from trace_doctor.reporters.treatment.words import verdict
from trace_doctor.treatment.copy import extents, originals
from trace_doctor.treatment.scratch import Scratch


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With linked data, a link to data outside, a virtual environment and a script."""
    root = tmp_path / "project"
    (root / "data" / "deep").mkdir(parents=True)
    (root / "data" / "deep" / "numbers.bin").write_bytes(b"12345")
    (root / ".venv").mkdir()
    (root / ".venv" / "pyvenv.cfg").write_text("")
    (root / "train.py").write_text("first = 1\n")
    (root / "small.bin").write_bytes(b"1")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "images").write_bytes(b"678")
    (root / "images").symlink_to(tmp_path / "store")
    (root / "weights").symlink_to(tmp_path / "store" / "images")
    return root


def same_time(path: Path, data: bytes) -> None:
    """Other bytes of the same number, and the old time: only the time of the change of its state tells."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def link_again(path: Path) -> None:
    where = path.resolve()
    path.unlink()
    path.symlink_to(where.parent / "other")


def replaced(path: Path) -> None:
    path.rename(path.with_name("aside.py"))
    path.symlink_to("aside.py")


WRITES: list[tuple[str, Callable[[Path], object], list[tuple[str, str, str]]]] = [
    ("data", lambda p: (p / "data/deep/numbers.bin").write_bytes(b"99999"), [("data/deep/numbers.bin", "changed", "data")]),
    ("same time", lambda p: same_time(p / "data/deep/numbers.bin", b"99999"), [("data/deep/numbers.bin", "changed", "data")]),
    ("new in data", lambda p: (p / "data/cache").write_bytes(b""), [("data/cache", "created", "data")]),
    ("gone", lambda p: (p / "data/deep/numbers.bin").unlink(), [("data/deep/numbers.bin", "deleted", "data")]),
    ("outside", lambda p: (p / "images/new").write_bytes(b""), [("images/new", "created", "images")]),
    ("file outside", lambda p: (p / "weights").write_bytes(b"999"),
     [("images/images", "changed", "images"), ("weights -> {store}/images", "changed", "weights")]),
    ("environment", lambda p: (p / ".venv/x.pth").write_text(""), [(".venv/x.pth", "created", ".venv")]),
    ("script", lambda p: (p / "train.py").write_text("other = 1\n"), [("train.py", "changed", "")]),
    ("script, same time", lambda p: same_time(p / "train.py", b"other = 1\n"), [("train.py", "changed", "")]),
    ("mode", lambda p: (p / "train.py").chmod(0o777), [("train.py", "changed", "")]),
    ("small", lambda p: (p / "small.bin").write_bytes(b"2"), [("small.bin", "changed", "")]),
    ("link", lambda p: link_again(p / "weights"), [("weights", "changed", "weights")]),
    ("replaced", lambda p: replaced(p / "train.py"), [("aside.py", "created", ""), ("train.py", "changed", "")]),
    ("rights of a folder", lambda p: (p / "data/deep").chmod(0o777), [("data/deep", "changed", "data")]),
    ("rights of the project", lambda p: p.chmod(0o777), [(".", "changed", "")]),
    ("access list of a folder", lambda p: set_list(p / "data/deep", "default"), [("data/deep", "changed", "data")]),
    ("access list of the project", lambda p: set_list(p, "default"), [(".", "changed", "")]),
    ("closed folder", lambda p: (p / "data").chmod(0), [("data", "changed", "data")]),
    ("rights of a folder outside", lambda p: (p / "images").chmod(0o777), [("images -> {store}", "changed", "images")]),
    ("folder", lambda p: (p / "new" / "deep").mkdir(parents=True), [("new", "created", "")]),
    ("nothing", lambda p: (p / "train.py").write_bytes((p / "train.py").read_bytes()), []),
    ("cache", lambda p: (p / "__pycache__").mkdir(), []),
]  # fmt: skip


@pytest.mark.parametrize(("write", "told"), [w[1:] for w in WRITES], ids=[w[0] for w in WRITES])
def test_what_changed_is_told_with_the_link_it_lies_behind(
    project: Path,
    write: Callable[[Path], object],
    told: list[tuple[str, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extents, "LARGE_FOLDER", 3)
    with Scratch(project, project) as scratch:
        assert scratch.changes() == []
        write(project)
        store = str(project.parent / "store")
        wanted = [(name.format(store=store), how, through) for name, how, through in told]
        assert [(c.name, c.how, c.through) for c in scratch.changes()] == wanted


def test_a_run_that_writes_through_the_links_of_the_copy_is_seen(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extents, "LARGE_FOLDER", 3)
    with Scratch(project, project) as scratch:
        (scratch.cwd / "data" / "deep" / "numbers.bin").write_bytes(b"99999")
        (scratch.cwd / "small.bin").write_bytes(b"of the copy")
        assert [c.name for c in scratch.changes()] == ["data/deep/numbers.bin"]
    with Scratch(project, project, copy_data=True) as scratch:
        (scratch.cwd / "data" / "deep" / "numbers.bin").write_bytes(b"11111")
        assert scratch.changes() == []
        scratch.prepare({})
        assert (scratch.cwd / "data" / "deep" / "numbers.bin").read_bytes() == b"99999"


def test_what_holds_too_much_to_be_compared_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(originals, "MOST_OUTSIDE", 1)
    with Scratch(project, project) as scratch:
        assert any(note.startswith("too many files to compare in the end: images") for note in scratch.notes)
        (project / "images" / "new").write_bytes(b"")
        assert [c.through for c in scratch.changes()] == []


@pytest.mark.parametrize("logs", ["logs", ".", "data", "new/deep", "images"])
def test_recordings_that_are_kept_are_no_change_and_what_lies_beside_them_is(
    project: Path, logs: str
) -> None:
    """Also where the user has files in their folder, and behind a link."""
    (project / "logs").mkdir()
    (project / "logs" / "old").write_text("the user's")
    with Scratch(project, project) as scratch:
        kept = project / logs / "2026-01-01T00-00-00Z"
        kept.mkdir(parents=True)
        scratch.writes(kept)
        (kept / "recording").write_text("")
        assert scratch.changes() == []
        (project / logs / "of a run").write_text("")
        (project / "logs" / "old").unlink()
        beside = (Path(logs) / "of a run").as_posix()
        assert [(c.name, c.how) for c in scratch.changes()] == sorted(
            [(beside, "created"), ("logs/old", "deleted")]
        )


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="who reads a pipe is told by /proc alone")
@pytest.mark.parametrize("how", ["{0} > said.txt 2>&1", "{0} 2>&1 | tee said.txt"])
def test_our_output_in_a_file_is_no_change(project: Path, how: str) -> None:
    script = project.parent / "watch.py"
    script.write_text(
        "import pathlib, time\n"
        "from trace_doctor.treatment.scratch import Scratch\n"
        "here = pathlib.Path.cwd()\n"
        "with Scratch(here, here) as scratch:\n"
        "    print('said', flush=True)\n"
        "    (here / 'other.txt').write_text('')\n"
        "    deadline = time.monotonic() + 20\n"
        "    while not (here / 'said.txt').read_text() and time.monotonic() < deadline:\n"
        "        time.sleep(0.01)\n"
        "    (here.parent / 'found').write_text(' '.join(c.name for c in scratch.changes()))\n"
    )
    command = how.format(f"{sys.executable} {script}")
    (project / "said.txt").write_text("")
    subprocess.run(["sh", "-c", command], cwd=project, check=True, timeout=60)
    assert (project.parent / "found").read_text() == "other.txt"


METHOD = Method(
    warmup_steps=1,
    timed_steps=1,
    figure="median",
    repeats=6,
    alpha=0.05,
    least_gain=0.01,
    loss_tolerance=0.02,
)


@pytest.mark.parametrize("name", ["s.py", "notes.html", "conf.json", "new.patch"])
def test_what_looks_like_an_output_of_ours_is_a_change(project: Path, name: str) -> None:
    """A run can write that as well as another treat can, and over a script of the user's."""
    made = Treatment(code=0, verdict="v", method=METHOD)
    texts = {
        "s.py": "# unsafe: TD101-1 n: t\n--- a\n",
        "new.patch": "# unsafe: TD101-1 n: t\n--- a\n",
        "notes.html": treatment.render(made, Options()),
        "conf.json": made.to_json().decode(),
    }
    if name != "new.patch":
        (project / name).write_text("mine")
    with Scratch(project, project) as scratch:
        (project / name).write_text(texts[name])
        how = "created" if name == "new.patch" else "changed"
        assert [(c.name, c.how) for c in scratch.changes()] == [(name, how)]


def test_a_change_is_in_every_report_and_ends_with_2() -> None:
    changed = [FileChange(name="data/<b>", how="changed", through="data")]
    made = Treatment(code=0, verdict="", method=METHOD, patch="--- a\n", changed=changed, changed_count=1)
    told = verdict(made)
    assert told.code == 2 and "1 file of yours changed" in told.verdict and told.patch
    assert "data/<b> changed (behind the link data)" in " ".join(
        treatment_text.render(told, Options(width=400)).split()
    )
    assert "data/&lt;b&gt;" in treatment.render(told, Options())
    assert Treatment.from_json(told.to_json()).changed == changed
    assert verdict(made, 130).code == 130 and "yours changed" in verdict(made, 130).verdict
    stopped = verdict(Treatment(code=0, verdict="", method=METHOD, stopped="a.py was changed"))
    assert stopped.code == 2 and stopped.verdict.startswith("stopped: a.py was changed")
    behind = verdict(Treatment(code=0, verdict="", method=METHOD, mounted=["/tmp/copy/m"]))
    assert behind.code == 2 and "a run mounted something in the copy" in behind.verdict
