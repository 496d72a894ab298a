"""How files are loaded: in how many processes, within what memory, with what cache."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trace_doctor.config import Settings
from trace_doctor.errors import UsageError
from trace_doctor.loaders.cache import Cache, default_folder
from trace_doctor.loaders.limits import memory_limit

log = logging.getLogger("trace_doctor")


@dataclass(frozen=True)
class Prefetch:
    """What a process that has read a trace makes of it for the analysis that follows: what that would ask for anyway, one
    trace after another."""

    function: str
    """`module:name`; called with the trace and `given`, it gives arrays for `Run.earlier`"""
    given: Any
    """as MessagePack can hold it"""


@dataclass(frozen=True)
class Ways:
    """As it stands: in this process, one file after another, with no cache."""

    jobs: int = 1
    """processes at most"""
    memory: int | None = None
    """bytes that all of them together may take; None: as the loaders decide"""
    cache: Cache | None = None
    keep: bool = False
    """write what had to be read into the cache"""
    prefetch: Prefetch | None = None
    """where traces are read by other processes, and each is a capture of its own"""
    warn: Callable[[str], None] = log.warning


def ways(settings: Settings, *, full: bool = False) -> Ways:
    """Those that the settings ask for. `full`: the cache compares all bytes of a file, not samples."""
    folder: Path | None = None
    try:
        folder = Path(settings.cache_dir).expanduser() if settings.cache_dir else default_folder()
    except RuntimeError:
        if settings.cache == "write":
            raise UsageError("no home folder to keep columns in; --cache-dir names another") from None
    return Ways(
        jobs=settings.jobs or available_cores(),
        memory=memory_limit(settings.max_memory),
        cache=None if settings.cache == "off" or folder is None else Cache(folder, full=full),
        keep=settings.cache == "write",
    )


def available_cores() -> int:
    """Cores this process may use: its affinity, and its control group's share of the machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # another system, or "max"
        pass
    return max(cores, 1)
