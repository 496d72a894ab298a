"""Results that were saved: `--output json`, or the one inside a report."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trace_doctor.errors import NotACapture
from trace_doctor.files import read_regular
from trace_doctor.model import SCHEMA_VERSION, Result, Tool
from trace_doctor.reporters.island import extract


class _Head(msgspec.Struct):
    """What tells a result from any other JSON."""

    schema_version: int
    tool: Tool


def read_saved(path: Path) -> Result:
    """The result in a RESULT.json or a report.html. Raises NotACapture, in one line, when there is none."""
    try:
        data = read_regular(path)
    except OSError as error:
        raise NotACapture(f"{path.name}: {error.strerror or 'cannot be read'}") from error
    try:
        if data.lstrip()[:1] == b"<":
            data = extract(data.decode())
        schema = msgspec.json.decode(data, type=_Head).schema_version
        if schema > SCHEMA_VERSION:
            raise NotACapture(
                f"written by a newer trace-doctor (schema {schema}, this one reads {SCHEMA_VERSION})"
            )
        return Result.from_json(data)
    except NotACapture as error:
        raise NotACapture(f"{path.name}: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotACapture(f"{path.name} is no trace-doctor result: {error}") from error
