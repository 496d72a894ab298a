"""Reading and writing below one folder without ever following a link, or entering what is mounted in it.

Every name is opened part by part from a descriptor of the folder, so that a link that a run left in the way is an
error and never a way out, also where it appears between a look and a write. So is what a run has mounted.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from trace_doctor.errors import UsageError
from trace_doctor.files import check_folders
from trace_doctor.treatment.copy.removal import FOLDER, Leftover, Mounted, empty, mount_of, remove_folder

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class Confined:
    """A folder held open. Names are relative to it, with forward slashes; each method raises OSError."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, FOLDER)
        self._mount = mount_of(self._root)

    def close(self) -> None:
        """Ends its use; the folder stays."""
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
        with self._descriptor(name) as folder, os.scandir(folder) as listing:
            return [(entry.name, entry.stat(follow_symlinks=False)) for entry in listing]

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
        """Makes a folder in it. Raises OSError, also where a link lies on the way."""
        with self._parent(name) as (folder, last):
            os.mkdir(last, dir_fd=folder)

    def make_link(self, name: str, where: str) -> None:
        """Makes a link in it that leads to `where`. Raises OSError, also where a link lies on the way."""
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
                for one in remove_folder(folder, last):
                    name = f"{name.removesuffix(last)}{one.name}"
                    raise Mounted(name) if one.mounted else OSError(errno.EBUSY, f"{name}: {one.why}")
            else:
                os.unlink(last, dir_fd=folder)

    def clear(self) -> list[Leftover]:
        """Takes everything away, as far as that can be done; what is left."""
        return empty(self._root)

    @contextmanager
    def _descriptor(self, name: str) -> Iterator[int]:
        """A folder's descriptor."""
        here = os.dup(self._root)
        try:
            for part in _parts(name):
                deeper = os.open(part, FOLDER, dir_fd=here)
                os.close(here)
                here = deeper
            if name and mount_of(here) != self._mount:
                raise Mounted(name)
            yield here
        finally:
            os.close(here)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """The descriptor of the folder that holds an entry, and the entry's name in it."""
        *above, last = _parts(name)
        with self._descriptor("/".join(above)) as folder:
            yield folder, last


def _parts(name: str) -> tuple[str, ...]:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise OSError(0, "leads out of the folder")
    return parts


def new_root(folder: Path | None, original: Path) -> Path:
    """A new scratch folder. Raises UsageError where it would lie in what is to be copied."""
    if folder is not None:
        check_folders(folder / "new")
    place = Path(folder if folder is not None else tempfile.gettempdir()).resolve()
    if place.is_relative_to(original):
        if folder is not None:
            raise UsageError(f"--scratch {folder}: lies in the folder that is to be copied")
        raise UsageError(f"temporary files lie in the project ({place}): pass --scratch DIR outside of it")
    try:
        return Path(tempfile.mkdtemp(prefix="trace-doctor-treat-", dir=place)).resolve()
    except OSError as error:
        raise UsageError(f"cannot make a scratch folder: {error.strerror}") from None
