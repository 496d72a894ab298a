"""Outputs: whole or not at all, never through a link that somebody planted."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest
from warm_commands import warm

from trace_doctor.cli.outputs import is_output_of_ours
from trace_doctor.errors import UsageError
from trace_doctor.files import place_of, replacing
from trace_doctor.reporters.seals import sealed
from trace_doctor.testing import RunBuilder

posix = pytest.mark.skipif(os.name != "posix", reason="links, owners and FIFOs are those of POSIX")
root = pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away"
)


def write(path: Path, data: bytes = b"new") -> None:
    with replacing(path) as file:
        file.write(data)


def fail_half_way(path: Path, error: Exception) -> None:
    with replacing(path) as file:
        file.write(b"half")
        raise error


def test_a_file_is_replaced_whole_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, b"old")
    path.chmod(0o640)
    write(path)
    assert path.read_bytes() == b"new"
    assert os.name != "posix" or stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@posix
def test_a_new_file_has_the_permissions_that_new_files_have(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "report.html")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o640


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write(path, b"old")
    for error, seen in (
        (OSError(errno.ENOSPC, "No space left on device"), UsageError),
        (KeyError(), KeyError),
    ):
        with pytest.raises(seen):
            fail_half_way(path, error)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@posix
def test_links_that_are_planted_for_the_temporary_file_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    for number in (os.getpid(), os.getpid() + 1):
        (tmp_path / f".report.html.{number}.tmp").symlink_to(victim)
    write(tmp_path / "report.html")
    assert victim.read_bytes() == b"mine"
    seen: set[str] = set()
    for _ in range(3):
        with replacing(tmp_path / "report.html") as file:
            seen |= {p.name for p in tmp_path.iterdir() if p.is_file() and p.name.endswith(".tmp")}
            file.write(b"x")
    assert len({name for name in seen if str(os.getpid()) not in name.split(".")}) >= 3, (
        "a name of its own each time"
    )


@posix
def test_a_link_of_ones_own_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    write(tmp_path / "reports" / "today.html", b"old")
    (tmp_path / "latest.html").symlink_to("reports/today.html")
    write(tmp_path / "latest.html")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "reports" / "today.html").read_bytes() == b"new"


@posix
@pytest.mark.parametrize("kind", ["link", "new link", "folder by a link", "link to a pipe"])
def test_a_link_that_another_program_made_since_is_not_followed(tmp_path: Path, kind: str) -> None:
    here, mine = tmp_path / "out", tmp_path / "mine"
    here.mkdir()
    mine.mkdir()
    (mine / "page.html").write_bytes(b"mine")
    if kind != "new link":
        (here / "page.html").write_bytes(b"old")
    place = place_of(here / "page.html")
    if kind == "folder by a link":
        here.rename(tmp_path / "aside")
        here.symlink_to(mine)
        with pytest.raises(UsageError, match="another folder by now"), replacing(here / "page.html", place):
            pass
    else:
        if kind == "link to a pipe":
            os.mkfifo(mine / "pipe")
        (here / "page.html").unlink(missing_ok=True)
        (here / "page.html").symlink_to(mine / ("pipe" if kind == "link to a pipe" else "page.html"))
        with replacing(here / "page.html", place) as file:
            file.write(b"new")
        assert not (here / "page.html").is_symlink() and (here / "page.html").read_bytes() == b"new"
        assert stat.S_IMODE((here / "page.html").stat().st_mode) & 0o111 == 0
    assert (mine / "page.html").read_bytes() == b"mine"


@posix
def test_a_link_that_was_there_before_other_programs_ran_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "today.html", b"old")
    (tmp_path / "latest.html").symlink_to("today.html")
    with replacing(tmp_path / "latest.html", place_of(tmp_path / "latest.html")) as file:
        file.write(b"new")
    assert (tmp_path / "latest.html").is_symlink() and (tmp_path / "today.html").read_bytes() == b"new"
    with replacing(Path("/dev/null"), place_of(Path("/dev/null"))) as file:
        file.write(b"new")


@posix
def test_a_folder_that_is_swapped_for_a_link_while_a_file_is_written_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "page.html").write_bytes(b"mine")
    with replacing(tmp_path / "out" / "page.html") as file:
        (tmp_path / "out").rename(tmp_path / "away")
        (tmp_path / "out").symlink_to("victim")
        file.write(b"new")
    assert (tmp_path / "victim" / "page.html").read_bytes() == b"mine"
    assert [p.name for p in (tmp_path / "victim").iterdir()] == ["page.html"]
    assert [p.name for p in (tmp_path / "away").iterdir()] == ["page.html"]
    assert (tmp_path / "away" / "page.html").read_bytes() == b"new"


@posix
def test_folders_by_links_of_ones_own_are_written_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "relative").symlink_to("a/../a/b")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    write(tmp_path / "absolute" / "page.html")
    assert (tmp_path / "a" / "b" / "page.html").read_bytes() == b"new"
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "round" / "page.html")


@root
def test_a_folder_by_a_link_of_somebody_else_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "theirs").symlink_to("victim")
    os.chown(tmp_path / "theirs", 1234, 1234, follow_symlinks=False)
    (tmp_path / "own").symlink_to("theirs")
    for way in ("theirs", "own"):
        with pytest.raises(UsageError, match="theirs is a link of somebody else"):
            write(tmp_path / way / "page.html")
    assert not [*(tmp_path / "victim").iterdir()]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory that holds files")
def test_a_file_of_shared_memory_is_replaced_as_any_other() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        here = Path(name)
        (here / "page.html").write_bytes(b"old")
        with pytest.raises(KeyError):
            fail_half_way(here / "page.html", KeyError())
        assert (here / "page.html").read_bytes() == b"old"


@posix
def test_a_link_that_leads_nowhere_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").symlink_to(tmp_path / "made-by-us")
    with pytest.raises(UsageError, match="leads nowhere"):
        write(tmp_path / "report.html")
    assert not (tmp_path / "made-by-us").exists()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="leads nowhere"):
        write(tmp_path / "loop")


@root
@pytest.mark.parametrize("given_away", ["link", "file"])
def test_a_link_of_somebody_else_or_to_their_file_is_left_alone(tmp_path: Path, given_away: str) -> None:
    (tmp_path / "file").write_bytes(b"theirs")
    (tmp_path / "report.html").symlink_to("file")
    os.chown(
        tmp_path / ("file" if given_away == "file" else "report.html"), 1234, 1234, follow_symlinks=False
    )
    with pytest.raises(UsageError, match="somebody else"):
        write(tmp_path / "report.html")
    assert (tmp_path / "file").read_bytes() == b"theirs"


@posix
def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join(10)
    assert read == [b"new"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@posix
@pytest.mark.parametrize("kind", ["dangling", "not a report"])
def test_the_default_report_follows_no_link_to_what_is_no_report(tmp_path: Path, kind: str) -> None:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(300, "gemm")
    b.write(tmp_path / "trace.json")
    victim = tmp_path / "victim.txt"
    if kind != "dangling":
        victim.write_text("mine")
    (tmp_path / "trace-doctor-report.html").symlink_to(victim)
    command = [*warm(), "analyze", "trace.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert victim.exists() == (kind != "dangling")
    assert kind == "dangling" or victim.read_text() == "mine"


def test_what_ends_unlike_an_output_is_not_read_to_tell_whether_it_is_one(tmp_path: Path) -> None:
    with (tmp_path / "capture").open("wb") as file:
        file.truncate(1 << 29)  # takes no room on the disk
    tracemalloc.start()
    try:
        assert not is_output_of_ours(tmp_path / "capture")
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()
    for name, fmt in (("r.json", "json"), ("r.md", "markdown"), ("r.sarif", "sarif")):
        (tmp_path / name).write_bytes(sealed(fmt, "x" * 500 + "\n}"))
        assert is_output_of_ours(tmp_path / name), fmt
        (tmp_path / name).write_bytes(b"y" + (tmp_path / name).read_bytes()[1:])
        assert not is_output_of_ours(tmp_path / name), fmt
