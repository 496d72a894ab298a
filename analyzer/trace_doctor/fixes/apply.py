"""Writing the edits: all files or none, each replaced at once, never outside the source folder.

The new contents are written aside, then each takes the place of its file. What was in that place is compared once more *after*
the exchange, so that a change made by somebody else at any moment before is put back instead of lost. What is not covered:
a program that keeps the replaced file open and writes into it later.

From before the first file is touched until all are replaced, a journal in the user's state folder holds both contents of each.
A process that is killed may leave some files old and some new; `interrupted` names them, and `recover` makes all of them new.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from trace_doctor.errors import UsageError
from trace_doctor.files import ACCESS_LIST, has_access_list, read_regular
from trace_doctor.fixes.exchange import exchange, moved_away, rename_exclusively
from trace_doctor.fixes.journal import (
    Edit,
    Entry,
    Journal,
    leftover_journals,
    open_journal,
    remove_halves,
    sync_folder,
)
from trace_doctor.fixes.plan import Plan
from trace_doctor.git import in_git
from trace_doctor.git.work_tree import uncommitted

try:
    import fcntl
except ImportError:  # Windows has none: there, what another process writes meanwhile is noticed, not kept out
    fcntl = None  # type: ignore[assignment]

_PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds that another edit of the same folder may take, which is far less than that, and between two looks"""


def apply(plan: Plan, *, allow_dirty: bool = False) -> list[str]:
    """Writes what is ready and returns the names of the files changed.

    Raises UsageError, with nothing changed, outside of a clean git work tree (unless `allow_dirty`), when a file changed
    since it was read, is read-only or has a second name, when a path leaves the source folder, or after an edit that was
    interrupted and not yet recovered.
    """
    outputs = plan.outputs
    if not outputs:
        return []
    root = plan.tree.root.resolve()
    targets = {name: _inside(plan.tree.path(name), root / name) for name in outputs}
    if not allow_dirty and (why := no_way_back(root, list(targets.values()))) is not None:
        raise UsageError(why)
    with _alone(root):
        if notes := interrupted_edits(root):
            raise UsageError(notes[0])
        for name, (script, _) in outputs.items():
            if _read(targets[name], name) != script.data:
                raise UsageError(f"{name} changed while it was being fixed: nothing was written")
            _writable(targets[name], name)
        edit = Edit.of(root, [(name, script.data, data) for name, (script, data) in outputs.items()])
        with open_journal(edit) as journal:
            _replace_all(journal)
    return list(outputs)


def no_way_back(root: Path, files: Sequence[Path]) -> str | None:
    """Why an edit could not be told from what was there before, and what allows it all the same; None in a clean work tree."""
    if not in_git(root):
        return "not under git, so there is no undo: pass --allow-dirty to edit anyway"
    changes = uncommitted(root, files)
    return None if changes is None else f"{changes} (--allow-dirty edits anyway)"


# ---------------------------------------------------------------------- an edit that was interrupted


def interrupted_edits(source: Path) -> list[str]:
    """One line for each edit below a folder (or of a file) that was killed half-way: which files it had replaced by then."""
    root = source.resolve()
    with leftover_journals(root) as journals:
        lines = [_status(j.edit) for j in journals if set(j.edit.states().values()) != {"old"}]
    return [f"{line}: `fix --apply` or `treat --apply` completes it" for line in lines]


def recover(source: Path) -> list[str]:
    """Ends the edits that were interrupted below a folder (or of a file): a file that still has its old content gets the
    new one. An edit that had not replaced any file is dropped. Returns what was done, a line each. Raises UsageError where a
    file has neither content, or still has its old one and has become read-only, a link, or got a second name: all are left as
    they are, and so is the journal."""
    root = source.resolve()
    remove_halves()
    with _alone(root if root.is_dir() else root.parent), leftover_journals(root) as journals:
        try:
            return [line for journal in journals if (line := _complete(journal))]
        except OSError as error:
            why = f"cannot complete an interrupted edit: {error.strerror} ({error.filename})"
            raise UsageError(why) from None


