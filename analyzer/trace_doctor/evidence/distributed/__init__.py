"""What ranks do together, and who waits for whom."""
