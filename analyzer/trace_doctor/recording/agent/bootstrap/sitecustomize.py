"""Python imports this at start-up in every process of a recorded command.

Any version of Python can read this file, so that one that is too old for the recorder is named and not just silent.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_LEAST = (3, 9)


def _tell():  # type: ignore[no-untyped-def]
    """Adds a line to what the processes of the command say, as `process_log.say` does."""
    import json

    folder = os.path.dirname(os.environ.get("TRACE_DOCTOR_RECORD", ""))
    versions = sys.version_info[:2] + _LEAST
    why = "Python %d.%d is too old: the recorder needs %d.%d or later" % versions  # noqa: UP031
    line = json.dumps({"pid": os.getpid(), "event": "too old", "why": why}) + "\n"
    number = os.open(os.path.join(folder, "processes.jsonl"), os.O_WRONLY | os.O_APPEND)
    os.write(number, line.encode("ascii"))
    os.close(number)


if sys.version_info >= _LEAST:
    import _trace_doctor_start  # type: ignore[import-not-found] # noqa: F401
else:
    try:  # noqa: SIM105
        _tell()  # type: ignore[no-untyped-call]
    except Exception:
        pass
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
    _own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _own
