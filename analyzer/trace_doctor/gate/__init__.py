"""The gate: may this be merged, and did the fix help? Exit codes of DESIGN §8; 2 (nothing readable) is decided before."""

from trace_doctor.gate.baseline import Baseline
from trace_doctor.gate.decision import Terms, checked, decide, terms_of
from trace_doctor.gate.difference import difference
from trace_doctor.gate.suppressions import Suppressions
from trace_doctor.gate.verify import verify

__all__ = ["Baseline", "Suppressions", "Terms", "checked", "decide", "difference", "terms_of", "verify"]
