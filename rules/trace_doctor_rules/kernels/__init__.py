"""Kernels: what the GPU computes, and whether it could do the same in less time."""
