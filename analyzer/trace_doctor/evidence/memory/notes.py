"""Texts that the program gave to its memory: with each allocation of a thread, or to one tensor later (torch 2.14)."""

from __future__ import annotations

import numpy as np

from trace_doctor.evidence.memory.timeline import DeviceHistory
from trace_doctor.snapshot import NO_NOTE, Action, Snapshot

_LONGEST = 200


def notes_of(snapshot: Snapshot, history: DeviceHistory) -> dict[int, str]:
    """Block of the history -> its texts, each once, in the order in which they were given."""
    if not len(snapshot.note):
        return {}
    note = snapshot.note[snapshot.entries(history.device)]
    given: dict[int, dict[str, None]] = {}
    recorded = np.flatnonzero(history.born >= 0)
    for block in recorded[note[history.born[recorded]] != NO_NOTE].tolist():
        given.setdefault(block, {})[snapshot.notes[note[history.born[block]]]] = None
    order = np.lexsort((history.born, history.addr))
    addresses = history.addr[order]
    for position in np.flatnonzero((history.action == Action.ANNOTATE) & (note != NO_NOTE)).tolist():
        low, high = (
            int(np.searchsorted(addresses, history.entry_addr[position], side)) for side in ("left", "right")
        )
        at = low + int(np.searchsorted(history.born[order[low:high]], position)) - 1
        if at >= low and history.freed[order[at]] >= position:
            given.setdefault(int(order[at]), {})[snapshot.notes[note[position]]] = None
    return {block: "; ".join(texts)[:_LONGEST] for block, texts in given.items()}
