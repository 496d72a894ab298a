"""Programs of jobs with several process groups, with faults to plant: tensor × pipeline × data parallelism and others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from simulated_jobs.simulation import Await, Communicate, Mark, Operation, Timeline, Work, simulate

US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Faults:
    """What is wrong with a job."""

    slow: dict[int, float] = field(default_factory=dict)
    """rank -> how many times as long its compute takes"""
    stages: dict[int, float] = field(default_factory=dict)
    """the same for a pipeline stage"""
    links: dict[str, float] = field(default_factory=dict)
    """name of a group -> how many times as long its transfers take"""
    loading: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """rank -> ns of data loading, and the steps in which it takes them"""
    sequences: float = 0.0
    """standard deviation of the work of a micro-batch, as a share"""


@dataclass(frozen=True)
class Job:
    """A simulated job."""

    timelines: list[Timeline]
    groups: list[tuple[int, ...]]
    names: list[str]
    world: int

    @property
    def step_ns(self) -> float:
        """Mean step from the start to the last rank's end."""
        return max(t.steps[-1] for t in self.timelines) / len(self.timelines[0].steps)


@dataclass
class Builder:
    """Programs under construction: who computes what, and who meets whom."""

    world: int
    noise: float
    seed: int
    faults: Faults
    programs: list[list[Operation]] = field(init=False)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _place: dict[str, int] = field(default_factory=dict)
    _seq: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.programs = [[] for _ in range(self.world)]
        self._random = [random.Random(self.seed * 100_003 + rank) for rank in range(self.world)]

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        """The group of this name, made at its first use."""
        if name not in self._place:
            self._place[name] = len(self.groups)
            self.groups.append(ranks)
            self.names.append(name)
        return self._place[name]

    def work(self, rank: int, ns: float, part: str = "compute") -> None:
        """Own time, with noise; compute with the rank's fault."""
        noise = max(0.1, self._random[rank].gauss(1, self.noise))
        slow = self.faults.slow.get(rank, 1.0) if part == "compute" else 1.0
        self.programs[rank].append(Work(round(ns * noise * slow), part))

    def meet(self, rank: int, group: int, kind: str, transfer: float, size: int, *, wait: bool = True, stream: int = 0) -> Await:  # fmt: skip
        """The rank's part of the next collective of a group; returns what waits for it."""
        seq = self._seq[rank, group] = self._seq.get((rank, group), -1) + 1
        factor = self.faults.links.get(self.names[group], 1.0)
        self.programs[rank].append(
            Communicate(group, kind, seq, round(transfer * factor), size, wait, stream)
        )
        return Await(group, seq)

    def end_step(self, rank: int) -> None:
        """Marks the end of a step."""
        self.programs[rank].append(Mark())

    def job(self) -> Job:
        """The simulation."""
        return Job(simulate(self.programs, self.groups), self.groups, self.names, self.world)


def hybrid(
    tensor: int = 4, pipeline: int = 2, data: int = 4, *, steps: int = 5, micro: int = 4, layers: int = 2,
    noise: float = 0.015, seed: int = 0, faults: Faults | None = None, compute: float = 2 * MS,
    embedding: bool = False, everyone: int = 0, hidden: int | None = None,
) -> Job:  # fmt: skip
    """Tensor × pipeline × data, 1F1B. Rank = (stage × data + replica) × tensor + shard. `embedding`: first and last stage share it.
    `everyone`: all-reduces of all ranks at the begin of a step. `hidden`: this rank takes 20 ms longer at the begin of each step, and all
    meet then in a group named `hidden`."""
    faults = faults or Faults()
    b = Builder(tensor * pipeline * data, noise, seed, faults)
    lengths = random.Random(seed + 7)
    for step in range(steps):
        factor = {
            (replica, m): max(0.2, lengths.gauss(1, faults.sequences))
            for replica in range(data)
            for m in range(micro)
        }
        for stage in range(pipeline):
            for replica in range(data):
                for shard in range(tensor):
                    rank = (stage * data + replica) * tensor + shard
                    if hidden is not None:
                        b.work(rank, 20 * MS if rank == hidden else 0)
                        b.meet(rank, b.group("hidden", tuple(range(b.world))), "all-reduce", 20 * US, 1)
                    for _ in range(everyone):
                        b.meet(rank, b.group("world", tuple(range(b.world))), "all-reduce", 20 * US, 1)
                    _hybrid_step(b, (stage, replica, shard), (tensor, pipeline, data), step, micro, layers, compute, factor)  # fmt: skip
                    if embedding and stage in (0, pipeline - 1):
                        ends = tuple((s * data + replica) * tensor + shard for s in (0, pipeline - 1))
                        tied = b.group(f"embedding{replica}.{shard}", ends)
                        b.meet(rank, tied, "all-reduce", 100 * US, 1 << 20)
                    b.end_step(rank)
    return b.job()


