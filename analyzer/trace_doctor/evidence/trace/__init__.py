"""How a trace is laid out: steps, threads, call trees, launches, who called."""
