"""Runs the rules over captures and makes one Result: run → claims → findings → result."""

from trace_doctor.engine.result import diagnose

__all__ = ["diagnose"]
