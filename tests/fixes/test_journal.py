"""An edit of several files that is killed, disturbed or left behind: nothing is lost, and what is mixed is named."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from access_lists import set_list

from trace_doctor.errors import UsageError
from trace_doctor.fixes import apply as applying
from trace_doctor.fixes import exchange as exchanging
from trace_doctor.fixes import journal as journals
from trace_doctor.fixes.apply import _replace_all, interrupted_edits, recover
from trace_doctor.fixes.journal import Edit, open_journal

OLD = {"a.py": b"print('a, as it was')\n", "b.py": b"print('b, as it was')\n"}
NEW = {"a.py": b"print('a, edited')\n", "b.py": b"print('b, edited')\n"}
OURS = {m.__file__ for m in (applying, exchanging, journals)}
posix = pytest.mark.skipif(os.name != "posix", reason="processes are forked and killed as POSIX does")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "job"
    folder.mkdir()
    reset(folder)
    return folder


def reset(folder: Path) -> None:
    shutil.rmtree(folder.parent / "state", ignore_errors=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in OLD.items():
        (folder / name).write_bytes(content)


def edit_all(folder: Path) -> None:
    edit = Edit.of(folder.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])
    with open_journal(edit) as journal:
        _replace_all(journal)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def left_in_state(folder: Path) -> list[str]:
    state = folder.parent / "state" / "trace-doctor"
    return [p.name for p in state.iterdir()] if state.is_dir() else []


def in_a_child(body: Callable[[], None], before: Callable[[int], None]) -> int:
    """Runs the body in a process that calls `before` before the n-th line of our code that edits; its exit code."""
    child = os.fork()
    if child == 0:
        count = 0

        def trace(frame, event, _):  # type: ignore[no-untyped-def]
            nonlocal count
            if frame.f_code.co_filename not in OURS:
                return None
            if event == "line":
                count += 1
                before(count)
            return trace

        sys.settrace(trace)
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lines_that_matter(job: Path, body: Callable[[], None]) -> list[int]:
    """The lines before which the disk is another than before the line that ran before: a process that is killed
    leaves what is on the disk and nothing else, so killing it at the lines between tells nothing more."""
    said, last = job.parent / "lines", None

    def note(line: int) -> None:
        nonlocal last
        paths = [job, *sorted(job.rglob("*")), *sorted((job.parent / "state").rglob("*"))]
        now = [
            (p, stat.st_ino, stat.st_mode, stat.st_nlink, p.is_file() and p.read_bytes())
            for p in paths
            if (stat := p.lstat())
        ]
        if now != last:
            last = now
            with said.open("a") as file:
                file.write(f"{line}\n")

    said.unlink(missing_ok=True)
    assert in_a_child(body, note) == 0
    return [int(line) for line in said.read_text().split()]


def killed_at(line: int, body: Callable[[], None]) -> bool:
    """Whether the body, in a process that is killed before the n-th line, came that far."""

    def kill(now: int) -> None:
        if now == line:
            os.kill(os.getpid(), signal.SIGKILL)

    return in_a_child(body, kill) == -signal.SIGKILL


@posix
@pytest.mark.parametrize("kernel_exchanges", [True, False])
def test_killed_at_any_step_nothing_is_lost(
    job: Path, kernel_exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)  # processes are killed, not the machine
    if not kernel_exchanges:
        monkeypatch.setattr(exchanging, "_try_exchange", lambda one, other: False)
    lines, mixed, seen = lines_that_matter(job, lambda: edit_all(job)), 0, set()
    reset(job)
    for line in lines:
        assert killed_at(line, lambda: edit_all(job)), line
        now = {name: (job / name).read_bytes() if (job / name).exists() else b"" for name in OLD}
        for name, content in now.items():
            assert content in (OLD[name], NEW[name]) or (not kernel_exchanges and not content), line
        seen.add(tuple(now.items()))
        if len({content == NEW[name] for name, content in now.items()}) == 2:
            mixed += 1
            [said] = interrupted_edits(job)
            assert all(name in said for name in OLD) and "interrupted" in said
        recover(job)
        after = contents(job)
        assert after in (OLD, NEW), line
        assert now != NEW or after == NEW, "what was done is not undone"
        assert left_in_state(job) == [], line
        reset(job)
    assert len(lines) > 10
    assert mixed >= 1
    assert {tuple(OLD.items()), tuple(NEW.items())} < seen


@posix
def test_recovery_that_is_killed_is_recovered(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)

    def half_done() -> None:
        reset(job)
        edit = Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])
        with open_journal(edit):
            (job / "a.py").write_bytes(NEW["a.py"])

    half_done()
    lines = lines_that_matter(job, lambda: recover(job) and None)
    for line in lines:
        half_done()
        assert killed_at(line, lambda: recover(job) and None), line
        recover(job)
        assert contents(job) == NEW, line
    assert len(lines) > 5


def test_a_file_with_neither_content_is_left_alone(job: Path) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])):
        (job / "a.py").write_bytes(NEW["a.py"])
    (job / "b.py").write_bytes(b"mine\n")
    with pytest.raises(UsageError, match=r"\(a\.py edited; b\.py changed since\); b\.py stays as it is"):
        recover(job)
    assert contents(job) == {"a.py": NEW["a.py"], "b.py": b"mine\n"}
    (job / "b.py").write_bytes(OLD["b.py"])
    assert recover(job) == ["an interrupted edit was completed: a.py, b.py"]
    assert contents(job) == NEW
    assert recover(job) == interrupted_edits(job) == []


@posix
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.chmod(0o444), "b.py is read-only"),
        (lambda path: os.link(path, path.parents[1] / "other.py"), "b.py has 2 names"),
    ],
    ids=["read-only", "hard link"],
)
def test_a_file_that_may_not_be_edited_any_more_is_left_alone(
    job: Path, change: Callable[[Path], None], why: str
) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])):
        (job / "a.py").write_bytes(NEW["a.py"])
    change(job / "b.py")
    before = (job / "b.py").stat()
    with pytest.raises(UsageError, match=why):
        recover(job)
    after = (job / "b.py").stat()
    assert (after.st_ino, after.st_mode, after.st_nlink) == (before.st_ino, before.st_mode, before.st_nlink)
    assert contents(job) == {"a.py": NEW["a.py"], "b.py": OLD["b.py"]}
    assert len(left_in_state(job)) == 1


def test_an_edit_that_had_replaced_nothing_is_dropped(job: Path) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])):
        pass
    assert interrupted_edits(job) == recover(job) == left_in_state(job) == []
    assert contents(job) == OLD


def test_a_journal_in_use_is_not_recovered(job: Path) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])) as journal:
        (job / "a.py").write_bytes(NEW["a.py"])
        said = []
        other = threading.Thread(target=lambda: said.extend(recover(job)))
        other.start()
        other.join()
        assert said == []
        assert contents(job)["b.py"] == OLD["b.py"]
        journal.discard()


def test_an_edit_elsewhere_is_not_ours_to_recover(job: Path) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])):
        (job / "a.py").write_bytes(NEW["a.py"])
    other = job.parent / "job2"
    other.mkdir()
    assert interrupted_edits(other) == recover(other) == []
    assert recover(job / "b.py"), "of a file it is"


def test_the_state_folder_is_the_users_alone(job: Path) -> None:
    edit_all(job)
    folder = job.parent / "state" / "trace-doctor"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    reset_to = contents(job)
    with open_journal(Edit.of(job.resolve(), [("a.py", reset_to["a.py"], b"x\n")])) as journal:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert journal.file.stat().st_mode & 0o777 == 0o600
        journal.discard()


@pytest.mark.parametrize("kind", ["link", "file", "no home", "another's"])
def test_no_state_folder_no_edit(job: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = job.parent / "state"
    if kind == "link":
        (job.parent / "elsewhere").mkdir()
        state.mkdir()
        (state / "trace-doctor").symlink_to(job.parent / "elsewhere", target_is_directory=True)
    elif kind == "file":
        state.write_bytes(b"")
    elif kind == "another's":
        if not hasattr(os, "getuid") or os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        (state / "trace-doctor").mkdir(parents=True)
        os.chown(state / "trace-doctor", 1234, 1234)
    else:
        monkeypatch.delenv("XDG_STATE_HOME")
        monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError())))
    with pytest.raises(UsageError, match="nothing was written"):
        edit_all(job)
    assert contents(job) == OLD


def half_done(job: Path) -> Path:
    """The journal of an edit of which one file is made, and the other not."""
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])) as journal:
        (job / "a.py").write_bytes(NEW["a.py"])
    return journal.file


HALF_DONE = {"a.py": NEW["a.py"], "b.py": OLD["b.py"]}


@posix
@pytest.mark.parametrize(
    "kind",
    [
        "folder of another", "folder that others write", "folder that a group writes", "folder by a link",
        "journal of another", "journal that others write", "journal by a link", "journal that is a FIFO",
        "way that others write", "way of another", "way by a link of another",
        "way that a group of others writes", "way that a list lets others write",
    ],
)  # fmt: skip
def test_a_journal_that_somebody_else_may_have_written_is_not_obeyed(
    job: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ("of another" in kind or "of others" in kind) and os.getuid() != 0:
        pytest.skip("only root can give files away")
    file = half_done(job)
    folder, state = file.parent, file.parent.parent
    place = {"folder": folder, "journal": file, "way": state}[kind.split()[0]]
    if kind == "way by a link of another":
        (job.parent / "theirs").symlink_to(state, target_is_directory=True)
        os.lchown(job.parent / "theirs", 1234, 1234)
        monkeypatch.setenv("XDG_STATE_HOME", str(job.parent / "theirs"))
    elif kind.endswith("of another"):
        os.chown(place, 1234, 1234)
    elif kind.endswith("a group of others writes"):
        os.chown(place, -1, 1234)
        place.chmod(0o770)
    elif kind.endswith("lets others write"):
        set_list(place, "access", others=5)
    elif kind.endswith("others write"):
        place.chmod(place.stat().st_mode | 0o002)
    elif kind.endswith("group writes"):
        place.chmod(place.stat().st_mode | 0o020)
    elif kind.endswith("by a link"):
        place.rename(job.parent / "elsewhere")
        place.symlink_to(job.parent / "elsewhere")
    else:
        file.unlink()
        os.mkfifo(file)
    before = {p: p.lstat() for p in folder.iterdir()}
    for act in (recover, interrupted_edits):
        with pytest.raises(UsageError) as said:
            act(job)
        assert "\n" not in str(said.value)
        assert "nothing was written" in str(said.value) or "cannot be read" in str(said.value)
    if not kind.startswith("journal"):
        with pytest.raises(UsageError, match="nothing was written"):
            edit_all(job)
    assert contents(job) == HALF_DONE
    assert {p: p.lstat().st_mtime_ns for p in folder.iterdir()} == {
        p: s.st_mtime_ns for p, s in before.items()
    }


@posix
def test_no_folder_is_made_on_a_way_that_others_can_turn(job: Path) -> None:
    state = job.parent / "state"
    state.mkdir()
    state.chmod(0o777)
    with pytest.raises(UsageError, match="nothing was written"):
        edit_all(job)
    assert [*state.iterdir()] == []


@posix
@pytest.mark.parametrize(
    "kind", ["a link of ones own", "a folder of all", "a group of ones own", "new folders"]
)
def test_a_way_that_others_cannot_turn_is_gone(job: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = job.parent / "state"
    if kind == "a link of ones own":
        (job.parent / "far" / "away").mkdir(parents=True)
        state.symlink_to("far/../far/away", target_is_directory=True)
    elif kind == "a folder of all":
        state.mkdir()
        state.chmod(0o1777)
    elif kind == "a group of ones own":
        grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
        user = pwd.getpwuid(os.getuid())
        if grp.getgrgid(user.pw_gid).gr_name != user.pw_name:
            pytest.skip("this user has no group of their own")
        state.mkdir()
        os.chown(state, -1, user.pw_gid)
        state.chmod(0o775)
    else:
        monkeypatch.setenv("XDG_STATE_HOME", str(state / "x" / "y"))
        before = os.umask(0)
        try:
            half_done(job)
        finally:
            os.umask(before)
        assert {p.stat().st_mode & 0o777 for p in (state, state / "x", state / "x" / "y")} == {0o700}
        assert recover(job)
        return
    half_done(job)
    assert recover(job)
    assert contents(job) == NEW


@posix
def test_a_journal_that_does_not_fit_leaves_nothing(job: Path) -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(UsageError, match="cannot keep a journal"):
            edit_all(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert left_in_state(job) == []
    assert contents(job) == OLD


@posix
def test_a_process_that_stopped_while_it_edits_is_not_waited_for(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(applying, "_PATIENCE", 0.1)
    number = os.open(job, os.O_RDONLY)
    fcntl.flock(number, fcntl.LOCK_EX)
    try:
        with pytest.raises(UsageError, match="another process edits"):
            recover(job)
    finally:
        os.close(number)
    assert recover(job) == []


def test_what_a_kill_leaves_of_a_journal_is_removed_by_the_next_edit_alone(job: Path) -> None:
    folder = journals.state_folder()
    left = folder / ".0123456789abcdef.tmp"
    left.write_bytes(b"half")
    others = [folder / ".0123456789abcdef.tmp.swp", folder / ".notes.tmp"]
    for other in others:
        other.write_bytes(b"mine")
    if hasattr(os, "getuid") and os.getuid() == 0:
        others.append(folder / ".fedcba9876543210.tmp")
        others[-1].write_bytes(b"theirs")
        os.chown(others[-1], 1234, 1234)
    assert interrupted_edits(job) == []
    assert left.exists()
    assert recover(job) == []
    assert sorted(folder.iterdir()) == sorted(others)


@posix
def test_a_journal_that_is_being_written_is_not_removed(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.fsync
    seen = []

    def meanwhile(number: int) -> None:
        seen.append(left_in_state(job))
        journals.remove_halves()
        assert left_in_state(job) == seen[-1]
        opened(number)

    monkeypatch.setattr(os, "fsync", meanwhile)
    edit_all(job)
    assert [name[0] for name in seen[0]] == ["."]
    assert contents(job) == NEW


@pytest.mark.parametrize("stays", ["asides", "journal"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_cannot_be_taken_away_is_named_with_what_became_of_the_files(
    job: Path, moment: str, stays: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder to which one may only add: files come to be there, and none goes."""
    unlink = Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if (path.parent == job) == (stays == "asides"):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    def no_exchange(new: Path, place: Path) -> None:
        raise PermissionError(1, "Operation not permitted", str(place))

    monkeypatch.setattr(Path, "unlink", refused)
    if moment == "before":
        monkeypatch.setattr(applying, "exchange", no_exchange)
    with pytest.raises(UsageError) as said:
        edit_all(job)
    assert ("nothing was changed" if moment == "before" else "a.py, b.py edited") in str(said.value)
    assert str(said.value).count("cannot be removed: Operation not permitted") == 1 + (stays == "asides")
    assert {name: (job / name).read_bytes() for name in OLD} == (OLD if moment == "before" else NEW)
    assert len(left_in_state(job)) == (stays == "journal")


