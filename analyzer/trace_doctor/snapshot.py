"""`Snapshot`: one allocator snapshot as columns (being built)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Snapshot:
    path: str
    rank: int = 0
