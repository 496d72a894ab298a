"""What the step would take without something: the captured step, re-timed."""
