"""Makes a large memory snapshot out of a small one: its entries again and again, later each time.

    python bench/amplify_snapshot.py small.pickle.gz big.pickle --entries 1000000

For timing loaders only: addresses repeat, so no history follows from it. As in what torch writes, entries share their
stacks, and each has a dict of its own.
"""

from __future__ import annotations

import argparse
import gzip
import pickle
from itertools import count, islice
from pathlib import Path
from typing import Any


def amplified(snapshot: dict[str, Any], entries: int) -> dict[str, Any]:
    """The snapshot with this many entries on its first device."""
    small = snapshot["device_traces"][0]
    period = small[-1]["time_us"] - small[0]["time_us"] + 1
    many = (dict(e, time_us=e["time_us"] + k * period) for k in count() for e in small)
    return snapshot | {"device_traces": [list(islice(many, entries)), *snapshot["device_traces"][1:]]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a large memory snapshot out of a small one.")
    parser.add_argument("source", type=Path, help="a snapshot you trust: it is unpickled")
    parser.add_argument("target", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000)
    args = parser.parse_args()
    data = args.source.read_bytes()
    small = pickle.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    args.target.write_bytes(pickle.dumps(amplified(small, args.entries), protocol=2))


if __name__ == "__main__":
    main()
