"""The difference as JSON (schema: `difference.schema.json`)."""

from __future__ import annotations

from trace_doctor.model.difference import Difference
from trace_doctor.reporters import Options


def render(difference: Difference, options: Options) -> str:
    """The difference as JSON, by `difference.schema.json`."""
    return difference.to_json().decode("utf-8")
