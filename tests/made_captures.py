"""Captures of a small healthy job."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from trace_doctor.testing import RunBuilder


def healthy(rank: int | None = 0, world: int = 1, steps: int = 6) -> RunBuilder:
    b = RunBuilder(rank=rank, world_size=world)
    for _ in range(steps):
        with b.step():
            for _ in range(4):
                with b.op("aten::mm"):
                    b.launch(300, "bf16_gemm")
            b.idle_until_done()
    return b


def job(folder: Path, ranks: Iterable[int], world: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        healthy(rank, world).write(folder / f"rank{rank}.json")


def tar(name: str, content: bytes) -> bytes:
    made, member = io.BytesIO(), tarfile.TarInfo(name)
    member.size = len(content)
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return made.getvalue()
