"""The gate: may this be merged? Exit codes of DESIGN §8; 2 (nothing readable) is decided before."""

from trace_doctor.gate.decision import Decision, decide

__all__ = ["Decision", "decide"]
