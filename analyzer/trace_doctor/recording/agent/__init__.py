"""What runs inside the recorded process. Standard library, and torch once the script itself has imported it.

    bootstrap/   found by Python at start-up; waits for torch
    session      one per process: finds out whether this one is to be recorded, and records it
    steps        sees where steps end        losses   sees what backward() is called on
    recorder     one phase after the other   tracing, memory, timing   what a phase records
    ending       exceptions, signals, exit   status   what `rank<N>.recording.json` says

Whatever fails in here switches the recorder off and is written down; it never reaches the script.
"""
