"""`RunBuilder`: small synthetic traces for rule authors, written as real Kineto JSON and read by the real loader.

A builder has a clock (microseconds) that host calls move forward, and a GPU whose streams work in order:

    b = RunBuilder()
    for _ in b.steps(5):
        b.loader(400)                           # the host waits for the next batch
        b.run_op("aten::mm", 100, "sgemm")      # asynchronous: the host goes on after the launch call
    run = b.run()
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trace_doctor.run import Run

BASE_NS = 1_700_000_000_000_000_000
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"


class RunBuilder:
    """Builds one rank's trace. All durations are microseconds. `gpu=None` makes a CPU-only capture."""

    def __init__(
        self,
        *,
        gpu: str | None = "NVIDIA H100 80GB HBM3",
        compute_capability: tuple[int, int] = (9, 0),
        gpu_bytes: int = 80 << 30,
        devices: int = 1,
        rank: int | None = None,
        world_size: int = 1,
        stacks: bool = False,
        shapes: bool = False,
        memory: bool = False,
        launch_us: float = 4.0,
        latency_us: float = 3.0,
    ) -> None:
        self.now = 1000.0
        """the host clock, in microseconds"""
        self.device = 0
        """the device that launches go to"""
        self.events: list[dict[str, Any]] = []
        self.step_ms: dict[str, tuple[float, ...]] = {}
        """what a recording measured beside the trace: phase -> milliseconds of each step"""
        self.waited_for_cpu: float | None = None
        """the same: share of its time in which the main thread could have run and did not"""
        self.periodic: dict[str, Any] | None = None
        """the same: periodic work, as the manifest of a rank has it; {}: none came twice, None: not observed"""
        self.recorded_device = ""
        """the same: the GPU that the script used"""
        self.ended = ""
        """the same: why the recording ended"""
        self.meta: dict[str, Any] = {
            "schemaVersion": 1,
            "deviceProperties": [
                {
                    "id": i,
                    "name": gpu,
                    "totalGlobalMem": gpu_bytes,
                    "computeMajor": compute_capability[0],
                    "computeMinor": compute_capability[1],
                    "numSms": 132,
                }
                for i in range(devices if gpu else 0)
            ],
            "record_shapes": int(shapes),
            "with_stack": int(stacks),
            "profile_memory": int(memory),
        }
        if rank is not None:
            self.meta["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
        self._launch_us = launch_us
        self._latency_us = latency_us
        self._stream_free: dict[tuple[int, int], float] = {}
        self._correlation = 0
        self._external = 0
        self._steps = 0
        self._tid = 100
        self._allocated = 0
        self._python_ids = 0

    # -- the host ----------------------------------------------------------------------------------------------

    def wait(self, us: float) -> None:
        """Host time with nothing recorded open (Python work without stacks)."""
        self.now += us

    @contextmanager
    def event(self, name: str, cat: str = "cpu_op", **args: Any) -> Iterator[dict[str, Any]]:
        """An event that spans the body."""
        made = self._host(name, cat, self.now, 0.0, args)
        start = self.now
        yield made
        made["dur"] = self.now - start

    @contextmanager
    def step(self, number: int | None = None) -> Iterator[None]:
        """`ProfilerStep#n`: numbers count up by themselves."""
        n = self._steps if number is None else number
        self._steps = n + 1
        with self.event(f"ProfilerStep#{n}", "user_annotation"):
            yield

    def steps(self, count: int) -> Iterator[int]:
        """`for n in b.steps(5):` one step after the other, with its place from 0 on; the body is what runs in it."""
        for place in range(count):
            with self.step():
                yield place

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A `record_function` of the user."""
        with self.event(name, "user_annotation"):
            yield

    @contextmanager
    def op(
        self, name: str, *, dims: Sequence[Any] = (), types: Sequence[str] = (), us: float = 1.0
    ) -> Iterator[None]:
        """An ATen operator around the body; `us` of dispatch come before it."""
        self._external += 1
        args: dict[str, Any] = {"External id": self._external}
        if self.meta["record_shapes"]:
            args |= {"Input Dims": list(dims), "Input type": list(types)}
        with self.event(name, "cpu_op", **args):
            self.now += us
            yield

    def run_op(
        self,
        name: str,
        us: float | None = None,
        kernel: str = KERNEL,
        *,
        host_us: float = 1.0,
        dims: Sequence[Any] = (),
        types: Sequence[str] = (),
        **launch: Any,
    ) -> None:
        """An operator whose work is one kernel of `us` (None: it has none), as `op` and `compute`; `launch`: further options of its
        launch."""
        with self.op(name, dims=dims, types=types, us=host_us):
            if us is not None:
                self.compute(us, kernel, **launch)

    @contextmanager
    def python(self, file: str, line: int, function: str) -> Iterator[None]:
        """A Python frame, as `with_stack=True` records it. Ignored when the builder records no stacks."""
        if not self.meta["with_stack"]:
            yield
            return
        self._python_ids += 1
        with self.event(f"{file}({line}): {function}", "python_function", **{"Python id": self._python_ids}):
            yield

    @contextmanager
    def thread(self, tid: int) -> Iterator[None]:
        """The body runs on another thread, at the same time: the clock goes back afterwards."""
        before, now = self._tid, self.now
        self._tid = tid
        yield
        self._tid, self.now = before, now

    def runtime(self, name: str, us: float, **args: Any) -> None:
        """A CUDA runtime call that launches nothing (cudaMalloc, cudaFree, cudaEventRecord ...)."""
        self._correlation += 1
        self._host(name, "cuda_runtime", self.now, us, {"correlation": self._correlation, **args})
        self.now += us

    def loader(self, us: float, *, workers: int = 0) -> None:
        """A `DataLoader.__next__` that takes `us`."""
        kind = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
        with self.event(f"enumerate(DataLoader)#{kind}.__next__", "user_annotation"):
            self.now += us

    @contextmanager
    def optimizer_step(self, name: str = "AdamW") -> Iterator[None]:
        """An annotation as torch makes one around `step()` of this optimizer."""
        with self.event(f"Optimizer.step#{name}.step", "user_annotation"):
            yield

    @contextmanager
    def region(self, frame: int, recompile: int = 0) -> Iterator[None]:
        """A `Torch-Compiled Region: frame/recompile`; a graph break nests the next one inside."""
        with self.event(f"Torch-Compiled Region: {frame}/{recompile}", "cpu_op"):
            yield

    # -- the device --------------------------------------------------------------------------------------------

    def launch(
        self,
        us: float,
        name: str = KERNEL,
        *,
        stream: int = 7,
        call: str = "cudaLaunchKernel",
        call_us: float | None = None,
        held: bool = False,
        **args: Any,
    ) -> None:
        """A kernel of `us`, launched now; it starts when its stream is free and the launch has arrived. `held`: the call returns
        only when it has ended."""
        self._enqueue(
            name, "kernel", us, stream, call, call_us, {"grid": [1, 1, 1], "block": [128, 1, 1], **args}
        )
        if held:
            self._hold(stream)

    def stall(self, us: float, *, stream: int = 7) -> None:
        """The stream stands still behind its work, for a reason that the capture does not show."""
        free = self._stream_free.get((self.device, stream), 0.0)
        self._stream_free[self.device, stream] = max(self.now, free) + us

    def compute(self, us: float, name: str = KERNEL, **launch: Any) -> None:
        """The work of the open operator: a kernel; in a capture of the CPU alone time of its own."""
        if self.meta["deviceProperties"]:
            self.launch(us, name, **launch)
        else:
            self.wait(us)

    def copy(
        self, us: float, kind: str = "HtoD (Pageable -> Device)", *, bytes: int = 1 << 20, stream: int = 7
    ) -> None:
        """A `Memcpy ...`; to or from pageable memory the call returns only when the copy is done."""
        self._enqueue(f"Memcpy {kind}", "gpu_memcpy", us, stream, "cudaMemcpyAsync", None, {"bytes": bytes})
        if "Pageable" in kind and (kind.startswith("DtoH") or bytes > 64 << 10):
            self._hold(stream)

    def sync(self, call: str = "cudaStreamSynchronize", *, stream: int = 7) -> None:
        """A blocking wait until the stream (a device sync: all streams) is empty."""
        every = call in ("cudaDeviceSynchronize", "hipDeviceSynchronize")
        until = max(
            (t for (d, s), t in self._stream_free.items() if d == self.device and (every or s == stream)),
            default=self.now,
        )
        self.runtime(call, max(until - self.now, 0.0) + 2.0)

    def item(self, *, stream: int = 7) -> None:
        """`tensor.item()`: a DtoH copy and a wait for everything before it."""
        with self.op("aten::item"), self.op("aten::_local_scalar_dense"):
            self.copy(1.5, "DtoH (Device -> Pageable)", bytes=4, stream=stream)
            self.sync(stream=stream)

    def idle_until_done(self) -> None:
        """Moves the host clock past the end of all device work, without any call."""
        self.now = max([self.now, *self._stream_free.values()])

    def counter(self, name: str, value: float) -> None:
        """A sample of a counter of the device, now: `SM Clock (MHz)`."""
        event = {
            "ph": "C",
            "name": name,
            "pid": f"GPU {self.device} Counters",
            "ts": self.now,
            "args": {"": value},
        }
        self.events.append(event)

    def memory(self, bytes: int, *, reserved: int = -1, addr: int = 0) -> None:
        """A `[memory]` instant: positive allocates, negative frees."""
        self._allocated += bytes
        device_type = 1 if self.meta["deviceProperties"] else 0
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "s": "t",
                "pid": 100,
                "tid": self._tid,
                "ts": self.now,
                "args": {
                    "Total Reserved": max(reserved, 0),
                    "Total Allocated": self._allocated,
                    "Bytes": bytes,
                    "Addr": addr,
                    "Device Id": self.device if device_type else -1,
                    "Device Type": device_type,
                },
            }
        )

    @property
    def gpu_free(self) -> float:
        """When the device's default stream can start what is launched now, on the builder's clock (us)."""
        return max(
            self._stream_free.get((self.device, 7), 0.0), self.now + self._launch_us + self._latency_us
        )

    # -- output ------------------------------------------------------------------------------------------------

    def json(self) -> str:
        """The trace as Kineto writes it (torch 2.4 and later: base time plus float microseconds)."""
        head = {**self.meta, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        text = json.dumps(head, indent=2)[:-2]
        body = ",\n".join(_event(e) for e in self.events)
        return f'{text},\n  "traceEvents": [\n{body}\n  ],\n  "traceName": "trace.json"\n}}\n'

    def write(self, path: Path) -> Path:
        """Writes the trace as JSON; gives `path`."""
        path.write_text(self.json(), encoding="utf-8")
        return path

    def run(self) -> Run:
        """The trace through the real loader."""
        # rules import this module, and need no loader
        from trace_doctor.loaders.kineto.trace import load_trace

        with tempfile.TemporaryDirectory() as folder:
            return load_trace(self.write(Path(folder) / "trace.json"), "trace.json")

    # -- inside ------------------------------------------------------------------------------------------------

    def _host(self, name: str, cat: str, ts: float, dur: float, args: dict[str, Any]) -> dict[str, Any]:
        made = {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 100,
            "tid": self._tid,
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        self.events.append(made)
        return made

    def _hold(self, stream: int) -> None:
        """The last call returns when the stream is done."""
        end = self._stream_free[self.device, stream]
        self._last_call["dur"] = max(self._last_call["dur"], end - self._last_call["ts"] + 1.0)
        self.now = max(self.now, self._last_call["ts"] + self._last_call["dur"])

    def _enqueue(
        self,
        name: str,
        cat: str,
        us: float,
        stream: int,
        call: str,
        call_us: float | None,
        args: dict[str, Any],
    ) -> None:
        self._correlation += 1
        link = {"correlation": self._correlation, "External id": self._external}
        took = self._launch_us if call_us is None else call_us
        driver = call.startswith("cu") and not call.startswith("cuda")
        self._last_call = self._host(
            call, "cuda_driver" if driver else "cuda_runtime", self.now, took, dict(link)
        )
        self.now += took
        start = max(self._stream_free.get((self.device, stream), 0.0), self.now + self._latency_us)
        self._stream_free[self.device, stream] = start + us
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": self.device,
                "tid": stream,
                "ts": start,
                "dur": us,
                "args": {**link, "device": self.device, "stream": stream, **args},
            }
        )


def without_gpu(operator: str = "aten::mm", us: float = 100.0) -> RunBuilder:
    """Three steps of one operator on the CPU: what rules about the GPU abstain from."""
    b = RunBuilder(gpu=None, shapes=True)
    for _ in b.steps(3):
        b.run_op(operator, host_us=us)
    return b


def _event(e: dict[str, Any]) -> str:
    head = json.dumps({k: e[k] for k in ("ph", "cat", "name", "s", "pid", "tid") if k in e})[1:-1]
    times = ", ".join(f'"{k}": {e[k]:.3f}' for k in ("ts", "dur") if k in e)
    return f'  {{\n    {head},\n    {times},\n    "args": {json.dumps(e["args"])}\n  }}'
