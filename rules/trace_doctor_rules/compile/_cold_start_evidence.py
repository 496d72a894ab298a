"""Module classes of which a model has several instances: its repeated blocks."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Self

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.run import Cat

_MODULE = re.compile(r"nn\.Module: (\w+)_(\d+)")
_BUILDING = re.compile(
    r"(?:Linear|Conv\w*|\w*Norm\w*|Dropout\w*|Embedding|ReLU\w*|GELU|SiLU|Tanh|Sigmoid|Identity|Softmax|\w*Activation"
    r"|Sequential|ModuleList|ModuleDict|\w*Pool\w*|\w*Pool|Flatten|Upsample|MultiheadAttention)"
)
_WHOLE = re.compile(r"Layer|Block")
"""what the classes of whole blocks are called, beside the attention and the MLP inside them"""


class RepeatedBlocks(Evidence, frozen=True):
    """Raises NotCaptured without modules in the stacks."""

    classes: tuple[tuple[str, int], ...]
    """(class, instances) without the layers of torch.nn; whole blocks first, then by number"""

    def largest(self, least: int) -> tuple[str, int] | None:
        """The class to compile by, with at least so many instances; None where nothing repeats."""
        return next((c for c in self.classes if c[1] >= least), None)

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        visited: dict[str, set[str]] = defaultdict(set)
        for name in run.names:
            if match := _MODULE.fullmatch(name):
                visited[match.group(1)].add(match.group(2))
        if not visited or not run.is_cat(Cat.PYTHON).any():
            raise NotCaptured("modules not recorded", "profile(with_stack=True)")
        blocks = [(k, len(v)) for k, v in visited.items() if not _BUILDING.fullmatch(k)]
        return cls(tuple(sorted(blocks, key=lambda b: (_WHOLE.search(b[0]) is None, -b[1], b[0]))))
