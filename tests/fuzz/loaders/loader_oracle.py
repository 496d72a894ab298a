"""What any bytes may do to the loaders and to an analysis of what they loaded: `check(kind, data)` asserts it.

A loader returns columns or raises an error of ours with a one-line message; a diagnosis of the columns gives a result
in which no rule fails, and every format of it can be written. `windows(data)`: a trace is read alike in any pieces.
"""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

from piecewise import DECODERS, reading

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.errors import TraceDoctorError
from trace_doctor.evidence.base import Options
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.snapshot.unpickle import read_snapshot
from trace_doctor.registry import choose
from trace_doctor.reporters import render

KINDS = ("trace", "snapshot")
MEMORY = 512 << 20


def capture(kind: str, data: bytes) -> Capture | None:
    """What the loader makes of the bytes; None where it refuses them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x"
        path.write_bytes(data)
        try:
            if kind == "snapshot":
                return Capture(0, snapshot=read_snapshot(path, "x.pickle"))
            run = load_trace(path, "x.json", max_memory=MEMORY)
            run.args(range(min(len(run), 100)))
        except MemoryError:
            if kind == "snapshot":  # in the product a child process runs out of it, and that is said
                return None
            raise
        except TraceDoctorError as refusal:
            assert "\n" not in str(refusal)
            assert len(str(refusal)) < 1000
            return None
        assert (run.dur >= 0).all()
        return Capture(0, run)


def windows(data: bytes) -> None:
    """What is made of a trace does not depend on the pieces that it comes in, nor on the decoder."""
    sizes = [1 + zlib.crc32(data[n:]) % 3000 for n in range(min(len(data), 20))]
    most_unread = zlib.crc32(data) % 99
    whole = reading(data, [], "python", most_unread)
    for decoder in DECODERS:
        assert reading(data, sizes, decoder, most_unread) == whole


def check(kind: str, data: bytes) -> None:
    """Raises whatever the product would have shown as an internal error."""
    found = capture(kind, data)
    if found is None:
        return
    result = diagnose([found], choose(), defaults(), Options())
    failed = [o for o in result.outcomes if o.outcome == "error"]
    assert not failed, failed
    for form in ("text", "json", "html"):
        render(result, form).encode("utf-8", "surrogateescape")
