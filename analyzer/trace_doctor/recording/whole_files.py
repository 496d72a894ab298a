"""Files of a recording that are there whole or not at all: a process that is killed while it writes leaves no half one.

Standard library only: this is imported inside the user's process.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_UNFINISHED = ".unfinished."
_ASIDE = re.compile(re.escape(_UNFINISHED) + r"(.+)\.\d+(?:\.[a-z.]+)?", re.DOTALL)
"""others may write beside it, under its name and an ending"""
_identities: dict[Path, tuple[int, int]] = {}
"""folders that this process records into, by device and inode"""


def hold(folder: Path) -> None:
    """From now on nothing is written to this place but into the folder that is there now. Raises OSError; a link is no
    folder of a recording, wherever it leads."""
    if folder.is_symlink():
        raise OSError(0, "a link has taken the place of the recording's folder")
    _identities[folder] = _identity(folder)


def check(folder: Path) -> None:
    """Raises OSError where a held folder is gone, or another one has taken its place: what lies there is not ours to
    replace."""
    if folder in _identities and _identity(folder) != _identities[folder]:
        raise OSError(0, "another folder has taken the place of the recording's")


def _identity(folder: Path) -> tuple[int, int]:
    state = folder.stat()
    return state.st_dev, state.st_ino


def aside(path: Path) -> Path:
    """Where this process writes what is to take the place of `path`. Raises OSError as `check` does."""
    check(path.parent)
    return path.with_name(f"{_UNFINISHED}{path.name}.{os.getpid()}")


def was_to_be(name: str) -> str | None:
    """The name of the file that a killed process was writing when it left one of this name: no capture, whatever it holds.
    None for any other name."""
    match = _ASIDE.fullmatch(name)
    return match[1] if match else None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write to, whose file takes the place of `path` at the end, with the permissions of what is there. Raises
    OSError."""
    temporary = aside(path)
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    try:
        if mode is not None:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield temporary
        if mode is not None:
            with contextlib.suppress(OSError):  # a file system without permissions
                temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
