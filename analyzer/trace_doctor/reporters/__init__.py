"""Result -> output, one module per format. Pure functions of the result: no capture, no clock, no terminal is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from trace_doctor.errors import UsageError
from trace_doctor.model import Result

FORMATS = ("text", "html", "json", "sarif", "junit", "github", "markdown", "agent")
"""of these all but JSON have a module of their name with `render(result, options) -> str`, imported on first use"""
OF_CAPTURES = ("perfetto",)
"""formats that are made from the capture itself, while it is analyzed"""


@dataclass(frozen=True)
class Served:
    """The trace that is served beside a page."""

    input: int
    """the number of its capture among the inputs"""
    name: str


@dataclass(frozen=True)
class Options:
    """What the caller may choose about an output. The terminal is the caller's to ask: colour and width come from there."""

    color: bool = False
    width: int = 80
    show_skipped: bool = False
    brief: bool = False
    """text of a line for each finding, behind the verdict and what was not read"""
    ascii: bool = False
    report: str | None = None
    """path of the HTML report written beside a text output, to be named in its footer"""
    given: tuple[str, ...] = ()
    """the captures, as another command is to be given them; empty where it could not be"""
    source: str | None = None
    """the script or its folder, likewise"""
    zoom: bool = True
    """whether the page carries its zoomable panels: the events, and 2 MB of plotly for memory"""
    saved: bool = False
    """the result was read from a file: nobody vouches for what its patches hold, and no format has them to be applied"""
    served: Served | None = None
    """of a page that `view` serves with a trace"""


def render(result: Result, fmt: str, options: Options | None = None, **changed: Any) -> str:
    """The result in one of FORMATS. The same result gives the same text. `changed`: options that are other than these.
    Raises UsageError for an unknown format."""
    if fmt not in FORMATS:
        raise UsageError(f"unknown output format {fmt!r}; choose from {', '.join(FORMATS)}")
    if fmt == "json":  # by `result.schema.json`
        return result.to_json().decode()
    module = import_module(f"{__name__}.{fmt}")
    text: str = module.render(result, replace(options or Options(), **changed))
    return text
