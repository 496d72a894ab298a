"""Files are read only where they are files, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import IO, BinaryIO, Self

from trace_doctor.errors import UsageError

_PATIENCE = 3.0
"""Seconds in which a reader of a pipe is to come"""
_MOST_LINKS = 40
_STREAM = re.compile(r"/(?:dev|proc/self)/fd/(\d{1,9})|/dev/std(out|err)")
"""names of what this process has open already"""


_READ_BELOW = "_TRACE_DOCTOR_READ_BELOW"
"""a variable, so that it holds for the processes that this one starts"""


class OutsideError(PermissionError):
    """A file that was opened lies outside of the folders of `read_only_below`."""


def read_only_below(folders: Sequence[Path]) -> None:
    """From now on this process, and those that it starts, read no input outside of these folders, whatever link or other folder
    takes the place of a file after it was looked at: where it lies is asked of the open file."""
    os.environ[_READ_BELOW] = json.dumps([os.path.realpath(folder) for folder in folders])


def _lies_below(number: int, path: Path, folders: Sequence[str]) -> bool:
    """Whether an open file lies below one of the folders."""
    if sys.platform == "darwin":
        import fcntl

        place = os.fsdecode(fcntl.fcntl(number, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    elif os.path.isdir("/proc/self/fd"):
        place = os.readlink(f"/proc/self/fd/{number}")
    else:
        place = os.path.realpath(path)
        if not os.path.samestat(os.stat(place), os.fstat(number)):
            return False
    return any(PurePath(place).is_relative_to(folder) for folder in folders)


def open_regular(path: Path, *, follow: bool = True, own: bool = False) -> BinaryIO:
    """A file for reading. Raises OSError for a FIFO or a device, whose bytes may never come or never end, even where
    one has taken the place of a file since it was looked at, for a link that is not to be followed, and OutsideError for one outside
    of the folders of `read_only_below`, unless it is of the installation (`own`)."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    number = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "not a regular file")
    if (
        not own
        and (below := os.environ.get(_READ_BELOW))
        and not _lies_below(number, path, json.loads(below))
    ):
        os.close(number)
        raise OutsideError(errno.EACCES, "outside of the folders that may be read")
    return open(number, "rb")


def read_regular(path: Path, most: int | None = None, *, own: bool = False) -> bytes:
    """All bytes of a file. Raises OSError as `open_regular` does, and for a file of more than `most` bytes, of which not
    one is read."""
    with open_regular(path, own=own) as file:
        if most is not None and os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB")
        return file.read()


