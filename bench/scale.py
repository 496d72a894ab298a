"""What a job of many ranks costs: makes the traces of a hybrid job with a slow rank, and times what reads them.

    python bench/scale.py write JOB --tensor 8 --data 16 --slow 5:15     # 128 ranks, of which rank 5 computes 15% longer
    python bench/scale.py time 32 64 128                                 # CPU seconds and memory of `analyze`
    python bench/scale.py blame 512 4096                                 # of the verdict over a job, from columns, one step of 640 collectives a rank

Ranks of a tensor-parallel group meet twice in a layer, those that hold the same shard once per step and layer. A collective begins on each
rank as its compute is done, and ends on all when the last has come and the transfer is over.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

BASE_US = 1_700_000_000_000_000
KERNEL_US, TRANSFER_US, LAUNCH_US = 400.0, 60.0, 6.0
KERNELS = 3
"""of compute before each collective"""
NOISE = 0.015
LEAD_US = 800.0
"""the host launches this long before"""


class Rank:
    """One rank's clock and events."""

    def __init__(self, rank: int, world: int, slow: float, seed: int) -> None:
        self.rank, self.world, self.slow = rank, world, slow
        self.now = LEAD_US
        self.events: list[dict[str, Any]] = []
        self.correlation = 0
        self.sequence: dict[str, int] = {}
        self.random = random.Random(seed * 100_003 + rank)

    def compute(self) -> None:
        for _ in range(KERNELS):
            us = KERNEL_US / KERNELS * self.slow * max(0.1, self.random.gauss(1, NOISE))
            self._kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", self.now, us, {})
            self.now += us

    def collective(self, name: str, group: str, ranks: list[int], end: float, elements: int) -> None:
        number = self.sequence[group] = self.sequence.get(group, -1) + 1
        self._kernel(
            f"ncclDevKernel_{name}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", self.now, end - self.now,
            {"Collective name": name.lower(), "In msg nelems": elements, "Out msg nelems": elements,
             "Group size": len(ranks), "dtype": "BFloat16", "Seq": number, "Process Group Name": group,
             "Process Group Ranks": json.dumps(ranks)},
        )  # fmt: skip
        self.now = end

    def step(self, number: int, begin: float) -> None:
        self._event("user_annotation", f"ProfilerStep#{number}", begin - LEAD_US, self.now - begin, 1, {})

    def _kernel(self, name: str, ts: float, us: float, args: dict[str, Any]) -> None:
        self.correlation += 1
        link = {"correlation": self.correlation}
        self._event("cuda_runtime", "cudaLaunchKernel", ts - LEAD_US, LAUNCH_US, 1, link)
        self._event("kernel", name, ts, us, 7, {"device": 0, "stream": 7, **link, **args})

    def _event(self, cat: str, name: str, ts: float, us: float, tid: int, args: dict[str, Any]) -> None:
        pid = 0 if cat == "kernel" else 1000 + self.rank
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(BASE_US + ts, 3), "dur": round(us, 3), "args": args}
        )  # fmt: skip

    def write(self, folder: Path) -> None:
        trace = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 80 << 30, "computeMajor": 9, "computeMinor": 0, "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": self.world},
            "traceEvents": self.events,
        }  # fmt: skip
        path = folder / f"rank{self.rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def write_job(
    folder: Path, tensor: int, data: int, steps: int, layers: int, slow: dict[int, float], seed: int
) -> None:
    """The traces of `tensor` times `data` ranks. `slow`: rank -> how many times as long its compute takes."""
    world = tensor * data
    ranks = [Rank(n, world, slow.get(n, 1.0), seed) for n in range(world)]
    replicas = [list(range(first, first + tensor)) for first in range(0, world, tensor)]
    shards = [list(range(first, world, tensor)) for first in range(tensor)]
    for step in range(steps):
        begin = [rank.now for rank in ranks]
        for _ in range(2 * layers):
            for rank in ranks:
                rank.compute()
            for members in replicas:
                _meet(ranks, members, "AllReduce", f"tp{members[0]}", 1 << 22)
        for members in shards:
            for layer in range(layers):
                _meet(ranks, members, "ReduceScatter", f"dp{members[0]}", 1 << (20 + layer % 2))
        for rank, start in zip(ranks, begin, strict=True):
            rank.step(step, start)
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        rank.write(folder)


def _meet(ranks: list[Rank], members: list[int], name: str, group: str, elements: int) -> None:
    end = max(ranks[n].now for n in members) + TRANSFER_US
    for n in members:
        ranks[n].collective(name, group, members, end, elements)


def time_job(world: int, layers: int) -> tuple[float, int]:
    """(CPU seconds, peak resident MB so far) of `analyze` over a job of so many ranks."""
    from trace_doctor.api import analyze

    with tempfile.TemporaryDirectory() as folder:
        write_job(Path(folder), 8, world // 8, 5, layers, {5: 1.15}, 0)
        before = time.process_time()
        analyze(folder)
        return time.process_time() - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def time_blame(world: int) -> tuple[float, float, int]:
    """(CPU seconds to make the model of one step, of the verdict over it, peak resident MB so far). Copies of a simulated job of 64 ranks
    stand side by side: only the number of rows counts here."""
    from trace_doctor.evidence.distributed.blame.model import model
    from trace_doctor.evidence.distributed.blame.verdicts import blame
    from trace_doctor.testing.job_columns import columns, side_by_side
    from trace_doctor.testing.parallel_jobs import Faults, hybrid

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
        write_job(args.folder, args.tensor, args.data, args.steps, args.layers, slow, args.seed)
    else:
        for world in args.ranks:
            seconds, megabytes = time_job(world, args.layers)
            print(
                f"{world} ranks: {seconds:.1f} cpu s, {seconds / world * 1e3:.0f} ms a rank, {megabytes} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
