"""Projects that are installed in place: where an interpreter finds packages that are folders of the project itself."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trace_doctor.files import open_regular

_MOST = 1 << 20
"""bytes of a file that tells where packages lie"""


def in_place(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> list[str]:
    """Folders that the command's Python imports from because something is installed in place; they may lie anywhere."""
    folders: dict[str, None] = {}
    for packages in _site_packages(command, cwd, environment):
        for name in sorted(os.listdir(packages)):
            path = packages / name
            if path.name.endswith(".pth"):
                folders |= dict.fromkeys(line for line in _text(path).splitlines() if os.path.isabs(line))
            elif path.name.startswith("__editable__") and path.name.endswith("finder.py"):
                folders |= dict.fromkeys(os.path.dirname(folder) for folder in _package_folders(_text(path)))
            elif path.is_symlink():
                folders[os.path.dirname(os.path.realpath(path))] = None
    return list(folders)


def _site_packages(command: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Of the environment that the command's program lies in, of the active one, and the user's own."""
    program = shutil.which(
        cwd / command[0] if "/" in command[0] else command[0], path=environment.get("PATH")
    )
    roots = [Path(program).parent.parent] if program else []
    roots += [Path(environment[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    roots += [Path(environment["HOME"], ".local")] if environment.get("HOME") else []
    for root in dict.fromkeys(roots):
        with suppress(OSError):
            yield from (p for p in sorted(root.glob("lib/python3*/site-packages")) if os.access(p, os.R_OK))


def _text(path: Path) -> str:
    with suppress(OSError), open_regular(path) as file:
        return file.read(_MOST).decode("utf-8", "surrogateescape")
    return ""


def _package_folders(text: str) -> Iterator[str]:
    """The folders of the packages that a finder of setuptools knows: the values of its `MAPPING`."""
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        for node in ast.parse(text).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(t, ast.Name) and t.id == "MAPPING" for t in targets):
                mapping = ast.literal_eval(getattr(node, "value", ast.Dict([], [])))
                yield from (
                    (v for v in mapping.values() if isinstance(v, str)) if isinstance(mapping, dict) else ()
                )
