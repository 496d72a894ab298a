"""Captures as an analysis loads them, without what comes behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trace_doctor.capture import Capture
from trace_doctor.inputs.held import held_captures, read_files
from trace_doctor.loaders.discover import discover
from trace_doctor.model import Ignored


def read_captures(paths: Sequence[str | Path]) -> tuple[list[Capture], list[Ignored]]:
    """Discovers and loads. What belongs to one run of one rank is one capture: see `loading.captures_of`.

    What could not be read is listed in the second value, where anything could be read at all.
    """
    files, contents = read_files(discover(paths, strict=False), None, None)
    captures = held_captures(files, contents, paths, None)
    return captures, files.ignored
