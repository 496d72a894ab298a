"""JSON Schemas of what is written as JSON, for those who read it with other programs."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec


def json_schema(form: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema (2020-12) of this type, with its docstrings as descriptions."""
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"trace-doctor {form.__name__.lower()}",
        **msgspec.json.schema(form),
    }
    _clean(document)
    return document


def _clean(schema: Any) -> None:
    """Docstrings keep their indentation until Python 3.12, and lose it from 3.13 on."""
    parts = list(schema.values()) if isinstance(schema, dict) else schema if isinstance(schema, list) else []
    for part in parts:
        _clean(part)
    if isinstance(schema, dict) and isinstance(schema.get("description"), str):
        schema["description"] = inspect.cleandoc(schema["description"])
