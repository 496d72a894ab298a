"""How much of real steps no finding owns, over every capture below the folders (by default `../shared`) with two or more marked steps:

    python bench/accuracy/unowned.py [FOLDER ...]

One line a capture, the least explained first: the share without an owner (start-up counts as explained, as in the verdict), and its largest
stretches where it is a fifth or more.
"""

from __future__ import annotations

import sys
from pathlib import Path

from trace_doctor import analyze
from trace_doctor.errors import TraceDoctorError
from trace_doctor.model import Result, Unowned, unowned
from trace_doctor.reporters.diagnosis import UNOWNED_FROM, unexplained

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".json", ".json.gz")


def least_explained(result: Result) -> Unowned | None:
    """The device with the largest share without an owner; None without two marked steps."""
    marked = {
        (row.input, row.device) for row in result.time_ledger if row.phase == "steady" and row.steps >= 2
    }
    rows = [row for row in unowned(result.time_ledger, result.ownership) if (row.input, row.device) in marked]
    return max(rows, key=lambda row: sum(row.by_part.values()), default=None)


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]] or [ROOT.parent / "shared"]
    shares = []
    for path in sorted(p for folder in folders for p in folder.rglob("*") if p.name.endswith(SUFFIXES)):
        try:
            result = analyze(path)
        except TraceDoctorError:
            continue
        if (worst := least_explained(result)) is None:
            continue
        rest = sum(worst.by_part.values())
        blocks = [
            f"    {part}: {block.name or 'nothing recorded'}, {block.count}x, {block.total_us / steps:,.0f} us a step"
            for part, block, steps in (unexplained(result) if rest >= UNOWNED_FROM else [])[:3]
        ]
        codes = " ".join(sorted({f.code for f in result.findings}))
        shares.append((rest, "\n".join([f"{rest:5.0%}  {path.parent.name}/{path.name}  {codes}", *blocks])))
    for _, text in sorted(shares, key=lambda share: -share[0]):
        print(text)
    print(
        f"{sum(rest >= UNOWNED_FROM for rest, _ in shares)} of {len(shares)} captures: {UNOWNED_FROM:.0%} or more without an owner"
    )


if __name__ == "__main__":
    main()
