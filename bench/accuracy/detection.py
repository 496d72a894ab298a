"""How much of a planted fault is found, by its size, and how far what is promised lies from what was planted.

    python bench/accuracy/detection.py [--only KIND ...] [--jobs N] [--details FILE.json]

Takes captures that have no finding of the rule (recorded ones of `../shared`, where that lies beside the checkout, and the
healthy twins of `sample_traces`), plants a fault of 1 to 40 % of the step into each step's raw events (`planting.py` re-times
what comes behind it), analyses them with default settings, and prints two Markdown tables. `--details` writes each run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import planting
from planting import Event, Plant, Planted

from trace_doctor import analyze
from trace_doctor.model import Result

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared/traces"
DOSES = (0.01, 0.02, 0.05, 0.10, 0.20, 0.40)
REAL = (
    "facebookresearch_HolisticTraceAnalysis/control_control.json.gz",
    "facebookresearch_HolisticTraceAnalysis/b8cce2cd_cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "luatil_torch-profile/trace_04.json.gz",
    "luatil_torch-profile/trace_05.json.gz",
    "luatil_torch-profile/trace_06.json.gz",
    "pytorch_benchmark/cce09c0b_trace.json",
    "pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz",
)
SAMPLES = (
    *(f"{name}/cpu/healthy/rank0.light.json.gz" for name in ("dataloader_starvation", "slow_launch_thread", "straggler", "tensor_indexing_loop")),
    *(
        f"{name}/simulated/healthy/trace.json.gz"
        for name in (
            "cpu_tensor_then_copy",
            "dataloader_starvation",
            "fp32_matmul",
            "host_sync",
            "launch_bound",
            "layout_conversions",
            "many_small_gemms",
            "no_gpu_activity",
            "pageable_copies",
            "single_tensor_optimizer",
            "unfused_attention",
            "worker_restart",
        )
    ),
)  # fmt: skip
"""of several slices of one run one; with marks of steps"""
RANKS, LATE = 4, 2


@dataclass
class Base:
    """A capture to plant into."""

    name: str
    document: dict[str, Any]

    @property
    def events(self) -> list[Event]:
        events: list[Event] = self.document["traceEvents"]
        return events

    @cached_property
    def moments(self) -> list[list[float]]:
        return [step for step in planting.boundaries(self.events) if step]

    @property
    def link_gbs(self) -> float:
        """Of the generation of PCIe that the device has."""
        newest = max((d.get("computeMajor", 0) for d in self.document.get("deviceProperties", [])), default=0)
        return {8: 25.0}.get(newest, 50.0 if newest > 8 else 12.5)

    @property
    def gpu(self) -> bool:
        return any(e.get("cat") in ("kernel", "gpu_memcpy") for e in self.events)


class Author:
    """Writes events in the way of one capture: on its main thread and its busiest stream."""

    def __init__(self, base: Base) -> None:
        self.mark = planting.marks(base.events)[0]
        work = [e for e in base.events if e.get("cat") == "kernel"] or [
            e for e in base.events if e.get("cat") == "gpu_memcpy"
        ]
        tracks = Counter((e["pid"], e["tid"]) for e in work)
        self.track = tracks.most_common(1)[0][0] if tracks else None
        self.correlation = 900_000_000
        self.link_gbs = base.link_gbs

    def host(self, cat: str, name: str, begin: float, end: float, **args: Any) -> Event:
        where = {"pid": self.mark["pid"], "tid": self.mark["tid"]}
        return {"ph": "X", "cat": cat, "name": name, **where, "ts": begin, "dur": end - begin, "args": args}

    def gpu(self, cat: str, name: str, begin: float, end: float, **args: Any) -> Event:
        assert self.track is not None
        where = {"pid": self.track[0], "tid": self.track[1]}
        of = {"device": self.track[0], "stream": self.track[1], "correlation": self.correlation}
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            **where,
            "ts": begin,
            "dur": end - begin,
            "args": of | args,
        }

    def call(self, name: str, begin: float, end: float) -> Event:
        self.correlation += 1
        return self.host("cuda_runtime", name, begin, end, correlation=self.correlation)


def loader(base: Base, us: float) -> Planted:
    author, name = Author(base), "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    made = lambda begin, end, *_: [author.host("user_annotation", name, begin, end)]  # noqa: E731
    return _each(base, lambda step: [Plant(step[0], us, made=made)])


def unnamed(base: Base, us: float, *, drains: bool = True) -> Planted:
    """`drains`, here and below: the host waits for the GPU first, so that no queue hides it in any step."""
    return _each(base, lambda step: [Plant(_middle(step), us, drains=drains)])


def in_an_operator(base: Base, us: float, *, drains: bool = True) -> Planted:
    steps = planting.inside_operators(base.events, base.moments)
    return planting.plant(base.events, [Plant(_middle(s), us, drains=drains) for s in steps])


def small(base: Base, us: float, *, drains: bool = False) -> Planted:
    """In 25 places of each step."""

    def places(step: Sequence[float]) -> list[Plant]:
        moments = [step[round(k * (len(step) - 1) / 24)] for k in range(25)] if len(step) >= 25 else []
        return [Plant(m, us / 25, drains=drains) for m in moments]

    return _each(base, places)


def compiled(base: Base, us: float, *, drains: bool = True) -> Planted:
    """A region around the pause and the operator behind it."""
    author = Author(base)
    lengths = {
        float(e["ts"]): float(e["dur"]) for e in base.events if e.get("cat") == "cpu_op" and "dur" in e
    }

    def at(moment: float) -> Plant:
        inside = lengths.get(moment, 0.0)
        made = lambda b, e, *_: [author.host("cpu_op", "Torch-Compiled Region: 0/0", b, e + inside)]  # noqa: E731
        return Plant(moment, us, drains=drains, made=made)

    return _each(base, lambda step: [at(_middle(step))])


def annotated(base: Base, us: float) -> Planted:
    author = Author(base)
    made = lambda begin, end, *_: [author.host("user_annotation", "log_metrics", begin, end)]  # noqa: E731
    return _each(base, lambda step: [Plant(_middle(step), us, made=made)])


def driver_calls(base: Base, us: float) -> Planted:
    author = Author(base)

    def made(begin: float, end: float, *_: float) -> list[Event]:
        return [
            author.call("cudaFree", begin, end - us / 2),
            author.call("cudaMalloc", end - us / 2, end),
        ]

    return _each(base, lambda step: [Plant(_middle(step), us, made=made)])


def _copied(
    author: Author,
    begin: float,
    end: float,
    gpu_begin: float,
    gpu_end: float,
    *,
    kind: str = "Pageable",
    share: float = 1.0,
) -> list[Event]:
    """At a fifth of the link's speed, or in that share of the time."""
    call = author.call("cudaMemcpyAsync", begin + 0.2, end - 0.1)
    size = max(round((gpu_end - gpu_begin) / share * author.link_gbs * 1000 / 5), 1)
    copy = author.gpu("gpu_memcpy", f"Memcpy HtoD ({kind} -> Device)", gpu_begin, gpu_end, bytes=size)
    ops = [
        author.host("cpu_op", f"aten::{n}", begin + k / 20, end - k / 50)
        for k, n in enumerate(("to", "copy_"))
    ]
    return [*ops, call, copy]


