"""When the device waits, and for what."""
