"""Work that comes once in several steps, as a recording observed it."""

from __future__ import annotations

from typing import Self

from trace_doctor import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.recording.folder import PeriodicWork

_RECORD = "trace-doctor record --timing-steps 1000 --max-steps 1100 -- python train.py"
_TO_THE_END = ("script", "os._exit")


class ObservedWork(Evidence, frozen=True):
    """Raises NotCaptured where no recording timed the steps without the profiler, and where nothing came twice in one that did not
    reach the end of the script: what comes less often is not known."""

    work: PeriodicWork | None
    """None: nothing came twice in all steps of the script"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        record = facts.capture.record
        if record is None or not record.observed:
            raise NotCaptured("work between steps was not observed without the profiler", _RECORD)
        if record.periodic is None and record.ended not in _TO_THE_END:
            raise NotCaptured(
                "no work came twice in the recorded steps, and rarer work was not recorded", _RECORD
            )
        return cls(record.periodic)
