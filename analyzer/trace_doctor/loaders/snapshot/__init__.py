"""Pickles of the allocator: read without making a call, as columns."""
