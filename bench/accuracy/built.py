"""Pairs that are built: a fault and its healthy twin on the clock of `RunBuilder`, which hides and queues work as a GPU does, and
in the record of `SnapshotBuilder`. They have no noise; how long the twin takes is what its builder says, not what a rule does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from trace_doctor import analyze
from trace_doctor.model import Result
from trace_doctor.testing import MIB, RunBuilder, SnapshotBuilder

STEPS = 8


def _layers(b: RunBuilder, count: int, gpu_us: float, host_us: float = 12.0) -> None:
    for _ in range(count):
        with b.op("aten::mul", us=host_us):
            b.launch(gpu_us)


def _logged(faulty: bool) -> RunBuilder:
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            for n in range(4):
                _layers(b, 12, 30)
                if faulty or (n == 3 and b._steps % 4 == 0):
                    b.item()
    return b


def _loaded(faulty: bool) -> RunBuilder:
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            b.loader(3000 if faulty else 60, workers=0 if faulty else 2)
            _layers(b, 40, 60)
    return b


def _paused(faulty: bool) -> RunBuilder:
    b = RunBuilder(stacks=True)
    for _ in range(STEPS):
        with b.step(), b.python("train.py", 10, "train"):
            _layers(b, 30, 40)
            if faulty:
                with b.python("train.py", 30, "write_summary"):
                    b.wait(4000)
    return b


def _launched(faulty: bool) -> RunBuilder:
    """The twin replays a CUDA graph of the same kernels, fused or not."""
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            if faulty:
                _layers(b, 80, 6, 25)
            else:
                with b.op("graph", us=30):
                    for n in range(80):
                        b.launch(6, call_us=4.0 if n == 0 else 0.0, call="cudaGraphLaunch")
            with b.optimizer_step(), b.op("aten::_fused_adamw_", us=40):
                b.launch(8)
    return b


def _compiled(faulty: bool) -> RunBuilder:
    """Entering a graph takes 60 us around its kernels, forward."""

    def graph(kernels: int) -> None:
        b.wait(30)
        with b.op("CompiledFunction", us=30), b.op("## Call CompiledFxGraph abc ##", us=2):
            for _ in range(kernels):
                b.launch(8)

    b = RunBuilder(stacks=True)
    for _ in range(STEPS):
        with b.step(), b.region(0), b.python("train.py", 5, "forward"):
            graph(6 if faulty else 11)
            if faulty:
                b.wait(150)
                with b.region(1), b.python("train.py", 8, "torch_dynamo_resume_in_forward_at_8"):
                    graph(6)
    return b


def _updated(faulty: bool) -> RunBuilder:
    """The foreach form reads and writes as much, in one kernel for each operator of all parameters."""
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            _layers(b, 30, 20)
            with b.optimizer_step():
                for _ in range(40 if faulty else 1):
                    for name in ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"):
                        form = f"aten::{name}" if faulty else f"aten::_foreach_{name}"
                        with b.op(form, us=8 if faulty else 60):
                            b.launch(2.5 if faulty else 50.0)
    return b


def _copied(faulty: bool) -> RunBuilder:
    b = RunBuilder()
    kind = "HtoD (Pageable -> Device)" if faulty else "HtoD (Pinned -> Device)"
    for _ in range(STEPS):
        with b.step():
            with b.op("aten::copy_"):
                b.copy(1200 if faulty else 400, kind, bytes=10 << 20)
            _layers(b, 30, 40)
    return b


def _row_by_row(faulty: bool) -> RunBuilder:
    b = RunBuilder(stacks=True)
    for _ in range(STEPS):
        with b.step(), b.python("train.py", 20, "spread"):
            _layers(b, 10, 20)
            for _ in range(48 if faulty else 1):
                with b.op("aten::select", us=6):
                    pass
                for name in ("aten::sub", "aten::square", "aten::sum"):
                    with b.op(name, us=10):
                        b.launch(3)
    return b


_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"


def _ranks(loading_us: tuple[float, ...], compute_us: tuple[float, ...]) -> tuple[RunBuilder, ...]:
    ranks = tuple(RunBuilder(rank=r, world_size=len(compute_us)) for r in range(len(compute_us)))
    for _ in range(STEPS):
        steps = [b.step() for b in ranks]
        for step in steps:
            step.__enter__()
        for b, loading, compute in zip(ranks, loading_us, compute_us, strict=True):
            b.loader(loading)
            with b.op("aten::mm"):
                b.launch(compute)
        meet = max(b.gpu_free for b in ranks)
        for b in ranks:
            b.launch(meet - b.gpu_free + 150, _REDUCE)
            b.sync()
        for step in steps:
            step.__exit__(None, None, None)
    return ranks


def _rank_loads(faulty: bool) -> tuple[RunBuilder, ...]:
    return _ranks((20, 20, 620 if faulty else 20, 20), (900,) * 4)


def _rank_computes(faulty: bool) -> tuple[RunBuilder, ...]:
    return _ranks((20,) * 4, (900, 1500, 900, 900) if faulty else (1050,) * 4)


def _of_two_computes(faulty: bool) -> tuple[RunBuilder, ...]:
    return _ranks((20,) * 2, (800, 1600) if faulty else (1200,) * 2)


def _kept(faulty: bool) -> SnapshotBuilder:
    """Outputs in a list, or their mean alone."""
    b = SnapshotBuilder()
    b.held(300 * MIB)
    for _ in range(7):
        with b.forward(line=31):
            activation = b.alloc(180 * MIB)
        with b.script_line(44, "train"):
            output = b.alloc(70 * MIB)
        with b.backward():
            gradient = b.alloc(60 * MIB)
            b.free(activation, *(() if faulty else (output,)))
        with b.optimizer_step():
            b.temporary(MIB)
        with b.zero_grad():
            b.free(gradient)
    return b


def _lost(faulty: bool) -> SnapshotBuilder:
    """Logits of 8 parts, each with its own backward."""
    b = SnapshotBuilder()
    b.held(250 * MIB)
    parts = 1 if faulty else 8
    for _ in range(4):
        with b.forward(line=31):
            hidden = b.alloc(40 * MIB)
        for _ in range(parts):
            with b.forward(line=33):
                logits = b.alloc(480 // parts * MIB)
            with b.backward("LogSoftmaxBackward0"):
                b.temporary(480 // parts * MIB)
            with b.backward():
                b.free(logits)
        with b.backward():
            b.free(hidden)
        with b.optimizer_step():
            b.temporary(MIB)
    return b


def _graphs(faulty: bool) -> SnapshotBuilder:
    """Inference in a loop, with gradients and without."""
    b = SnapshotBuilder(annotate=False)
    b.held(400 * MIB)
    old: list[object] = []
    for _ in range(6):
        with b.script_line(11):
            x = b.alloc(16 * MIB)
        new: list[object] = []
        for line in range(8):
            with b.forward("/home/me/model.py", 30 + line):
                block = b.alloc(48 * MIB)
            if not faulty and new:
                b.free(new.pop())
            new.append(block)
        b.free(*old, x)
        old = new
    return b


Built = RunBuilder | SnapshotBuilder | tuple[RunBuilder, ...]
PAIRS: tuple[tuple[str, str, Callable[[bool], Built]], ...] = (
    ("built: values read in the log", "TD201", _logged),
    ("built: loader in the training process", "TD101", _loaded),
    ("built: a summary after each step", "TD203", _paused),
    ("built: small kernels, a CUDA graph", "TD202", _launched),
    ("built: a print in a compiled forward", "TD501", _compiled),
    ("built: parameters one by one, foreach", "TD304", _updated),
    ("built: pageable batches", "TD102", _copied),
    ("built: rows one by one", "TD204", _row_by_row),
    ("built: one rank of four loads longer", "TD602", _rank_loads),
    ("built: one rank of four has more work", "TD602", _rank_computes),
    ("built: one rank of two has more work", "TD602", _of_two_computes),
    ("built: outputs in a list", "TD405", _kept),
    ("built: a loss of all tokens", "TD403", _lost),
    ("built: inference with gradients", "TD411", _graphs),
)


def analysed() -> Iterator[tuple[str, str, Result, float, float]]:
    """(name, code, result of the fault, us a step or bytes at the peak: before, after)."""
    for name, code, build in PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            made = [_written(build(faulty), Path(folder), str(faulty)) for faulty in (True, False)]
            yield name, code, analyze(*made[0][0]), made[0][1], made[1][1]


def _written(built: Built, folder: Path, name: str) -> tuple[list[Path], float]:
    if isinstance(built, SnapshotBuilder):
        path = built.write(folder / f"{name}.pickle")
        return [path], float(max(r.peak_bytes or 0 for r in analyze(path).memory_ledger))
    ranks = built if isinstance(built, tuple) else (built,)
    paths = [b.write(folder / f"{name}{n}.json") for n, b in enumerate(ranks)]
    return paths, max(max(b.now, b.gpu_free) for b in ranks) / STEPS
