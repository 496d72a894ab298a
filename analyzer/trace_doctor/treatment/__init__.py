"""Treatment: fixes proven one by one on the user's own command, in a copy of the project."""

from __future__ import annotations

from trace_doctor.treatment.outcome import Treatment
from trace_doctor.treatment.treat import Treated, TreatOptions, treat

__all__ = ["TreatOptions", "Treated", "Treatment", "treat"]
