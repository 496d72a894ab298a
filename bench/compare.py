"""Reads traces with trace-doctor and with its peers, each reading a process of its own, and writes a Markdown table.

    python bench/compare.py big.json --peer-python /path/to/peers/bin/python --repeats 3 --output table.md

What is counted is the whole process, interpreter start included: user and system seconds, wall clock, and the highest
memory in use. The readers take turns, so that a busy machine slows all of them; on a shared one only cpu seconds and
the ratios say something.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
from readers import READERS

SCRIPT = Path(__file__).with_name("readers.py")
POLL = 0.05
PAGE = os.sysconf("SC_PAGE_SIZE")
_ALIKE = {"OPENBLAS_NUM_THREADS": "1"}
"""For every reader: threads that NumPy's BLAS starts and nobody uses take 0.1 cpu seconds of a process."""


@dataclass(frozen=True)
class Measured:
    """One reading. `problem` is the last line it wrote when it failed."""

    cpu: float
    wall: float
    peak: float
    """bytes"""
    problem: str = ""


def measure(command: Sequence[str], limit: float) -> Measured:
    """Runs a process to its end (or kills it after `limit` seconds) and counts it and its children."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, env=os.environ | _ALIKE
    )  # fmt: skip
    watch = _Watch(process.pid, limit)
    watch.start()
    assert process.stderr is not None
    words = process.stderr.read().decode("utf-8", "replace").strip().splitlines()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    watch.done.set()
    watch.join()
    problem = "" if process.returncode == 0 else (words[-1] if words else f"exit {process.returncode}")
    if watch.expired:
        problem = f"stopped after {limit:.0f} s"
    cpu = used.ru_utime + used.ru_stime
    return Measured(cpu, time.perf_counter() - began, max(used.ru_maxrss * 1024, watch.peak), problem)


class _Watch(threading.Thread):
    """Adds up the memory of a process and its children while they run, and ends them at the time limit."""

    def __init__(self, pid: int, limit: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.limit = pid, limit
        self.peak, self.expired, self.done = 0, False, threading.Event()

    def run(self) -> None:
        end = time.monotonic() + self.limit
        while not self.done.wait(POLL):
            self.peak = max(self.peak, sum(map(_resident, _family(self.pid))))
            if time.monotonic() > end:
                self.expired = True
                os.killpg(self.pid, 9)
                return


def _family(pid: int) -> list[int]:
    found = [pid]
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in tasks.read_text().split():
                found += _family(int(child))
        except OSError:
            continue
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0


def warm(trace: Path) -> int:
    """Reads the file once, so that nobody pays for the disk. Gives its size before compression."""
    size = 0
    with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as file:
        while piece := file.read(1 << 22):
            size += len(piece)
    return size


def table(
    names: Sequence[str], found: dict[str, list[Measured]], versions: dict[str, str], gb: float
) -> list[str]:
    """The rows in Markdown. `gb`: the size of the trace, before compression."""
    lines = [
        "| reader | cpu s (least to most) | wall s | peak GB | **cpu s / GB** | peak GB / GB | cpu, first row = 1 | peak, first row = 1 |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    first = next((n for n in names if READERS[n].ours), "")
    ours = [m for m in found.get(first, []) if not m.problem]
    for name in names:
        title = f"{READERS[name].title} {versions.get(name, '')}".strip()
        runs = found.get(name)
        if not runs:
            lines.append(f"| {title} | not installed | | | | | | |")
            continue
        failed = next((m.problem for m in runs if m.problem), "")
        if failed:
            lines.append(f"| {title} | failed: {failed[:80].replace('|', '/')} | | | | | | |")
            continue
        cpu, wall, peak = (median(getattr(m, field) for m in runs) for field in ("cpu", "wall", "peak"))
        span = f"{cpu:.1f} ({min(m.cpu for m in runs):.1f}–{max(m.cpu for m in runs):.1f})"
        ratio = ["", ""]
        if ours:
            ratio = [f"{cpu / median(m.cpu for m in ours):.1f}", f"{peak / median(m.peak for m in ours):.1f}"]
        lines.append(
            f"| {title} | {span} | {wall:.1f} | {peak / 1e9:.2f} | **{cpu / gb:.1f}** | {peak / 1e9 / gb:.2f} "
            f"| {ratio[0]} | {ratio[1]} |"
        )
    return lines


def processor() -> str:
    """The processor's name as Linux gives it."""
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def installed(python: str) -> dict[str, str]:
    """Readers that an interpreter can run, with their versions."""
    found = subprocess.run([python, str(SCRIPT), "--installed"], capture_output=True, text=True, check=True)
    return dict(json.loads(found.stdout))


def compare(trace: Path, names: Sequence[str], peer: str, repeats: int, limit: float) -> list[str]:
    """All readings of one trace, and its section of the report."""
    bytes_, pickled = warm(trace), ".pickle" in trace.suffixes
    names = [n for n in names if READERS[n].snapshots == pickled]
    present = installed(peer)
    versions = present | {n: installed_version(n) for n in names if READERS[n].ours}
    found: dict[str, list[Measured]] = {}
    for turn in range(repeats):
        for name in names:
            if name not in versions or any(m.problem for m in found.get(name, [])):
                continue
            python = sys.executable if READERS[name].ours else peer
            one = measure([python, str(SCRIPT), name, str(trace.resolve())], limit)
            found.setdefault(name, []).append(one)
            said = one.problem or f"{one.cpu:.1f} cpu s, {one.wall:.1f} s, {one.peak / 1e9:.2f} GB"
            print(f"{trace.name} {turn + 1}/{repeats} {name}: {said}", file=sys.stderr, flush=True)
    packed = f", {trace.stat().st_size / 1e6:.0f} MB compressed" if trace.suffix == ".gz" else ""
    return [
        f"### `{trace.name}`: {bytes_ / 1e6:.0f} MB{packed}",
        "",
        *table(names, found, versions, bytes_ / 1e9),
        "",
    ]


def installed_version(name: str) -> str:
    return READERS[name].version()


def main() -> None:
    parser = argparse.ArgumentParser(description="trace-doctor and its peers on the same traces, as a table.")
    parser.add_argument(
        "traces", type=Path, nargs="+", help="traces to read, .json or .json.gz; snapshots, .pickle"
    )
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter where the peers are installed"
    )
    parser.add_argument("--repeats", type=int, default=3, help="how often each reader has its turn (3)")
    parser.add_argument("--only", help=f"readers, comma-separated: {', '.join(READERS)}")
    parser.add_argument(
        "--limit", type=float, default=1800, help="seconds after which a reader is stopped (1800)"
    )
    parser.add_argument("--output", type=Path, help="Markdown file to write (standard output)")
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(READERS)
    unknown = [n for n in names if n not in READERS]
    if unknown:
        parser.error(f"no such reader: {', '.join(unknown)}")
    report = [
        f"{processor()}, {os.cpu_count()} processors, Python {platform.python_version()}; "
        f"{'one turn' if args.repeats == 1 else f'median of {args.repeats} turns'}, whole processes. GB = 10⁹ bytes of JSON before compression.",
        "",
    ]
    for trace in args.traces:
        report += compare(trace, names, args.peer_python, args.repeats, args.limit)
        if args.output:
            args.output.write_text("\n".join(report), encoding="utf-8")
    if not args.output:
        print("\n".join(report))


if __name__ == "__main__":
    main()
