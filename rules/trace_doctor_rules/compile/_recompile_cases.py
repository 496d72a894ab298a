"""Captures that the cases of `recompile` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder


def step(b: RunBuilder, frame: int, recompile: int, *, compile_us: float = 0, ids: bool = True) -> None:
    """One step that runs compiled code, compiling it first where `compile_us` is given."""
    with b.step():
        if compile_us:
            if ids:
                with b.annotation(f"dynamo_data: compile_id={frame}/{recompile}"):
                    b.wait(5)
            with b.event("_compile.compile_inner (dynamo_timed)"):
                b.wait(compile_us)
        with b.region(frame, recompile), b.python("train.py", 20, "forward"):
            size = 8 + recompile
            with b.op("CompiledFunction", dims=[[32, 32], [size, 32]], types=["float", "float"], us=10):
                b.compute(200)
        if b.meta["deviceProperties"]:
            b.sync()


def recompiling(
    *, ids: bool = True, shapes: bool = False, healthy: int = 2, times: int = 3, gpu: bool = True
) -> RunBuilder:
    """Every other step of the rest is compiled; without healthy steps before, every one."""
    b = RunBuilder(gpu="NVIDIA H100 80GB HBM3" if gpu else None, shapes=shapes, stacks=True)
    for _ in range(healthy):
        step(b, 0, 0)
    for n in range(1, times + 1):
        step(b, 0, n, compile_us=5000, ids=ids)
        if healthy:
            step(b, 0, n)
    return b


def warming_up() -> RunBuilder:
    """The first steps compile, with one automatic change to dynamic shapes; then nothing does."""
    b = RunBuilder()
    for recompile in (0, 1):
        step(b, 0, recompile, compile_us=8000)
    for _ in range(6):
        step(b, 0, 1)
    return b


def recompiled_earlier() -> RunBuilder:
    """The code that runs is the second that was made; nothing is compiled here."""
    b = RunBuilder()
    for _ in range(4):
        step(b, 0, 1)
    return b


def graph_capture() -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        step(b, 0, 0)
        with b.event("CUDAGraphNode.record (dynamo_timed)"):
            b.wait(3000)
    return b


def evaluation() -> RunBuilder:
    """Another function is compiled for the first time in a late step: no recompilation."""
    b = RunBuilder()
    for _ in range(3):
        step(b, 0, 0)
    step(b, 1, 0, compile_us=5000)
    for _ in range(3):
        step(b, 0, 0)
    return b


def unnumbered(*compiling: int, steps: int = 8) -> RunBuilder:
    """As torch before 2.5 marks it: regions without ids, and another name of what compiles a function."""
    b = RunBuilder()
    for n in b.steps(steps):
        if n in compiling:
            with b.event("_compile.<locals>.compile_inner (dynamo_timed)"):
                b.wait(5000)
        with b.event("Torch-Compiled Region"), b.op("CompiledFunction", us=10):
            b.launch(200)
        b.sync()
    return b


def looked_up(
    *,
    lookups: str = "00000",
    regions: bool = True,
    stacks: bool = True,
    runs: bool = True,
    version: int | None = None,
) -> RunBuilder:
    """Each call asks for compiled code that fits; past the limit there is none (0), and the function itself runs, which
    may be one without tensors. The first step may compile a version."""
    b = RunBuilder(stacks=stacks)
    if version is not None:
        step(b, 0, version, compile_us=5000)
    for one in lookups:
        hit = one == "1"
        with b.step():
            with b.event("TorchDynamo Cache Lookup"), b.python("torch/_dynamo/guards.py", 2545, "fn"):
                b.wait(50)
            called, what = b.python("train.py", 20, "forward"), "CompiledFunction" if hit else "aten::mm"
            region = b.region(0) if regions and hit else nullcontext()
            with region, called, b.op(what, us=10) if runs or hit else nullcontext():
                b.launch(200)
            b.sync()
    return b


def looked_up_by_the_compiler() -> RunBuilder:
    """The compiler calls compiled functions of its own, as it runs what it compiles."""
    b = RunBuilder(stacks=True)
    for _ in range(5):
        with b.step(), b.event("_compile.compile_inner (dynamo_timed)"):
            for _ in range(2):
                with b.event("TorchDynamo Cache Lookup"):
                    b.wait(50)
                with b.python("train.py", 20, "forward"), b.op("aten::mm"):
                    b.launch(20)
    return b
