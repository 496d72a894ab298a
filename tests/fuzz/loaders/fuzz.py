"""Coverage-guided fuzzing: `python fuzz.py trace|snapshot CORPUS [libFuzzer options]`, with atheris installed."""

from __future__ import annotations

import os
import resource
import sys
import zlib
from pathlib import Path

os.environ["TRACE_DOCTOR_DECODER"] = "python"
sys.path.append(str(Path(__file__).parents[2]))

import atheris

with atheris.instrument_imports(
    include=["trace_doctor.loaders", "trace_doctor.evidence", "trace_doctor.engine"]
):
    import loader_oracle as oracle

EVERY = 32
"""Of the inputs that load, one in so many is diagnosed, too: that takes a hundred times as long as loading. Of traces, half are
read in small windows instead."""


def one_input(data: bytes) -> None:
    turn = zlib.crc32(data) % EVERY
    if not turn:
        oracle.check(KIND, data)
    elif turn % 2 and KIND == "trace":
        oracle.windows(data)
    else:
        oracle.capture(KIND, data)


resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
KIND = sys.argv.pop(1)
assert KIND in oracle.KINDS
atheris.Setup(sys.argv, one_input)
atheris.Fuzz()
