"""Which ranks run on one host, by the names of their files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_NAME = re.compile(r"(?P<host>.+)_(?P<process>\d{1,10})\.\d{13,19}\.pt\.trace\.json(?:\.(?:gz|zst))?")


def hosts_of(paths: Sequence[str]) -> tuple[str, ...]:
    """The host of each trace of a job, as `tensorboard_trace_handler` calls its file: HOST_PROCESS.TIME.pt.trace.json. Empty where not
    all files are called so, and where the number may be a rank, as a name that somebody chose may have it."""
    found = [_NAME.fullmatch(PurePosixPath(path).name) for path in paths]
    named = [match for match in found if match is not None]
    if len(named) < len(paths) or any(int(match["process"]) < len(paths) for match in named):
        return ()
    return tuple(match["host"] for match in named)