@contextmanager
def replacing(path: Path, place: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write to, a temporary one beside `path` that takes its place at the end, with the permissions of the file
    that it replaces. A link of the user's own is followed to the file it leads to; a device or a pipe is written to as it
    is. The folder is opened once, and both files are named relative to that: another one in its place gets neither. Raises
    UsageError when the place cannot be written, is a link that leads nowhere or that somebody else made, or a pipe of
    somebody else or that nobody reads.

    `place`: what `place_of` said of the path before other programs ran. A link that one of them has made since is never
    followed: in place of the file it is replaced itself, in place of a folder on the way it is refused."""
    try:
        target = _target(path) if place is None else _unmoved(place)
        if target is None:
            with _opened_as_it_is(place or path) as file:
                yield file
            return
        folder = _open_folder(target.parent, follow=place is None and target == path)
        with _Aside(folder, target) as aside:
            with open(aside.number, "wb") as file:
                yield file
            aside.take_place()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _target(path: Path) -> Path | None:
    """The file that is to be written; None for a device or a pipe. Raises OSError and UsageError."""
    if is_of_system(path) or (path.exists() and not path.is_file()):
        return None
    if path.is_symlink():
        check_link(path)
        return Path(os.path.realpath(path))
    return path


def place_of(path: Path) -> Path:
    """Where a path leads now, links followed. Raises UsageError where nothing can be written to it."""
    check_folders(path)
    try:
        _target(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    return path if is_of_system(path) else Path(os.path.realpath(path))


def _unmoved(place: Path) -> Path | None:
    """The file that is to be written; None for a device or a pipe."""
    if is_of_system(place):
        return None
    return place if place.is_symlink() or not place.exists() or place.is_file() else None


def is_of_system(path: Path) -> bool:
    """Whether a path names a device or what this process has open already. Files of shared memory are files."""
    return (path.parts[:2] == ("/", "dev") and path.parts[2:3] != ("shm",)) or stream_of(path) is not None


def stream_of(path: Path) -> int | None:
    """The number of a stream that this process has open already, as 1 of `/dev/stdout`; None for any other path."""
    stream = _STREAM.fullmatch(str(path))
    return int(stream[1] or {"out": 1, "err": 2}[stream[2]]) if stream else None


def _opened_as_it_is(path: Path) -> BinaryIO:
    """A device, a pipe or a stream of ours for writing. Opening a FIFO would wait for a reader for ever; a stream that leads
    into a file would begin that again."""
    if (stream := stream_of(path)) is not None:
        return open(os.dup(stream), "wb")
    state = path.stat()
    if not stat.S_ISFIFO(state.st_mode) or path.parts[:2] == ("/", "dev"):
        return _no_file(path, os.open(path, os.O_WRONLY))
    if hasattr(os, "getuid") and state.st_uid != os.getuid():
        raise UsageError(f"{path} is a pipe of somebody else: it is left alone")
    patience = time.monotonic() + _PATIENCE
    while True:
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            break
        except OSError as error:  # nobody reads it, or not yet
            if error.errno != errno.ENXIO or time.monotonic() > patience:
                raise
            time.sleep(0.02)
    os.set_blocking(number, True)
    return _no_file(path, number)


def _no_file(path: Path, number: int) -> BinaryIO:
    """What was opened as a device or a pipe, which was not emptied. Raises UsageError for a file that has taken its place."""
    if stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise UsageError(f"{path} has become a file meanwhile: it is left alone")
    return open(number, "wb")


def check_folders(path: Path) -> None:
    """Raises UsageError where a folder on the way, as far as there is one, is a link that neither the user nor the system made."""
    with suppress(OSError):
        if (number := _open_folder(path.parent, follow=True)) is not None:
            os.close(number)


_HAS_FOLDERS = {os.open, os.rename, os.unlink, os.stat, os.readlink} <= os.supports_dir_fd
"""Whether a folder can be opened, and files be named relative to it"""
_FOLDER = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def _open_folder(folder: Path, *, follow: bool) -> int | None:
    """A descriptor of a folder, opened part by part, so that no link that another user puts in the way meanwhile is followed; None
    where the system has none. Raises OSError, and UsageError for a link of somebody else, or for any where none is to be
    followed."""
    if not _HAS_FOLDERS:
        return None
    way, links = list(reversed(folder.absolute().parts)), 0
    here = os.open(way.pop(), _FOLDER)
    try:
        while way:
            part = way.pop()
            state = os.stat(part, dir_fd=here, follow_symlinks=False)
            if not stat.S_ISLNK(state.st_mode):
                deeper = os.open(part, _FOLDER, dir_fd=here)
            elif not follow:
                raise UsageError(f"{folder} is another folder by now: nothing is written there")
            elif state.st_uid not in (os.getuid(), 0):
                raise UsageError(
                    f"{folder}: {part} is a link of somebody else: nothing is written through it"
                )
            elif (links := links + 1) > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            else:
                target = Path(os.readlink(part, dir_fd=here))
                way += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                deeper = os.open(target.anchor or ".", _FOLDER, dir_fd=here)
            os.close(here)
            here = deeper
    except BaseException:
        os.close(here)
        raise
    return here


def ours_alone(state: os.stat_result) -> bool:
    """Whether a file or folder is the user's, and nobody else may write it."""
    return not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not state.st_mode & 0o022)


def way_of_ours(folder: Path) -> Path | None:
    """The first part of the way to a folder of ours, links on it followed, where somebody else could have put another in its
    place; None where there is none. Raises OSError."""
    if not hasattr(os, "getuid"):
        return None
    left, here, links = list(reversed(folder.absolute().parts)), Path(folder.anchor), 0
    while left:
        step = here / left.pop()
        state = step.lstat()
        if stat.S_ISLNK(state.st_mode):
            links += 1
            if not _is_of_us_or_system(state) or links > _MOST_LINKS:
                return step
            left += reversed(Path(os.readlink(step)).parts)
            continue
        if not (_is_safe_way(step, state) if left else ours_alone(state)):
            return step
        here = Path(os.path.normpath(step))
    return None


def _is_safe_way(folder: Path, state: os.stat_result) -> bool:
    """Whether what lies in a folder is there by its owner: the user, or the system. In a folder of all (`/tmp`) each may
    move their own only; the group that has but the user counts as the user. Where there is an access list, the mode of the
    group is the most that any entry of the list gives."""
    if not stat.S_ISDIR(state.st_mode) or not _is_of_us_or_system(state):
        return False
    if state.st_mode & stat.S_ISVTX:
        return True
    by_group = state.st_mode & 0o020 and (not _is_private(state.st_gid) or has_access_list(folder))
    return not state.st_mode & 0o002 and not by_group


