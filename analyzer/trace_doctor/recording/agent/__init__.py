"""What runs inside the recorded process. Standard library, and torch once the script itself has imported it.

    bootstrap/   found by Python at start-up; `waiting` for torch to be imported
    session      one per process: finds out whether this one is to be recorded, and records it
    steps        sees where steps end          losses     sees what backward() is called on
    patches      torch's functions, replaced   unseen     calls that torch.compile does not see
    recorder     one phase after the other     tracing, memory, timing     what a phase records
    home         one thread, known again
    ranks        the same phases on all        status     what `rank<N>.recording.json` says
    ending       exceptions, signals, exit

Whatever fails in here switches the recorder off and is written down; it never reaches the script.
"""
