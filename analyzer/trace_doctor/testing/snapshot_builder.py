"""`SnapshotBuilder`: small synthetic snapshots for rule authors, written as real pickles and read by the real loader.

A builder holds a small caching allocator, so that segments, gaps and reserved memory follow from what is asked:

    b = SnapshotBuilder()
    weights = b.held(100 * MIB)                        # alive before recording began
    for _ in range(3):
        with b.forward("model.py", 12):
            kept = b.alloc(200 * MIB)
        with b.backward("MmBackward0"):
            grad = b.alloc(100 * MIB)
            b.free(kept)
        with b.optimizer_step():
            b.temporary(50 * MIB)
        with b.zero_grad():
            b.free(grad)
    snapshot = b.snapshot()

`train()` writes such steps in one call.
"""

from __future__ import annotations

import pickle
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from trace_doctor.snapshot import Snapshot
from trace_doctor.testing.caching_allocator import Block, CachingAllocator, Segment

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
Frame = tuple[str, int, str]
"""(file, line, function); C++ frames have the file "??"."""

SITE = "/usr/lib/python3/dist-packages/torch/"
_MODULE: list[Frame] = [
    (SITE + "nn/modules/module.py", 1790, "_call_impl"),
    (SITE + "nn/modules/module.py", 1779, "_wrapped_call_impl"),
]
_MALLOC: list[Frame] = [
    (
        "CUDACachingAllocator.cpp",
        0,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(...)",
    )
]
_ENGINE: list[Frame] = [
    ("??", 0, "torch::autograd::Engine::evaluate_function(...)"),
    ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)"),
]
_EMPTY_CACHE: list[Frame] = [
    (
        "CUDACachingAllocator.cpp",
        0,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::emptyCache(...)",
    ),
    (SITE + "cuda/memory.py", 224, "empty_cache"),
]
_RETRY: list[Frame] = [
    (
        "CUDACachingAllocator.cpp",
        0,
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::release_cached_blocks()",
    ),
    *_MALLOC,
]


