"""Attention that is written out: what it computes, and the call that computes the same."""
