"""One module for each command, by its name."""
