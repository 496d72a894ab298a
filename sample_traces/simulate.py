"""Writes the captures of the GPU scenarios without a GPU: `python sample_traces/simulate.py`.

They come from trace_doctor.testing: a clock, streams that work in order and a small caching allocator. Files, lines
and the order of events are those of the scripts; sizes and times are round figures. They show what the analysis says
of such a run, not what a real GPU records: `capture.py` on a GPU machine does that.
"""

from __future__ import annotations

import gzip
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trace_doctor.testing import RunBuilder, SnapshotBuilder

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
STEPS = 8
LINEAR = "at::_ops::addmm::call(...)"
TORCH = "site-packages/torch/"
CALL = [(TORCH + "nn/modules/module.py", 1790, "_call_impl"), (TORCH + "nn/modules/module.py", 1779, "_wrapped_call_impl")]
PRODUCT = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
Frame = tuple[str, int, str]


class Script:
    """One twin of a scenario: finds the lines that stacks are to name."""

    def __init__(self, scenario: str, twin: str) -> None:
        self.file = f"{twin}.py"
        self.faulty = twin == "fault"
        self.lines = (HERE / scenario / self.file).read_text(encoding="utf-8").splitlines()

    def line(self, text: str) -> int:
        """The number of the first line that holds the text."""
        return next(i for i, line in enumerate(self.lines, 1) if text in line)

    def train(self, text: str) -> list[Frame]:
        """The stack of a line in `train`."""
        return [(self.file, self.line(text), "train"), (self.file, len(self.lines), "<module>")]

    def module(self, native: str, caller: str = "model(x)") -> list[Frame]:
        """The stack of an operator in a torch module that `train` called."""
        inside = [("??", 0, native), (TORCH + "nn/modules/linear.py", 134, "forward"), *CALL]
        return [*inside, *self.train(caller)]


# -- traces ----------------------------------------------------------------------------------------------------------


def dataloader_starvation(script: Script) -> RunBuilder:
    """A step keeps the GPU busy for 50 ms; a batch takes 100 ms to read, or is there already."""
    b = RunBuilder(stacks=True)
    with b.python(script.file, script.line("profiler.step()"), "train"):
        for _ in range(STEPS):
            with b.step():
                b.loader(100_000 if script.faulty else 200, workers=0 if script.faulty else 4)
                kind = "Pageable" if script.faulty else "Pinned"
                b.copy(40, f"HtoD ({kind} -> Device)", bytes=393_216)
                for _ in range(9):
                    operator(b, "aten::cudnn_convolution", 1850)
                with b.thread(200):
                    backward(b, 18, 1850)
                b.wait(800)
                with b.optimizer_step("SGD"):
                    operator(b, "aten::_foreach_add_", 100)
    return b


def host_sync(script: Script) -> RunBuilder:
    """The GPU needs 20 us for an operator of the forward and 9 us for one of the backward, the host 12 us to launch
    either: what the host gains in the forward is lost when it waits for the loss."""
    b = RunBuilder(stacks=True)
    with b.python(script.file, script.line("profiler.step()"), "train"):
        for _ in range(STEPS):
            with b.step():
                for _ in range(150):
                    operator(b, "aten::addmm", 20)
                if script.faulty:
                    b.item()
                for _ in range(150):
                    operator(b, "aten::mm", 9)
                with b.optimizer_step():
                    operator(b, "aten::_fused_adamw_", 60)
    return b


def worker_restart(script: Script) -> RunBuilder:
    """Epochs of four steps of 40 ms. Ending two processes takes 40 ms, starting them 100 ms, and they need 60 ms to open
    what they read from; processes that live on give the first batch after 4 ms."""
    b = RunBuilder(stacks=True)
    with b.python(script.file, script.line("profiler.step()"), "train"):
        for step in range(3 * 4):
            with b.step():
                if step % 4 == 0 and step:
                    b.loader(40_000 if script.faulty else 60, workers=2)
                    made = "__init__" if script.faulty else "_reset"
                    with b.python("torch/utils/data/dataloader.py", 1101, made):
                        b.wait(100_000 if script.faulty else 2_000)
                b.loader((60_000 if script.faulty else 4_000) if step % 4 == 0 and step else 120, workers=2)
                b.copy(5, "HtoD (Pinned -> Device)", bytes=65_536)
                for _ in range(5):
                    operator(b, "aten::addmm", 2600)
                with b.thread(200):
                    backward(b, 10, 2600)
                b.wait(300)
                with b.optimizer_step("SGD"):
                    operator(b, "aten::_foreach_add_", 100)
    return b