def _hybrid_step(
    b: Builder, place: tuple[int, int, int], shape: tuple[int, int, int], step: int, micro: int,
    layers: int, compute: float, factor: dict[tuple[int, int], float],
) -> None:  # fmt: skip
    (stage, replica, shard), (tensor, pipeline, data) = place, shape

    def number(stage: int, replica: int, shard: int) -> int:
        return (stage * data + replica) * tensor + shard

    rank = number(*place)
    tp = b.group(f"tp{stage}.{replica}", tuple(number(stage, replica, s) for s in range(tensor)))
    dp = b.group(f"dp{stage}.{shard}", tuple(number(stage, r, shard) for r in range(data)))

    def link(first: int, way: str) -> int:
        ends = number(first, replica, shard), number(first + 1, replica, shard)
        return b.group(f"p2p-{way}{first}.{replica}.{shard}", ends)

    def run(m: int, times: float) -> None:
        for _ in range(layers):
            b.work(rank, times * compute / layers * factor[replica, m] * b.faults.stages.get(stage, 1.0))
            b.meet(rank, tp, "all-reduce", 60 * US, 1 << 22)

    def forward(m: int) -> None:
        if stage:
            b.meet(rank, link(stage - 1, "f"), "receive", 40 * US, 1 << 20, stream=1)
        run(m, 1.0)
        if stage < pipeline - 1:
            b.meet(rank, link(stage, "f"), "send", 40 * US, 1 << 20, wait=False, stream=2)

    def backward(m: int) -> None:
        if stage < pipeline - 1:
            b.meet(rank, link(stage, "b"), "receive", 40 * US, 1 << 20, stream=3)
        run(m, 2.0)
        if stage:
            b.meet(rank, link(stage - 1, "b"), "send", 40 * US, 1 << 20, wait=False, stream=4)

    ns, when = b.faults.loading.get(rank, (0, ()))
    b.work(rank, 100 * US + (ns if step in when else 0), "data loading")
    ahead = min(pipeline - stage - 1, micro)
    for m in range(ahead):
        forward(m)
    for m in range(ahead, micro):
        forward(m)
        backward(m - ahead)
    for m in range(micro - ahead, micro):
        backward(m)
    for layer in range(2):
        b.meet(rank, dp, "reduce-scatter", 400 * US, 1 << (24 + layer))
    b.work(rank, 300 * US)


def fsdp(
    world: int = 16, replicas: int = 2, *, steps: int = 5, layers: int = 6, noise: float = 0.02,
    seed: int = 0, faults: Faults | None = None,
) -> Job:  # fmt: skip
    """Hybrid sharding: all-gathers are prefetched and reduce-scatters overlap with compute; shards meet their copies last."""
    b = Builder(world, noise, seed, faults or Faults())
    size = world // replicas
    for _ in range(steps):
        for rank in range(world):
            first = rank // size * size
            shard = b.group(f"shard{first}", tuple(range(first, first + size)))
            copies = b.group(f"copies{rank % size}", tuple(range(rank % size, world, size)))
            gathered = b.meet(rank, shard, "all-gather", 500 * US, 1 << 24, wait=False)
            for layer in range(2 * layers):
                b.programs[rank].append(gathered)
                if layer < 2 * layers - 1:
                    gathered = b.meet(rank, shard, "all-gather", 500 * US, 1 << 24, wait=False)
                b.work(rank, (1 if layer < layers else 2) * 2 * MS)
                if layer >= layers:
                    b.meet(rank, shard, "reduce-scatter", 600 * US, 1 << 24, wait=False)
                    reduced = b.meet(rank, copies, "all-reduce", 300 * US, 1 << 22, wait=False)
            b.programs[rank].append(reduced)
            b.work(rank, 1 * MS)
            b.end_step(rank)
    return b.job()


