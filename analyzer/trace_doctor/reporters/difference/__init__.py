"""A difference as text, JSON, Markdown or a page. Pure functions of the `Difference`."""

from __future__ import annotations

from importlib import import_module

from trace_doctor.model.difference import Difference
from trace_doctor.reporters import Options

FORMATS = {
    "text": "trace_doctor.reporters.difference.text",
    "json": "trace_doctor.reporters.difference.json",
    "markdown": "trace_doctor.reporters.difference.markdown",
    "html": "trace_doctor.reporters.html.difference",
}
"""format name -> module with `render(difference, options) -> str`; imported on first use"""


def render(difference: Difference, fmt: str, options: Options | None = None) -> str:
    """The difference in one of FORMATS. The same difference gives the same text."""
    text: str = import_module(FORMATS[fmt]).render(difference, options or Options())
    return text
