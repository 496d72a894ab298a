"""A small model of PyTorch's caching allocator: segments from the driver, best-fit blocks, splitting and merging.

Sizes as in c10/cuda/CUDACachingAllocator.cpp: requests are rounded up to 512 bytes; up to 1 MiB they come from 2 MiB
segments, up to 10 MiB from 20 MiB segments, larger ones get a segment of their own, rounded up to 2 MiB. With expandable
segments there is one for small and one for large blocks, which grows at its end by 2 or 20 MiB at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
_ROUND, _SMALL, _MEDIUM = 512, MIB, 10 * MIB
_LARGE_AT = 0x7F80_0000_0000
"""Where the expandable segment of large blocks begins; that of small blocks lies below."""


@dataclass(eq=False)
class Block:
    addr: int
    size: int
    requested: int = 0
    active: bool = False
    frames: Any = None


@dataclass(eq=False)
class Segment:
    addr: int
    size: int
    kind: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def unused(self) -> bool:
        """Whether no block of it is active."""
        return not any(b.active for b in self.blocks)


class CachingAllocator:
    """Holds the segments of one device. Raises MemoryError above `limit` bytes."""

    def __init__(self, limit: int, *, expandable: bool = False) -> None:
        self.segments: list[Segment] = []
        self._limit, self._expandable = limit, expandable
        self._next_addr = 0x7F00_0000_0000

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return sum(s.size for s in self.segments)

    def malloc(self, requested: int) -> tuple[Block, Segment | None]:
        """A block, and the segment (or the piece of one) that had to be taken for it."""
        size = -(-requested // _ROUND) * _ROUND
        kind = "small" if size <= _SMALL else "large"
        fitting = [
            (b.size, b.addr, s, b)
            for s in self.segments
            if s.kind == kind
            for b in s.blocks
            if not b.active and b.size >= size
        ]
        taken = None
        if fitting:
            _, _, segment, block = min(fitting, key=lambda f: f[:2])
        else:
            segment, taken = self._grow(size, kind) if self._expandable else [self._segment(size, kind)] * 2
            block = segment.blocks[-1]
        if block.size - size >= (_ROUND if kind == "small" else _SMALL):
            rest = Block(block.addr + size, block.size - size)
            segment.blocks.insert(segment.blocks.index(block) + 1, rest)
            block.size = size
        block.active, block.requested = True, requested
        return block, taken

    def free(self, block: Block) -> None:
        """Frees a block. Raises ValueError where it is free already."""
        if not block.active:
            raise ValueError("this block is free already")
        block.active = False
        for segment in self.segments:
            if block in segment.blocks:
                segment.blocks = _merged(segment.blocks)

    def release_unused(self) -> list[Segment]:
        """Gives every segment without an active block back to the driver; of expandable ones too."""
        gone = [s for s in self.segments if s.unused]
        self.segments = [s for s in self.segments if not s.unused]
        return gone

    def _grow(self, size: int, kind: str) -> tuple[Segment, Segment]:
        """The expandable segment with a free block of the size at its end, and the piece it has grown by."""
        segment = next((s for s in self.segments if s.kind == kind), None)
        if segment is None:
            segment = Segment(_LARGE_AT if kind == "large" else self._next_addr, 0, kind)
            self.segments.append(segment)
        end = segment.addr + segment.size
        last = segment.blocks[-1] if segment.blocks and not segment.blocks[-1].active else None
        step = 2 * MIB if kind == "small" else 20 * MIB
        piece = -(-(size - (last.size if last else 0)) // step) * step
        self._check(piece)
        segment.size += piece
        segment.blocks = _merged([*segment.blocks, Block(end, piece)])
        return segment, Segment(end, piece, kind)

    def _check(self, total: int) -> None:
        if self.reserved + total > self._limit:
            raise MemoryError(f"{total} bytes asked, {self.reserved} of {self._limit} taken: use oom()")

    def _segment(self, size: int, kind: str) -> Segment:
        total = 2 * MIB if size <= _SMALL else 20 * MIB if size < _MEDIUM else -(-size // (2 * MIB)) * 2 * MIB
        self._check(total)
        made = Segment(self._next_addr, total, kind, [Block(self._next_addr, total)])
        self._next_addr += total
        self.segments.append(made)
        return made


def _merged(blocks: list[Block]) -> list[Block]:
    """Neighbouring free blocks become one."""
    kept: list[Block] = []
    for block in blocks:
        if kept and not kept[-1].active and not block.active:
            kept[-1] = Block(kept[-1].addr, kept[-1].size + block.size)
        else:
            kept.append(block)
    return kept
