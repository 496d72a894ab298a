"""The journal of an edit that is under way: which files it replaces, what they held and what they are to hold.

It lies in the user's state folder, never in the project, from before the first file is touched until all are replaced. What
is left behind by a process that was killed is read with suspicion, like any other file: recovery writes what a journal says,
so one that somebody else may have written is never obeyed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import msgspec

from trace_doctor.errors import UsageError
from trace_doctor.files import open_regular, ours_alone, read_regular, way_of_ours

try:
    import fcntl
except ImportError:  # Windows: there no lock tells a journal in use from one that was left behind
    fcntl = None  # type: ignore[assignment]

_MAX_BYTES = 256 << 20
_ABANDONED_SECONDS = 60
_TEMPORARY = r"^\.[^/]{0,200}\.[0-9a-f]{16}\.tmp$"
_HALF = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""a journal that is being written"""
State = Literal["old", "new", "other", "gone"]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of an edit. `name` is relative to the journal's root."""

    name: str
    old: bytes
    new: bytes
    temporary: str
    """name of the file beside it in which the new content is written aside"""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All files of one edit. `digest` is over the entries, so that a damaged journal is known as one."""

    version: Literal[1]
    root: str
    entries: list[Entry]
    digest: str

    @classmethod
    def of(cls, root: Path, contents: Sequence[tuple[str, bytes, bytes]]) -> Edit:
        """`contents`: (name, old bytes, new bytes). Raises UsageError where the folder's name is not UTF-8."""
        entries = [
            Entry(name, old, new, f".{PurePosixPath(name).name[:200]}.{secrets.token_hex(8)}.tmp")
            for name, old, new in contents
        ]
        try:
            return cls(1, str(root), entries, _digest(str(root), entries))
        except UnicodeEncodeError:
            raise UsageError(
                f"{root}: the name is not UTF-8, so no journal of the edit can be kept: nothing was written"
            ) from None

    def path(self, entry: Entry) -> Path:
        """Absolute: the folder of the edit with the entry's name."""
        return Path(self.root) / entry.name

    def aside(self, entry: Entry) -> Path:
        """In the file's own folder, so that the two names can be exchanged."""
        return self.path(entry).with_name(entry.temporary)

    def states(self) -> dict[str, State]:
        """File -> which of its two contents it has now."""
        return {entry.name: _state(self.path(entry), entry) for entry in self.entries}


@dataclass(frozen=True)
class Journal:
    """An edit with the file that tells of it."""

    file: Path
    edit: Edit

    def discard(self) -> str:
        """All is as it is to be: the journal goes. Returns that it cannot, as the end of a line; else empty."""
        try:
            self.file.unlink(missing_ok=True)
            sync_folder(self.file.parent)
        except OSError as error:
            return f"; {self.file} cannot be removed: {error.strerror}"
        return ""


def state_folder() -> Path:
    """The folder for journals, made where it is not there: the user's own, readable by nobody else. Raises UsageError
    where there is no such place."""
    folder = _state_home() / "trace-doctor"
    with _no_os_error(f"cannot keep a journal in {folder}"):
        with contextlib.suppress(FileNotFoundError):  # as far as the way goes, before anything is made on it
            _check_way(folder)
        for missing in reversed([up for up in (folder, *folder.parents) if not os.path.lexists(up)]):
            missing.mkdir(mode=0o700, exist_ok=True)
        _check(folder)
        if os.name == "posix" and folder.lstat().st_mode & 0o077:
            folder.chmod(0o700)
    return folder


@contextlib.contextmanager
def _no_os_error(what: str) -> Iterator[None]:
    """Raises UsageError instead: `what` failed before anything was written."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{what}: {error.strerror}; nothing was written") from None


def _check(folder: Path) -> None:
    """Raises UsageError where somebody else could have put a journal into the folder, and OSError."""
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise UsageError(f"{folder} is not a folder of yours: nothing was written")
    _check_way(folder)


def _check_way(folder: Path) -> None:
    if (other := way_of_ours(folder)) is not None:
        raise UsageError(
            f"somebody else can write journals of edits, as {other} is not yours alone: nothing was written "
            "(XDG_STATE_HOME names another place)"
        )


def _state_home() -> Path:
    folder = os.environ.get("XDG_STATE_HOME" if os.name != "nt" else "LOCALAPPDATA", "")
    if os.path.isabs(folder):
        return Path(folder)
    try:
        home = Path.home()
    except RuntimeError:
        why = "no home folder for a journal (XDG_STATE_HOME names another): nothing was written"
        raise UsageError(why) from None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state")


@contextlib.contextmanager
def open_journal(edit: Edit) -> Iterator[Journal]:
    """The journal, on disk before anything else happens, and locked while it is in use. It stays where the body ends without
    `done`. Raises UsageError."""
    folder = state_folder()
    with _no_os_error(f"cannot keep a journal in {folder}"):
        file, stream = _create(folder, msgspec.json.encode(edit))
    with stream:
        yield Journal(file, edit)


def _create(folder: Path, content: bytes) -> tuple[Path, BinaryIO]:
    """The journal's file, whole from its first moment on, and still open: its lock goes with it."""
    aside, stream = _half(folder)
    file = folder / f"{aside.stem[1:]}.json"
    try:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        os.replace(aside, file)
        sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):  # it writes what is left once more, and a full disk is still full
            stream.close()
        aside.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        raise
    return file, stream


