"""What the file says about itself: rank, what was recorded, bounds of the torch version."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Set
from typing import Any

from trace_doctor.loaders import pftrace
from trace_doctor.loaders.kineto import gpu_arguments
from trace_doctor.model import Recorded, TorchVersion
from trace_doctor.run import is_count

_PRIVATE = re.compile(r"host|user|node", re.I)
_LATEST_NS = 4 * 10**18
"""A time beyond this (in the year 2096) is none, and sums of two would overflow."""
KEPT_OBJECTS = ("deviceProperties", "distributedInfo")

# Texts looked for in the event list, for `recorded`.
SHAPES = (b'"Input Dims"', b'"Input dims"')
CALL_STACKS = b'"Call stack"'
FLOPS = b'"flops"'
MODULES = b'"Module Hierarchy"'
MARKERS = [*SHAPES, CALL_STACKS, FLOPS, MODULES, gpu_arguments.MOVED]

_FLAGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules")

# The first torch release that can write this into a trace, with the pull request where known (REFERENCE, C).
_SINCE_NAME: tuple[tuple[re.Pattern[str], tuple[int, int], str], ...] = (
    (re.compile(r"dynamo_data: |, compile_id="), (2, 11), "compile ids in dynamo events"),
    (
        re.compile(r"AOTDispatcher Runtime Wrapper Prologue|Pregraph bytecode"),
        (2, 8),
        "the prologue of compiled regions",
    ),
    (re.compile(r"Torch-Compiled Region: !?\d+/\d+"), (2, 5), "numbered compiled regions"),
    (re.compile(r"Torch-Compiled Region"), (2, 2), "compiled regions"),
    (re.compile(r"\(dynamo_timed\)$"), (2, 1), "dynamo_timed events"),
)


def clean(meta: dict[str, Any]) -> dict[str, Any]:
    """The small fields worth keeping, of the kinds that profilers write: what else stands in their place is dropped. So
    are names of hosts and users, so that no output can show them."""
    values = (
        (key, _KINDS.get(key, _plain)(value)) for key, value in meta.items() if not _PRIVATE.search(key)
    )
    return {key: value for key, value in values if value is not None}


def _plain(value: Any) -> Any:
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite and not isinstance(value, dict | list) else None


def _base(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < _LATEST_NS else None


def _described(value: Any) -> dict[str, Any] | None:
    """An object with its numbers and texts, which are names: a longer text is cut."""
    if not isinstance(value, dict):
        return None
    cut = {key: v[:_LONGEST_NAME] if isinstance(v, str) else v for key, v in value.items()}
    return {key: v for key, v in cut.items() if (isinstance(v, str) if key in _TEXTS else is_count(v))}


def _devices(value: Any) -> list[dict[str, Any]] | None:
    return [d for d in map(_described, value) if d is not None] if isinstance(value, list) else None


_LONGEST_NAME = 200
_TEXTS = ("name", "backend", "nccl_version")
_KINDS: dict[str, Callable[[Any], Any]] = {
    "baseTimeNanoseconds": _base,
    "deviceProperties": _devices,
    "distributedInfo": _described,
    "allocator_settings": lambda _: None,  # said beside a trace, never in it
}


def recorded(
    meta: dict[str, Any], *, stacks: bool, memory: bool, features: Set[bytes], operators: bool
) -> Recorded:
    """What the profiler was told to record: by the file's flags, else by what the events hold.

    `operators`: CPU operators were recorded at all; without them a missing argument proves nothing. With them, shapes that
    none of them has are not there, whatever the flag says.
    """
    flagged = any(flag in meta for flag in _FLAGS)
    has_shapes = any(s in features for s in SHAPES)

    def known(flag: str, seen: bool, *, shows: bool = True) -> bool | None:
        if seen or meta.get(flag) in (1, True, "1", "true", "True"):
            return True
        if flag in meta or flagged:
            return False
        return False if shows and operators else None

    return Recorded(
        shapes=has_shapes if operators else known("record_shapes", has_shapes),
        stacks=known("with_stack", stacks or CALL_STACKS in features),
        memory=known("profile_memory", memory),
        flops=known("with_flops", FLOPS in features, shows=False),
        modules=known("with_modules", MODULES in features, shows=False),
    )


def torch_version(
    meta: dict[str, Any], names: Iterable[str], cats: Set[str], *, integer_ts: bool, legacy_list: bool
) -> TorchVersion:
    """Bounds from features of the file, never from the machine that analyses it. No trace names its torch version."""
    low: tuple[int, int] | None = None
    how: list[str] = []

    def at_least(version: tuple[int, int], reason: str) -> None:
        nonlocal low
        if low is None or version > low:
            low = version
            how[:] = [f"{reason} (since {_dotted(version)})"]

    if cats & {"Operator", "Runtime", "Kernel"}:
        return TorchVersion(min="1.8", max="1.11", how="capitalised categories (1.8 to 1.11)")
    if cats & {"cpu_op", "cuda_runtime", "kernel", "user_annotation"}:
        at_least((1, 12), "lower-case categories")
    if any(flag in meta for flag in _FLAGS):
        at_least((1, 13), "profiler options in the metadata")
    for name in names:
        for pattern, version, reason in _SINCE_NAME:
            if (low is None or version > low) and pattern.search(name):
                at_least(version, reason)
    if pftrace.MARK in meta:
        at_least((2, 14), "a .pftrace file")
    if "baseTimeNanoseconds" in meta:
        at_least((2, 4), "baseTimeNanoseconds")
    high = None
    if (
        integer_ts
        and not legacy_list
        and "schemaVersion" in meta
        and "baseTimeNanoseconds" not in meta
        and low
    ):
        high = (2, 3)
        how.append("whole microseconds (up to 2.3)")
        if low > high:
            high = None
    return TorchVersion(
        min=_dotted(low) if low else None, max=_dotted(high) if high else None, how=" and ".join(how) or None
    )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


_RANK = re.compile(r"(?:^|[^a-z])(?:global[_-]?)?(?:rank|worker)[_\-=]?(\d{1,6})(?!\d)", re.I)


def rank_in_name(display: str) -> int | None:
    """The rank that a file or folder name gives (`rank_3`, `rank-34`, `worker0`); the file's own name counts first."""
    named = rank_named(display)
    return None if named is None else named[1]


