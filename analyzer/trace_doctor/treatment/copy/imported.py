"""Which folders of a large repository a program in one of its folders does not need: nothing in it imports them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from trace_doctor.files import open_regular
from trace_doctor.program.import_graph import imported_names
from trace_doctor.treatment.copy import extents
from trace_doctor.treatment.copy.extents import walk
from trace_doctor.treatment.copy.states import CACHES

_MOST_SCRIPTS = 5_000
_LONGEST = 1_000_000
"""bytes of a script that is read"""


def not_imported(root: Path, used: Iterable[Path], search: Iterable[Path]) -> set[str]:
    """Folders below `root`, by name relative to it, that lie neither in nor around a folder of `used` and hold nothing that the
    scripts there import; none where the repository is small. `search`: folders that Python may import from."""
    used = [folder for folder in used if folder.is_relative_to(root)]
    if root in used or not _is_large(root, used):
        return set()
    ways = {root, *(above for folder in used for above in folder.parents if above.is_relative_to(root))}
    needed = {*used}
    places = [*used, *ways, *(p for p in search if p.is_relative_to(root))]
    scripts = [script for folder in used for script in _scripts(folder)]
    read: set[Path] = set()
    while scripts and len(read) < _MOST_SCRIPTS:
        script = scripts.pop()
        if script in read:
            continue
        read.add(script)
        for name in imported_names(_bytes(script)):
            files = _files_of(name, script.parent, places)
            scripts += files
            needed |= {file.parent for file in files[-1:] if file.parent not in ways}
    ways |= {above for folder in needed for above in folder.parents if above.is_relative_to(root)}
    return {
        folder.relative_to(root).as_posix()
        for way in ways - needed
        for folder in _folders(way)
        if folder not in ways and folder not in needed and not _inside(folder, needed)
    }


def _is_large(root: Path, used: Collection[Path]) -> bool:
    """Whether what lies beside the used folders is worth being left out."""
    total = count = 0
    for name, entry in walk(root):
        if not entry.is_file(follow_symlinks=False) or _inside(root / name, used) or name.startswith(".git/"):
            continue
        count += 1
        with suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
        if count > extents.MANY_FILES or total > extents.LARGE_FOLDER:
            return True
    return False


def _inside(path: Path, folders: Collection[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _scripts(folder: Path) -> Iterator[Path]:
    for name, entry in walk(folder):
        if name.endswith(".py") and entry.is_file(follow_symlinks=False):
            yield folder / name


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [
            Path(e.path) for e in entries if e.is_dir(follow_symlinks=False) and not CACHES.fullmatch(e.name)
        ]
    return []


def _bytes(script: Path) -> bytes:
    with suppress(OSError), open_regular(script) as file:
        return file.read(_LONGEST)
    return b""


def _files_of(name: str, folder: Path, places: Iterable[Path]) -> list[Path]:
    """The files that Python executes to import a dotted name: of each package its `__init__.py`, and the module."""
    dots = len(name) - len(name.lstrip("."))
    parts = [part for part in name.split(".") if part]
    starts = [Path(*folder.parts[: len(folder.parts) - dots + 1])] if dots else [folder, *places]
    for start in starts:
        files: list[Path] = []
        here = start
        for part in parts:
            here = here / part
            files += [f for f in (here / "__init__.py", here.with_suffix(".py")) if f.is_file()]
            if not here.is_dir():
                break
        if files:
            return files
    return []
