"""Captures of processes that run already, started from outside."""
