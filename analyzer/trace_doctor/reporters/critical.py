"""A critical path in one line."""

from __future__ import annotations

from trace_doctor.model import CriticalPath
from trace_doctor.reporters.units import duration, share


def shares_of_path(path: CriticalPath) -> str:
    """`59.1 ms: between kernels 73%, host 26%`."""
    parts = [f"{kind} {share(us / path.path_us)}" for kind, us in path.by_kind.items() if us]
    return f"{duration(path.path_us)}: {', '.join(parts)}" if parts else duration(path.path_us)