def pageable_copies(script: Script) -> RunBuilder:
    """77 MB of images take 13 ms from pageable memory (6 GB/s) and 1.5 ms from pinned memory (50 GB/s)."""
    b = RunBuilder(stacks=True)
    with b.python(script.file, script.line("profiler.step()"), "train"):
        for _ in range(STEPS):
            with b.step():
                b.loader(80)
                for us, size in ((12_845 if script.faulty else 1_541, 77_070_336), (2, 1024)):
                    with b.op("aten::to", us=5), b.op("aten::_to_copy", us=3), b.op("aten::copy_", us=3):
                        b.copy(us, f"HtoD ({'Pageable' if script.faulty else 'Pinned'} -> Device)", bytes=size)
                        if script.faulty:
                            b.sync()
                for _ in range(7):
                    operator(b, "aten::cudnn_convolution", 1800)
                with b.thread(200):
                    backward(b, 14, 1800)
                b.wait(300)
                with b.optimizer_step("SGD"):
                    operator(b, "aten::_foreach_add_", 100)
    return b


def cpu_tensor_then_copy(script: Script) -> RunBuilder:
    """Drawing 4 million normal numbers takes a core 24 ms, the GPU 20 us."""
    b = RunBuilder(stacks=True, shapes=True)
    shape = [4096, 1024]
    with b.python(script.file, script.line("profiler.step()"), "train"):
        for _ in range(STEPS):
            with b.step():
                with b.op("aten::randn", us=4), b.op("aten::normal_", dims=[shape], types=["float"], us=4):
                    b.wait(24_000) if script.faulty else b.launch(20)
                if script.faulty:
                    with b.op("aten::to", dims=[shape], types=["float"]), b.op("aten::_to_copy"), b.op("aten::copy_"):
                        b.copy(2_800, bytes=16_777_216)
                        b.sync()
                for _ in range(24):
                    operator(b, "aten::addmm", 300)
                with b.thread(200):
                    backward(b, 48, 300)
                b.wait(300)
                with b.optimizer_step("SGD"):
                    operator(b, "aten::_foreach_add_", 100)
    return b


def launch_bound(script: Script) -> RunBuilder:
    """Each kernel takes 4 us, each operator of the host 34 us. Compiled, the model is twelve kernels of 60 us a step."""
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            if script.faulty:
                for name in ("aten::native_layer_norm", "aten::addmm", "aten::gelu", "aten::add") * 64:
                    with b.op(name, us=30):
                        b.launch(4, f"{name[6:]}_kernel")
                with b.event("autograd::engine::evaluate_function"):
                    for _ in range(400):
                        with b.op("aten::mm", us=30):
                            b.launch(4, "mm_kernel")
            else:
                with b.region(0), b.op("CompiledFunction", us=20):
                    for _ in range(12):
                        b.launch(60, "triton_per_fused_addmm_gelu_native_layer_norm_0", call="cuLaunchKernel")
            with b.optimizer_step("SGD"):
                operator(b, "aten::_foreach_add_", 100)
    return b


def no_gpu_activity(script: Script) -> RunBuilder:
    b = RunBuilder()
    for _ in range(STEPS):
        with b.step():
            for _ in range(30):
                if script.faulty:
                    with b.op("aten::addmm", us=8):
                        pass
                else:
                    operator(b, "aten::addmm", 200)
            with b.optimizer_step():
                b.wait(100)
    return b


def operator(b: RunBuilder, name: str, us: float, kernel: str = PRODUCT) -> None:
    with b.op(name, us=8):
        b.launch(us, kernel)


