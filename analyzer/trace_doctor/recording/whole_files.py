"""Files of a recording that are there whole or not at all: a process that is killed while it writes leaves no half one.

Standard library only: this is imported inside the user's process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_UNFINISHED = ".unfinished."


def aside(path: Path) -> Path:
    """Where this process writes what is to take the place of `path`."""
    return path.with_name(f"{_UNFINISHED}{path.name}.{os.getpid()}")


def is_aside(name: str) -> bool:
    """Whether a file of this name is what a killed process has left of its writing: no capture, whatever it holds."""
    return name.startswith(_UNFINISHED)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place to write to, whose file takes the place of `path` at the end. Raises OSError."""
    temporary = aside(path)
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write(path: Path, text: str) -> None:
    """Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
