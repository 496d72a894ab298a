"""Captures that the cases of `host_device_sync` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder


def training(
    *,
    sync: str = "item",
    per_step: int = 1,
    every: int = 1,
    gpu_us: float = 400.0,
    stacks: bool = False,
    marked: bool = True,
    missing: int = -1,
    steps: int = 6,
    stall: float = 0,
) -> RunBuilder:
    """Steps with as much host work as GPU work, which would overlap if nothing waited."""
    b = RunBuilder(stacks=stacks)
    for n in range(steps):
        with b.step() if marked else nullcontext(), b.python("train.py", 12, "train_step"):
            if n == 1:
                b.stall(stall)
            for _ in range(per_step):
                for _ in range(10):
                    b.run_op("aten::mm", gpu_us / 10, host_us=30)
                if n % every == 0 and n != missing:
                    wait(b, sync)
                b.wait(100)
    return b


def wait(b: RunBuilder, sync: str) -> None:
    if sync == "item":
        b.item()
    elif sync == "nonzero":
        with b.op("aten::nonzero"):
            b.copy(1.5, "DtoH (Device -> Pageable)", bytes=8)
            b.sync()
    elif sync == "cpu":
        with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
            b.copy(3, "DtoH (Device -> Pageable)", bytes=1 << 12)
            b.sync()
    elif sync == "much":
        with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
            b.copy(2000, "DtoH (Device -> Pageable)", bytes=16 << 20)
            b.sync()
    elif sync == "synchronize":
        b.sync("cudaDeviceSynchronize")
    elif sync == "to_device":
        with b.op("aten::to"), b.op("aten::_to_copy"), b.op("aten::copy_"):
            b.copy(3, "HtoD (Pageable -> Device)", bytes=1 << 20)
            b.sync()
    elif sync == "both":
        b.item()
        b.run_op("aten::mul", 2, host_us=2)
        wait(b, "to_device")
    elif sync == "one after the other":
        b.item()
        wait(b, "nonzero")
    elif sync == "three":
        wait(b, "one after the other")
        wait(b, "cpu")
    elif sync == "capture":
        b.runtime("cudaStreamBeginCapture", 5)
        b.item()
        b.runtime("cudaStreamEndCapture", 5)
    elif sync == "compile":
        with b.op("_compile.compile_inner (dynamo_timed)"):
            b.item()


def constant_of_the_model() -> RunBuilder:
    """The model copies a tensor of its own to the device in each forward, behind its kernels; the result is read after it."""
    b = RunBuilder(stacks=True)
    for _ in range(6):
        with b.step(), b.python("train.py", 12, "train_step"):
            with b.event("nn.Module: Detector_0", "python_function"):
                for _ in range(10):
                    b.run_op("aten::mm", 60, host_us=30)
                with (
                    b.python("transformers/models/detector.py", 1421, "box_predictor"),
                    b.python("torch/utils/_device.py", 100, "__torch_function__"),
                ):
                    wait(b, "to_device")
                b.run_op("aten::add", 3, host_us=5)
            b.item()
            b.wait(100)
    return b


def alone_and_together() -> RunBuilder:
    """A wait that costs time by itself, and behind other work two of which each hides the other."""
    b = RunBuilder()
    for _ in b.steps(6):
        for part in ("synchronize", "one after the other"):
            for _ in range(10):
                b.run_op("aten::mm", 40, host_us=30)
            wait(b, part)
            b.wait(100)
    return b


def copies_missing() -> RunBuilder:
    b = training(per_step=3)
    b.events[:] = [e for e in b.events if e.get("cat") != "gpu_memcpy"]
    return b


def between_copies() -> RunBuilder:
    """The wait for a copy to the host keeps one to the device, on another stream, from running beside it."""
    b = RunBuilder()
    for _ in b.steps(6):
        with b.op("aten::copy_", us=10):
            b.copy(5000, "DtoH (Device -> Pinned)")
        b.item()
        with b.op("aten::copy_", us=10):
            b.copy(8000, "HtoD (Pinned -> Device)", stream=20)
        b.sync("cudaDeviceSynchronize")
    return b


def gpu_bound() -> RunBuilder:
    """The host waits long, but the GPU never runs dry: a deep queue stands behind every wait."""
    b = RunBuilder()
    for _ in b.steps(6):
        for _ in range(10):
            b.run_op("aten::mm", 300, host_us=2, stream=7)
        b.run_op("aten::mm", 9000, host_us=2, stream=20)
        b.item(stream=7)
    return b


def waits_at_its_end() -> RunBuilder:
    """One step, whose end reads a result while the GPU still works."""
    b = RunBuilder()
    with b.step():
        for _ in range(10):
            b.run_op("aten::mm", 300, host_us=2)
        b.item()
    return b


def results() -> RunBuilder:
    """No steps and no stacks: many copies to the host that wait for nothing, and two of results, which are worked on there."""
    b = RunBuilder()
    for _ in range(2):
        for _ in range(20):
            b.run_op("aten::mm", 2, host_us=30)
            b.wait(50)
            wait(b, "cpu")
        b.run_op("aten::mm", 5000, host_us=30)
        wait(b, "cpu")
        b.wait(5000)
    return b


SCRIPT = """for i, batch in enumerate(loader):
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    print(i, loss.item())
"""
PATCHED = """for i, batch in enumerate(loader):
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    if i % 10 == 0:
        print(i, loss.item())
"""
