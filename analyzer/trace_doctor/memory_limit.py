"""How much memory a load may take, and where the machine says how much there is."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trace_doctor.errors import UsageError

SHARE = 0.75
"""Of the memory that is available, unless told otherwise."""
UNKNOWN = 8 << 30
"""Taken for available where the machine does not say."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(?:i?b)?|(%))", re.I)
_SHORT = re.compile(
    r"failed to map segment|Cannot allocate memory|without exception set|without setting an exception"
)
_DIGITS = 20
"""No amount has more."""
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def memory_limit(text: str = "") -> int:
    """Bytes meant by `4GB`, `512MiB`, `2000000` or `50%` (of what is available); without a text, `SHARE` of that.

    Raises UsageError for anything else, and for nothing.
    """
    if not text:
        return int(SHARE * available_memory())
    match = _SIZE.fullmatch(text.strip())
    amount = float(match[1]) if match and len(match[1]) <= _DIGITS else 0.0
    size = 0
    if match and amount:
        size = int(amount / 100 * available_memory() if match[3] else amount * _UNITS[match[2].lower()])
    if not size:
        raise UsageError(f"max-memory must be like 4GB, 512MB or 50%, not {text[:60]!r}")
    return size


def available_memory() -> int:
    """Bytes that can still be taken: of the machine, or of this process's control group where that has less."""
    limits = [n for n in (_meminfo(), *(_left(*files) for files in _CGROUPS)) if n is not None]
    return min(limits, default=_physical())


def text(size: int) -> str:
    """`4.0 GB`, `512 MB`: binary, as people write the option."""
    for unit, name in ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB")):
        if size >= unit:
            return f"{size / unit:.{1 if size < 10 * unit else 0}f} {name}"
    return f"{size} bytes"


def ran_out(error: BaseException) -> bool:
    """Whether an error is for want of memory. Under a limit of the process, what is short of it does not always say so: a
    library cannot be loaded, and code in C fails before it can make an exception."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, ImportError | SystemError) and bool(_SHORT.search(str(error))) and _is_limited()


def _is_limited() -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    return any(resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in kinds)


def _meminfo() -> int | None:
    try:
        match = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _left(limit: Path, used: Path) -> int | None:
    """None without a limit: `max`, or a number larger than any machine."""
    try:
        most, used_bytes = int(limit.read_text()), int(used.read_text())
    except (OSError, ValueError):
        return None
    return max(most - used_bytes, 0) if most < 1 << 60 else None


def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return UNKNOWN
