"""What each stream of a device did in the window: the strips below its lane in a report."""

from __future__ import annotations

import numpy as np

from trace_doctor.arrays import I64, U8
from trace_doctor.evidence.intervals import NOTHING, complement, pairs, subtract, total, union
from trace_doctor.evidence.trace.gpu_timeline import GpuTimeline
from trace_doctor.evidence.trace.segments import WORK, joined, reduced
from trace_doctor.model import Segment, Strip

MAX_STRIPS = 6
MAX_IN_STRIP = 120
_FREE = len(WORK)
"""the kind of a moment in which the stream does nothing"""


def strips(timeline: GpuTimeline, device: int, most: int = MAX_IN_STRIP) -> tuple[list[Strip], int]:
    """The MAX_STRIPS busiest streams in the order of their numbers, with about `most` segments each, and how many streams
    worked at all. No strip where one stream did everything: the lane of the device is that stream.
    """
    run, rows = timeline.run, timeline.rows(device)
    streams, which = np.unique(run.stream[rows], return_inverse=True)
    if len(streams) < 2:
        return [], len(streams)
    kind = timeline.kind[np.searchsorted(run.gpu, rows)]
    spans = np.clip(pairs(run.ts[rows], run.end[rows]), *timeline.window)
    work = np.bincount(which, weights=spans[:, 1] - spans[:, 0])
    busiest = np.sort(np.argsort(-work, kind="stable")[:MAX_STRIPS])
    rendered = []
    for n in busiest.tolist():
        of_stream = which == n
        rendered.append(strip_of(int(streams[n]), spans[of_stream], kind[of_stream], timeline.window, most))
    return rendered, len(streams)


def strip_of(stream: int, spans: I64, kind: U8, window: tuple[int, int], most: int) -> Strip:
    """Work that overlaps within a stream counts once: as compute before communication before copies."""
    parts, done = [], NOTHING
    for k in range(len(WORK)):
        part = subtract(union(spans[kind == k]), done)
        parts.append(part)
        done = union(np.concatenate([done, part]))
    parts.append(complement(done, *window))
    pieces = np.concatenate(parts)
    kinds = np.repeat(np.arange(len(parts), dtype=np.uint8), [len(p) for p in parts])
    order = np.argsort(pieces[:, 0], kind="stable")
    pieces, kinds = joined(pieces[order], kinds[order])
    whole = int((kinds != _FREE).sum())
    pieces, kinds = reduced(pieces, kinds, window, most)
    working = kinds != _FREE
    return Strip(
        stream=stream,
        busy_us=total(done) / 1000.0,
        segments=[
            Segment((a - window[0]) / 1000.0, (b - a) / 1000.0, WORK[k])
            for (a, b), k in zip(pieces[working].tolist(), kinds[working].tolist(), strict=True)
        ],
        shown=int(working.sum()),
        of=whole,
    )
