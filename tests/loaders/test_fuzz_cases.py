"""The deterministic part of fuzzing: found cases, seeds, and a fixed series of damaged seeds (see tests/fuzz/loaders)."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

FUZZ = Path(__file__).parents[1] / "fuzz" / "loaders"
sys.path.insert(0, str(FUZZ))
import loader_oracle as oracle  # noqa: E402
import loader_seeds as seeds  # noqa: E402

sys.path.remove(str(FUZZ))

SEEDS: dict[str, Callable[[], list[bytes]]] = {"trace": seeds.traces, "snapshot": seeds.snapshots}


@pytest.mark.parametrize(
    "path", sorted(FUZZ.glob("cases/*/*")) or [None], ids=lambda p: p.name if p else "none"
)
def test_cases_found_before(path: Path | None) -> None:
    if path is not None:
        oracle.check(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("kind", oracle.KINDS)
def test_damaged_seeds(kind: str) -> None:
    """Cut anywhere, with wrong bytes, with pieces twice: columns or one line, never anything else, and columns that are
    the same in any windows."""
    chance = random.Random(3)
    for number, seed in enumerate(SEEDS[kind]()):
        oracle.check(kind, seed)
        for _ in range(12):
            data = bytearray(seed[: chance.randrange(len(seed))] if chance.random() < 0.4 else seed)
            for _ in range(chance.randrange(4)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            if data and chance.random() < 0.3:
                at = chance.randrange(len(data))
                data[at:at] = seed[at : at + chance.randrange(200)]
            oracle.capture(kind, bytes(data))
            if kind == "trace":
                oracle.windows(bytes(data))
        if number == 0:
            oracle.check(kind, bytes(data))
