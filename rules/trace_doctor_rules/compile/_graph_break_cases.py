"""Captures that the cases of `graph_break` build."""

from __future__ import annotations

from trace_doctor.testing import RunBuilder

LINE = 8


def compiled(b: RunBuilder, gpu_us: float = 5.0) -> None:
    """One graph: some kernels."""
    with b.op("CompiledFunction", us=10):
        for _ in range(3):
            b.compute(gpu_us)


def broken(
    *,
    stacks: bool = True,
    gpu: bool = True,
    between_us: float = 120,
    gpu_us: float = 5,
    steps: int = 5,
    stall: float = 0,
) -> RunBuilder:
    """`forward` prints in its middle: what follows runs as a region inside the first."""
    b = RunBuilder(stacks=stacks) if gpu else RunBuilder(stacks=stacks, gpu=None)
    for _ in range(steps):
        with b.step(), b.region(0), b.python("train.py", 5, "forward"):
            if stall:
                b.stall(stall)
            compiled(b, gpu_us)
            b.wait(between_us)
            resumed = b.python("train.py", LINE, f"torch_dynamo_resume_in_forward_at_{LINE}")
            with b.region(1), resumed:
                compiled(b, gpu_us)
                b.wait(between_us)
                with b.region(2), b.python("train.py", LINE, f"torch_dynamo_resume_in_forward_at_{LINE}"):
                    compiled(b, gpu_us)
    return b


def chain_of_one(before: bool = True) -> RunBuilder:
    """A compiled function inside another, no stacks: it may be meant."""
    b = RunBuilder()
    for _ in range(5):
        with b.step(), b.region(0):
            if before:
                compiled(b)
                b.wait(100)
            with b.region(1):
                compiled(b)
    return b


def siblings() -> RunBuilder:
    """A compiled model and a compiled loss, and blocks compiled one by one."""
    b = RunBuilder(stacks=True)
    for _ in b.steps(5):
        for recompile in (0, 1, 1):
            with b.region(0, recompile), b.python("model.py", 7, "forward"):
                compiled(b)
            b.wait(100)
        with b.region(1), b.python("train.py", 30, "loss"):
            compiled(b)
    return b


def called_by(event: str, cat: str = "cpu_op") -> RunBuilder:
    """A compiled function inside an event that lies in a compiled function."""
    b = RunBuilder()
    for _ in range(5):
        with b.step(), b.region(0), b.event(event, cat):
            b.compute(5)
            b.wait(100)
            with b.region(1):
                compiled(b)
    return b


def broken_inside_a_graph() -> RunBuilder:
    """What the graph calls has a break of its own."""
    b = RunBuilder(stacks=True)
    for _ in range(5):
        with b.step(), b.region(0), b.op("mine::op"), b.region(1), b.python("train.py", 5, "forward"):
            compiled(b)
            b.wait(120)
            with b.region(2), b.python("train.py", LINE, f"torch_dynamo_resume_in_forward_at_{LINE}"):
                compiled(b)
    return b


def without_ids() -> RunBuilder:
    b = RunBuilder()
    for _ in range(5):
        with b.step(), b.event("Torch-Compiled Region"), b.event("Torch-Compiled Region"):
            compiled(b)
    return b


def eager_inside() -> RunBuilder:
    """Dynamo gave `forward_blocks` up (a break in a loop): it runs as plain Python inside the region."""
    b = RunBuilder(stacks=True)
    for _ in range(5):
        forward, blocks = b.python("train.py", 5, "forward"), b.python("train.py", 15, "forward_blocks")
        with b.step(), b.region(0), forward, blocks, b.op("aten::mm"):
            b.launch(20)
    return b


def given_up() -> RunBuilder:
    """A break in a loop at the top of what is compiled: torch.compile leaves all of it to Python."""
    b = RunBuilder(stacks=True)
    for _ in range(5):
        wrapper = b.python("torch/_dynamo/eval_frame.py", 1076, "compile_wrapper")
        with b.step(), wrapper, b.python("train.py", 12, "forward"), b.op("aten::mm"):
            b.launch(20)
    return b


def plain() -> RunBuilder:
    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(100)
    return b


SCRIPT = """import torch

@torch.compile
class Net(torch.nn.Module):
    def forward(self, x):
        x = self.a(x)
        y = x.relu()
        print("shape", y.shape)
        return self.b(y)
"""
