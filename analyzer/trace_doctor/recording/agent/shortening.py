"""A trace cut behind one of its steps: what does not fit into the budget as a whole is kept as far as it fits.

Works on the text that PyTorch's profiler writes, one field or a few a line and each event a block of its own, so that a
file of any size passes through little memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_CATEGORY = re.compile(r'"cat": "(\w+)"')
_CORRELATION = re.compile(r'"(?:correlation|id)": "?(\d+)')
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
_LAUNCHED = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "ac2g"})
"""work of a device and the arrows to it: they belong to the step that launched them, and come later"""


@dataclass
class Borders:
    """Where the steps of a trace end, in its own microseconds and in time order, and when its device work was launched."""

    ends: list[float]
    launches: dict[str, float]
    """correlation -> moment of the launch"""


def borders(trace: Path) -> Borders:
    """Where the steps of a trace begin and end, in us, and when each of its kernels was launched."""
    times: set[float] = set()
    launches: dict[str, float] = {}
    for block in _blocks(trace):
        category, begin = _category(block), _field(block, "ts")
        if begin is not None and category in _LAUNCHES:
            launches[_correlation(block)] = begin
        elif begin is not None and category == "user_annotation" and '"name": "ProfilerStep#' in block:
            times.add(begin + (_field(block, "dur") or 0.0))
    return Borders(sorted(times), launches)


def until(trace: Path, steps: int, of: Borders) -> Iterator[str]:
    """The text of the trace with its first `steps` steps: without what begins behind them."""
    end = of.ends[steps - 1]
    separator = ""
    for block in _blocks(trace):
        if not block.startswith("  {"):  # around the events
            yield block
            continue
        begin = (
            of.launches.get(_correlation(block), end)
            if _category(block) in _LAUNCHED
            else _field(block, "ts")
        )
        if begin is None or begin < end or '"ph": "M"' in block:
            yield separator + block.rstrip().rstrip(",")
            separator = ",\n"


def _blocks(trace: Path) -> Iterator[str]:
    """Each event with its braces; each line around the events by itself."""
    block: list[str] = []
    with trace.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            if block:
                block.append(line)
                if line.startswith("  }"):
                    text = "".join(block)
                    block = []
                    yield text
            elif line.rstrip() == "  {":
                block.append(line)
            else:
                yield line
    if block:
        yield "".join(block)


def _category(block: str) -> str:
    match = _CATEGORY.search(block)
    return match[1] if match else ""


def _correlation(block: str) -> str:
    match = _CORRELATION.search(block)
    return match[1] if match else ""


def _field(block: str, name: str) -> float | None:
    at = block.find(f'"{name}": ')
    match = _NUMBER.match(block, at + len(name) + 4) if at >= 0 else None
    return float(match[0]) if match else None
