"""What flight recorder dumps show: which collective did not end, and which rank did not come to it."""
