"""Files to begin fuzzing with: `python loader_seeds.py trace|snapshot FOLDER`."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
from pathlib import Path

from trace_doctor.testing import RunBuilder, SnapshotBuilder

SAMPLES = Path(__file__).parents[3] / "sample_traces"
EVENTS = 60


def traces() -> list[bytes]:
    """A simulated GPU run in several layouts, and the beginnings of the sample captures."""
    b = RunBuilder()
    for _ in range(2):
        with b.step():
            b.loader(300)
            with b.op("aten::mm"):
                b.launch(50, "gemm")
            b.copy(10)
            b.item()
            with b.optimizer_step():
                b.launch(5, "adam")
    whole = json.loads(b.json())
    found = [
        b.json().encode(),
        json.dumps(whole, separators=(",", ":")).encode(),
        json.dumps(whole, indent=1).encode(),
    ]
    found.append(json.dumps(whole["traceEvents"][:20]).encode())
    found.append(gzip.compress(found[0]))
    for path in sorted(SAMPLES.rglob("trace.json.gz"))[:8]:
        sample = json.loads(gzip.decompress(path.read_bytes()))
        events = sample["traceEvents"]
        sample["traceEvents"] = events[:: max(len(events) // EVENTS, 1)]
        found.append(json.dumps(sample, indent=2).encode())
    return found


def snapshots() -> list[bytes]:
    """A training of two small steps, in every protocol, and each layout."""
    b = SnapshotBuilder()
    b.train(1)
    data = b.data()
    found = [pickle.dumps(data, protocol) for protocol in range(6)]
    older = SnapshotBuilder(clock=False)
    older.train(1)
    found += [pickle.dumps(older.data()), pickle.dumps(data["segments"]), gzip.compress(found[4])]
    return found


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(traces() if kind == "trace" else snapshots()):
        (folder / f"seed_{number:02d}").write_bytes(content)
