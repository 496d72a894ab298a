"""Captures that the cases of `dataloader_starvation` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder


def training(
    loader_us: float,
    *,
    gpu_us: float = 300.0,
    workers: int = 0,
    steps: int = 5,
    gpu: bool = True,
    stall: float = 0,
    every: int = 1,
    launch_us: float | None = None,
) -> RunBuilder:
    """Steps that load a batch, launch some kernels and end without waiting for them; others than every n-th have it ready."""
    b = RunBuilder() if gpu else RunBuilder(gpu=None)
    for n in b.steps(steps):
        b.loader(loader_us if n % every == 0 else 3, workers=workers)
        if n == 1:
            b.stall(stall)
        if launch_us is not None:
            b.launch(10, call_us=launch_us)
        for _ in range(4):
            b.run_op("aten::mm", gpu_us / 4, host_us=10)
        with b.optimizer_step():
            b.wait(20)
    return b


def alternating(*, gpu: bool = True) -> RunBuilder:
    """One long wait in ten steps."""
    b = RunBuilder() if gpu else RunBuilder(gpu=None)
    for n in b.steps(10):
        b.loader(1500 if n == 5 else 2)
        b.run_op("aten::mm", 600, host_us=10)
        if gpu:
            b.sync()
    return b


def named_loader() -> RunBuilder:
    b = RunBuilder()
    for _ in b.steps(5):
        with b.annotation("dali_next"):
            b.wait(400)
        b.run_op("aten::mm", 300, host_us=10)
        b.sync()
    return b


def transforms() -> RunBuilder:
    """Half of loading is in a library function below the dataset's own."""
    b = RunBuilder(stacks=True)
    for _ in b.steps(5):
        with (
            b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            b.python("torch/utils/data/_utils/fetch.py", 52, "fetch"),
            b.python("data.py", 40, "__getitem__"),
        ):
            b.wait(50)
            with (
                b.python("data.py", 90, "augment"),
                b.python("scipy/ndimage/_interpolation.py", 640, "zoom"),
            ):
                b.wait(100)
                with b.event("<built-in method zoom_shift of PyCapsule object at 0x7f0>", "python_function"):
                    b.wait(250)
        b.run_op("aten::mm", 300, host_us=10)
        b.sync()
    return b


def pipeline(*times: float, inputs: int = 5) -> RunBuilder:
    """Each chunk of an input is preprocessed by itself, in so many us, one after another; without, no function is seen."""
    b = RunBuilder(stacks=True)
    for n in b.steps(5):
        with (
            b.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            b.python("transformers/pipelines/pt_utils.py", 266, "__next__"),
            b.python("transformers/pipelines/detection.py", 164 if n < inputs else 176, "preprocess")
            if times
            else nullcontext(),
            b.python("transformers/image_processing_utils.py", 40, "__call__") if times else nullcontext(),
        ):
            b.wait(times[n] if times else 400)
        b.run_op("aten::mm", 300, host_us=10)
        b.sync()
    return b


SCRIPT = """from torch.utils.data import DataLoader
loader = DataLoader(dataset, batch_size=32, shuffle=True)
for batch in loader:
    train(batch)
"""
PATCHED = """from torch.utils.data import DataLoader
loader = DataLoader(
    dataset,
    batch_size=32,
    shuffle=True,
    num_workers=2,
    pin_memory=True,
    persistent_workers=True,
)
for batch in loader:
    train(batch)
"""
