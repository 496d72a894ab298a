"""Allocator snapshots: pickles of plain data (`plain_pickle`), as columns. A pickle that asks for more is no snapshot, whatever
its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_doctor.errors import DamagedCapture, NotACapture
from trace_doctor.loaders.plain_pickle import contained, is_plain, line, unpickled
from trace_doctor.loaders.snapshot.columns import Columns
from trace_doctor.snapshot import Snapshot

_SNAPSHOT = "memory snapshot"
_KEYS = (b"device_traces", b"segments", b"segment_type", b"total_size")


def load_snapshot(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", max_memory: int | None = None
) -> Snapshot:
    """Reads one snapshot, plain or gzipped, in a child process limited to `max_memory` bytes (default: a share of
    what is available) and to a processor time in proportion to the file.

    Raises NotACapture for a pickle of something else (or no pickle at all), DamagedCapture for a snapshot that is
    cut off, contradicts the format or is not all of its file, TooLarge for one beyond the limits, OSError for a file that cannot be opened;
    each with one line. `display` is the path to show.
    """
    return contained(
        lambda most: read_snapshot(path, display, rank=rank, rank_how=rank_how, most=most),
        path,
        display,
        _SNAPSHOT,
        max_memory,
    )


def is_another_pickle(data: bytes) -> bool:
    """Whether these bytes are a sound pickle of plain data, and no snapshot. Read in a child process as well."""
    return is_plain(data, lambda plain: _kind(plain) is not None)


def read_snapshot(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", most: int | None = None
) -> Snapshot:
    """`load_snapshot` in this process and without limits but one, how many decompressed bytes are read: for trusted
    files and for fuzzing. Raises OutOfMemory beyond `most`, on every system."""
    with unpickled(path, display, _SNAPSHOT, most, lambda head: any(key in head for key in _KEYS)) as data:
        return _columns(data, display, rank, rank_how)


def _columns(data: Any, display: str, rank: int, rank_how: str) -> Snapshot:
    """Columns of what the pickle held."""
    kind = _kind(data)
    if kind is not None:
        raise NotACapture(f"{display}: no memory snapshot; it is {kind}")
    try:
        return Columns(data).snapshot(display, rank, rank_how)
    except MemoryError:
        raise
    except Exception as error:  # anything can stand where the format wants a number or a list
        raise DamagedCapture(
            f"{display}: damaged memory snapshot ({type(error).__name__}: {line(error)})"
        ) from None


def _kind(data: Any) -> str | None:
    """What a harmless pickle is when it is no snapshot; None for a snapshot."""
    if isinstance(data, dict):
        if isinstance(data.get("segments"), (list, tuple)):
            return None
        if "entries" in data and ("pg_config" in data or "pg_status" in data or "version" in data):
            return "an NCCL flight-recorder dump"
        keys = ", ".join(repr(k[:40]) if isinstance(k, str) else type(k).__name__ for k in list(data)[:3])
        return f"a pickled dict with {line(keys) if keys else 'nothing in it'}"
    if isinstance(data, (list, tuple)):
        if data and all(isinstance(s, dict) and "blocks" in s and "total_size" in s for s in data):
            return None
        return f"a pickled {type(data).__name__} of {len(data)}"
    return f"a pickled {type(data).__name__}"