def backward(b: RunBuilder, count: int, us: float) -> None:
    for _ in range(count):
        operator(b, "autograd::engine::evaluate_function: ConvolutionBackward0", us)


# -- snapshots -------------------------------------------------------------------------------------------------------


class Training:
    """A model of linear layers under AdamW, recorded from its first step on."""

    def __init__(
        self,
        script: Script,
        *,
        layers: int,
        weight: int,
        activation: int,
        device_bytes: int = 80 << 30,
        expandable_segments: bool = False,
    ) -> None:
        self.script = script
        self.b = SnapshotBuilder(
            script=script.file,
            function="train",
            device_bytes=device_bytes,
            expandable_segments=expandable_segments,
        )
        self.layers, self.weight, self.activation = layers, weight, activation
        self.gradients: list[Any] = []
        for _ in range(layers):
            self.b.held(weight)

    def forward(self, caller: str = "model(x)") -> list[Any]:
        return [
            self.b.alloc(self.activation, frames=self.script.module(LINEAR, caller)) for _ in range(self.layers)
        ]

    def backward(self, kept: list[Any]) -> None:
        """Frees the activations from the last to the first; new gradients, or sums into those that are there."""
        there = bool(self.gradients)
        with self.b.backward("AddmmBackward0"):
            for block in reversed(kept):
                made = self.b.alloc(self.weight)
                if there:
                    self.b.free(made)
                else:
                    self.gradients.append(made)
                self.b.free(block)

    def optimizer_step(self, first: bool) -> None:
        with self.b.optimizer_step(line=self.script.line("optimizer.step()")):
            for _ in range(2 * self.layers if first else 0):
                self.b.alloc(self.weight)

    def zero_grad(self, to_none: bool = True) -> None:
        with self.b.zero_grad(line=self.script.line("optimizer.zero_grad(")):
            if to_none:
                self.b.free(*self.gradients)
                self.gradients.clear()


def zero_grad_misplaced(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=6, weight=16 * MIB, activation=64 * MIB)
    for step in range(STEPS):
        kept = job.forward()
        if script.faulty:
            job.zero_grad()
        job.backward(kept)
        job.optimizer_step(step == 0)
        if not script.faulty:
            job.zero_grad()
    return job.b


def zero_grad_set_to_none_false(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=6, weight=16 * MIB, activation=64 * MIB)
    for step in range(STEPS):
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad(to_none=not script.faulty)
    return job.b


def empty_cache_in_loop(script: Script) -> SnapshotBuilder:
    """The longest document comes first; each later one is shorter."""
    job = Training(script, layers=4, weight=24 * MIB, activation=100 * MIB)
    for step, length in enumerate((100, 60, 45, 80, 30, 70, 55, 90)):
        job.activation = length * MIB
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
        if script.faulty:
            job.b.empty_cache(line=script.line("empty_cache()"))
    return job.b


def allocator_churn_shapes(script: Script) -> SnapshotBuilder:
    """Cached segments that are too small for the next document are given back under pressure; one that grows
    (`expandable_segments`) fits every document."""
    job = Training(script, layers=4, weight=24 * MIB, activation=0, expandable_segments=not script.faulty)
    for step, length in enumerate((60, 120, 90, 160, 60, 140, 110, 180)):
        job.activation = length * MIB
        if script.faulty and step:
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.release_cached()
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
    return job.b


def fragmentation(script: Script) -> SnapshotBuilder:
    """Every document is longer than the one before: its activations fit no cached segment, or the one that grows."""
    job = Training(script, layers=4, weight=24 * MIB, activation=0, expandable_segments=not script.faulty)
    for step, length in enumerate(range(40, 200, 20)):
        job.activation = length * MIB
        job.backward(job.forward())
        job.optimizer_step(step == 0)
        job.zero_grad()
    return job.b


