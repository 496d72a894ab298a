"""When threads recorded a CUDA graph: what they launch then is written down, and the GPU gets none of it."""

from __future__ import annotations

from typing import Self

import numpy as np

from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.intervals import pairs
from trace_doctor.run import Cat, Run


class GraphCaptures(Evidence, frozen=True):
    """Aligned columns, one entry for each capture, by thread and start. Empty where none was recorded."""

    row: I64
    """the call that begins it"""
    thread: I32
    spans: I64
    """(n, 2) ns, from that call to the end of the one that ends it; of one thread they are disjoint"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run
        begins = run.named(lambda n: n.endswith("StreamBeginCapture"), Cat.RUNTIME, Cat.DRIVER)
        ends = run.named(lambda n: n.endswith("StreamEndCapture"), Cat.RUNTIME, Cat.DRIVER)
        rows, closing = [], []
        for thread in np.unique(run.thread[begins]).tolist():
            opened, closed = begins[run.thread[begins] == thread], ends[run.thread[ends] == thread]
            following = np.searchsorted(run.ts[closed], run.ts[opened])
            until = -1
            for begin, at in zip(opened.tolist(), following.tolist(), strict=True):
                if at < len(closed) and at != until:  # a second one within the first ends with it
                    rows.append(begin)
                    closing.append(int(closed[at]))
                    until = at
        row = np.array(rows, dtype=np.int64)
        return cls(row, run.thread[row], pairs(run.ts[row], run.end[np.array(closing, dtype=np.int64)]))

    def holds(self, rows: I64, run: Run) -> Bool:
        """Which of these rows, of any threads, were recorded into a graph."""
        inside = np.zeros(len(rows), dtype=bool)
        for (start, end), thread in zip(self.spans.tolist(), self.thread.tolist(), strict=True):
            inside |= (run.thread[rows] == thread) & (run.ts[rows] >= start) & (run.ts[rows] < end)
        return inside

    def on(self, thread: int) -> tuple[I64, I64]:
        """Those of a thread: a set of intervals, and the row of each."""
        mine = self.thread == thread
        return self.spans[mine], self.row[mine]
