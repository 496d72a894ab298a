"""A real job of several process groups on one machine, with a slow rank: does TD602 name it, and with the time that it costs?

python bench/real_job.py --slow 5 --ms 20        # tensor 2 x pipeline 2 x data 2: eight processes that meet by gloo

Three runs: with the slow rank and without it, which are only timed, and with it under `trace-doctor record`. Rank = (stage * 2 + replica)
* 2 + shard. The slow rank sleeps in the forward pass of each of two micro-batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS, WARM_UP, MICRO, WIDTH = 60, 10, 2, 192


def train(slow: int, seconds: float) -> None:
    """One rank. Rank 0 prints the median step in ms."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage, replica, shard = rank // 4, rank // 2 % 2, rank % 2
    peer = rank ^ 4
    tensor = [dist.new_group([2 * n, 2 * n + 1]) for n in range(4)][rank // 2]
    data = [dist.new_group([4 * s + t, 4 * s + 2 + t]) for s in range(2) for t in range(2)][2 * stage + shard]
    pipeline = [dist.new_group([n, n + 4]) for n in range(4)][rank % 4]
    layer = torch.nn.Linear(WIDTH, WIDTH)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    batch = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(replica))
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        for _ in range(MICRO):
            inputs = batch.clone()
            if stage == 1:
                dist.recv(inputs, peer, group=pipeline)
            inputs.requires_grad_()
            if rank == slow:
                time.sleep(seconds)
            outputs = layer(inputs)
            dist.all_reduce(outputs.detach(), group=tensor)
            gradient = torch.ones_like(outputs)
            if stage == 0:
                dist.send(outputs.detach(), peer, group=pipeline)
                dist.recv(gradient, peer, group=pipeline)
            outputs.backward(gradient)
            assert inputs.grad is not None
            dist.all_reduce(inputs.grad, group=tensor)
            if stage == 1:
                dist.send(inputs.grad, peer, group=pipeline)
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        times.append(time.perf_counter() - began)
    if rank == 0:
        print(f"median step: {statistics.median(times[WARM_UP:]) * 1e3:.1f} ms", flush=True)
    dist.destroy_process_group()


def launched(slow: int, ms: float) -> list[str]:
    """The command line of the job. `slow`: -1 for no slow rank."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8"]
    return [*launcher, __file__, "--rank-of-job", "--slow", str(slow), "--ms", str(ms)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slow", type=int, default=5, help="the rank")
    parser.add_argument(
        "--ms", type=float, default=20.0, help="that it sleeps for in each of two micro-batches"
    )
    parser.add_argument("--out", type=Path, help="where the recording stays")
    parser.add_argument("--rank-of-job", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_of_job:
        train(args.slow, args.ms / 1e3)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    for slow in (-1, args.slow):
        done = subprocess.run(launched(slow, args.ms), stdout=subprocess.PIPE, text=True, check=True)
        print("no slow rank:" if slow < 0 else f"rank {slow} sleeps:", done.stdout.strip(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = args.out or Path(folder)
        own = [sys.executable, "-m", "trace_doctor"]
        record = [
            *own,
            "record",
            "--no-stacks",
            "--max-steps",
            "12",
            "--timing-steps",
            "5",
            "--out",
            str(out),
            "--",
        ]
        subprocess.run([*record, *launched(args.slow, args.ms)], stdout=subprocess.DEVNULL, check=True)
        [recording] = [path for path in out.iterdir() if path.is_dir()]
        subprocess.run([*own, "analyze", str(recording), "--select", "TD602,TD606", "-q"], check=False)


if __name__ == "__main__":
    main()
