"""Many small copies of one size between host and device in a step of an inference engine, as offloading of its KV cache makes
them, and how long the device waits for them."""

from __future__ import annotations

from typing import Self

import numpy as np
from msgspec import Struct

from trace_doctor.arrays import I64, Bool, at_rows
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.idle.syncs import Syncs
from trace_doctor.evidence.idle.time_ledger import exposed
from trace_doctor.evidence.intervals import intersect, intervals, pairs, subtract, union
from trace_doctor.evidence.names.event_arguments import count
from trace_doctor.evidence.names.event_names import has_no_kind, is_copy_call
from trace_doctor.evidence.serving.engine_steps import EngineSteps
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.evidence.trace.threads import Threads
from trace_doctor.run import Cat

LEAST_COPIES = 32
"""of one size and direction in a step, one for each layer of a small model: public captures of engines without offloading have
at most 3, and 15 of any size"""
SMALLEST, LARGEST = 4096, 1 << 20
"""bytes. A block of a layer has 8 to 32 KiB in vllm#38460; inputs of a step are smaller. From 1 MiB on a copy takes several times
as long as its call, and may be of weights"""
_MOST_READ = 20_000
"""copies whose sizes are read"""
_GAP_NS = 20_000
"""nothing else lies between two copies in so little time: a call takes 2 to 10 us"""
_BETWEEN_KERNELS_NS = 10_000
"""the device idles for as long as that between two kernels in any case"""


class BlockGroup(Struct, frozen=True):
    """Copies of one size and direction in one step."""

    step: int
    """position in `EngineSteps.steps`"""
    direction: str
    """HtoD or DtoH"""
    size: int
    """bytes of each"""
    copies: int


class BlockCopies(Evidence, frozen=True):
    """Raises NotCaptured where no engine marks its steps, where its idle time is not known, and where the file does not say from
    where to where or how much is copied."""

    groups: tuple[BlockGroup, ...]
    waits: I64
    """when the device did nothing but these copies, or nothing, while the next kernel was launched already, the host was in a call
    that blocks, or the main thread was making these copies: a set of intervals, ns"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run, engine, launches = facts.run, facts[EngineSteps], facts[Launches]
        engine.must_know_idle_time()
        if len(run.named(has_no_kind, Cat.MEMCPY)):
            raise NotCaptured(
                "the kinds of copies are not recorded",
                "a Chrome trace (.json.gz): a .pftrace file has no kinds of copies",
            )
        if not (launches.launch >= 0).any() or (
            not len(run.named(lambda _: True, Cat.MEMCPY))
            and len(run.named(is_copy_call, Cat.RUNTIME, Cat.DRIVER))
        ):
            raise NotCaptured(
                "copies, or what launched them, are not in the trace",
                "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
            )
        rows = run.named(lambda name: "HtoD" in name or "DtoH" in name, Cat.MEMCPY)
        rows = rows[run.device[rows] == engine.device]
        groups, rows = _groups(facts, rows, engine.place_of(launches.launched_at(rows)))
        if not groups:
            return cls((), np.empty((0, 2), dtype=np.int64))
        calls = launches.launch[np.searchsorted(run.gpu, rows)]
        calls = np.unique(calls[calls >= 0])
        calls = calls[run.thread[calls] == facts[Threads].main]
        making = _closed(pairs(run.ts[calls], run.end[calls]))
        copying = _closed(pairs(run.ts[rows], run.end[rows]))
        compute, comm, _ = exposed(facts)[engine.device]
        spans = union(np.concatenate([copying, making]))
        alone = subtract(subtract(spans, compute), comm)
        alone = intersect(alone, intervals(facts[Steps].on_device("steady")))
        waits = intersect(alone, union(np.concatenate([making, _held(facts, engine.device)])))
        return cls(groups, waits[waits[:, 1] - waits[:, 0] > _BETWEEN_KERNELS_NS])


def _groups(facts: Facts, rows: I64, step: I64) -> tuple[tuple[BlockGroup, ...], I64]:
    """The groups, and the rows of their copies. A step whose other copies in that direction have more bytes copies weights."""
    run = facts.run
    to_device = np.isin(run.name[rows], run.name_ids(lambda name: "HtoD" in name))
    key = 2 * step + to_device
    keys, counts = np.unique(key[step >= 0], return_counts=True)
    many = np.isin(key, keys[counts >= LEAST_COPIES])
    rows, key = rows[many][:_MOST_READ], key[many][:_MOST_READ]
    sizes = np.array([count(args, "bytes") or 0 for args in run.args(rows)], dtype=np.int64)
    if len(rows) and not sizes.any():
        raise NotCaptured("the sizes of copies are not recorded", "a Chrome trace (.json.gz)")
    groups: list[BlockGroup] = []
    chosen: Bool = np.zeros(len(rows), dtype=bool)
    for each in np.unique(key).tolist():
        mine = key == each
        found = _blocks(sizes[mine])
        if 2 * sum(size * copies for size, copies in found) < sizes[mine].sum():
            continue
        direction = "HtoD" if each % 2 else "DtoH"
        groups += [BlockGroup(each // 2, direction, size, copies) for size, copies in found]
        chosen |= mine & np.isin(sizes, [size for size, _ in found])
    return tuple(groups), rows[chosen]


def _blocks(sizes: I64) -> list[tuple[int, int]]:
    """(bytes, copies) of the sizes that come often enough."""
    size, copies = np.unique(sizes, return_counts=True)
    fits = (copies >= LEAST_COPIES) & (size >= SMALLEST) & (size < LARGEST)
    return list(zip(size[fits].tolist(), copies[fits].tolist(), strict=True))


def _closed(spans: I64) -> I64:
    """As a set, without the short gaps."""
    if not len(spans):
        return spans
    return np.asarray(union(pairs(spans[:, 0], spans[:, 1] + _GAP_NS)) - np.array([0, _GAP_NS]))


def _held(facts: Facts, device: int) -> I64:
    """When a kernel of the device had been launched and had not begun, or the main thread was in a call that blocks: a set."""
    run, launches = facts.run, facts[Launches]
    mine = (run.cat[run.gpu] == Cat.KERNEL) & (run.device[run.gpu] == device) & (launches.launch >= 0)
    kernels = run.gpu[mine]
    launched = at_rows(run.end, launches.launch[mine], run.ts[kernels])
    queued = pairs(launched, np.maximum(run.ts[kernels], launched))
    blocking = facts[Syncs].rows
    blocking = blocking[run.thread[blocking] == facts[Threads].main]
    return union(np.concatenate([queued, pairs(run.ts[blocking], run.end[blocking])]))
