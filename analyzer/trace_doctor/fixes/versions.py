"""Which torch the script runs on, as far as it is known, and what that version accepts.

Never the version of the machine that analyses. Unknown: only forms that are valid from 2.0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trace_doctor.model import Result

Version = tuple[int, int]


@dataclass(frozen=True)
class TorchBounds:
    """Inclusive bounds of (major, minor); None where nothing is known."""

    min: Version | None = None
    max: Version | None = None

    def at_least(self, *version: int) -> bool:
        """Whether the version is known to be this or newer."""
        return self.min is not None and self.min >= version


def parse(text: str | None) -> Version | None:
    found = re.match(r"\s*v?(\d+)\.(\d+)", text or "")
    return (int(found.group(1)), int(found.group(2))) if found else None


def bounds(result: Result, requirements: Iterable[str] = (), said: str | None = None) -> TorchBounds:
    """What the user said, else the widest bounds over all inputs, else the pins of requirement files."""
    if (told := parse(said)) is not None:
        return TorchBounds(told, told)
    known = [i.torch_version for i in result.inputs]
    lows = [parse(v.min) for v in known]
    highs = [parse(v.max) for v in known]
    low = min((v for v in lows if v), default=None) if lows and all(lows) else None
    high = max((v for v in highs if v), default=None) if highs and all(highs) else None
    if low is None and high is None:
        return pinned(requirements)
    return TorchBounds(low, high)


_PIN = re.compile(r"""^[\s\-"']*torch\s*(?P<op>==|>=|~=)\s*(?P<version>\d+\.\d+)""", re.MULTILINE)


def pinned(requirements: Iterable[str]) -> TorchBounds:
    """Bounds from `torch==2.9.1`, `torch>=2.4`, `torch~=2.4` lines of requirement files."""
    for text in requirements:
        for found in _PIN.finditer(text):
            version = parse(found.group("version"))
            return TorchBounds(version, version if found.group("op") == "==" else None)
    return TorchBounds()


def allocator_variable(torch: TorchBounds) -> str:
    """Name of the allocator's environment variable.

    PYTORCH_CUDA_ALLOC_CONF is read by every version (2.8 to 2.11 print a harmless warning); PYTORCH_ALLOC_CONF is
    ignored by 2.9.1, so it is used only from 2.12 on. Never both: versions differ in which one wins.
    """
    return "PYTORCH_ALLOC_CONF" if torch.at_least(2, 12) else "PYTORCH_CUDA_ALLOC_CONF"


_FUSED_SINCE: dict[str, Version] = {"Adam": (2, 0), "AdamW": (2, 0), "SGD": (2, 3)}


def has_fused(optimizer: str, torch: TorchBounds) -> bool:
    """Whether an optimizer of torch.optim takes `fused=True` on a GPU in every version that this can be.

    Adam had it in 1.13, AdamW in 2.0, SGD in 2.3; older ones raise TypeError for the keyword.
    """
    since = _FUSED_SINCE.get(optimizer.removeprefix("torch.optim."))
    return since is not None and (since == (2, 0) or torch.at_least(*since))
