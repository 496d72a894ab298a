"""Traces of what the host does to the GPU: waiting for data, copies, synchronisation, launches."""

from __future__ import annotations

from script import STEPS, Script
from trace_doctor.testing import RunBuilder

PRODUCT = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"


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


SCENARIOS = (
    dataloader_starvation,
    host_sync,
    worker_restart,
    pageable_copies,
    cpu_tensor_then_copy,
    launch_bound,
    no_gpu_activity,
)
