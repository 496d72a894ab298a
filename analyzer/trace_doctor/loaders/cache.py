"""Captures read before, kept as columns: one entry for each file, replaced when the file changes.

An entry is used only when it was made from a file of this size, modification time and sampled content, by this very
code; whatever does not check out is ignored and written anew. Deleting the folder costs nothing but time. Beyond a size,
the entries that were not used for longest make room for new ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from trace_doctor import __version__
from trace_doctor.files import open_regular
from trace_doctor.loaders import columns
from trace_doctor.loaders.columns import Content

log = logging.getLogger("trace_doctor")
C = TypeVar("C")

SAMPLES, SAMPLE = 16, 1 << 16
"""This many blocks of this many bytes are hashed, from the first to the last of the file."""
_SUFFIX, _EVIDENCE = ".columns", ".evidence"
LIMIT = 10_000_000_000
"""Bytes of all entries together. What one analysis itself has used stays, even where that is more."""
_STALE = 86_400
"""Seconds after which a temporary file was left behind by a process that died."""


def default_folder() -> Path:
    """Where programs of this system keep what they can make again. Raises RuntimeError where the user has no home."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "trace-doctor"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "trace-doctor" / "cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "trace-doctor"


class Cache:
    """A folder of entries. `full` compares and keeps a hash of the whole file instead of samples."""

    def __init__(self, folder: Path, *, full: bool = False, limit: int = LIMIT) -> None:
        self.folder = folder
        self.full = full
        self._limit = limit
        self._used: set[Path] = set()
        self._warned = False

    def key(self, path: Path) -> dict[str, Any]:
        """What an entry for this file, as it is now, was made from. Raises OSError."""
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            key = {
                "code": code(),
                "size": status.st_size,
                "mtime_ns": status.st_mtime_ns,
                "samples": _sampled(file, status.st_size),
            }
            return {**key, "content": _whole(file)} if self.full else key

    def entry(self, path: Path, part: str = "") -> Path:
        """The file that holds the columns of `path`, or what else is kept of it by this name."""
        name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
        return self.folder / (name + part + _SUFFIX)

    def find(self, path: Path, key: Mapping[str, Any]) -> Content | None:
        """The columns of a file with this key, mapped; None where there is no such entry."""
        return self._read(self.entry(path), lambda file: columns.read(file, key))

    def find_evidence(self, path: Path, key: Mapping[str, Any]) -> dict[str, columns.Array]:
        """What was made of the columns of a file with this key, mapped; nothing where there is no such entry."""
        key = {**key, "evidence": code("evidence")}
        return self._read(self.entry(path, _EVIDENCE), lambda file: columns.read_arrays(file, key)[1]) or {}

    def keep_evidence(self, path: Path, key: Mapping[str, Any], made: Mapping[str, columns.Array]) -> None:
        """Writes it, unless the file is another by now than when its key was made. Raises OSError."""
        with self.draft(path, _EVIDENCE) as draft:
            columns.write_arrays(draft.file, made, {**key, "evidence": code("evidence")})
            if self.key(path) == key:
                draft.commit()

    def _read(self, entry: Path, read: Callable[[IO[bytes]], C]) -> C | None:
        try:
            self._must_be_ours()
            with _opened(entry) as file:
                content = read(file)
            self._used.add(entry)
            with contextlib.suppress(OSError):
                os.utime(entry)
            return content
        except FileNotFoundError:
            return None
        except (OSError, columns.Unusable) as why:
            log.debug("cache entry %s not used: %s", entry.name, why)
            return None

    def draft(self, path: Path, part: str = "") -> Draft:
        """Begins a new entry for `path`. Raises OSError where the folder cannot be written."""
        self._prepare()
        return Draft(self.folder, self.entry(path, part), self._make_room)

    def sizes(self) -> list[int]:
        """Bytes of each entry there is."""
        return [size for _, size, _ in self._entries()]

    def _entries(self) -> list[tuple[int, int, Path]]:
        """(when it was last used, bytes, entry), in this order."""
        found = []
        for entry in self.folder.glob(f"[!.]*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may just have made room
                status = entry.stat()
                found.append((status.st_mtime_ns, status.st_size, entry))
        return sorted(found)

    def _make_room(self, newest: Path) -> None:
        """Deletes what was not used for longest until all entries are within the limit."""
        self._used.add(newest)
        entries = self._entries()
        over = sum(size for _, size, _ in entries) - self._limit
        for _, size, entry in entries:
            if over <= 0:
                return
            if entry not in self._used:
                with contextlib.suppress(OSError):
                    entry.unlink()
                    over -= size

    def unwritable(self, error: OSError) -> str | None:
        """One line for people, the first time only."""
        if self._warned:
            return None
        self._warned = True
        return f"nothing is kept in {self.folder}: {error.strerror or error}"

    def _must_be_ours(self) -> None:
        status = self.folder.lstat()
        if stat.S_ISLNK(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
            raise PermissionError(1, "it is a link, or somebody else's folder")

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._must_be_ours()
        for left in self.folder.glob(f".*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                if time.time() - left.lstat().st_mtime > _STALE:
                    left.unlink()


class Draft:
    """An entry that is being written, beside where it belongs. Used with `with`: gone unless it was committed."""

    def __init__(self, folder: Path, entry: Path, committed: Callable[[Path], None]) -> None:
        handle, self._name = tempfile.mkstemp(dir=folder, prefix=".", suffix=_SUFFIX)
        self.file: IO[bytes] = os.fdopen(handle, "w+b")
        self._entry = entry
        self._committed = committed
        self._done = False

    def commit(self) -> None:
        """Puts the entry in its place, all at once. Raises OSError."""
        self.file.flush()
        os.replace(self._name, self._entry)
        self._done = True
        self._committed(self._entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # what is still to be flushed may find no room
            self.file.close()
        if not self._done:
            with contextlib.suppress(OSError):
                os.unlink(self._name)


def _opened(entry: Path) -> IO[bytes]:
    """Opens an entry: a file of ours, and no link. Raises OSError."""
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_CLOEXEC", 0)
        | getattr(os, "O_NONBLOCK", 0)
    )
    file = os.fdopen(os.open(entry, flags | getattr(os, "O_BINARY", 0)), "rb")
    status = os.fstat(file.fileno())
    ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    if not stat.S_ISREG(status.st_mode) or not ours or stat.S_IMODE(status.st_mode) & 0o022:
        file.close()
        raise PermissionError(1, "no regular file of ours alone")
    return file


def _sampled(file: IO[bytes], size: int) -> str:
    found = hashlib.sha256()
    last = max(size - SAMPLE, 0)
    for at in sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)}):
        file.seek(at)
        found.update(file.read(SAMPLE))
    return found.hexdigest()


def _whole(file: IO[bytes]) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


@cache
def code(of: str = "columns") -> str:
    """Our version, and a hash of the modules that decide what is in the columns, or in what evidence makes of them: an
    entry of other code is never used. Which decoder made it does not matter, for they agree."""
    found = hashlib.sha256(__version__.encode())
    root = Path(columns.__file__).parent.parent
    loaders, evidence = root / "loaders", root / "evidence"
    if of == "columns":
        sources = [root / "run.py", root / "snapshot.py", evidence / "nesting.py", evidence / "launches.py"]
        sources += [*loaders.glob("*.[pc]*"), *(root / "model").glob("*.py")]
    else:
        sources = [*evidence.glob("*.py"), *root.glob("*.py")]
    for source in sorted(sources):
        with contextlib.suppress(OSError):  # installed without sources: the version alone
            found.update(source.read_bytes())
    return found.hexdigest()
