"""Captures that the cases of `slow_launch_thread` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder


def training(
    us: float = 5000,
    *,
    name: str = "log_metrics",
    stacks: bool = False,
    every: int = 1,
    gpu_us: float = 1000,
    gpu: bool = True,
    inside: str = "",
    often: int = 1,
    marked: bool = True,
    stall: float = 0,
) -> RunBuilder:
    """Steps of 1 ms on the GPU, and something that keeps the host busy behind them."""
    b = RunBuilder(stacks=stacks) if gpu else RunBuilder(gpu=None, stacks=stacks)
    for n in range(6):
        with b.step() if marked else nullcontext(), b.python("train.py", 10, "train"):
            if n == 1 and gpu:
                b.stall(stall)
            for _ in range(20):
                with b.op("aten::mm", us=10):
                    if gpu:
                        b.launch(gpu_us / 20)
                    else:
                        b.wait(gpu_us / 20)
            b.wait(100)
            for _ in range(often if n % every == every - 1 else 0):
                if not name:
                    b.wait(us)
                elif stacks and not inside:
                    with b.python("train.py", 30, name):
                        b.wait(us)
                else:
                    with b.annotation(name), b.op("aten::mm") if inside == "operators" else nullcontext():
                        b.wait(us / 2)
                        if inside == "launch":
                            b.launch(5)
                        b.wait(us / 2)
    return b


def loads_inside() -> RunBuilder:
    """An annotation of 6 ms, of which the loader takes 5 ms."""
    b = RunBuilder()
    for _ in b.steps(6):
        with b.annotation("## copy_batch_to_gpu ##"):
            b.loader(5000)
            b.wait(1000)
        for _ in range(20):
            b.run_op("aten::mm", 50, host_us=10)
        b.sync()
    return b


def optimizer_on_the_host(us: float = 5000) -> RunBuilder:
    """An optimizer that computes on the host for so long before it launches its update."""
    b = RunBuilder()
    for _ in b.steps(6):
        for _ in range(20):
            b.run_op("aten::mm", 50, host_us=10)
        with b.optimizer_step("Shampoo"):
            b.wait(us)
            b.run_op("aten::add_", 50, host_us=10)
    return b


def captures_a_graph() -> RunBuilder:
    """In each step what is launched is written into a graph for 5 ms."""
    b = RunBuilder()
    for _ in b.steps(6):
        for name in ("aten::mm", "aten::add"):
            b.run_op(name, 1000, host_us=10)
            if name == "aten::mm":
                b.runtime("cudaStreamBeginCapture", 5)
                b.wait(5000)
                b.runtime("cudaStreamEndCapture", 5)
                b.runtime("cudaGraphInstantiate", 1500)
    return b


def taken_out() -> RunBuilder:
    """As `training`, of which one operator in ten was left."""
    b = training(name="")
    for event in b.events:
        if event["cat"] == "cpu_op":
            event["args"]["External id"] *= 10
    return b


def in_an_operator(*, once: bool = False, name: str = "aten::conv2d") -> RunBuilder:
    """The host is in an operator all the time: at its first call, or at each."""
    b = RunBuilder()
    for n in b.steps(6):
        with b.op(name):
            b.launch(1000)
            b.wait(5000 if n == 1 or not once else 10)
            b.launch(1000)
        b.sync()
    return b


def in_many_places(*, stacks: bool = False) -> RunBuilder:
    """Ten waits of 1.2 ms in each step, each between other operators."""
    b = RunBuilder(stacks=stacks)
    for _ in range(6):
        with b.step(), b.python("train.py", 10, "train"):
            b.run_op("aten::mm", 60_000)
            b.sync()
            for n in range(10):
                b.run_op(f"aten::op{n}", 10)
                b.wait(1200)
    return b


def in_one_step() -> RunBuilder:
    b = RunBuilder()
    for n in b.steps(6):
        for _ in range(20):
            b.run_op("aten::mm", 50, host_us=10)
        for _ in range(3 if n == 4 else 0):
            b.wait(3000)
            b.run_op("aten::mul", 5)
        b.sync()
    return b


def in_no_function() -> RunBuilder:
    """On a CPU, with stacks: what waits in each step is no function of the script's."""
    b = RunBuilder(gpu=None, stacks=True)
    for _ in b.steps(6):
        b.run_op("aten::mm", host_us=1000)
        b.wait(5000)
        b.run_op("aten::mul", host_us=100)
    with b.python("train.py", 90, "report"):
        b.wait(10)
    return b