def experts(
    world: int = 16, experts_of: int = 4, *, steps: int = 5, layers: int = 6, noise: float = 0.02, seed: int = 0,
    routing: float = 0.1, faults: Faults | None = None,
) -> Job:  # fmt: skip
    """Expert parallelism: two all-to-alls per layer, and experts with other numbers of tokens in every layer (`routing`)."""
    b = Builder(world, noise, seed, faults or Faults())
    tokens = random.Random(seed + 11)
    for _ in range(steps):
        for rank in range(world):
            first = rank // experts_of * experts_of
            ep = b.group(f"ep{first}", tuple(range(first, first + experts_of)))
            dp = b.group(f"dp{rank % experts_of}", tuple(range(rank % experts_of, world, experts_of)))
            for _ in range(layers):
                b.work(rank, 2 * MS)
                b.meet(rank, ep, "all-to-all", 200 * US, 1 << 22)
                b.work(rank, 3 * MS * max(0.2, tokens.gauss(1, routing)))
                b.meet(rank, ep, "all-to-all", 200 * US, 1 << 22)
            b.meet(rank, dp, "all-reduce", 800 * US, 1 << 25)
            b.end_step(rank)
    return b.job()


def interleaved(
    tensor: int = 2, pipeline: int = 4, data: int = 2, *, chunks: int = 2, steps: int = 5, micro: int = 6,
    noise: float = 0.02, seed: int = 0, faults: Faults | None = None,
) -> Job:  # fmt: skip
    """Each stage holds several chunks of layers: what leaves the last stage comes back to the first. All forwards, then all backwards."""
    b = Builder(tensor * pipeline * data, noise, seed, faults or Faults())
    last = pipeline * chunks - 1
    for _ in range(steps):
        for rank in range(b.world):
            stage, replica, shard = rank // (tensor * data), rank // tensor % data, rank % tensor
            column = [(s * data + replica) * tensor + shard for s in range(pipeline)]
            tp = b.group(f"tp{stage}.{replica}", tuple(range(rank - shard, rank - shard + tensor)))
            copies = tuple((stage * data + r) * tensor + shard for r in range(data))

            def link(place: int, way: str, column: list[int] = column) -> tuple[int, int]:
                ends = column[place % pipeline], column[(place + 1) % pipeline]
                return b.group(f"{way}{place}.{column[0]}", ends), place + 2 * chunks * pipeline * (
                    way == "b"
                )

            for backward in (False, True):
                for chunk in range(chunks)[:: -1 if backward else 1]:
                    place = chunk * pipeline + stage
                    source, target = (place, place - 1) if backward else (place - 1, place)
                    for _ in range(micro):
                        if (place < last) if backward else (place > 0):
                            group, stream = link(source, "fb"[backward])
                            b.meet(rank, group, "receive", 40 * US, 1 << 20, stream=1 + stream)
                        b.work(rank, (2 if backward else 1) * MS)
                        b.meet(rank, tp, "all-reduce", 60 * US, 1 << 22)
                        if (place > 0) if backward else (place < last):
                            group, stream = link(target, "fb"[backward])
                            b.meet(rank, group, "send", 40 * US, 1 << 20, wait=False, stream=1 + stream)
            b.meet(rank, b.group(f"dp{stage}.{shard}", copies), "all-reduce", 500 * US, 1 << 24)
            b.end_step(rank)
    return b.job()
