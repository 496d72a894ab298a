"""`trace-doctor capture`."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer


def capture(
    steps: Annotated[int, typer.Option(help="Steps to record.")] = 5,
    folder: Annotated[str, typer.Option(help="Where the captures go.")] = "logs",
) -> None:
    """Print the profiler snippet that records what the rules need."""
    text = files("trace_doctor").joinpath("capture_snippet.py.txt").read_text(encoding="utf-8")
    typer.echo(text.replace("@STEPS@", str(steps)).replace("@FOLDER@", folder), nl=False)