def pageable_copy(base: Base, us: float) -> tuple[list[Planted], Planted, list[Planted]]:
    """And the same bytes from pinned memory, at five times the rate, for which nothing waits: that is what the fault costs."""

    def planted(share: float, *, waits: bool) -> Planted:
        author = Author(base)
        made = lambda *times: _copied(author, *times, kind="Pageable" if waits else "Pinned", share=share)  # noqa: E731
        return _each(base, lambda s: [Plant(s[0], gpu_us=us * share, drains=waits, blocks=waits, made=made)])

    slow, fast = planted(1.0, waits=True), planted(1 / 5, waits=False)
    return [slow], Planted(slow.events, slow.longer_us - fast.longer_us), [fast]


def cpu_tensor(base: Base, us: float) -> Planted:
    author = Author(base)

    def made(begin: float, end: float, gpu_begin: float, gpu_end: float) -> list[Event]:
        made_at = gpu_begin - planting.LATENCY
        return [
            author.host("cpu_op", "aten::randn", begin, made_at),
            *_copied(author, made_at, end, gpu_begin, gpu_end),
        ]

    return _each(base, lambda step: [Plant(step[0], us, gpu_us=2.0, blocks=True, made=made)])


def syncs(base: Base, us: float) -> Planted:
    """As many `.item()` in each step as make it so much longer, or as near as they can."""
    best, count = planting.plant(base.events, []), 1
    steps = len(planting.marks(base.events))
    while True:
        author = Author(base)

        def made(
            begin: float, end: float, gpu_begin: float, gpu_end: float, by: Author = author
        ) -> list[Event]:
            ops = [by.host("cpu_op", f"aten::{n}", begin + k / 20, end - k / 50) for k, n in enumerate(("item", "_local_scalar_dense"))]  # fmt: skip
            call = by.call("cudaMemcpyAsync", begin + 0.2, begin + 1.2)
            copy = by.gpu("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", gpu_begin, gpu_end, bytes=4)
            return [*ops, call, copy, by.call("cudaStreamSynchronize", begin + 1.3, end - 0.2)]

        def places(step: Sequence[float], of: int = count, author: Author = author) -> list[Plant]:
            moments = (
                [step[(2 * k + 1) * len(step) // (2 * of)] for k in range(of)] if len(step) >= of else []
            )
            return [
                Plant(m, 2.0, gpu_us=1.5, drains=False, blocks=True, stream=author.track, made=made)
                for m in moments
            ]

        tried = _each(base, places)
        if not tried.longer_us or abs(tried.longer_us / steps - us) >= abs(best.longer_us / steps - us):
            return best
        best, count = tried, count * 2


def collective(base: Base, us: float) -> Planted:
    author = Author(base)
    return _each(
        base,
        lambda step: [Plant(step[-1], gpu_us=us, drains=False, made=lambda *t: _all_reduce(author, *t))],
    )


def _all_reduce(author: Author, begin: float, end: float, gpu_begin: float, gpu_end: float) -> list[Event]:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    op = author.host("cpu_op", "c10d::allreduce_", end - 2.0, end)
    return [
        op,
        author.call("cudaLaunchKernel", end - 1.5, end - 0.5),
        author.gpu("kernel", name, gpu_begin, gpu_end),
    ]


def late_rank(base: Base, us: float) -> tuple[list[Planted], Planted]:
    """The same capture on all ranks, with an all-reduce of 1 % of the step at its end; one rank is late to it. And without
    the lateness."""
    own = planting.step_us(base.events) / 100
    ends: list[float] = []

    def note(author: Author) -> Callable[..., list[Event]]:
        def made(begin: float, end: float, gpu_begin: float, gpu_end: float) -> list[Event]:
            ends.append(gpu_end)
            return _all_reduce(author, begin, end, gpu_begin, gpu_end)

        return made

    on_time, own_time = note(Author(base)), note(Author(base))
    late = _each(base, lambda s: [Plant(s[-1], us, own, drains=us > 0, made=own_time)])
    untils = iter(ends[:])
    others = _each(base, lambda s: [Plant(s[-1], 0.0, own, drains=False, until=next(untils), made=on_time)])
    plain = _each(base, lambda s: [Plant(s[-1], 0.0, own, drains=False)])
    ranks = [late if rank == LATE else others for rank in range(RANKS)]
    return ranks, Planted(late.events, late.longer_us - plain.longer_us)


KINDS: dict[str, tuple[str, tuple[str, ...], Callable[[Base, float], Any], bool]] = {
    "loader": ("a loader that is slower", ("TD101",), loader, False),
    "unnamed": ("a pause without a name", ("TD203",), unnamed, False),
    "operator": ("a pause inside an operator", ("TD203",), in_an_operator, True),
    "small": ("25 pauses without a name", ("TD203", "TD202"), small, True),
    "compiled": ("a pause inside a compiled region", ("TD203",), compiled, True),
    "annotated": ("a pause with an annotation", ("TD203",), annotated, False),
    "driver": ("cudaFree and cudaMalloc", ("TD401", "TD409"), driver_calls, True),
    "copy": ("a pageable copy", ("TD102",), pageable_copy, True),
    "tensor": ("a tensor made on the CPU", ("TD104",), cpu_tensor, True),
    "sync": ("`.item()`, as often as it takes", ("TD201",), syncs, True),
    "collective": ("an all-reduce that nothing hides", ("TD601",), collective, True),
    "late": ("a rank that is late, of four", ("TD602",), late_rank, True),
}
"""kind -> (in words, rules that may name it, how it is planted, only with a GPU)"""


def _each(base: Base, places: Callable[[Sequence[float]], list[Plant]]) -> Planted:
    return planting.plant(base.events, [p for s in base.moments for p in places(s)])


def _middle(step: Sequence[float]) -> float:
    return step[len(step) // 2]


_OLD = {
    "Operator": "cpu_op",
    "Kernel": "kernel",
    "Runtime": "cuda_runtime",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""categories of torch 1.8"""


def read(path: Path) -> dict[str, Any]:
    """A trace as its JSON object."""
    packed = path.read_bytes()
    document = msgspec.json.decode(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    events = [{**e, "cat": _OLD[e["cat"]]} if e.get("cat") in _OLD else e for e in document["traceEvents"]]
    return {**document, "traceEvents": events}


def judge(base: Base, planted: Sequence[Planted], folder: Path) -> Result:
    """What is said of it; several are ranks of one job."""
    for old in folder.iterdir():
        old.unlink()
    for rank, some in enumerate(planted):
        document = {**base.document, "traceEvents": some.events}
        if len(planted) > 1:
            document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(planted)}
        (folder / f"rank{rank}.json").write_bytes(msgspec.json.encode(document))
    return analyze(folder)


def runs(task: tuple[str, str]) -> list[dict[str, Any]]:
    """All doses of one kind in one capture; nothing where the rule already speaks of it, or where there is no place."""
    kind, name = task
    _, codes, plant, gpu = KINDS[kind]
    path = next(p for p in (SHARED / name, ROOT / "sample_traces" / name) if p.exists())
    base = Base(name, read(path))
    if (gpu and not base.gpu) or not planting.marks(base.events):
        return []
    rows = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        plain = Planted(base.events, 0.0)
        before = judge(base, late_rank(base, 0.0)[0] if kind == "late" else [plain], folder)
        if any(f.code in codes for f in before.findings):
            return []
        step, count = planting.step_us(base.events), len(planting.marks(base.events))
        for dose in DOSES:
            ranks, longer, without = _as_planned(plant, base, step * dose / (1 - dose), count)
            share = longer / (step + longer)
            if not 0.7 * dose <= share <= 1.4 * dose:
                continue  # there is no place for so little: the queue that it empties costs more
            healthy = judge(base, without, folder) if without else before
            after = judge(base, ranks, folder)
            row = {"kind": kind, "capture": name, "dose": dose, "share": share, "us": longer}
            rows.append(row | {"planted": _longer(healthy, after, share)} | _said(after, codes))
    return rows


def _as_planned(
    plant: Callable[[Base, float], Any], base: Base, us: float, count: int
) -> tuple[list[Planted], float, list[Planted]]:
    """The ranks, by how much the fault makes a step longer, and the ranks without the fault where they differ from the base:
    as long a pause as makes the step longer by `us`, for a queue hides some of it, and a queue that runs empty costs more."""
    size = us
    for _ in range(4):
        made = plant(base, size)
        ranks, planted, *without = made if isinstance(made, tuple) else ([made], made)
        longer = planted.longer_us / count
        if abs(longer - us) < 0.03 * us or plant is syncs:
            break
        size = max(size + us - longer, size / 8)
    return ranks, longer, without[0] if without else []


def _longer(before: Result, after: Result, share: float) -> float:
    """By how much of them the steady steps are longer: of a host that runs far ahead the first steps hide some of it. Where
    other steps are steady than before, what all are longer by."""
    old, new = ([row for row in result.time_ledger if row.phase == "steady"] for result in (before, after))
    if len(old) != len(new) or any(a.steps != b.steps for a, b in zip(old, new, strict=True)):
        return share
    return max(1 - a.window_ns / b.window_ns for a, b in zip(old, new, strict=True))


def _said(result: Result, codes: Sequence[str]) -> dict[str, Any]:
    own = [f for f in result.findings if f.code in codes]
    by_code: dict[str, float] = {}
    for f in own:  # places of one rule are parts of what was planted
        by_code[f.code] = by_code.get(f.code, 0.0) + ((f.saving and f.saving.share_of_step) or 0.0)
    return {
        "found": bool(own),
        "warned": any(f.severity != "info" for f in own),
        "promised": max(by_code.values(), default=None),
        "findings": [
            [f.code, f.severity, f.saving and f.saving.share_of_step, f.message] for f in result.findings
        ],
        "reasons": {o.code: [o.outcome, o.reason] for o in result.outcomes if o.code in codes},
    }


def tables(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Markdown: what is found by dose, and how far the figures lie from it."""
    head = [f"{dose:.0%}" for dose in DOSES]
    yield f"| planted into each step | rules | captures | {' | '.join(head)} |"
    yield f"|---|---|--:|{'--:|' * len(head)}"
    for kind, own in _by_kind(rows):
        cells = [_cell([r for r in own if r["dose"] == dose]) for dose in DOSES]
        count = len({r["capture"] for r in own})
        yield f"| {KINDS[kind][0]} | {', '.join(KINDS[kind][1])} | {count} | {' | '.join(cells)} |"
    yield ""
    yield "| planted, from 5 % on | found | promised less planted, median | middle half | within 2 points |"
    yield "|---|--:|--:|---|--:|"
    for kind, own in _by_kind(rows):
        large = [r for r in own if r["dose"] >= 0.05]
        off = sorted(100 * (r["promised"] - r["planted"]) for r in large if r["promised"])
        found = f"{sum(r['found'] for r in large)} of {len(large)}"
        if len(off) < 2:
            yield f"| {KINDS[kind][0]} | {found} | – | – | – |"
            continue
        low, middle, high = statistics.quantiles(off, n=4)
        near = sum(abs(o) <= 2 for o in off) / len(off)
        yield f"| {KINDS[kind][0]} | {found} | {middle:+.1f} | {low:+.1f} to {high:+.1f} | {near:.0%} |"


def _by_kind(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for kind in KINDS:
        if own := [r for r in rows if r["kind"] == kind]:
            yield kind, own


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "–"
    found, warned = (sum(r[key] for r in rows) / len(rows) for key in ("found", "warned"))
    return f"{found:.0%} / {warned:.0%}"


def main() -> None:
    options = _options()
    names = [n for n in (*REAL, *SAMPLES) if (SHARED / n).exists() or (ROOT / "sample_traces" / n).exists()]
    tasks = [(kind, name) for kind in options.only or KINDS for name in names]
    with ProcessPoolExecutor(options.jobs) as pool:
        rows = [row for some in pool.map(runs, tasks) for row in some]
    if options.details:
        options.details.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print("\n".join(tables(rows)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--details", type=Path, help="a JSON file for each run's findings")
    return parser.parse_args()


if __name__ == "__main__":
    main()