ACCESS_LIST, _DEFAULT_LIST = "system.posix_acl_access", "system.posix_acl_default"


def has_access_list(path: Path) -> bool:
    """Whether more than owner, group and others are named in who may do what with a file. False where the system has no
    such lists, or does not say."""
    if not hasattr(os, "listxattr"):
        return False
    try:
        return ACCESS_LIST in os.listxattr(path, follow_symlinks=False)
    except OSError:
        return False


def access_lists(path: str | Path) -> tuple[bytes | None, ...]:
    """Who else may do what with a file or a folder, and with what is made in that, as the system keeps it; None each where there
    is no such list, or the system does not say."""
    return tuple(_attribute(path, name) for name in (ACCESS_LIST, _DEFAULT_LIST))


def _attribute(path: str | Path, name: str) -> bytes | None:
    try:
        return os.getxattr(path, name)
    except (OSError, AttributeError):
        return None


def _is_of_us_or_system(state: os.stat_result) -> bool:
    """In a container the system need not have the number 0, but all is its own whose `/` it has."""
    return state.st_uid in (os.getuid(), 0, os.stat("/").st_uid)


def _is_private(number: int) -> bool:
    """Whether a group has the user as its only member, as those that many systems make with a user."""
    if number == 0:
        return True
    try:
        import grp
        import pwd

        group, user = grp.getgrgid(number), pwd.getpwuid(os.getuid())
    except (ImportError, KeyError):
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}


def check_link(path: Path) -> None:
    """Raises UsageError for a link at the place of an output that the user did not make, or that leads nowhere or to a file
    of somebody else: such a one can be planted to have another file written."""
    try:
        there, link = path.stat(), path.lstat()
    except OSError:
        raise UsageError(f"{path} is a link that leads nowhere: it is left alone") from None
    if hasattr(os, "getuid") and ({there.st_uid, link.st_uid} - {os.getuid()}):
        raise UsageError(f"{path} is a link of somebody else, or leads to a file of theirs: it is left alone")


class _Aside:
    """A new file beside the target, of a name that nobody could have known, open for writing. Both are names in the folder, where
    that is open. Raises OSError."""

    def __init__(self, folder: int | None, target: Path) -> None:
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        )
        aside = target.with_name(f".trace-doctor.{secrets.token_hex(8)}.tmp")
        self._folder = folder
        self._target, self._name = (str(p) if folder is None else p.name for p in (target, aside))
        try:
            self.number = os.open(self._name, flags, 0o666, dir_fd=folder)
        except OSError:
            self._close()
            raise
        with suppress(OSError):  # what is there keeps its permissions
            there = os.stat(self._target, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISREG(there):
                os.chmod(self._name, stat.S_IMODE(there), dir_fd=folder)

    def __enter__(self) -> Self:
        return self

    def take_place(self) -> None:
        """The file takes the place of the target."""
        os.replace(self._name, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # on a read-only file system even where it is not there
            os.unlink(self._name, dir_fd=self._folder)
        self._close()

    def _close(self) -> None:
        if self._folder is not None:
            os.close(self._folder)


def is_utf8(name: str) -> bool:
    """Whether the bytes of a file's name are text, as all that is written for other programs has to be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_NOT_WRITTEN = frozenset(
    (".git", "__pycache__", "node_modules", ".mypy_cache", ".ruff_cache", ".pytest_cache")
)
_MOST_ENTRIES = 100_000
_TICK = 20_000_000
"""ns: times of files come from a clock that is so much behind at most"""


def written_since(folder: Path, when: int, but: Sequence[Path] = ()) -> list[str]:
    """Files below a folder, by name relative to it, that were written since (ns of the epoch); not caches, environments, links, nor
    what lies in one of the other folders. Of more than 100,000 entries the rest is not looked at."""
    names: list[str] = []
    todo, left = [folder], _MOST_ENTRIES
    while todo and left > 0:
        with suppress(OSError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                left -= 1
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    is_other = (
                        entry.name in _NOT_WRITTEN or path in but or os.path.exists(path / "pyvenv.cfg")
                    )
                    todo += [] if is_other else [path]
                elif entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    if max(info.st_mtime_ns, info.st_ctime_ns) >= when - _TICK:
                        names.append(path.relative_to(folder).as_posix())
    return sorted(names)
