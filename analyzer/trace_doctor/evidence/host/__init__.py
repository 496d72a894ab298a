"""What the host does while the device waits."""
