"""`trace-doctor capture`."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from typing import Annotated

import typer

from trace_doctor.errors import one_line


def capture(
    steps: Annotated[int, typer.Option(help="Steps to record.")] = 5,
    folder: Annotated[str, typer.Option(help="Where the captures go.")] = "logs",
) -> None:
    """Print the profiler snippet that records what the rules need."""
    text = files("trace_doctor").joinpath("capture_snippet.py.txt").read_text(encoding="utf-8")
    for mark, value in (
        ("@STEPS@", str(steps)),
        ('"@FOLDER@"', json.dumps(folder, ensure_ascii=False)),
        ("@FOLDER@", shlex.quote(one_line(folder))),
    ):
        text = text.replace(mark, value)
    typer.echo(text, nl=False)
