"""Reading and writing below one folder without ever following a link.

Every name is opened part by part from a descriptor of the folder, so that a link that a run left in the way is an
error and never a way out, also where it appears between a look and a write.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class Confined:
    """A folder held open. Names are relative to it, with forward slashes; each method raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, _FOLDER)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._root)

    def is_at(self, path: Path) -> bool:
        """Whether the folder still lies where it was opened."""
        try:
            return os.path.samestat(os.fstat(self._root), path.lstat())
        except OSError:
            return False

    def entries(self, name: str) -> list[tuple[str, os.stat_result]]:
        """What a folder holds, with the state of each entry; of a link that is its own."""
        with self._opened(name) as folder, os.scandir(folder) as found:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in found]

    def state(self, name: str) -> os.stat_result | None:
        """The state of an entry, of a link its own; None where there is none."""
        try:
            with self._parent(name) as (folder, last):
                return os.stat(last, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None

    def target(self, name: str) -> str:
        """What a link says."""
        with self._parent(name) as (folder, last):
            return os.readlink(last, dir_fd=folder)

    def make_folder(self, name: str) -> None:
        with self._parent(name) as (folder, last):
            os.mkdir(last, dir_fd=folder)

    def make_link(self, name: str, where: str) -> None:
        with self._parent(name) as (folder, last):
            os.symlink(where, last, dir_fd=folder)

    @contextmanager
    def new_file(self, name: str) -> Iterator[BinaryIO]:
        """A file for writing that was not there before, for its owner alone until its mode is set."""
        with self._parent(name) as (folder, last):
            number = os.open(last, _NEW_FILE, 0o600, dir_fd=folder)
        with open(number, "w+b") as file:
            yield file

    def replace(self, name: str, data: bytes) -> None:
        """Puts other bytes in the place of a file; its mode stays."""
        before = self.state(name)
        if before is not None and not stat.S_ISREG(before.st_mode):
            raise OSError(0, "not a regular file")
        if before is not None:
            self.remove(name)
        with self.new_file(name) as file:
            file.write(data)
            os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode) if before is not None else 0o644)

    def remove(self, name: str) -> None:
        """Takes an entry away, a folder with all that is in it, however deep."""
        with self._parent(name) as (folder, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                _remove_folder(folder, last)
            else:
                os.unlink(last, dir_fd=folder)

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """A folder's descriptor."""
        here = os.dup(self._root)
        try:
            for part in _parts(name):
                deeper = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = deeper
            yield here
        finally:
            os.close(here)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds an entry, and the entry's name in it."""
        *above, last = _parts(name)
        with self._opened("/".join(above)) as folder:
            yield folder, last


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise OSError(0, "leads out of the folder")
    return parts


def _remove_folder(parent: int, name: str) -> None:
    """Folders in it are moved up beside each other first: neither the stack nor the descriptors grow with the depth."""
    here = _own_folder(parent, name)
    try:
        moved = 0
        while names := os.listdir(here):
            for one in names:
                if not stat.S_ISDIR(os.stat(one, dir_fd=here, follow_symlinks=False).st_mode):
                    os.unlink(one, dir_fd=here)
                    continue
                moved = _emptied(here, one, moved)
                os.rmdir(one, dir_fd=here)
    finally:
        os.close(here)
    os.rmdir(name, dir_fd=parent)


def _emptied(parent: int, name: str, moved: int) -> int:
    """Deletes the files of a folder and moves the folders in it into its parent; how many were moved by now."""
    here = _own_folder(parent, name)
    try:
        for one in os.listdir(here):
            if stat.S_ISDIR(os.stat(one, dir_fd=here, follow_symlinks=False).st_mode):
                to, moved = _free_name(parent, moved)
                os.rename(one, to, src_dir_fd=here, dst_dir_fd=parent)
            else:
                os.unlink(one, dir_fd=here)
    finally:
        os.close(here)
    return moved


def _own_folder(parent: int, name: str) -> int:
    """The descriptor of a folder that is to be emptied, whatever its mode was."""
    try:
        here = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        itself = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{itself}", 0o700)
        finally:
            os.close(itself)
        here = os.open(name, _FOLDER, dir_fd=parent)
    os.fchmod(here, 0o700)
    return here


def _free_name(folder: int, number: int) -> tuple[str, int]:
    while True:
        name, number = f".trace-doctor-{number}", number + 1
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return name, number
