"""Jobs of many ranks with planted faults: their programs, the simulation, and what traces would show of it."""
