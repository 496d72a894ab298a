"""trace-doctor: what makes a PyTorch training job slow or memory-hungry, what it costs, and the patch.

    import trace_doctor
    result = trace_doctor.analyze("logs")      # a Result: findings, ledgers, what-if
    run = trace_doctor.load("trace.json.gz")   # a Run: the trace as columns

Everything is imported on first use, so that `import trace_doctor` stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trace_doctor.version import VERSION

__version__ = VERSION

_NAMES = {
    "api": "analyze diff load verify",
    "recording.api": "record",
    "hta": "to_hta",
    "reporters.notebook": "Result",
    "model.difference": "Difference",
    "model.verification": "Verification",
    "model": "Confidence Finding Fix Location Saving Severity Span Table Column Cell Unit Target enough_first",
    "run": "Run Cat",
    "snapshot": "Snapshot",
    "rule": "Rule Claim Context NOTE_FROM threshold",
    "errors": "NotCaptured",
    "testing": "Valid Invalid",
}
_HOMES = {name: f"trace_doctor.{home}" for home, names in _NAMES.items() for name in names.split()}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'trace_doctor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from trace_doctor.api import analyze as analyze
    from trace_doctor.api import diff as diff
    from trace_doctor.api import load as load
    from trace_doctor.api import verify as verify
    from trace_doctor.errors import NotCaptured as NotCaptured
    from trace_doctor.hta import to_hta as to_hta
    from trace_doctor.model import Cell as Cell
    from trace_doctor.model import Column as Column
    from trace_doctor.model import Confidence as Confidence
    from trace_doctor.model import Finding as Finding
    from trace_doctor.model import Fix as Fix
    from trace_doctor.model import Location as Location
    from trace_doctor.model import Saving as Saving
    from trace_doctor.model import Severity as Severity
    from trace_doctor.model import Span as Span
    from trace_doctor.model import Table as Table
    from trace_doctor.model import Target as Target
    from trace_doctor.model import Unit as Unit
    from trace_doctor.model import enough_first as enough_first
    from trace_doctor.model.difference import Difference as Difference
    from trace_doctor.model.verification import Verification as Verification
    from trace_doctor.recording.api import record as record
    from trace_doctor.reporters.notebook import Result as Result
    from trace_doctor.rule import NOTE_FROM as NOTE_FROM
    from trace_doctor.rule import Claim as Claim
    from trace_doctor.rule import Context as Context
    from trace_doctor.rule import Rule as Rule
    from trace_doctor.rule import threshold as threshold
    from trace_doctor.run import Cat as Cat
    from trace_doctor.run import Run as Run
    from trace_doctor.snapshot import Snapshot as Snapshot
    from trace_doctor.testing import Invalid as Invalid
    from trace_doctor.testing import Valid as Valid
