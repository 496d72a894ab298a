"""Files are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from trace_doctor.errors import UsageError


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
