"""By how much the clocks of ranks differ, as collectives show that end on all of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from trace_doctor.evidence.distributed.collectives import Collectives, Key, kind_of
from trace_doctor.evidence.rank_summary import RankSummary

_ENDING_TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""collectives that no rank leaves before it has something of every other: they end on all within some 10 us"""
SPREAD = 0.25
"""of the distance of collectives: where the differences of their ends scatter by less around the median, that is by how much the
clocks differ"""
LEAST_NUMBERED = 4
"""collectives of two ranks with one number: fewer do not show that they scatter little"""


def clock_offsets(members: list[RankSummary]) -> tuple[int | None, ...]:
    """By how much the clock of each rank is ahead of the first's, ns; of one that shares no collectives with the first, by way
    of others."""
    ends = [_numbered_ends(summary[Collectives]) for summary in members]
    taking: dict[Key, list[int]] = {}
    for i, own in enumerate(ends):
        for key in dict.fromkeys(key for key, _ in own):
            taking.setdefault(key, []).append(i)
    clocks: list[int | None] = [0, *([None] * (len(members) - 1))]
    reached = [(0, 0)]
    for by, clock in reached:
        for i in sorted({i for key in dict.fromkeys(key for key, _ in ends[by]) for i in taking[key]}):
            if clocks[i] is None and (ahead := _clock_ahead(ends[by], ends[i])) is not None:
                clocks[i] = clock + ahead
                reached.append((i, clock + ahead))
    return tuple(clocks)


def _numbered_ends(own: Collectives) -> dict[tuple[Key, int], int]:
    """When those ended that have a number and end on all ranks together."""
    together = {key for key in set(own.keys) if kind_of(key[0]) in _ENDING_TOGETHER}
    numbered = list(zip(own.keys, own.sequence.tolist(), strict=True))
    counts = Counter(numbered)
    return {
        each: end
        for each, end in zip(numbered, own.end.tolist(), strict=True)
        if each[1] >= 0 and each[0] in together and counts[each] == 1
    }


def _clock_ahead(one: Mapping[tuple[Key, int], int], other: Mapping[tuple[Key, int], int]) -> int | None:
    """By how much the clock of `other` is ahead, ns; None where what they have in common does not tell."""
    common = [(end, other[each]) for each, end in one.items() if each in other]
    if len(common) < LEAST_NUMBERED:
        return None
    ends = np.sort(np.array(common, dtype=np.int64), axis=0)[:, 0]
    differences = np.array([b - a for a, b in common], dtype=np.int64)
    ahead = float(np.median(differences))
    spread = float(np.median(np.abs(differences - ahead)))
    return round(ahead) if spread <= SPREAD * float(np.median(np.diff(ends))) else None
