"""Perfetto traces as torch 2.14 and later write them (`.pftrace`): the same events as in JSON, but for what the format lacks."""

MARK = "perfettoTrace"
"""field of the JSON text that says of what file it was made"""
