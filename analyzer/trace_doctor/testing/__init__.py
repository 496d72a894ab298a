"""For rule authors: builders of small captures, and the cases a rule carries."""

from trace_doctor.testing.cases import Invalid, Valid, captures_of, claims_of, run_case
from trace_doctor.testing.flight_builder import FlightBuilder
from trace_doctor.testing.run_builder import RunBuilder, without_gpu
from trace_doctor.testing.snapshot_builder import GIB, KIB, MIB, SnapshotBuilder

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "FlightBuilder",
    "Invalid",
    "RunBuilder",
    "SnapshotBuilder",
    "Valid",
    "captures_of",
    "claims_of",
    "run_case",
    "without_gpu",
]
