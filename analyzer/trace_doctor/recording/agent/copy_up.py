"""Keeps what a run in a copy writes in that copy: before a file behind a link of the copy is opened for writing, the copy gets
a file of its own.

Standard library only, and Python 3.9 and later: this runs in every Python process of the command. It hears what goes through
Python (`open`, `os.open`, `sqlite3`, `torch.save`); what other programs and libraries write by themselves it does not.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import threading
from typing import Any

VARIABLE = "TRACE_DOCTOR_COPY"
"""names the file with the `CopyUp` of a run"""
COPIED, REFUSED, ALLOWED = "copied", "refused", "allowed"
_OPENED = ("os.truncate", "os.chmod", "os.chown", "os.utime", "sqlite3.connect")
"""events with the name of a file that is changed; they follow a link"""
_NAMED = ("os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.rename", "os.link", "shutil.rmtree")
"""events that change the folder of the name that they come with"""
_EVENTS = frozenset(("open", "os.chdir", *_OPENED, *_NAMED))
_CACHES = ("__pycache__", ".git")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class CopyUp:
    """`root` is the folder of the copy, `project` the user's; `passed` are paths behind which a run may write, `reserve` bytes
    of the disk to leave free. Where a write would reach the user's files all the same it raises OSError, unless `allow`."""

    def __init__(
        self, root: str, project: str, passed: list[str], log: str, reserve: int = 0, allow: bool = False
    ) -> None:
        self.root, self.project, self.passed = root, project, passed
        self.log, self.reserve, self.allow = log, reserve, allow
        self._busy = threading.local()
        self._entered: set[str] = set()
        """folders outside of the copy that a link of it led the process into, whose files have no place in the copy"""

    def hear(self, event: str, arguments: Any) -> None:
        """One of the events of an audit hook that change a file."""
        if event == "os.chdir":
            self._enter(arguments[0])
            return
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITES:
                return
        elif event == "os.rename":
            self.before_write(arguments[0], os.O_RDONLY, self_too=False)
            path, flags = arguments[1], os.O_RDONLY
        elif event in ("os.symlink", "os.link"):
            path, flags = arguments[1], os.O_RDONLY
        else:
            path, flags = arguments[0], os.O_RDWR
        if event in _NAMED and isinstance(arguments[-1], int) and arguments[-1] >= 0:
            return  # relative to an open folder, which is no link
        self.before_write(path, flags, self_too=event not in _NAMED)

    def _enter(self, path: Any) -> None:
        with contextlib.suppress(OSError, ValueError, TypeError):  # also for the number of an open folder
            named = os.path.abspath(os.fsdecode(path))
            real = os.path.realpath(named)
            if _within(named, self.root) and not _within(real, self.root):
                self._entered.add(real)

    def before_write(self, path: Any, flags: int, self_too: bool = True) -> None:
        """Makes the copy have its own file or folder where `path` leads out of it. `self_too`: also for the last part, which is
        followed if it is a link. Raises OSError where it cannot, or the path is the user's by another way."""
        if not isinstance(path, (str, bytes, os.PathLike)) or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            self._before_write(os.fsdecode(path), flags, self_too)
        except _Refused as refusal:
            raise OSError(errno.EROFS, f"trace-doctor treat: {refusal}", os.fsdecode(path)) from None
        except (OSError, ValueError):
            pass  # the script's own call says what is wrong with its path
        finally:
            self._busy.now = False

    def _before_write(self, path: str, flags: int, self_too: bool) -> None:
        where = os.sep
        parts = os.path.join(os.getcwd(), path).split(os.sep)
        while parts:
            part = parts.pop(0)
            if part in ("", "."):
                continue
            here = os.path.dirname(where) if part == ".." else os.path.join(where, part)
            if not os.path.islink(here) or (not parts and not self_too):
                where = here
                continue
            target = os.path.realpath(here)
            if self._passes(target):
                return
            if _within(where, self.root) and not _within(target, self.root):
                self._take_place(here, target, flags)
                where = here
            else:
                where = target
        if _within(where, self.project) and not _within(where, self.root) and not self._passes(where):
            self._refuse(where, "it is a file of the project, not of its copy")
        elif any(_within(where, folder) for folder in self._entered) and not self._passes(where):
            self._refuse(where, "it is behind a link of the copy, which the run has made its working folder")

    def _passes(self, path: str) -> bool:
        is_cache = any(part in _CACHES for part in path.split(os.sep))
        return is_cache or any(_within(path, folder) for folder in self.passed)

    def _take_place(self, link: str, target: str, flags: int) -> None:
        """A file or folder of the copy's own in the place of a link that leads out of it."""
        aside = f"{link}.{os.getpid()}.{threading.get_ident()}"
        try:
            if os.path.isdir(target):
                os.mkdir(aside)
                for name in os.listdir(target):
                    os.symlink(os.path.join(target, name), os.path.join(aside, name))
                os.unlink(link)
                os.rename(aside, link)
                return
            self._copy(target, aside, flags)
            os.replace(aside, link)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(aside)
            if os.path.islink(link) or not os.path.lexists(link):  # no other process has done it meanwhile
                self._refuse(target, f"the copy can have none of its own: {error.strerror}")

    def _copy(self, target: str, to: str, flags: int) -> None:
        if flags & os.O_TRUNC or not os.path.exists(target):
            with open(to, "wb"):
                pass
        else:
            if os.stat(target).st_size + self.reserve > shutil.disk_usage(os.path.dirname(to)).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            shutil.copyfile(target, to)
        if os.path.exists(target):
            shutil.copystat(target, to)
            self._note(COPIED, target)

    def _refuse(self, path: str, why: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written allows nothing
            self._note(ALLOWED if self.allow else REFUSED, path, why)
        if not self.allow:
            raise _Refused(why)

    def _note(self, event: str, path: str, why: str = "") -> None:
        line = json.dumps({"event": event, "path": path, "why": why}) + "\n"
        number = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(number, line.encode())
        finally:
            os.close(number)


class _Refused(Exception):
    """Why a file of the user's is not written."""


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_active: list[CopyUp] = []


def install(file: str) -> None:
    """From now on this process keeps to the copy that the file describes. Raises OSError, ValueError, TypeError."""
    with open(file, encoding="utf-8") as settings:
        keeper = CopyUp(**json.load(settings))
    _active.append(keeper)
    hear, events = keeper.hear, _EVENTS

    def hook(
        event: str, arguments: Any
    ) -> None:  # Python calls it for much else, `id()` for one: it has to be cheap
        if event in events:
            hear(event, arguments)

    sys.addaudithook(hook)


def watch_saves(torch: Any) -> None:
    """`torch.save` opens files without Python hearing of it."""
    opener = getattr(getattr(torch, "serialization", None), "_open_zipfile_writer", None)
    if not _active or opener is None:
        return

    def heard(name_or_buffer: Any) -> Any:
        if isinstance(name_or_buffer, (str, os.PathLike)):
            _active[0].before_write(name_or_buffer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        return opener(name_or_buffer)

    torch.serialization._open_zipfile_writer = heard


def heard(log: str) -> dict[str, dict[str, str]]:
    """Event -> path -> why, of all runs so far."""
    events: dict[str, dict[str, str]] = {}
    try:
        with open(log, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return events
    for line in lines:
        try:
            one = json.loads(line)
            events.setdefault(str(one["event"]), {})[str(one["path"])] = str(one["why"])
        except (ValueError, KeyError, TypeError):
            continue
    return events
