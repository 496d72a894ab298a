"""Treatment: fixes proven one by one on the user's own command, in a copy of the project."""

from __future__ import annotations

from trace_doctor.model.treatment import Treatment
from trace_doctor.treatment.options import TreatOptions
from trace_doctor.treatment.outcome import Treated
from trace_doctor.treatment.treat import treat

__all__ = ["TreatOptions", "Treated", "Treatment", "treat"]
