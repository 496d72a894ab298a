"""Traces of torch.profiler: bytes to columns."""
