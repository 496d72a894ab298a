"""The journal of an edit that is under way: which files it replaces, what they held and what they are to hold.

It lies in the user's state folder, never in the project, from before the first file is touched until all are replaced. What
is left behind by a process that was killed is read with suspicion, like any other file.
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
from trace_doctor.files import read_regular

try:
    import fcntl
except ImportError:  # Windows: there no lock tells a journal in use from one that was left behind
    fcntl = None  # type: ignore[assignment]

_MAX_BYTES = 256 << 20
_ABANDONED_SECONDS = 60
_TEMPORARY = r"^\.[^/]{0,200}\.[0-9a-f]{16}\.tmp$"
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
        """`contents`: (name, old bytes, new bytes)."""
        entries = [
            Entry(name, old, new, f".{PurePosixPath(name).name[:200]}.{secrets.token_hex(8)}.tmp")
            for name, old, new in contents
        ]
        return cls(1, str(root), entries, _digest(str(root), entries))

    def path(self, entry: Entry) -> Path:
        return Path(self.root) / entry.name

    def aside(self, entry: Entry) -> Path:
        return self.path(entry).with_name(entry.temporary)

    def states(self) -> dict[str, State]:
        """File -> which of its two contents it has now."""
        return {entry.name: _state(self.path(entry), entry) for entry in self.entries}


@dataclass(frozen=True)
class Journal:
    """An edit with the file that tells of it."""

    file: Path
    edit: Edit

    def done(self) -> None:
        """All is as it is to be: the journal goes."""
        self.file.unlink(missing_ok=True)
        sync_folder(self.file.parent)


def state_folder() -> Path:
    """The folder for journals, made where it is not there: the user's own, readable by nobody else. Raises UsageError
    where there is no such place."""
    folder = _state_home() / "trace-doctor"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = folder.lstat()
        if not stat.S_ISDIR(now.st_mode) or (hasattr(os, "getuid") and now.st_uid != os.getuid()):
            raise UsageError(f"{folder} is not a folder of yours: nothing was written")
        if os.name == "posix" and now.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise UsageError(
            f"cannot keep a journal in {folder}: {error.strerror}; nothing was written"
        ) from None
    return folder


def _state_home() -> Path:
    given = os.environ.get("XDG_STATE_HOME" if os.name != "nt" else "LOCALAPPDATA", "")
    if os.path.isabs(given):
        return Path(given)
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError(
            "no home folder for a journal (XDG_STATE_HOME names another): nothing was written"
        ) from None
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/state")


@contextlib.contextmanager
def begun(edit: Edit) -> Iterator[Journal]:
    """The journal, on disk before anything else happens, and locked while it is in use. It stays where the body ends without
    `done`. Raises UsageError."""
    folder = state_folder()
    try:
        file, opened = _written(folder, msgspec.json.encode(edit))
    except OSError as error:
        raise UsageError(
            f"cannot keep a journal in {folder}: {error.strerror}; nothing was written"
        ) from None
    with opened:
        yield Journal(file, edit)


def _written(folder: Path, content: bytes) -> tuple[Path, BinaryIO]:
    """The journal's file, whole from its first moment on, and still open: its lock goes with it."""
    name = secrets.token_hex(8)
    file, aside = folder / f"{name}.json", folder / f".{name}.tmp"
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    opened = open(number, "wb")  # noqa: SIM115
    try:
        _lock(number)
        opened.write(content)
        opened.flush()
        os.fsync(number)
        os.replace(aside, file)
        sync_folder(folder)
    except BaseException:
        opened.close()
        aside.unlink(missing_ok=True)
        file.unlink(missing_ok=True)
        raise
    return file, opened


@contextlib.contextmanager
def left_behind(root: Path) -> Iterator[list[Journal]]:
    """The journals of edits below `root` that were interrupted, locked meanwhile; what is in use is none. Raises UsageError
    for one that cannot be read: what it would say is not known."""
    journals: list[Journal] = []
    with contextlib.ExitStack() as open_files:
        for file in _files():
            try:
                opened = open_files.enter_context(file.open("rb"))
            except OSError:
                continue  # it was done meanwhile
            if not _lock(opened.fileno()) or not file.exists():
                continue
            edit = _read(file)
            if any(_below(edit.path(entry), root) for entry in edit.entries):
                journals.append(Journal(file, edit))
        yield journals


def _files() -> list[Path]:
    folder = _state_home() / "trace-doctor"
    if not folder.is_dir() or folder.is_symlink():
        return []
    for half in folder.glob(".*.tmp"):  # of a process that was killed before it had touched anything
        with contextlib.suppress(OSError):
            if half.lstat().st_mtime < time.time() - _ABANDONED_SECONDS:
                half.unlink()
    return sorted(p for p in folder.glob("*.json") if p.is_file() and not p.is_symlink())


def _read(file: Path) -> Edit:
    unusable = f"{file} tells of an interrupted edit and cannot be read: look at it, and delete it to go on"
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise UsageError(unusable)
        edit = msgspec.json.decode(read_regular(file), type=Edit)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        raise UsageError(unusable) from None
    sound = os.path.isabs(edit.root) and edit.entries and edit.digest == _digest(edit.root, edit.entries)
    for entry in edit.entries:
        inner = PurePosixPath(entry.name)
        sound = (
            sound
            and "\0" not in edit.root + entry.name
            and not inner.is_absolute()
            and ".." not in inner.parts
        )
        sound = sound and inner.name != "" and re.match(_TEMPORARY, entry.temporary) is not None
    if not sound:
        raise UsageError(unusable)
    return edit


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


def _lock(number: int) -> bool:
    """Whether the file is ours alone now; True where the system or the file system has no locks."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Makes names of a folder last through a crash of the machine, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