def _complete(journal: Journal) -> str:
    edit = journal.edit
    _restore_missing(edit)
    states = edit.states()
    _remove_asides(edit)
    if set(states.values()) == {"old"}:
        return journal.discard().removeprefix("; ")
    if strange := [name for name, state in states.items() if state not in ("old", "new")]:
        raise UsageError(
            f"{_status(edit)}; {', '.join(strange)} stays as it is: restore it, or delete {journal.file} to leave all "
            "files as they are"
        )
    rest = [entry for entry in edit.entries if states[entry.name] == "old"]
    try:
        for entry in edit.entries:
            _inside(edit.path(entry), edit.path(entry))
        for entry in rest:
            _writable(edit.path(entry), entry.name)
    except UsageError as error:
        raise UsageError(f"{_status(edit)}; {error}") from None
    for entry in rest:
        _write_aside(edit, entry)
        _exchange(edit, entry)
    _sync_folders(edit)
    leftovers = _remove_asides(edit) + journal.discard()
    return f"an interrupted edit was completed: {', '.join(states)}{leftovers}"


def _restore_missing(edit: Edit) -> None:
    """Where two names cannot be exchanged at once, a file may have been out of its place when the process was killed."""
    for entry in edit.entries:
        out = moved_away(edit.aside(entry))
        with contextlib.suppress(OSError):
            if not os.path.lexists(edit.path(entry)) and read_regular(out) == entry.old:
                rename_exclusively(out, edit.path(entry))


def _status(edit: Edit) -> str:
    states, parts = edit.states(), []
    for kind, word in (("new", "edited"), ("old", "not yet"), ("other", "changed since"), ("gone", "gone")):
        if names := [name for name, state in states.items() if state == kind]:
            parts.append(f"{', '.join(names)} {word}")
    return f"an edit of {edit.root} was interrupted ({'; '.join(parts)})"


# ---------------------------------------------------------------------- replacing


def _replace_all(journal: Journal) -> None:
    """Every file of the edit, or none. The replaced files stay aside until all are done, to be put back as they were."""
    edit, swaps = journal.edit, list[Entry]()
    try:
        for entry in edit.entries:
            _write_aside(edit, entry)
        for entry in edit.entries:
            _inside(edit.path(entry), edit.path(entry))
            swaps.append(entry)
            _exchange(edit, entry)
    except BaseException as error:  # Ctrl-C too
        stuck = [entry.name for entry in reversed(swaps) if not _put_back(edit, entry)]
        outcome = f"{', '.join(stuck)} cannot be put back" if stuck else "nothing was changed"
        outcome += _remove_asides(edit) + journal.discard()
        if isinstance(error, OSError):
            raise UsageError(f"cannot write {entry.name}: {error.strerror}; {outcome}") from None
        if isinstance(error, UsageError):
            raise UsageError(f"{error}; {outcome}") from None
        raise
    _sync_folders(edit)
    if leftovers := _remove_asides(edit) + journal.discard():
        raise UsageError(f"{', '.join(e.name for e in edit.entries)} edited{leftovers}")


def _exchange(edit: Edit, entry: Entry) -> None:
    """Raises UsageError where what comes out is not what was read: it is back in its place then."""
    aside, place = edit.aside(entry), edit.path(entry)
    exchange(aside, place)
    if aside.is_symlink() or not aside.is_file() or aside.read_bytes() != entry.old:
        exchange(aside, place)
        raise UsageError(f"{entry.name} changed while it was being fixed")


def _put_back(edit: Edit, entry: Entry) -> bool:
    """Whether a file is as it was before its exchange, or never left that state."""
    aside, place = edit.aside(entry), edit.path(entry)
    try:
        if (
            read_regular(place) == entry.new
        ):  # else never exchanged, or put back: somebody else's change stays
            exchange(aside, place)
        return read_regular(aside) == entry.new
    except OSError:
        return False