class SnapshotBuilder:
    """Builds one snapshot of one device, or of several (`beside()`). Sizes are bytes, times microseconds.

    `stacks`: which frames are recorded ("all", "python", "cpp" or None for none; "state": all of blocks that are there at the
    end, none of the history, as with `context="state"`). `clock=False` leaves out `time_us` as torch 2.1 did. `annotate=False` leaves out `Optimizer.step` annotations, as torch before 2.6 did.
    """

    def __init__(
        self,
        *,
        device: int = 0,
        stacks: Literal["all", "python", "cpp", "state"] | None = "all",
        clock: bool = True,
        annotate: bool = True,
        script: str = "/home/me/train.py",
        function: str = "main",
        expandable_segments: bool = False,
        device_bytes: int = 80 * GIB,
    ) -> None:
        self.device = device
        self.now = 1_000_000
        """the clock, in microseconds"""
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.settings: dict[str, Any] = {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if expandable_segments else "",
            "expandable_segments": expandable_segments,
            "max_split_size": -1,
        }
        self.script, self.function = script, function
        self._kinds, self._clock, self._annotate = stacks, clock, annotate
        self._allocator = CachingAllocator(limit=device_bytes, expandable=expandable_segments)
        self._took, self._gave = (
            ("segment_map", "segment_unmap") if expandable_segments else ("segment_alloc", "segment_free")
        )
        self._recording = False
        self._others: list[SnapshotBuilder] = []
        self._here: list[Frame] = [(script, 10, function), (script, 99, "<module>")]
        self._frames: dict[Frame, dict[str, Any]] = {}

    # -- memory ------------------------------------------------------------------------------------------------

    def held(self, size: int, *, frames: Sequence[Frame] | None = None) -> Block:
        """A block that was alive before recording began. Only before the first recorded entry."""
        if self._recording:
            raise ValueError("held() comes before everything that is recorded")
        block, _ = self._allocator.malloc(size)
        block.frames = None if frames is None else self._stack(list(frames))
        return block

    def alloc(self, size: int, *, frames: Sequence[Frame] | None = None) -> Block:
        """Allocates `size` bytes; a segment is taken first where nothing cached fits."""
        stack = self._stack([*_MALLOC, *(self._here if frames is None else frames)])
        block, segment = self._allocator.malloc(size)
        if segment is not None:
            self._entry(self._took, segment.addr, segment.size, stack)
        block.frames = stack
        self._entry("alloc", block.addr, size, stack)
        return block

    def free(self, *blocks: Block) -> None:
        """Frees blocks, as the program does when the last reference to a tensor goes."""
        stack = self._stack(self._here)
        for block in blocks:
            self._entry("free_requested", block.addr, block.requested, stack)
            self._entry("free_completed", block.addr, block.requested, stack)
            self._allocator.free(block)

    def temporary(self, *sizes: int) -> None:
        """Blocks that live together and die at once, within the same stage."""
        self.free(*[self.alloc(size) for size in sizes])

    def empty_cache(self, line: int = 20) -> None:
        """`torch.cuda.empty_cache()` on a line of the script: gives every unused segment back."""
        self._give_back([*_EMPTY_CACHE, (self.script, line, self.function), (self.script, 99, "<module>")])

    def release_cached(self) -> None:
        """What malloc does under memory pressure before it asks the driver again."""
        self._give_back([*_RETRY, *self._here])

    def oom(self, size: int, *, device_free: int) -> None:
        """An allocation of `size` that fails. The retries before it are `release_cached()`."""
        stack = self._stack([*_MALLOC, *self._here])
        self._entry("oom", None, size, stack, device_free=device_free)

    def beside(self, other: SnapshotBuilder) -> None:
        """Another device of the same process, in the same file."""
        self._others.append(other)

    # -- where the program is -------------------------------------------------------------------------------------

    @contextmanager
    def script_line(self, line: int, function: str = "main", *, calls: int = 1) -> Iterator[None]:
        """Code of the script, outside of any module; `calls`: how often the function is open."""
        with self._at([(self.script, line, function)] * calls + [(self.script, 99, "<module>")]):
            yield

    @contextmanager
    def forward(self, file: str = "/home/me/model.py", line: int = 30, *, op: str = "mm") -> Iterator[None]:
        """A module's forward, `op` being the ATen operator that allocates."""
        native: list[Frame] = [("??", 0, f"at::_ops::{op}::call(...)")]
        with self._at([*native, (file, line, "forward"), *_MODULE, *self._here]):
            yield

    @contextmanager
    def backward(self, node: str = "MmBackward0") -> Iterator[None]:
        """Autograd's own thread: no Python frames."""
        with self._at([("??", 0, f"torch::autograd::generated::{node}::apply(...)"), *_ENGINE]):
            yield

    @contextmanager
    def optimizer_step(self, name: str = "AdamW", line: int = 14) -> Iterator[None]:
        """`optimizer.step()` on a line of the script."""
        inside = [
            (SITE + f"optim/{name.lower()}.py", 243, "step"),
            (SITE + "optim/optimizer.py", 533, "wrapper"),
        ]
        with self._annotated(f"Optimizer.step#{name}.step"), self._at([*inside, *self._script(line)]):
            yield

    @contextmanager
    def zero_grad(self, name: str = "AdamW", line: int = 15) -> Iterator[None]:
        """`optimizer.zero_grad()` on a line of the script."""
        inside: list[Frame] = [(SITE + "optim/optimizer.py", 975, "zero_grad")]
        with (
            self._annotated(f"Optimizer.zero_grad#{name}.zero_grad"),
            self._at([*inside, *self._script(line)]),
        ):
            yield

    def wait(self, us: int) -> None:
        """Lets so many us pass."""
        self.now += us

    # -- whole steps -----------------------------------------------------------------------------------------------

    def train(
        self,
        steps: int = 3,
        *,
        parameters: Sequence[int] = (64 * MIB, 32 * MIB),
        activations: Sequence[int] = (100 * MIB, 100 * MIB),
        zero_grad: Literal[
            "before_forward", "after_forward", "after_step", "never", "to_zero"
        ] = "after_step",
        state_copies: int = 2,
        accumulate: int = 1,
    ) -> None:
        """Training steps of a small model, recorded from the first step on.

        Parameters are held from before and so is no gradient; the first step makes the optimizer's state. `never` and
        `to_zero` keep the gradients' memory for good.
        """
        if not self._recording:
            for size in parameters:
                self.held(size)
        gradients: list[Block] = []
        for step in range(steps):
            if zero_grad == "before_forward":
                self._clear(gradients)
            for _ in range(accumulate):
                kept = []
                for i, size in enumerate(activations):
                    with self.forward(line=30 + i):
                        kept.append(self.alloc(size))
                if zero_grad == "after_forward":
                    self._clear(gradients)
                self._backward(kept, gradients, parameters)
            with self.optimizer_step():
                if step == 0:
                    for size in parameters:
                        for _ in range(state_copies):
                            self.alloc(size)
            if zero_grad == "after_step":
                self._clear(gradients)
            elif zero_grad == "to_zero":
                with self.zero_grad():
                    pass  # the memory stays: zeros are written into it

    def _backward(self, kept: list[Block], gradients: list[Block], parameters: Sequence[int]) -> None:
        """From the last layer to the first: its gradient is made, then its activation is no longer needed."""
        fresh = not gradients
        with self.backward():
            for size in reversed(parameters):
                if fresh:
                    gradients.append(self.alloc(size))
                else:
                    self.temporary(size)  # added to the gradient in place
                if kept:
                    self.free(kept.pop())
            self.free(*reversed(kept))

    def _clear(self, gradients: list[Block]) -> None:
        with self.zero_grad():
            self.free(*gradients)
        gradients.clear()

    # -- output ------------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """What `torch.cuda.memory._snapshot()` would return."""
        builders = [self, *self._others]
        entries = {b.device: b.entries for b in builders}
        made: dict[str, Any] = {
            "segments": [b._segment(s) for b in builders for s in b._allocator.segments],
            "device_traces": [entries.get(device, []) for device in range(max(entries) + 1)],
            "allocator_settings": self.settings,
        }
        if self._annotate and self._clock:
            made["external_annotations"] = [a for b in builders for a in b.annotations]
        return made

    def write(self, path: Path, *, protocol: int = 4) -> Path:
        """Writes the pickle; gives `path`."""
        path.write_bytes(pickle.dumps(_one_of_each(self.data(), {}), protocol=protocol))
        return path

    def snapshot(self) -> Snapshot:
        """The snapshot through the real loader."""
        from trace_doctor.loaders.snapshot.unpickle import load_snapshot

        with tempfile.TemporaryDirectory() as folder:
            return load_snapshot(self.write(Path(folder) / "snapshot.pickle"), "snapshot.pickle")

    # -- inside ------------------------------------------------------------------------------------------------

    def _script(self, line: int) -> list[Frame]:
        return [(self.script, line, self.function), (self.script, 99, "<module>")]

    @contextmanager
    def _at(self, frames: list[Frame]) -> Iterator[None]:
        before, self._here = self._here, frames
        yield
        self._here = before

    @contextmanager
    def _annotated(self, name: str) -> Iterator[None]:
        self.now += 5
        self._note(name, "START")
        yield
        self.now += 5
        self._note(name, "END")

    def _note(self, name: str, stage: str) -> None:
        self.annotations.append({"name": name, "stage": stage, "device": self.device, "time_us": self.now})

    def _give_back(self, frames: list[Frame]) -> None:
        stack = self._stack(frames)
        for segment in self._allocator.release_unused():
            self._entry(self._gave, segment.addr, segment.size, stack)

    def _entry(self, action: str, addr: int | None, size: int, stack: Any, **more: Any) -> None:
        self._recording = True
        self.now += 10
        entry: dict[str, Any] = {"action": action, "size": size, "stream": 0, **more}
        if addr is not None:
            entry["addr"] = addr
        if self._clock:
            entry["time_us"] = self.now
        if stack is not None and self._kinds != "state":
            entry["frames"] = stack
        self.entries.append(entry)

    def _stack(self, frames: Sequence[Frame]) -> list[dict[str, Any]] | None:
        if self._kinds is None:
            return None
        python, native = self._kinds != "cpp", self._kinds != "python"
        kept = [f for f in frames if (python if f[0].endswith(".py") else native)]
        return [self._frames.setdefault(f, {"filename": f[0], "line": f[1], "name": f[2]}) for f in kept]

    def _segment(self, segment: Segment) -> dict[str, Any]:
        active = [b for b in segment.blocks if b.active]
        return {
            "device": self.device,
            "address": segment.addr,
            "total_size": segment.size,
            "stream": 0,
            "segment_type": segment.kind,
            "segment_pool_id": (0, 0),
            "is_expandable": bool(self.settings["expandable_segments"]),
            "allocated_size": sum(b.size for b in active),
            "active_size": sum(b.size for b in active),
            "requested_size": sum(b.requested for b in active),
            "frames": [],
            "blocks": [
                {
                    "address": b.addr,
                    "size": b.size,
                    "requested_size": b.requested,
                    "state": "active_allocated" if b.active else "inactive",
                    "frames": (b.frames or []) if b.active else [],
                }
                for b in segment.blocks
            ],
        }


def _one_of_each(value: Any, made: dict[int, Any]) -> Any:
    """The same with one object for equal texts: pickle writes an object once, and whether equal constants are one depends on whether
    Python compiled their module or loaded it. `made`: what has become of each container."""
    if type(value) is str:
        return sys.intern(value)
    if not isinstance(value, list | dict | tuple):
        return value
    if id(value) not in made:
        if isinstance(value, dict):
            made[id(value)] = {_one_of_each(k, made): _one_of_each(v, made) for k, v in value.items()}
        else:
            made[id(value)] = type(value)(_one_of_each(v, made) for v in value)
    return made[id(value)]
