"""The events of a capture as columns, for the timeline of a page: bounded, so not always all of them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.quantities import Count, Us

EventKind = Literal["compute", "comm", "copy", "operator", "call", "annotation", "python", "profiler"]


class Track(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stream of a device, or a thread of the host. Each column has one value per event, by start, or is empty."""

    label: str
    device: int = -1
    """-1 is the host"""
    start: list[int] = field(default_factory=list)
    """ns from the start of the event before; of the first from the start of the window"""
    dur: list[Count] = field(default_factory=list)
    """ns"""
    name: list[Count] = field(default_factory=list)
    """position in `Events.names`"""
    depth: list[Count] = field(default_factory=list)
    """how many events of the track are around it; empty where none is in another"""
    launch: list[int] = field(default_factory=list)
    """number of the call that launched it, counted over all tracks in their order; -1 where none is shown"""
    operator: list[int] = field(default_factory=list)
    """position in `Events.names` of the operator that launched it, -1 where none is known"""
    stack: list[int] = field(default_factory=list)
    """position in `Events.stacks`, -1 where none was recorded"""
    of: Count
    """how many events the track has in the window"""


class Events(Struct, frozen=True, kw_only=True):
    """What ran in the analyzed window: all in the spans of findings, of the rest the longest; Python functions of libraries
    as far as there is room behind both."""

    start_us: float
    """start of the window on the clock of the file, which is that of `Finding.spans`"""
    epoch_us: float
    """the same moment on the clock of the host, which ranks of one host share"""
    clock_us: float | None = None
    """by how much that clock is ahead of the first rank's, as the ends of collectives show; None where they do not"""
    dur_us: Us
    names: list[str]
    kinds: list[EventKind]
    """of each name"""
    stacks: list[list[Count]]
    """user frames, innermost first, as positions in `names`"""
    tracks: list[Track]
    shown: Count
    of: Count
    accused_shown: Count
    """of the events in spans of findings"""
    accused_of: Count

    def __post_init__(self) -> None:
        """Raises ValueError for columns that do not fit together: a page may come from anywhere."""
        names = len(self.names)
        fits = len(self.kinds) == names and all(n < names for stack in self.stacks for n in stack)
        for track in self.tracks:
            count = len(track.start)
            optional = (track.depth, track.launch, track.operator, track.stack)
            fits &= len(track.dur) == count == len(track.name) and all(len(c) in (0, count) for c in optional)
            fits &= all(n < names for n in (*track.name, *track.operator))
            fits &= all(n < len(self.stacks) for n in track.stack) and all(
                d < MOST_DEPTH for d in track.depth
            )
        if not fits:
            raise ValueError("columns of events that do not fit together")


MOST_DEPTH = 64
"""Rows of a track"""
