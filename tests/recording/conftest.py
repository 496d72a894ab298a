"""Recordings as `record` leaves them, written by hand: tests that need only a folder start no script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from read_captures import read_captures

from trace_doctor.capture import Capture
from trace_doctor.recording.options import capture_file, rank_file
from trace_doctor.testing import RunBuilder

Script = Callable[[RunBuilder, int], None]
FRAME_US = 60
"""What a Python frame takes longer in the detailed trace: far more than in truth."""


def reads_the_loss(b: RunBuilder, step: int) -> None:
    """A step that waits for its loss in `log`, a function of train.py."""
    with frame(b, "train.py", 20, "train_step"):
        with b.op("aten::mm", dims=[[64, 64], [64, 64]], types=["float", "float"]):
            b.launch(900)
        with b.op("aten::relu", dims=[[64, 64]], types=["float"]):
            b.launch(100)
        with frame(b, "train.py", 41, "log"):
            b.item()
    with b.optimizer_step():
        for _ in range(60):
            with b.op("aten::add_", us=5):
                b.launch(4)


class frame:
    """A Python frame, and what recording it takes."""

    def __init__(self, b: RunBuilder, file: str, line: int, function: str) -> None:
        self._b, self._made = b, b.python(file, line, function)

    def __enter__(self) -> None:
        self._made.__enter__()
        if self._b.meta["with_stack"]:
            self._b.wait(FRAME_US)

    def __exit__(self, *_: object) -> None:
        self._made.__exit__(None, None, None)


def trace(script: Script, *, detailed: bool, rank: int | None = None, steps: range = range(5)) -> RunBuilder:
    b = RunBuilder(stacks=detailed, shapes=detailed, rank=rank, world_size=1 if rank is None else 2)
    with frame(b, "train.py", 60, "main"):
        for n in steps:
            with b.step(n):
                script(b, n)
    return b


def recording(
    folder: Path, script: Script = reads_the_loss, *, ranks: int = 1, plain_ms: float = 1.05
) -> Path:
    """A recording of a script, as `record` leaves it."""
    folder.mkdir(exist_ok=True)
    rows = ["rank,step,phase,milliseconds,loss"]
    for rank in range(ranks):
        number = None if ranks == 1 else rank
        trace(script, detailed=False, rank=number, steps=range(20, 25)).write(folder / "light.json")
        trace(script, detailed=True, rank=number, steps=range(25, 28)).write(folder / "detailed.json")
        for role in ("light", "detailed"):
            pack(folder / f"{role}.json", folder / capture_file(rank, role))
        phases = [("timing", 0, 19), ("light", 20, 24), ("detailed", 25, 27), ("memory", 28, 30)]
        said = {
            "rank": rank,
            "world_size": ranks,
            "pid": 100 + rank,
            "phases": [{"name": n, "first_step": a, "last_step": z} for n, a, z in phases],
            "warnings": [],
        }
        (folder / rank_file(rank)).write_text(json.dumps(said))
        rows += [f"{rank},{n},timing,{plain_ms},{2.5 - n / 100}" for n in range(20)]
        rows += [f"{rank},{n},light,1.2," for n in range(20, 25)] + [
            f"{rank},{n},detailed,1.4," for n in range(25, 28)
        ]
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    (folder / "recording.json").write_text(json.dumps({"exit_code": 0, "ranks": ranks, "warnings": []}))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.9.1+cu128", "cpu_count": 16}))
    return folder


def pack(made: Path, to: Path) -> None:
    import gzip

    to.write_bytes(gzip.compress(made.read_bytes(), mtime=0))
    made.unlink()


def only(folder: Path) -> Capture:
    captures, _ = read_captures([folder])
    assert len(captures) == 1
    return captures[0]


def many_small(b: RunBuilder, step: int) -> None:
    """Small kernels, one after another: the host keeps up with them, unless its frames are recorded."""
    for _ in range(200):
        with frame(b, "train.py", 30, "block"), frame(b, "ops.py", 9, "add"), b.op("aten::add"):
            b.launch(9)


def compiled(b: RunBuilder, step: int) -> None:
    """`forward` prints on line 17, and the graph breaks there."""
    b.wait(5)
    with b.region(0):
        b.wait(5)
        with frame(b, "train.py", 5, "forward"):
            with b.op("aten::mm"):
                b.launch(5)
            b.wait(50)
            with b.region(1):
                b.wait(5)
                with frame(b, "train.py", 17, "torch_dynamo_resume_in_forward_at_17"), b.op("aten::mm"):
                    b.launch(5)


class Written:
    """What tests of such folders share."""

    reads_the_loss, many_small, compiled = map(staticmethod, (reads_the_loss, many_small, compiled))
    frame = frame
    trace, recording, pack, only = map(staticmethod, (trace, recording, pack, only))


@pytest.fixture(scope="session")
def written() -> type[Written]:
    return Written
