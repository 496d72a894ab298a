"""The gate: may this be merged, and did the fix help? Exit codes of DESIGN §8; 2 (nothing readable) is decided before."""

from trace_doctor.gate.decision import Decision, decide
from trace_doctor.gate.verify import verify

__all__ = ["Decision", "decide", "verify"]
