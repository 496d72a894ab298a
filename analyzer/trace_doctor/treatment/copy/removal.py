"""Taking folders away with all that runs left in them, and nothing of what they have mounted there."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, replace

FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_ITSELF = getattr(os, "O_PATH", os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)) | getattr(os, "O_NOFOLLOW", 0)
_MOUNT = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_PASSES = 3
"""what is written into a folder while it is deleted goes with the next"""

Mount = tuple[int | None, bytes]


class Mounted(OSError):
    """A folder that lies on another file system, or is mounted from elsewhere: not ours to touch."""

    def __init__(self, name: str = "") -> None:
        super().__init__(errno.EXDEV, f"{name}: a run has mounted something there".removeprefix(": "))


@dataclass(frozen=True)
class Leftover:
    """What was not deleted: its name in the folder that was to go, and why."""

    name: str
    why: str
    mounted: bool


def mount_of(descriptor: int) -> Mount:
    """Where an open file or folder is mounted: its device and, where Linux tells it, the number of the mount. That alone
    tells what is mounted from another place of the same device."""
    device, text = None, b""
    with suppress(OSError):  # the program behind a mount may be gone
        device = os.fstat(descriptor).st_dev
    with suppress(OSError):
        info = os.open(f"/proc/self/fdinfo/{descriptor}", os.O_RDONLY)
        try:
            text = os.read(info, 4096)
        finally:
            os.close(info)
    number = _MOUNT.search(text)
    return device, number[1] if number else b""


def remove_folder(parent: int, name: str) -> list[Leftover]:
    """Takes a folder away with all that is in it, however deep; what is left of it."""
    try:
        here = _own_folder(parent, name, mount_of(parent))
    except OSError as error:
        return [_leftover(parent, name, name, error, mount_of(parent))]
    try:
        leftovers = empty(here)
    finally:
        os.close(here)
    if leftovers:
        return [replace(one, name=f"{name}/{one.name}") for one in leftovers]
    try:
        os.rmdir(name, dir_fd=parent)
    except OSError as error:
        return [_leftover(parent, name, name, error, mount_of(parent))]
    return []


def empty(here: int) -> list[Leftover]:
    """Deletes all that is in an open folder; what is left."""
    leftovers: list[Leftover] = []
    for _ in range(_PASSES):
        leftovers = _pass(here)
        if all(one.mounted for one in leftovers) if leftovers else not os.listdir(here):
            break
    return leftovers


def _pass(here: int) -> list[Leftover]:
    """Folders in it are moved up beside each other first: neither the stack nor the descriptors grow with the depth."""
    mount, number = mount_of(here), 0
    leftovers: list[Leftover] = []
    todo = os.listdir(here)
    while todo:
        one = todo.pop()
        try:
            if not _is_folder(here, one):
                os.unlink(one, dir_fd=here)
                continue
            inner = _own_folder(here, one, mount)
        except OSError as error:
            leftovers.append(_leftover(here, one, one, error, mount))
            continue
        stays = len(leftovers)
        try:
            for name in os.listdir(inner):
                try:
                    if not _is_folder(inner, name):
                        os.unlink(name, dir_fd=inner)
                        continue
                    to, number = _free_name(here, number)
                    os.rename(name, to, src_dir_fd=inner, dst_dir_fd=here)
                    todo.append(to)
                except OSError as error:
                    leftovers.append(_leftover(inner, name, f"{one}/{name}", error, mount))
        finally:
            os.close(inner)
        if len(leftovers) == stays:
            try:
                os.rmdir(one, dir_fd=here)
            except OSError as error:
                leftovers.append(_leftover(here, one, one, error, mount))
    return leftovers


def _leftover(parent: int, name: str, label: str, error: OSError, mount: Mount) -> Leftover:
    mounted = isinstance(error, Mounted)
    if not mounted:
        with suppress(OSError):
            itself = os.open(name, _ITSELF, dir_fd=parent)
            try:
                device, number = mount_of(itself)
                mounted = number != mount[1] if number else device not in (None, mount[0])
            finally:
                os.close(itself)
    return Leftover(label, error.strerror or str(error), mounted)


def _is_folder(parent: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _own_folder(parent: int, name: str, mount: Mount) -> int:
    """The descriptor of a folder that is to be emptied, whatever its mode was. Raises Mounted."""
    try:
        here = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        itself = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY, dir_fd=parent)
        try:
            if mount_of(itself) != mount:
                raise Mounted from None
            os.chmod(f"/proc/self/fd/{itself}", 0o700)
        finally:
            os.close(itself)
        here = os.open(name, FOLDER, dir_fd=parent)
    try:
        if mount_of(here) != mount:
            raise Mounted
        os.fchmod(here, 0o700)
    except BaseException:
        os.close(here)
        raise
    return here


def _free_name(folder: int, number: int) -> tuple[str, int]:
    while True:
        name, number = f".trace-doctor-{number}", number + 1
        try:
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return name, number
