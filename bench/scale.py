"""What a job of many ranks costs: makes the traces of a hybrid job with a slow rank, and times what reads them.

python bench/scale.py write JOB --tensor 8 --data 16 --slow 5:15     # 128 ranks, of which rank 5 computes 15% longer
python bench/scale.py time 32 64 128                                 # CPU seconds and memory of `analyze`
python bench/scale.py blame 512 4096       # of the verdict alone: one step of 640 collectives a rank
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from simulated_jobs.programs import Faults, hybrid
from simulated_jobs.traces import traces


def write_job(
    folder: Path, tensor: int, data: int, steps: int, layers: int, slow: dict[int, float], seed: int, pipeline: int = 1
) -> None:  # fmt: skip
    """The traces of `tensor` times `pipeline` times `data` ranks. `slow`: rank -> how many times as long its compute takes."""
    job = hybrid(
        tensor, pipeline, data, steps=steps, micro=max(1, 2 * (pipeline > 1)), layers=layers, seed=seed, faults=Faults(slow=slow)
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for rank, trace in enumerate(traces(job)):
        path = folder / f"rank{rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(trace.json().encode(), 1))


def cpu_seconds() -> float:
    """Of this process and of those that it started and has waited for."""
    return sum(os.times()[:4])


def time_job(world: int, layers: int) -> tuple[float, int]:
    """(CPU seconds with child processes, peak resident MB so far of this one) of `analyze` over a job of so many ranks."""
    from trace_doctor.api import analyze

    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), 8, world // 8, 5, layers, {5: 1.15}, 0)
        before = cpu_seconds()
        analyze(folder)
        return cpu_seconds() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def time_blame(world: int) -> tuple[float, float, int]:
    """(CPU seconds to make the model of one step, of the verdict over it, peak resident MB so far). Copies of a simulated job of 64 ranks
    stand side by side: only the number of rows counts here."""
    from simulated_jobs.columns import columns, side_by_side

    from trace_doctor.evidence.distributed.blame.model import model
    from trace_doctor.evidence.distributed.blame.verdicts import blame

    small = hybrid(8, 4, 2, steps=1, micro=16, layers=18, faults=Faults(slow={5: 1.15}))
    job = side_by_side(columns(small), world // 64)
    begun = time.process_time()
    made = model(job)
    modeled = time.process_time()
    blame(made)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return modeled - begun, time.process_time() - modeled, peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("folder", type=Path)
    write.add_argument("--tensor", type=int, default=8)
    write.add_argument("--data", type=int, default=16)
    write.add_argument("--pipeline", type=int, default=1)
    write.add_argument("--steps", type=int, default=5)
    write.add_argument("--layers", type=int, default=12)
    write.add_argument("--slow", action="append", default=[], help="RANK:PERCENT")
    write.add_argument("--seed", type=int, default=0)
    timed = commands.add_parser("time")
    timed.add_argument("ranks", type=int, nargs="+")
    timed.add_argument("--layers", type=int, default=4)
    blamed = commands.add_parser("blame")
    blamed.add_argument("ranks", type=int, nargs="+", help="multiples of 64")
    args = parser.parse_args()
    if args.command == "blame":
        for world in args.ranks:
            modeled, judged, megabytes = time_blame(world)
            print(f"{world} ranks: {modeled:.1f} + {judged:.1f} cpu s, {megabytes} MB", flush=True)
    elif args.command == "write":
        slow = {
            int(rank): 1 + float(percent) / 100 for rank, percent in (each.split(":") for each in args.slow)
        }
        write_job(
            args.folder, args.tensor, args.data, args.steps, args.layers, slow, args.seed, args.pipeline
        )
    else:
        for world in args.ranks:
            seconds, megabytes = time_job(world, args.layers)
            print(
                f"{world} ranks: {seconds:.1f} cpu s, {seconds / world * 1e3:.0f} ms a rank, {megabytes} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
