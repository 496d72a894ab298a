"""The user's own files as they are before the first run, and what is another after the last one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from trace_doctor.errors import UsageError, printable
from trace_doctor.files import access_lists
from trace_doctor.model.treatment import FileChange, How
from trace_doctor.treatment.copy.states import CACHES, LARGE_SCRIPT, Stamp, digest, open_unlinked, stamp

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MOST_OUTSIDE = 100_000
"""entries of all folders outside of the project that are compared"""
_SYSTEM = ("/proc", "/sys", "/dev/")
_PROJECT = "."
"""name of the project's own folder"""


def claim(root: Path) -> int | None:
    """The project's folder, open and locked, which writes nothing; None where the system has no such locks. Raises UsageError where
    another `treat` has it: what that writes there would count as changed by this one, and each slows the other down."""
    if fcntl is None:
        return None
    try:
        number = os.open(root, os.O_RDONLY)
    except OSError:  # who copies it says why
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise UsageError(
            f"another treat runs in {printable(str(root))}: wait for it, or copy the project"
        ) from None
    except OSError:
        os.close(number)
        return None
    return number


@dataclass
class Originals:
    """The files of a project, and those that links of it lead to, as they are now.

    `stamps` are the states of files when they were copied: of scripts and configuration their hashes. `behind` names what a
    run can write through a link, with where it leads if that is outside of the project. `ours` are folders that we write;
    what they lie in is the user's, but for being made for them.
    """

    root: Path
    stamps: Mapping[str, Stamp]
    behind: Mapping[str, str | None]
    ours: list[Path] = field(default_factory=list)
    blind_spots: list[str] = field(default_factory=list)
    """links to folders outside that hold too much to be compared"""

    def __post_init__(self) -> None:
        self._before = {**self._now(MOST_OUTSIDE), **self.stamps}

    def changes(self) -> list[FileChange]:
        """What is not as it was, sorted by name; of a folder that came or went the folder alone."""
        now = self._now()
        for name, was in self.stamps.items():
            if isinstance(was, bytes) and name in now:
                now[name] = self._digest(name) or now[name]
        names = sorted(n for n in self._before.keys() | now.keys() if self._before.get(n) != now.get(n))
        ours = _output_files() if names else set()
        by_name: dict[str, FileChange] = {}
        for name in names:
            how: How = "created" if name not in self._before else "changed" if name in now else "deleted"
            told_above = any(f in by_name and self._tells(by_name[f], f, how) for f in _above(name))
            if told_above or self._identity(name) in ours or self._is_ours(name, how):
                continue
            through = next((link for link in self.behind if _lies_behind(name, link)), "")
            by_name[name] = FileChange(name=printable(name), how=how, through=printable(through))
        return list(by_name.values())

    def _tells(self, above: FileChange, folder: str, how: How) -> bool:
        """Whether what is said of a folder says enough of what lies in it: it came or went, or may not be read any more."""
        closed = how == "deleted" and not os.access(self.root / folder, os.R_OK | os.X_OK)
        return above.how != "changed" or closed

    def _now(self, most: float = inf) -> dict[str, Stamp]:
        stamps, room = dict(self._below(self.root, "")), most
        with suppress(OSError):
            stamps[_PROJECT] = _of_folder(self.root)
        visited: set[str] = set()
        for link, target in self.behind.items():
            if target is None or target in visited or link in self.blind_spots or self._not_data(target):
                continue
            visited.add(target)
            states: dict[str, Stamp] = {}
            with suppress(OSError):
                states[f"{link} -> {target}"] = _of_folder(target)
            for name, state in self._below(Path(target), f"{link}/"):
                states[name] = state
                if len(states) > room:
                    self.blind_spots.append(link)
                    break
            else:
                room -= len(states)
                stamps.update(states)
        return stamps

    def _not_data(self, target: str) -> bool:
        """What holds the project would be the whole disk; what the system makes up is never as it was."""
        return self.root.is_relative_to(target) or f"{target}/".startswith(_SYSTEM)

    def _below(self, root: Path, prefix: str) -> Iterator[tuple[str, Stamp]]:
        """All entries below a folder, but for caches and what we write; links are entries."""
        stack = [(root, prefix)]
        while stack:
            here, name = stack.pop()
            with suppress(OSError), os.scandir(here) as entries:
                for entry in entries:
                    if CACHES.fullmatch(entry.name) or Path(entry.path) in self.ours:
                        continue
                    with suppress(OSError):  # gone meanwhile
                        yield name + entry.name, _state(entry)
                        if entry.is_dir(follow_symlinks=False):
                            stack.append((Path(entry.path), f"{name}{entry.name}/"))

    def _digest(self, name: str) -> Stamp | None:
        try:
            with open_unlinked(self.root / name) as file:
                return digest(file.read(LARGE_SCRIPT + 1), os.fstat(file.fileno()))
        except OSError:
            return None

    def _is_ours(self, name: str, how: How) -> bool:
        """Whether we have written it, or made it as a folder for what we write."""
        path = Path(os.path.realpath(self.root / name))
        return any(
            path.is_relative_to(folder) or (how == "created" and folder.is_relative_to(path))
            for folder in self.ours
        )

    def _identity(self, name: str) -> tuple[int, int] | None:
        with suppress(OSError):
            info = (self.root / name).stat()
            return info.st_dev, info.st_ino
        return None


def _state(entry: os.DirEntry[str]) -> Stamp:
    if entry.is_symlink():
        return hash(os.readlink(entry.path))
    return (
        _of_folder(entry.path)
        if entry.is_dir(follow_symlinks=False)
        else stamp(entry.stat(follow_symlinks=False))
    )


def _of_folder(path: str | Path) -> Stamp:
    """Who may do what with a folder, or a file that a link leads to, also by access lists. Raises OSError."""
    return hash((stamp(os.stat(path)), access_lists(path)))


def _lies_behind(name: str, link: str) -> bool:
    return name == link or name.startswith((f"{link}/", f"{link} -> "))


def _above(name: str) -> Iterator[str]:
    """The folders that a name lies in."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
    yield _PROJECT


def _output_files() -> set[tuple[int, int]]:
    """Files that get what we say ourselves: our output led into a file, also through a pipe (`| tee FILE`)."""
    identities = set()
    pipes = set()
    for number in (1, 2):
        with suppress(OSError):
            info = os.fstat(number)
            identities |= {(info.st_dev, info.st_ino)} if stat.S_ISREG(info.st_mode) else set()
            pipes |= {(info.st_dev, info.st_ino)} if stat.S_ISFIFO(info.st_mode) else set()
    for process in Path("/proc").glob("[0-9]*/fd") if pipes else ():
        with suppress(OSError):
            stdin = (process / "0").stat()
            if (stdin.st_dev, stdin.st_ino) in pipes:
                files = [entry.stat() for entry in process.iterdir()]
                identities |= {(f.st_dev, f.st_ino) for f in files if stat.S_ISREG(f.st_mode)}
    return identities
