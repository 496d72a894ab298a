"""A difference as text, JSON, Markdown or a page. Pure functions of the `Difference`."""

from __future__ import annotations

from importlib import import_module

from trace_doctor.model.difference import Difference
from trace_doctor.reporters import Options

FORMATS = ("text", "json", "markdown", "html")


def render(difference: Difference, fmt: str, options: Options | None = None) -> str:
    """The difference in one of FORMATS. The same difference gives the same text."""
    if fmt == "json":  # by `difference.schema.json`
        return difference.to_json().decode()
    home = "trace_doctor.reporters.html.difference" if fmt == "html" else f"{__name__}.{fmt}"
    text: str = import_module(home).render(difference, options or Options())
    return text
