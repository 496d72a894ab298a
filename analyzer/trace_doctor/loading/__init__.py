"""From files to captures in memory, in as many processes as pay."""

from trace_doctor.loading.captures import captures_of
from trace_doctor.loading.load_files import Loaded, LoadOptions, load_inputs

__all__ = ["LoadOptions", "Loaded", "captures_of", "load_inputs"]
