"""Traces of servers: engine steps by kind, decode steps as CUDA graphs or launched kernel by kernel."""

from __future__ import annotations

from script import Script
from trace_doctor.testing import RunBuilder
from traces import PRODUCT, operator

LAYERS = 16
KERNELS = (PRODUCT, "pytorch_flash::flash_fwd_splitkv_kernel", PRODUCT, "void at::native::vectorized_elementwise_kernel<4, GeluFunctor>")
READ_US = 400
"""what the host does with the tokens of a step"""


def decode_token_copy(script: Script) -> RunBuilder:
    """A decode step of 32 requests is one graph of 1.3 ms. The host reads its tokens before it launches the next, or those of the
    step before while this one runs."""
    b = RunBuilder(stacks=True)
    with b.python(script.file, script.line("profiler.step()"), "serve"):
        for _ in range(2):
            with b.annotation("step[EXTEND bs=32 toks=16384]"):
                eager(b, 300)
            copied = 0.0
            for _ in range(10):
                with b.annotation("step[DECODE bs=32]"):
                    inputs(b)
                    replay(b, 32, 20)
                    with b.op("aten::to", us=3), b.op("aten::_to_copy", us=3), b.op("aten::copy_", us=3):
                        b.copy(1.5, f"DtoH (Device -> {'Pageable' if script.faulty else 'Pinned'})", bytes=256)
                        if script.faulty:
                            b.sync()
                    if not script.faulty:
                        b.runtime("cudaEventRecord", 2)
                        copied, before = b.gpu_free, copied
                        if before:
                            b.runtime("cudaEventSynchronize", max(before - b.now, 0) + 2)
                    b.wait(READ_US)
    return b


def decode_outside_graphs(script: Script) -> RunBuilder:
    """A decode step takes the GPU 0.4 ms; the host launches it as one graph in 60 us, or kernel by kernel in 1.2 ms."""
    b = RunBuilder(stacks=True)
    graphs = (4, 8) if script.faulty else (4, 8, 12)
    with b.python(script.file, script.line("profiler.step()"), "serve"):
        for requests in (8, 12, 8, 12):
            with b.annotation(f"step[EXTEND bs={requests} toks={512 * requests}]"):
                eager(b, 40)
            for _ in range(10):
                with b.annotation(f"step[DECODE bs={requests}]"):
                    inputs(b)
                    if requests in graphs:
                        replay(b, requests, 6)
                    else:
                        eager(b, 6)
                    operator(b, "aten::clone", 2)
                    b.wait(40)
    return b


SCENARIOS = (decode_token_copy, decode_outside_graphs)


def inputs(b: RunBuilder) -> None:
    """The tokens and their position go to where the graph reads them."""
    with b.op("aten::to", us=3), b.op("aten::_to_copy", us=3), b.op("aten::copy_", us=3):
        b.copy(1.5, bytes=8)
    for _ in range(2):
        operator(b, "aten::copy_", 2)


def eager(b: RunBuilder, us: float) -> None:
    for _ in range(LAYERS):
        for name in ("aten::addmm", "aten::_scaled_dot_product_flash_attention", "aten::addmm", "aten::gelu"):
            with b.op("aten::linear" if name == "aten::addmm" else name, us=6):
                operator(b, name, us)


def replay(b: RunBuilder, graph: int, us: float) -> None:
    """One launch, whose kernels all have its correlation."""
    ids = [{"graph id": graph, "graph node id": graph << 32 | node} for node in range(len(KERNELS) * LAYERS)]
    b.launch(us, KERNELS[0], call="cudaGraphLaunch", call_us=60, **ids[0])
    first = b.events[-1]
    for node, more in enumerate(ids[1:], 1):
        args = {**first["args"], **more}
        b.events.append({**first, "name": KERNELS[node % len(KERNELS)], "ts": first["ts"] + node * us, "args": args})
    b.stall((len(ids) - 1) * us)
