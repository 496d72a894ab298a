"""From files to captures in memory: from the cache where it has them, else in as many processes as pay."""

from trace_doctor.loading.captures import captures_of
from trace_doctor.loading.inputs import Loaded, keep_evidence, load_inputs
from trace_doctor.loading.ways import Prefetch, Ways, ways

__all__ = ["Loaded", "Prefetch", "Ways", "captures_of", "keep_evidence", "load_inputs", "ways"]
