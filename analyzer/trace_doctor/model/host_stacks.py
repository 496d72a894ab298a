"""Where the host's time goes by Python stack: the tree a flame graph is drawn from."""

from __future__ import annotations

from msgspec import Struct, field

from trace_doctor.model.quantities import Count, Us


class Frame(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function below its caller; calls of one function by one caller are one frame."""

    name: str
    value: Us
    """time in it and in what it calls, us"""
    children: list[Frame] = field(default_factory=list)


class HostStacks(Struct, frozen=True, kw_only=True):
    """Of the main thread in the analyzed window."""

    root: Frame
    shown: Count
    of: Count
    """frames before the small ones were added up as "other" """
