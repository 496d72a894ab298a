"""The training program as syntax: its files, what names mean in them, where values come from. Nothing is executed."""
