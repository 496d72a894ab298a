"""What the memory rules have in common: sizes for people, tables, and the allocator setting as a fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trace_doctor import Fix, Saving, Table
from trace_doctor.digits import size as size
from trace_doctor.digits import sizes_alike
from trace_doctor.evidence.memory.blocks import DeviceBlocks, category_name
from trace_doctor.evidence.memory.device_memory import DeviceMemory
from trace_doctor_rules._shared import patch, table

MiB = 1 << 20
NEARLY_FULL = 0.80
"""Peak, as a share of the device, from which a large part of the memory is a problem and not only a fact."""


def mib(count: int) -> str:
    """One unit for numbers that are to be compared down to the last MiB: `1,024 MiB`."""
    return f"{count / MiB:,.0f} MiB"


def in_one_unit(first: int, second: int, between: str = " of ") -> str:
    """Two sizes that are to be compared: `0.879 GiB of 2.34 GiB`."""
    return between.join(sizes_alike(first, second))


def times(count: int) -> str:
    """How often, in words: `once`, `twice`, `3 times`."""
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"


def peak_saving(before: int, after: int, change: str) -> Saving:
    """What a change to the record takes off its peak allocated bytes, `before` and `after` it: a bound."""
    return Saving(
        bytes=before - after,
        share_of_peak=(before - after) / before,
        basis="bound",
        how=f"peak allocated memory {in_one_unit(before, after, ' → ')} {change}",
    )


def already(settings: Mapping[str, Any]) -> str:
    """A sentence about memory that `expandable_segments` should have saved."""
    return " expandable_segments is already enabled." if settings.get("expandable_segments") else ""


def expandable_segments(settings: Mapping[str, Any]) -> list[Fix]:
    """Segments that grow in place instead of being given back and taken again; none when they are on already."""
    if settings.get("expandable_segments"):
        return []
    verify = (
        "a new snapshot shows expandable_segments true in its allocator_settings, and this finding is gone"
    )
    risk = "Linux only; memory shared between processes and pluggable allocators do not work with it"
    return [
        patch(
            title="Enable expandable_segments",
            safety="unsafe",
            codemod="allocator-setting",
            params={"key": "expandable_segments", "value": True},
            text='import os\n\nos.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")\nimport torch',
            verify=verify,
            risk=risk,
        ),
        Fix(
            title="Set PYTORCH_CUDA_ALLOC_CONF at launch",
            kind="env",
            safety="unsafe",
            text="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
            verify=verify,
            risk=risk,
        ),
    ]


def where_tightest(memory: DeviceMemory, device: DeviceBlocks) -> str:
    """The moment that `DeviceMemory.moment` names, in words."""
    return "at the failed allocation" if device.device in memory.failures else "at the peak"


def how_full(memory: DeviceMemory, device: DeviceBlocks) -> str:
    """A sentence about a device: how large it is, or that nothing says so."""
    total = memory.sizes.get(device.device)
    if device.device in memory.failures:
        return ""
    return " The device size was not recorded." if total is None else f" The device has {size(total)}."


def breakdown(blocks: DeviceBlocks, moment: int, where: str = "at the peak") -> Table:
    """Allocated bytes by category at a moment, largest first."""
    total = int(blocks.history.live[moment])
    rows = sorted(((v, k) for k, v in blocks.at(moment).items() if v), reverse=True)
    return table(
        f"Memory breakdown {where}",
        {"category": "text", "allocated": "bytes", "share": "share"},
        [[category_name(name), bytes_, bytes_ / total] for bytes_, name in rows],
    )


def holders(rows: Iterable[tuple[str, str, int, int]], title: str, most: int = 12) -> Table:
    """(category, place, bytes, blocks) rows, largest first."""
    return table(
        title,
        {"category": "text", "allocated at": "location", "bytes": "bytes", "blocks": "count"},
        [(category_name(c), place, held, count) for c, place, held, count in rows],
        most,
    )
