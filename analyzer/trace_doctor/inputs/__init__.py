"""The captures of an analysis, and what it asks each of them: all in memory, or one after the other in child processes.

`Held` keeps a few captures. `Streamed` reads each capture group in a process, takes an `Examination` of it and drops it;
what is asked again of a capture, once all findings are known, reads it again.
"""
