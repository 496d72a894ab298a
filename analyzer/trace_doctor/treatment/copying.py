"""A folder of a project copied so that what runs in the copy leaves the original alone, without copying its data.

Files are copied (sharing their blocks where the file system can). Not copied: version control, caches. Linked: virtual
environments, and large files and folders of data. Large files that look like what a run writes are left out, since a
link would let a run overwrite them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from trace_doctor.errors import UsageError

LARGE_FILE = 64 << 20
LARGE_FOLDER = 256 << 20
MANY_FILES = 2_000
"""a folder of so many files, or of so many bytes, that holds no script is data"""
_CACHES = re.compile(
    r"\.(git|hg|svn|tox|nox|ipynb_checkpoints|(mypy|pytest|ruff)_cache)|__pycache__|node_modules"
)
_WRITTEN = re.compile(
    r"(checkpoints?|ckpts?|runs?|outputs?|out|results?|logs?|wandb|mlruns|lightning_logs|tb|tensorboard|artifacts)"
    r"([-_.].*)?$|.*\.(ckpt|log)$|.*(checkpoint|ckpt).*\.(pt|pth|safetensors|bin)$",
    re.IGNORECASE,
)
"""names of what training scripts write"""
_PROGRAM = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".ipynb", ".cu", ".cpp", ".c", ".h")

State = tuple[int, int, int]
"""size, time of change in ns, mode"""


@dataclass
class Copied:
    """What was done with the entries of a folder; names are relative to it, with forward slashes."""

    files: dict[str, State] = field(default_factory=dict)
    """of the copies, right after they were made"""
    originals: dict[str, State] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    """links in the copy -> what they point to"""
    folders: set[str] = field(default_factory=set)
    linked: dict[str, State] = field(default_factory=dict)
    """large files and folders that the copy shares with the original, as they were"""
    left_out: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def copy_tree(source: Path, target: Path, link: Collection[str] = ()) -> Copied:
    """Copies below `target`, which exists. `link` names files and folders to be linked whatever they look like.

    Raises UsageError where the copy cannot be written.
    """
    done = Copied()
    try:
        _folder(source, target, "", frozenset(n.strip("/") for n in link), done)
    except OSError as error:
        raise UsageError(f"cannot copy {source} to {target.parent}: {error.strerror}") from None
    return done


def _folder(source: Path, target: Path, prefix: str, link: frozenset[str], done: Copied) -> None:
    try:
        entries = sorted(os.scandir(source), key=lambda e: e.name)
    except OSError:
        done.unreadable.append(prefix.rstrip("/") or ".")
        return
    for entry in entries:
        name, to = prefix + entry.name, target / entry.name
        if _CACHES.fullmatch(entry.name):
            continue
        if name in link:
            _share(Path(entry.path), to, name, done)
        elif entry.is_symlink():
            _link(Path(entry.path), to, name, done)
        elif entry.is_dir():
            if (Path(entry.path) / "pyvenv.cfg").exists():
                _link_to(Path(entry.path).resolve(), to, name, done)
            elif _is_data(Path(entry.path)):
                _large(entry, to, name, done)
            else:
                to.mkdir()
                done.folders.add(name)
                _folder(Path(entry.path), to, f"{name}/", link, done)
        elif entry.is_file():
            if entry.stat().st_size > LARGE_FILE:
                _large(entry, to, name, done)
            else:
                copy_file(Path(entry.path), to, name, done)


def copy_file(source: Path, target: Path, name: str, done: Copied) -> None:
    try:
        source.open("rb").close()
    except OSError:
        done.unreadable.append(name)
        return
    done.originals[name] = state(source)
    if not _cloned(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)
    done.files[name] = state(target)


def state(path: Path) -> State:
    now = path.lstat()
    return now.st_size, now.st_mtime_ns, stat.S_IMODE(now.st_mode)


def walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries below a folder with their relative names, folders last and each after those in it; links are entries."""
    stack = [(root, "")]
    folders = []
    while stack:
        here, prefix = stack.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append((name, entry))
                    stack.append((Path(entry.path), f"{name}/"))
                else:
                    yield name, entry
    yield from reversed(folders)


def looks_written(name: str) -> bool:
    """Whether a file or folder is named like what training scripts write."""
    return _WRITTEN.match(name) is not None


def _large(entry: os.DirEntry[str], to: Path, name: str, done: Copied) -> None:
    if looks_written(entry.name):
        done.left_out.append(name)
        if entry.is_dir():
            to.mkdir()
            done.folders.add(name)
        return
    _share(Path(entry.path), to, name, done)


def _share(source: Path, to: Path, name: str, done: Copied) -> None:
    _link_to(source.resolve(), to, name, done)
    done.linked[name] = state(source.resolve())


def _link_to(where: Path, to: Path, name: str, done: Copied) -> None:
    to.symlink_to(where)
    done.links[name] = str(where)


def _link(source: Path, to: Path, name: str, done: Copied) -> None:
    """A link of the project as it is; one that leads out of the folder it stands in, to where it leads."""
    where = os.readlink(source)
    if not os.path.isabs(where) and ".." in Path(where).parts:
        where = os.path.abspath(source.parent / where)
    to.symlink_to(where)
    done.links[name] = where


def _is_data(folder: Path) -> bool:
    """Whether a folder is large and holds no script and no configuration."""
    size = count = 0
    for name, entry in walk_quietly(folder):
        if entry.is_dir(follow_symlinks=False):
            continue
        if name.endswith(_PROGRAM):
            return False
        count += 1
        with contextlib.suppress(OSError):
            size += entry.stat(follow_symlinks=False).st_size
        if count > 20 * MANY_FILES:  # enough is known, and a script among so many would be data as well
            return True
    return count > MANY_FILES or size > LARGE_FOLDER


def walk_quietly(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """As `walk`; what cannot be read ends it."""
    with contextlib.suppress(OSError):
        yield from walk(root)


_FICLONE = 0x40049409


def _cloned(source: Path, target: Path) -> bool:
    """Copies by sharing blocks until one side writes, where the file system can (btrfs, xfs)."""
    try:
        import fcntl

        with source.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
    except (ImportError, OSError):
        return False
    return True
