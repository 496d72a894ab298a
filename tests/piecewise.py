"""A trace read in pieces of any size, with windows so small that a short text has many."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trace_doctor.loaders import _accelerator
from trace_doctor.loaders.kineto import events
from trace_doctor.loaders.kineto.decode import Columns
from trace_doctor.loaders.kineto.document import Document
from trace_doctor.loaders.kineto.events import EventList
from trace_doctor.loaders.kineto.window import Window
from trace_doctor.run import Damage

DECODERS = ["python", "c"] if _accelerator._load()[0] is not None else ["python"]


def cut_into(text: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in sizes:
        yield text[at : at + size]
        at += size
    yield text[at:]


def reading(
    text: bytes, sizes: list[int], decoder: str, most_unread: int = EventList.MOST_UNREAD
) -> dict[str, Any]:
    """All that is made of a text that comes in such pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_accelerator.VARIABLE, decoder)
        patch.setattr(Window, "LOOK_AHEAD", 1 << 10)
        patch.setattr(Window, "LONGEST", 1 << 14)
        patch.setattr(events, "NARROW", 1 << 7)
        patch.setattr(EventList, "MOST_UNREAD", most_unread)
        columns, damage = Columns(), Damage()
        document = Document((p for p in cut_into(text, sizes) if p), columns, damage)
        document.read()
    ids = {"name": list(columns.names), "cat": list(columns.cats), "track": list(columns.tracks)}
    return {
        **{key: column.tobytes() for key, column in columns.rows().items()},
        **{key: list(values) for key, values in ids.items()},
        "labels": (columns.labels, columns.processes),
        "around": (document.meta, document.keys, document.arrays),
        "damage": damage,
    }