def memory_spike(script: Script) -> SnapshotBuilder:
    """Logits of 8128 tokens over 32,768 words are 1 GiB, and so are their log-softmax, its gradient and the gradient
    of the logits. Of 64 chunks, computed again in the backward, each needs a 64th of it."""
    job = Training(script, layers=3, weight=64 * MIB, activation=16 * MIB)
    chunks = 1 if script.faulty else 64
    size = 1024 * MIB // chunks
    where = [
        (script.file, script.line("F.cross_entropy("), "loss" if script.faulty else "chunk_loss"),
        *script.train("model(tokens)"),
    ]

    def loss() -> Any:
        logits = job.b.alloc(size, frames=[("??", 0, "at::_ops::mm::call(...)"), *where])
        softmax = job.b.alloc(size, frames=[("??", 0, "at::_ops::_log_softmax::call(...)"), *where])
        job.b.free(logits)
        return softmax

    for _ in range(STEPS):
        kept = job.forward("model(tokens)")
        softmax = [loss() for _ in range(chunks)] if script.faulty else []
        for _ in range(0 if script.faulty else chunks):
            job.b.free(loss())
        for _ in range(chunks):
            again = softmax.pop() if script.faulty else loss()
            with job.b.backward("NllLossBackward0"):
                into_softmax = job.b.alloc(size)
            with job.b.backward("LogSoftmaxBackward0"):
                into_logits = job.b.alloc(size)
                job.b.free(into_softmax, again)
            with job.b.backward("MmBackward0"):
                job.b.free(into_logits)
        job.backward(kept)
        job.optimizer_step(first=False)
        job.zero_grad()
    return job.b


def memory_growth(script: Script) -> SnapshotBuilder:
    job = Training(script, layers=4, weight=4 * MIB, activation=32 * MIB)
    for step in range(STEPS):
        job.backward(job.forward("loss = F.cross_entropy(model(x)"))
        job.optimizer_step(step == 0)
        job.zero_grad()
        validation = job.forward("validation_loss = F.cross_entropy(model(x)")
        if not script.faulty:
            with job.b.script_line(script.line("validation_total +="), "train"):
                job.b.free(*validation)
    return job.b


