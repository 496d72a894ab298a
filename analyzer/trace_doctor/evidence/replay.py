"""What-if replay (stub while being built)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Removal:
    """What a fix takes out of a run, for the replay to leave out.

    `host_spans`: (thread, start ns, end ns) of host time that would not be spent any more.
    `make_async`: rows of blocking calls that would no longer wait.
    `gpu_rows`: rows of GPU operations that would not run.
    """

    host_spans: tuple[tuple[int, int, int], ...] = ()
    make_async: tuple[int, ...] = ()
    gpu_rows: tuple[int, ...] = ()

    def __or__(self, other: Removal) -> Removal:
        return Removal(
            tuple(sorted({*self.host_spans, *other.host_spans})),
            tuple(sorted({*self.make_async, *other.make_async})),
            tuple(sorted({*self.gpu_rows, *other.gpu_rows})),
        )
