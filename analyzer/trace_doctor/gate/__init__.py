"""The gate: may this be merged, and did the fix help? Exit codes as in docs/exit-codes.md; 2 (nothing readable) is decided before.

Everything is imported on first use: an analysis needs nothing but the suppressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_HOMES = {
    "Baseline": "trace_doctor.gate.baseline",
    "Suppressions": "trace_doctor.gate.suppressions",
    "Terms": "trace_doctor.gate.decision",
    "checked": "trace_doctor.gate.decision",
    "decide": "trace_doctor.gate.decision",
    "terms_of": "trace_doctor.gate.decision",
}
__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trace_doctor.gate' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


if TYPE_CHECKING:
    from trace_doctor.gate.baseline import Baseline as Baseline
    from trace_doctor.gate.decision import Terms as Terms
    from trace_doctor.gate.decision import checked as checked
    from trace_doctor.gate.decision import decide as decide
    from trace_doctor.gate.decision import terms_of as terms_of
    from trace_doctor.gate.suppressions import Suppressions as Suppressions
