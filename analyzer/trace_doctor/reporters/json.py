"""The result as it is: the contract for other programs."""

from __future__ import annotations

from trace_doctor.model import Result
from trace_doctor.reporters import Options


def render(result: Result, options: Options) -> str:
    """The result as JSON, by `result.schema.json`."""
    return result.to_json().decode()
