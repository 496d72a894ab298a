"""`Capture`: all that was recorded of one rank, which rules look at together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_doctor.flight_recorder import FlightDump
from trace_doctor.recording.folder import RankRecord
from trace_doctor.run import Run
from trace_doctor.snapshot import Snapshot


@dataclass(frozen=True)
class Capture:
    """What rules look at together: the trace and the snapshot of one rank, or one of the two.

    Of a recording they are the least disturbed trace and the snapshot that shows most; `further` is what else was
    recorded of the rank, and is asked where these two cannot tell.
    """

    rank: int
    run: Run | None = None
    snapshot: Snapshot | None = None
    torch_logs: tuple[Any, ...] = ()
    """compile evidence from TORCH_TRACE / tlparse files: `trace_doctor.loaders.torch_trace.CompileLog`"""
    flight: FlightDump | None = None
    """the newest collectives of the rank, as its flight recorder kept them"""
    further: tuple[Run | Snapshot, ...] = ()
    frames_from: str = ""
    """the trace of the same steps whose Python frames and input shapes were laid into `run`; "": all is its own"""
    step_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """phase of the recording -> milliseconds of its steps; in `timing` there is no profiler"""
    began_ns: int | None = None
    """the first moment that any trace or snapshot of the recording shows, in the clock of all (of the epoch)"""
    record: RankRecord | None = None
    """what the recording says of this rank"""
    warnings: tuple[str, ...] = ()
    """what the recording says of itself, of this rank or (with its first one) of all"""
    roles: Mapping[str, str] = field(default_factory=dict)
    """of a recording: path -> light, detailed, peak, boundary, oom or exception"""

    @property
    def others(self) -> tuple[Capture, ...]:
        """What else was recorded of the rank, each file for itself."""
        return tuple(
            Capture(self.rank, run=c, torch_logs=self.torch_logs)
            if isinstance(c, Run)
            else Capture(self.rank, snapshot=c)
            for c in self.further
        )

    @property
    def path(self) -> str:
        """The file as it was named: the trace, else the snapshot, else the dump; empty for none."""
        return next((c.path for c in (self.run, self.snapshot, self.flight) if c is not None), "")