def _half(folder: Path) -> tuple[Path, BinaryIO]:
    """A new file of ours, locked. Another process that cleans up may take it away between its making and its lock."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        aside = folder / f".{secrets.token_hex(8)}.tmp"
        stream = open(os.open(aside, flags, 0o600), "wb")  # noqa: SIM115
        if _lock(stream.fileno()) is not False and _is_at(stream, aside):
            return aside, stream
        stream.close()


@contextlib.contextmanager
def leftover_journals(root: Path) -> Iterator[list[Journal]]:
    """The journals of edits below `root` that were interrupted, locked meanwhile; what is in use is none. Raises UsageError
    for one that cannot be read, as what it would say is not known, and where one can be of somebody else."""
    journals: list[Journal] = []
    unusable: list[Path] = []
    with contextlib.ExitStack() as open_files:
        for file in _files("*.json"):
            try:
                stream = open_files.enter_context(open_regular(file, follow=False))
            except FileNotFoundError:
                continue  # it was done meanwhile
            except OSError:
                unusable.append(file)
                continue
            if not ours_alone(os.fstat(stream.fileno())):
                raise UsageError(
                    f"{file} is not a journal that you alone can write: nothing was written; look at it, and delete it"
                )
            if _lock(stream.fileno()) is False or not _is_at(stream, file):
                continue
            if (edit := _read(stream)) is None:
                unusable.append(file)
            elif any(_below(edit.path(entry), root) for entry in edit.entries):
                journals.append(Journal(file, edit))
        if unusable:
            raise UsageError(_unusable(unusable))
        yield journals


def remove_halves() -> None:
    """Takes away what processes left that were killed while they wrote a journal, before they had touched anything."""
    for half in _files(".*.tmp"):
        if not _HALF.fullmatch(half.name):
            continue
        with contextlib.suppress(OSError), open_regular(half, follow=False) as stream:
            state = os.fstat(stream.fileno())
            lock = _lock(stream.fileno())
            abandoned = state.st_mtime < time.time() - _ABANDONED_SECONDS
            if ours_alone(state) and (lock or (lock is None and abandoned)):
                half.unlink()


def _files(pattern: str) -> list[Path]:
    """Files of the state folder, where there is one. Raises UsageError where that is not the user's alone."""
    folder = _state_home() / "trace-doctor"
    with _no_os_error(f"cannot look for journals in {folder}"):
        try:
            _check(folder)
            return sorted(folder.glob(pattern))
        except (FileNotFoundError, NotADirectoryError):
            return []


def _unusable(files: Sequence[Path]) -> str:
    if len(files) == 1:
        return (
            f"{files[0]} tells of an interrupted edit and cannot be read: look at it, and delete it to go on"
        )
    return (
        f"{files[0]} and {len(files) - 1} more next to it tell of interrupted edits and cannot be read: look at them, and "
        "delete them to go on"
    )


def _read(stream: BinaryIO) -> Edit | None:
    """None where it cannot be read, or says what no edit of ours does."""
    try:
        content = stream.read(_MAX_BYTES + 1)
        edit = msgspec.json.decode(content, type=Edit) if len(content) <= _MAX_BYTES else None
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if edit is None:
        return None
    whole = os.path.isabs(edit.root) and edit.entries and edit.digest == _digest(edit.root, edit.entries)
    sound = whole and "\0" not in edit.root and all(map(_sound, edit.entries))
    return edit if sound else None


def _sound(entry: Entry) -> bool:
    """Whether an entry names a file below the root, and one that can be written aside."""
    inner = PurePosixPath(entry.name)
    inside = not inner.is_absolute() and ".." not in inner.parts and inner.name != ""
    return inside and "\0" not in entry.name and re.match(_TEMPORARY, entry.temporary) is not None


def _digest(root: str, entries: Sequence[Entry]) -> str:
    return hashlib.sha256(msgspec.json.encode([root, entries])).hexdigest()


def _state(path: Path, entry: Entry) -> State:
    try:
        if path.is_symlink():
            return "other"
        content = read_regular(path)
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "other"
    return "new" if content == entry.new else "old" if content == entry.old else "other"


def _below(path: Path, root: Path) -> bool:
    return path == root or root in path.parents


def _lock(number: int) -> bool | None:
    """Whether the file is ours alone now; None where the system or the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(stream: BinaryIO, path: Path) -> bool:
    """Whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.lstat())
    except OSError:
        return False


def sync_folder(folder: Path) -> None:
    """Makes names of a folder last through a crash of the machine, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
