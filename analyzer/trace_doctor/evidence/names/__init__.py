"""What names of events, kernels and frames mean."""
