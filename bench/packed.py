"""What a trace costs as .json.gz beside the same trace as .json: readings in turns, whole processes, as a Markdown table.

    python bench/packed.py big.json --repeats 5
    python bench/packed.py big.json --ranks 4 --only analyze

The .gz is made in a temporary folder, at gzip's usual level; so are, with `--ranks`, the folders of so many copies.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from compare import SCRIPT, Measured, measure, warm
from readers import READERS

OURS = ("load", "analyze", "load-python", "analyze-python")


def measured(reader: str, files: list[Path], repeats: int, limit: float) -> list[list[Measured]]:
    """The readings of each file. Raises SystemExit where one fails."""
    found: list[list[Measured]] = [[] for _ in files]
    for turn in range(repeats):
        # each goes first as often: after a process that used less memory, a virtual machine must fetch more from its host
        for file, runs in list(zip(files, found, strict=True))[:: -1 if turn % 2 else 1]:
            one = measure([sys.executable, str(SCRIPT), reader, str(file)], limit)
            if one.problem:
                raise SystemExit(f"{reader} of {file.name}: {one.problem}")
            runs.append(one)
    return found


def row(reader: str, plain: list[Measured], packed: list[Measured]) -> str:
    cells = [READERS[reader].title]
    for field in ("cpu", "wall"):
        a, b = ([getattr(m, field) for m in runs] for runs in (plain, packed))
        cells.append(f"{median(a):.1f} ({min(a):.1f})")
        cells.append(f"{median(b):.1f} ({min(b):.1f})")
        cells.append(f"{median(b) / median(a):.2f} ({min(b) / min(a):.2f})")
    peaks = [max(m.peak for m in runs) / 1e9 for runs in (plain, packed)]
    cells.append(f"{peaks[0]:.2f} → {peaks[1]:.2f}")
    return "| " + " | ".join(cells) + " |"


def ranks(folder: Path, trace: Path, count: int) -> Path:
    """A folder with the trace of so many ranks, which are alike."""
    logs = folder / f"ranks{trace.suffix}"
    logs.mkdir()
    for rank in range(count):
        shutil.copy(trace, logs / f"rank{rank}.json{'.gz' if trace.suffix == '.gz' else ''}")
    return logs


def main() -> None:
    parser = argparse.ArgumentParser(description="A .json.gz beside the same .json.")
    parser.add_argument("trace", type=Path, help="a .json trace")
    parser.add_argument("--repeats", type=int, default=5, help="how often each has its turn (5)")
    parser.add_argument("--only", default=",".join(OURS), help="readers, comma-separated (%(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="read a folder of so many such traces (1)")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which one is stopped (600)")
    args = parser.parse_args()
    trace: Path = args.trace.resolve()
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder) / f"{trace.name}.gz"
        with trace.open("rb") as source, gzip.open(packed, "wb", 6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        size = warm(trace)
        print(
            f"{size / 1e6:.0f} MB, {packed.stat().st_size / 1e6:.0f} MB packed; median (least) of {args.repeats} turns\n"
        )
        print("| reader | cpu s | of .gz | ratio | wall s | of .gz | ratio | peak GB |")
        print("|---|--:|--:|--:|--:|--:|--:|--:|")
        read = [trace, packed]
        if args.ranks > 1:
            read = [ranks(Path(folder), file, args.ranks) for file in read]
        for reader in args.only.split(","):
            print(row(reader, *measured(reader, read, args.repeats, args.limit)), flush=True)


if __name__ == "__main__":
    main()
