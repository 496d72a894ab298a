"""`environment.json` beside a capture: what the recording machine was, which no capture says of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from trace_doctor.files import read_regular
from trace_doctor.model import TorchVersion
from trace_doctor.recording.options import ENVIRONMENT_FILE
from trace_doctor.run import Run
from trace_doctor.snapshot import Snapshot
from trace_doctor.sound_json import loads

ALLOCATOR_SETTINGS = "allocator_settings"
"""key in `Run.meta`, with the form of `Snapshot.allocator_settings`"""
_LARGEST = 64 << 10
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
C = TypeVar("C", Run, Snapshot)


def with_environment(capture: C, file: Path) -> C:
    """The capture with what lies beside its file: torch version and allocator settings, of a trace the core count as
    well. Unchanged where none is readable; what the file itself says of its allocator counts more."""
    environment = _read(file.with_name(ENVIRONMENT_FILE))
    version, cores, settings = (
        environment.get("torch"),
        environment.get("cpu_count"),
        _allocator(environment.get("settings")),
    )
    if isinstance(version, str) and (plain := re.match(r"\d+\.\d+(\.\d+)?", version)):
        capture = replace(
            capture, torch_version=TorchVersion(min=plain[0], max=plain[0], how=ENVIRONMENT_FILE)
        )
    if isinstance(capture, Snapshot):
        return (
            replace(capture, allocator_settings={**settings, **capture.allocator_settings})
            if settings
            else capture
        )
    more: dict[str, Any] = {ALLOCATOR_SETTINGS: settings} if settings else {}
    if isinstance(cores, int) and not isinstance(cores, bool) and cores > 0:
        more["cpu_count"] = cores
    return replace(capture, meta={**capture.meta, **more}) if more else capture


def _allocator(settings: Any) -> dict[str, Any]:
    """`expandable_segments:True,max_split_size_mb:128` as the allocator itself reports it: flags are booleans."""
    fields: Mapping[str, Any] = settings if isinstance(settings, dict) else {}
    text = next((v for name in _ALLOCATOR if isinstance(v := fields.get(name), str)), "")
    pairs = (part.partition(":") for part in text[:1000].split(","))
    flags = {"true": True, "false": False}
    return {
        key.strip(): flags.get(value.strip().lower(), value.strip())
        for key, _, value in pairs
        if key.strip() and value
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        environment = loads(read_regular(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return environment if isinstance(environment, dict) else {}