def rank_named(display: str) -> tuple[str, int] | None:
    """The folder of the file or folder whose name gives a rank, and this rank."""
    parts = display.replace("\\", "/").split("/")
    for at in reversed(range(len(parts))):
        match = _RANK.search(parts[at])
        if match:
            return "/".join(parts[:at]), int(match[1])
    return None


def rank(meta: dict[str, Any], display: str, from_options: int, given_how: str) -> tuple[int, str]:
    """(rank, how it is known): from distributedInfo, else from the name, else 0."""
    file_rank = meta.get("distributedInfo", {}).get("rank")
    if file_rank is not None:
        return file_rank, "distributedInfo"
    if given_how:
        return from_options, given_how
    named = rank_in_name(display)
    if named is not None:
        return named, "file name"
    return 0, "assumed, the file names no rank"


def impossible_ranks(meta: dict[str, Any], number: int, how: str) -> list[str]:
    """What a trace says of its place in a job that cannot be so, and what counts instead. `meta`: as it stands in the file."""
    info = meta.get("distributedInfo")
    given = info if isinstance(info, dict) else {}
    warnings = []
    if given.get("rank") is not None and not is_count(given["rank"]):
        warnings.append(f"the rank in its distributedInfo is none: rank {number} ({how})")
    world = given.get("world_size")
    if world is not None and not (is_count(world) and world):
        warnings.append("the world_size in its distributedInfo is no number of ranks: it is not known")
    return warnings
