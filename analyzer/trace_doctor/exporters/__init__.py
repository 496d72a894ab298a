"""Captures written again for other tools."""