def model_that_waits() -> RunBuilder:
    """Without a GPU; an annotation of which operators take most, and something else the rest."""
    b = RunBuilder(gpu=None)
    for _ in b.steps(6):
        with b.annotation("encode"):
            b.run_op("aten::mm", host_us=4000)
            b.wait(900)
        b.run_op("aten::mul", host_us=100)
    return b


def between_gradients() -> RunBuilder:
    """The main thread is in `backward()`, where no code of the user's runs."""
    b = RunBuilder()
    for _ in b.steps(6):
        for name in ("MmBackward0", "TanhBackward0"):
            b.run_op(f"autograd::engine::evaluate_function: {name}", 1000)
            b.wait(5000 if name == "MmBackward0" else 100)
        b.sync()
    return b


def held_up() -> RunBuilder:
    """Without a GPU; in two of six steps another program has the core for 60 ms, in the midst of the model's call."""
    b = RunBuilder(gpu=None, stacks=True)
    for n in range(6):
        with b.step(), b.python("train.py", 10, "train"), b.python("train.py", 30, "forward"):
            b.run_op("aten::mm", host_us=4000)
            if n % 3 == 2:
                b.wait(60_000)
    return b


def held_up_anywhere() -> RunBuilder:
    """The same in four of six steps, each time in another callee of a function that takes little time by itself."""
    b = RunBuilder(gpu=None, stacks=True)
    for n in range(6):
        with b.step(), b.python("train.py", 10, "train"):
            b.run_op("aten::mm", host_us=60_000)
            with b.python("torch/nn/utils/clip_grad.py", 184, "clip_grad_norm_"):
                b.wait(500)
                for callee in range(4):
                    with b.python("torch/nn/utils/clip_grad.py", 10 * callee, f"callee_{callee}"):
                        b.wait(8_000 if callee == n else 100)
    return b


def waits_on_a_cpu(*us: float) -> RunBuilder:
    """Without a GPU or stacks; each step waits so long."""
    b = RunBuilder(gpu=None)
    for each in us:
        with b.step():
            b.run_op("aten::mm", host_us=60_000)
            b.wait(each)
            b.run_op("aten::mul", host_us=100)
    return b


def meets_other_ranks() -> RunBuilder:
    """Without a GPU; buffers are broadcast before each forward, which waits for the other rank."""
    b = RunBuilder(gpu=None, stacks=True)
    for _ in range(6):
        with b.step(), b.python("train.py", 10, "train"):
            with b.python("torch/nn/parallel/distributed.py", 1744, "_pre_forward"):
                b.run_op("c10d::broadcast_", host_us=50)
                b.wait(20_000)
            b.run_op("aten::mm", host_us=60_000)
    return b


def most_of_the_step() -> RunBuilder:
    """Without a GPU; the loop, too, runs next to no operators beside its garbage collection."""
    b = RunBuilder(gpu=None, stacks=True)
    with b.python("train.py", 1, "<module>"):
        for _ in b.steps(6):
            b.run_op("aten::mm", host_us=4000)
            with b.python("train.py", 3, "tidy"):
                b.wait(60_000)
    return b


def decorated() -> RunBuilder:
    """A function that a decorator of torch calls."""
    b = RunBuilder(stacks=True)
    for _ in range(6):
        with b.step(), b.python("train.py", 10, "train"):
            for _ in range(20):
                b.run_op("aten::mm", 50, host_us=10)
            decorator = b.python("torch/utils/_contextlib.py", 117, "decorate_context")
            with decorator, b.python("train.py", 30, "count_tokens"):
                b.wait(5000)
    return b