def test_a_recovery_whose_journal_cannot_be_removed_says_what_it_did(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that was made read-only meanwhile."""
    file, unlink = half_done(job), Path.unlink

    def refused(path: Path, missing_ok: bool = False) -> None:
        if path.parent == file.parent:
            raise OSError(30, "Read-only file system", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    [said] = recover(job)
    assert said.startswith("an interrupted edit was completed: a.py, b.py; ")
    assert said.endswith(f"{file} cannot be removed: Read-only file system")
    assert contents(job) == NEW


def broken_journals(job: Path) -> dict[str, bytes]:
    sound = Edit.of(job.resolve(), [("a.py", OLD["a.py"], NEW["a.py"])])
    out = msgspec.structs.replace
    entry = sound.entries[0]

    def of(edit: Edit) -> bytes:
        again = out(edit, digest=journals._digest(edit.root, edit.entries))
        return msgspec.json.encode(again)

    return {
        "empty": b"",
        "cut": msgspec.json.encode(sound)[:-20],
        "deep": b"[" * 100_000,
        "other content": msgspec.json.encode(out(sound, entries=[out(entry, new=b"import evil\n")])),
        "out of the root": of(out(sound, entries=[out(entry, name="../state/x.py")])),
        "absolute": of(out(sound, entries=[out(entry, name="/etc/passwd")])),
        "relative root": of(out(sound, root="job")),
        "NUL": of(out(sound, entries=[out(entry, name="a\0.py")])),
        "takes another file away": of(out(sound, entries=[out(entry, temporary="b.py")])),
        "out by its temporary": of(out(sound, entries=[out(entry, temporary="../../x")])),
        "no file": of(out(sound, entries=[])),
    }


@pytest.mark.parametrize("kind", sorted(broken_journals(Path("/nowhere"))))
def test_a_journal_that_says_what_none_says_is_refused(job: Path, kind: str) -> None:
    folder = journals.state_folder()
    (folder / "0123456789abcdef.json").write_bytes(broken_journals(job)[kind])
    (folder / "0123456789abcdef.json").chmod(0o600)
    with pytest.raises(UsageError, match="cannot be read"):
        recover(job)
    assert contents(job) == OLD


def test_all_journals_that_cannot_be_read_are_counted(job: Path) -> None:
    folder = journals.state_folder()
    for number in range(30):
        (folder / f"{number:016x}.json").write_bytes(b"no journal")
        (folder / f"{number:016x}.json").chmod(0o600)
    with pytest.raises(UsageError, match=r"0{16}\.json and 29 more next to it tell of interrupted edits"):
        recover(job)


def test_a_link_at_the_place_is_not_followed(job: Path) -> None:
    with open_journal(Edit.of(job.resolve(), [(name, OLD[name], NEW[name]) for name in OLD])):
        (job / "a.py").write_bytes(NEW["a.py"])
    outside = job.parent / "outside.py"
    outside.write_bytes(OLD["b.py"])
    (job / "b.py").unlink()
    (job / "b.py").symlink_to(outside)
    with pytest.raises(UsageError, match=r"b\.py stays"):
        recover(job)
    assert outside.read_bytes() == OLD["b.py"]


# ---------------------------------------------------------------------- somebody else writes meanwhile


@pytest.mark.parametrize("kernel_exchanges", [True, False])
@pytest.mark.parametrize("how", ["in place", "by a new file"])
@pytest.mark.parametrize("name", sorted(OLD))
def test_a_change_between_the_comparison_and_the_replacement_is_not_lost(
    job: Path, name: str, how: str, kernel_exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel_exchanges:
        monkeypatch.setattr(exchanging, "_try_exchange", lambda one, other: False)
    done = []

    def with_somebody(new: Path, place: Path) -> None:
        if place.name == name and not done:
            done.append(True)
            if how == "in place":
                place.write_bytes(b"mine\n")
            else:
                (place.parent / "save").write_bytes(b"mine\n")
                os.replace(place.parent / "save", place)
        exchanging.exchange(new, place)

    monkeypatch.setattr(applying, "exchange", with_somebody)
    with pytest.raises(UsageError, match=r"changed while .* nothing was changed"):
        edit_all(job)
    assert contents(job) == OLD | {name: b"mine\n"}
    assert left_in_state(job) == []


def test_what_is_written_into_a_file_that_was_replaced_is_kept_aside(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor that has the file open writes when it has been exchanged and compared."""
    with (job / "a.py").open("r+b") as editor:
        sync = journals.sync_folder

        def late(folder: Path) -> None:
            editor.write(b"mine, late")
            editor.flush()
            sync(folder)

        monkeypatch.setattr(applying, "sync_folder", late)
        with pytest.raises(UsageError, match="what somebody wrote meanwhile is kept in"):
            edit_all(job)
    assert any(content.startswith(b"mine, late") for content in contents(job).values())


def test_a_file_that_comes_to_stand_in_an_empty_place_is_not_overwritten(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanging, "_try_exchange", lambda one, other: False)
    real = exchanging.rename_exclusively

    def meanwhile(source: Path, target: Path) -> None:
        if target.name == "a.py" and not target.exists():
            target.write_bytes(b"mine\n")
        real(source, target)

    monkeypatch.setattr(exchanging, "rename_exclusively", meanwhile)
    with pytest.raises(UsageError, match=r"a\.py"):
        edit_all(job)
    assert contents(job)["a.py"] == b"mine\n"
    assert contents(job)["b.py"] == OLD["b.py"]


@posix
def test_ctrl_c_leaves_all_as_it_was(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(new: Path, place: Path) -> None:
        if place.name == "b.py":
            monkeypatch.setattr(applying, "exchange", exchanging.exchange)
            raise KeyboardInterrupt
        exchanging.exchange(new, place)

    monkeypatch.setattr(applying, "exchange", stopped)
    with pytest.raises(KeyboardInterrupt):
        edit_all(job)
    assert contents(job) == OLD
    assert left_in_state(job) == []
