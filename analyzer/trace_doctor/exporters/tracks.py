"""What is drawn beside a capture's own events: slices, markers and counters on named tracks. Times are ns of the capture's clock."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trace_doctor.arrays import I32, I64


class SliceKind(Struct, frozen=True):
    """What many slices share."""

    name: str
    args: Mapping[str, str]


class SliceTrack(Struct, frozen=True):
    """Slices of one track, which do not overlap: columns of one length."""

    name: str
    kinds: tuple[SliceKind, ...]
    kind: I32
    """place in `kinds` of each slice"""
    start: I64
    end: I64


class CounterTrack(Struct, frozen=True):
    """A number over time: columns of one length."""

    name: str
    ts: I64
    value: I64


class Tracks(Struct, frozen=True):
    """All that an analysis adds to one capture, but for its findings."""

    rank: int
    window: tuple[int, int]
    """[start, end) ns: findings without a moment of their own lie at its start"""
    slices: tuple[SliceTrack, ...]
    counters: tuple[CounterTrack, ...]
