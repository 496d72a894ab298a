"""The JSON Schema of the result, kept as a file beside this module: `python -m trace_doctor.reporters.schema` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from trace_doctor.model import json_schema

PATH = Path(__file__).with_name("result.schema.json")


def text() -> str:
    """The schema as the file is to hold it."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
