"""`trace-doctor config`."""

from __future__ import annotations

import dataclasses
import json
import re

import typer

from trace_doctor.cli.options import ConfigFile
from trace_doctor.errors import unbroken

_LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)")


def config(file: ConfigFile = None) -> None:
    """Show every setting, its value and its origin."""
    from trace_doctor.config import load_config

    loaded = load_config(file=file)
    for f in dataclasses.fields(loaded.settings):
        doc = _LINK.sub(r"docs/\1", f.metadata["doc"])
        value = json.dumps(getattr(loaded.settings, f.name), sort_keys=True)
        typer.echo(unbroken(f"{f.name.replace('_', '-'):20} {value:24} # {loaded.origins[f.name]}: {doc}"))
