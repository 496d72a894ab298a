"""`environment.json` beside a capture: what the recording machine was, which no trace says of itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from trace_doctor.model import TorchVersion
from trace_doctor.run import Run

FILE = "environment.json"
_LARGEST = 64 << 10


def with_environment(run: Run, trace: Path) -> Run:
    """The run with the torch version and the core count that lie beside its file; unchanged where none is readable."""
    said = _read(trace.with_name(FILE))
    version, cores = said.get("torch"), said.get("cpu_count")
    if isinstance(version, str) and (plain := re.match(r"\d+\.\d+(\.\d+)?", version)):
        run = replace(run, torch_version=TorchVersion(min=plain[0], max=plain[0], how=FILE))
    if isinstance(cores, int) and not isinstance(cores, bool) and cores > 0:
        run = replace(run, meta={**run.meta, "cpu_count": cores})
    return run


def _read(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return {}
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
