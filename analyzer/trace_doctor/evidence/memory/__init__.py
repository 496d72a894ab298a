"""Who holds the device's memory, since when and for what."""
