"""How large folders are, and which of them are data rather than program."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from trace_doctor.treatment.copy.states import CACHES, PROGRAM

LARGE_FILE = 64 << 20
LARGE_FOLDER = 256 << 20
MANY_FILES = 2_000
"""so many bytes, or so many files, of what is no script are data"""
MOST_LINKS = 40_000
"""files of a folder that are linked one by one; the links are looked at before every run"""


def walk(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All entries below a folder with their relative names; links are entries. Folders that cannot be read end there."""
    stack = [(str(root), "")]
    while stack:
        here, prefix = stack.pop()
        with suppress(OSError), os.scandir(here) as entries:
            for entry in entries:
                name = prefix + entry.name
                yield name, entry
                if entry.is_dir(follow_symlinks=False):
                    stack.append((entry.path, f"{name}/"))


def extent(folder: Path) -> tuple[int, int] | None:
    """Bytes and number of the files below a folder; None where it holds a script or configuration, and folders in it can be
    data or not."""
    total = count = 0
    for name, entry in walk(folder):
        if entry.is_dir(follow_symlinks=False):
            continue
        if name.endswith(PROGRAM):
            return None
        count += 1
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
        if count > MOST_LINKS:  # enough is known, and a script among so many would be data as well
            break
    return total, count


def bytes_of(path: Path) -> int:
    """Of a file, or of all files below a folder."""
    total = path.lstat().st_size
    for _, entry in walk(path):
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def data_among(entries: Sequence[os.DirEntry[str]]) -> dict[str, bool | None]:
    """Of the entries of a folder: names of those that are data (True): large folders and, where the others are too much
    together, the largest of them; and names of folders that hold scripts (None)."""
    kinds: dict[str, bool | None] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for entry in entries:
        if entry.is_symlink() or CACHES.fullmatch(entry.name):
            continue
        if entry.is_dir() and not os.path.exists(f"{entry.path}/pyvenv.cfg"):
            below = extent(Path(entry.path))
            if below is None:
                kinds[entry.name] = None
            else:
                sizes[entry.name] = below
        elif entry.is_file() and not entry.name.endswith(PROGRAM):
            with suppress(OSError):
                sizes[entry.name] = (entry.stat().st_size, 1)
    total, count = sum(size for size, _ in sizes.values()), sum(files for _, files in sizes.values())
    for name in sorted(sizes, key=lambda n: -max(sizes[n][0] / LARGE_FOLDER, sizes[n][1] / MANY_FILES)):
        if total <= LARGE_FOLDER and count <= MANY_FILES:
            break
        kinds[name] = True
        total, count = total - sizes[name][0], count - sizes[name][1]
    return kinds
