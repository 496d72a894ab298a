"""Captures that the cases of `single_tensor_optimizer` build."""

from __future__ import annotations

from contextlib import nullcontext

from trace_doctor.testing import RunBuilder

PARTS = (
    "aten::lerp_",
    "aten::mul_",
    "aten::addcmul_",
    "aten::sqrt",
    "aten::div_",
    "aten::add_",
    "aten::addcdiv_",
)


def training(
    kind: str = "single",
    *,
    parameters: int = 40,
    optimizer: str = "AdamW",
    gpu_us: float = 100.0,
    gpu: bool = True,
    us: float = 3.0,
    stacks: bool = False,
    offloaded: bool = False,
    skipped: int = -1,
    stall: float = 0,
) -> RunBuilder:
    """`skipped`: a step whose update ends after the first operator, as a scaler has it."""
    b = RunBuilder(gpu="NVIDIA A100-SXM4-40GB" if gpu else None, stacks=stacks)
    for n in range(6):
        with b.step(), b.python("train.py", 12, "train"):
            b.stall(stall)
            for _ in range(10):
                with b.op("aten::mm", us=10):
                    if gpu:
                        b.launch(gpu_us, "ampere_bf16_s16816gemm_bf16_128x128")
            with b.optimizer_step(optimizer):
                update(b, kind, parameters, gpu and not offloaded, us, 1 if n == skipped else None)
    return b


def update(b: RunBuilder, kind: str, parameters: int, gpu: bool, us: float, most: int | None) -> None:
    names = {
        "single": PARTS * parameters,
        "foreach": tuple(f"aten::_foreach_{p.removeprefix('aten::')}" for p in PARTS),
        "fused": ("aten::_fused_adamw_",),
        "compiled": ("Torch-Compiled Region: 0/0", *("aten::call",) * 40),
        "kernels of a compiler": ("aten::call",) * 40,
        "apex": PARTS * 8,
    }[kind]
    for name in names[:most]:
        with b.op(name, us=us):
            if gpu:
                b.launch(
                    2.0 if kind == "single" else 40.0,
                    {"apex": "multi_tensor_apply_kernel", "kernels of a compiler": "triton_for_fused_0"}.get(
                        kind, "elementwise_kernel"
                    ),
                )


def by_hand(
    names: tuple[str, ...] = ("aten::mul_", "aten::add_"),
    *,
    optimizer: str = "",
    backward: bool = True,
    shapes: tuple[int, ...] = (64, 128),
    tensors: int = 40,
    gradients: int = 40,
    between: str = "",
    gpu: bool = True,
    us: float = 6.0,
    cold: bool = False,
) -> RunBuilder:
    """Training whose loop over all tensors is the user's own: of one shape after the other. `cold`: its first step."""
    b = RunBuilder(gpu="NVIDIA A100-SXM4-40GB" if gpu else None, shapes=bool(shapes))
    for _ in b.steps(1 if cold else 6):
        for _ in range(10):
            with b.op("aten::mm", us=10):
                if gpu:
                    b.launch(100, "ampere_bf16_s16816gemm_bf16_128x128")
        if backward:
            with b.thread(2):
                for _ in range(gradients):
                    b.run_op("torch::autograd::AccumulateGrad")
        with b.optimizer_step(optimizer) if optimizer else nullcontext():
            for i in range(tensors):
                dims = [[shapes[i % len(shapes)]]] if shapes else []
                for name in names:
                    with b.op(name, us=us, dims=dims):
                        if gpu:
                            b.launch(2.0, f"{name}_kernel", call_us=5000 if cold and i == 0 else None)
                if between:
                    b.run_op(between, 2.0, host_us=6)
    return b


SCRIPT = """import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PATCHED = """import torch

model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for batch in loader:
    loss = model(batch).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NO_STEP = "no step of an optimizer"