def _write_aside(edit: Edit, entry: Entry) -> None:
    """The new content beside its file, with its permissions and, where that is allowed, owner, group and attributes."""
    place, aside = edit.path(entry), edit.aside(entry)
    before = place.stat(follow_symlinks=False)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(aside, flags, 0o600), "wb") as file:
        file.write(entry.new)
        file.flush()
        os.fsync(file.fileno())
        after = os.fstat(file.fileno())
    if hasattr(os, "chown") and (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
        with contextlib.suppress(PermissionError):
            os.chown(aside, before.st_uid, before.st_gid, follow_symlinks=False)
    _copy_attributes(place, aside)
    os.chmod(aside, stat.S_IMODE(before.st_mode))


def _copy_attributes(path: Path, aside: Path) -> None:
    """Access lists and labels, where the system has them. A list that the folder gives to every new file does not stay:
    it may let others read and write what they could not. Raises OSError where it cannot be taken away."""
    if not hasattr(os, "listxattr"):
        return
    if has_access_list(aside) and not has_access_list(path):
        os.removexattr(aside, ACCESS_LIST, follow_symlinks=False)
    with contextlib.suppress(OSError):
        for name in os.listxattr(path, follow_symlinks=False):
            with contextlib.suppress(OSError):
                value = os.getxattr(path, name, follow_symlinks=False)
                os.setxattr(aside, name, value, follow_symlinks=False)


def _remove_asides(edit: Edit) -> str:
    """Takes away what was written aside, and the old contents that lie there after an exchange. Returns what to say of what
    stays: what holds neither, as somebody wrote into what was being replaced, and what cannot be taken away."""
    notes = []
    for entry in edit.entries:
        for aside in (edit.aside(entry), moved_away(edit.aside(entry))):
            try:
                content = read_regular(_inside(aside, aside))
                if content == entry.old or entry.new.startswith(content):
                    aside.unlink()
                else:
                    notes.append(f"; what somebody wrote meanwhile is kept in {aside}")
            except FileNotFoundError:
                continue
            except OSError as error:
                notes.append(f"; {aside} cannot be removed: {error.strerror}")
            except UsageError as error:  # its folder is another by now
                notes.append(f"; {error}")
    return "".join(notes)


def _sync_folders(edit: Edit) -> None:
    for folder in sorted({edit.path(entry).parent for entry in edit.entries}):
        sync_folder(folder)


# ---------------------------------------------------------------------- what may be written


def _inside(path: Path, real: Path) -> Path:
    """The file itself, `real` as the source folder has it: no link in it or on the way to it may lead elsewhere."""
    if path.is_symlink() or path.resolve() != real:
        raise UsageError(f"{path.name} is a link or lies behind one: it is left alone")
    return path


def _writable(path: Path, name: str) -> None:
    """A replacement would lift the write protection of a file, and part it from its other names."""
    state = path.stat()
    if not state.st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"{name} is read-only: nothing was written")
    if state.st_nlink > 1:
        raise UsageError(f"{name} has {state.st_nlink} names (hard links): nothing was written")


def _read(path: Path, name: str) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}; nothing was written") from None


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keeps other trace-doctor processes from writing into the folder meanwhile; leaves nothing behind. Raises UsageError
    where another one does not end, as it was stopped."""
    if fcntl is None:
        yield
        return
    try:
        folder = os.open(root, os.O_RDONLY)
    except OSError as error:
        raise UsageError(f"cannot read {root}: {error.strerror}; nothing was written") from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            end = time.monotonic() + _PATIENCE
            while not _is_locked(folder):
                if time.monotonic() > end:
                    raise UsageError(
                        f"another process edits files of {root} and does not end within {_PATIENCE:.0f} s (was it stopped?): "
                        "nothing was written"
                    )
                time.sleep(_PAUSE)
        yield
    finally:
        os.close(folder)


def _is_locked(folder: int) -> bool:
    """Whether the lock was free. Raises OSError where there are none."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
