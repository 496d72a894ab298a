"""Collective communication between ranks."""