def out_of_memory(script: Script) -> SnapshotBuilder:
    """The job may use 1 GiB; its ninth batch is sixteen times as large as the others."""
    limit = 1024 * MIB
    job = Training(script, layers=6, weight=32 * MIB, activation=10 * MIB, device_bytes=limit)
    for step in range(9):
        if step == 8 and script.faulty:
            job.activation = 160 * MIB
            job.b.release_cached()
            free = limit - (job.layers * job.weight)
            for _ in range(free // job.activation):
                job.b.alloc(job.activation, frames=script.module(LINEAR))
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.oom(job.activation, device_free=free % job.activation)
            break
        job.backward(job.forward())
        job.optimizer_step(first=False)
        job.zero_grad()
    return job.b


def activation_bound(script: Script) -> SnapshotBuilder:
    """Each of twelve blocks keeps 96 MiB for the backward, or 32 MiB where it is run again there; 1 GiB may be used."""
    limit, size = 1024 * MIB, 32 * MIB
    b = SnapshotBuilder(script=script.file, function="train", device_bytes=limit)
    for _ in range(24):
        b.held(4 * MIB)
    loop = (script.file, script.line("for block in self.blocks") + 1, "forward")
    again = [] if script.faulty else [(TORCH + "utils/checkpoint.py", 503, "checkpoint")]

    def block(line: str, native: str = LINEAR) -> Any:
        inside = [("??", 0, native), (script.file, script.line(line), "forward"), *CALL, *again, loop, *CALL]
        return [*inside, *script.train("model(x)")]

    def run() -> list[Any]:
        return [
            b.alloc(size, frames=block("self.up(x)")),
            b.alloc(size, frames=block("F.gelu(", "at::_ops::gelu::call(...)")),
            b.alloc(size, frames=block("self.down(hidden)")),
        ]

    for _ in range(STEPS):
        gradients: list[Any] = []
        kept: list[list[Any]] = []
        for _ in range(9 if script.faulty else 12):
            kept.append(run())
            if not script.faulty:
                b.free(*kept[-1][:2])
        if script.faulty:
            b.alloc(size, frames=block("self.up(x)"))
            with b.script_line(script.line("model(x)"), "train"):
                b.oom(size, device_free=limit - 96 * MIB - 28 * size - 8 * MIB)
            break
        for blocks in reversed(kept):
            with b.backward("AddmmBackward0"):
                repeated = [b.alloc(size), b.alloc(size)]
                gradients += [b.alloc(4 * MIB), b.alloc(4 * MIB)]
                b.free(*repeated, blocks[2])
        with b.optimizer_step(line=script.line("optimizer.step()")):
            b.temporary(MIB)
        with b.zero_grad(line=script.line("optimizer.zero_grad(")):
            b.free(*gradients)
    return b


def optimizer_state_bound(script: Script) -> SnapshotBuilder:
    """Parameters hold 240 MiB, AdamW's state twice that, the activations of a batch 480: the second one does not fit
    into 1 GiB."""
    limit = 1024 * MIB
    job = Training(script, layers=6, weight=40 * MIB, activation=80 * MIB, device_bytes=limit)
    for step in range(STEPS):
        if step and script.faulty:
            job.b.release_cached()
            for _ in range(3):
                job.b.alloc(job.activation, frames=script.module(LINEAR))
            with job.b.script_line(script.line("model(x)"), "train"):
                job.b.oom(job.activation, device_free=24 * MIB)
            break
        job.backward(job.forward())
        job.optimizer_step(step == 0 and script.faulty)
        job.zero_grad()
    return job.b


def stale_graph(script: Script) -> SnapshotBuilder:
    """Without inference mode the variable `output` holds 260 MiB while the next batch is computed."""
    b = SnapshotBuilder(script=script.file, function="train", annotate=False)
    b.held(20 * MIB)
    old: list[Any] = []
    for _ in range(STEPS):
        with b.script_line(script.line("x = torch.randn("), "train"):
            x = b.alloc(32 * MIB)
        kept: list[Any] = []
        for layer in range(8):
            native = "at::_ops::gelu::call(...)" if layer % 2 else LINEAR
            made = b.alloc(32 * MIB, frames=script.module(native))
            if not script.faulty:
                b.free(*kept)
                kept.clear()
            kept.append(made)
        output = b.alloc(4 * MIB, frames=script.module(LINEAR))
        if not script.faulty:
            b.free(*kept)
            kept.clear()
        b.free(*old, *([] if script.faulty else [x]))
        old = [x, *kept, output] if script.faulty else [output]
    return b


SCENARIOS: tuple[Callable[[Script], RunBuilder | SnapshotBuilder], ...] = (
    dataloader_starvation,
    host_sync,
    worker_restart,
    pageable_copies,
    cpu_tensor_then_copy,
    launch_bound,
    no_gpu_activity,
    zero_grad_misplaced,
    zero_grad_set_to_none_false,
    allocator_churn_shapes,
    fragmentation,
    memory_spike,
    memory_growth,
    activation_bound,
    optimizer_state_bound,
    empty_cache_in_loop,
    out_of_memory,
    stale_graph,
    *runpy.run_path(str(HERE / "simulate_kernels.py"))["KERNEL_SCENARIOS"],
)


def write(scenario: Callable[[Script], RunBuilder | SnapshotBuilder], twin: str, folder: Path) -> Path:
    """One capture, gzipped: the name of its file says which kind it is."""
    built = scenario(Script(scenario.__name__, twin))
    name = "trace.json" if isinstance(built, RunBuilder) else "snapshot.pickle"
    plain = built.write(folder / name)
    packed = folder / f"{name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=9, mtime=0))
    plain.unlink()
    return packed


def main() -> None:
    for scenario in SCENARIOS:
        for twin in ("fault", "healthy"):
            folder = HERE / scenario.__name__ / "simulated" / twin
            folder.mkdir(parents=True, exist_ok=True)
            print(write(scenario, twin, folder).relative_to(HERE))


if __name__ == "__main__":
    main()
