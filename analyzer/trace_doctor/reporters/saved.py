"""Results that were saved: `--output json`, or the one inside a report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trace_doctor.errors import NotACapture
from trace_doctor.model import SCHEMA_VERSION, Result
from trace_doctor.reporters.island import extract


def read_saved(path: Path) -> Result:
    """The result in a RESULT.json or a report.html. Raises NotACapture, in one line, when there is none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise NotACapture(f"{path.name}: {error.strerror or 'cannot be read'}") from error
    try:
        if data.lstrip()[:1] == b"<":
            data = extract(data.decode())
        result = Result.from_json(data)
    except NotACapture as error:
        raise NotACapture(f"{path.name}: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotACapture(f"{path.name} is no trace-doctor result: {error}") from error
    if result.schema_version > SCHEMA_VERSION:
        raise NotACapture(
            f"{path.name} was written by a newer trace-doctor (schema {result.schema_version}, this one reads {SCHEMA_VERSION})"
        )
    return result
