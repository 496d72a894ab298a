"""Writes the captures of the GPU scenarios without a GPU: `python sample_traces/simulate`.

They come from trace_doctor.testing: a clock, streams that work in order and a small caching allocator. Files, lines
and the order of events are those of the scripts; sizes and times are round figures. They show what the analysis says
of such a run, not what a real GPU records: `capture.py` on a GPU machine does that.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import kernels
import script
import serving
import snapshots
import traces
from script import Script
from trace_doctor.testing import RunBuilder, SnapshotBuilder

HERE = script.SCENARIOS
SCENARIOS = (*traces.SCENARIOS, *snapshots.SCENARIOS, *kernels.SCENARIOS, *serving.SCENARIOS)


def write(scenario: Callable[[Script], RunBuilder | SnapshotBuilder], twin: str, folder: Path) -> Path:
    """One capture, gzipped: the name of its file says which kind it is."""
    built = scenario(Script(scenario.__name__, twin))
    name = "trace.json" if isinstance(built, RunBuilder) else "snapshot.pickle"
    plain = built.write(folder / name)
    packed = folder / f"{name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=9, mtime=0))
    plain.unlink()
    return packed


def main() -> None:
    for scenario in SCENARIOS:
        for twin in ("fault", "healthy"):
            folder = HERE / scenario.__name__ / "simulated" / twin
            folder.mkdir(parents=True, exist_ok=True)
            print(write(scenario, twin, folder).relative_to(HERE))


if __name__ == "__main__":
    main()
