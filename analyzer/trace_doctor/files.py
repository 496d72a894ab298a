"""Files are read only where they are files, and written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from trace_doctor.errors import UsageError


def is_utf8(name: str) -> bool:
    """Whether the bytes of a file's name are text, as all that is written for other programs has to be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def open_regular(path: Path) -> BinaryIO:
    """A file for reading. Raises OSError for a FIFO or a device, whose bytes may never come or never end, even where
    one has taken the place of a file since it was looked at."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(0, "not a regular file")
    return open(number, "rb")


def read_regular(path: Path) -> bytes:
    """All bytes of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, a temporary one beside `path` that takes its place at the end; behind a link, that of the file
    it leads to. A device or a pipe is written to as it is. Raises UsageError when the place cannot be written."""
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and (path.parts[:2] == ("/", "dev") or not path.is_file()):
            with path.open("wb") as file:
                yield file
            return
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # on a read-only file system even where it is not there
            temporary.unlink()
