"""Precision and layout."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import LAST_BITS, advised, patch, patched

one_type = advised(
    "Convert the model to bfloat16",
    "model = model.to(torch.bfloat16)   # and no autocast around it; inputs in bfloat16 too\n"
    "# norms and softmax sum in fp32 inside their kernels all the same\n"
    "# in training with fp32 weights for the optimizer: fully_shard(..., mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))",
    "losses differ from autocast's; an optimizer that holds bf16 weights alone loses small updates",
)
"""Advice for models whose tensors autocast casts back and forth."""


def autocast(verify: str, dtype: str = "bfloat16", target: Target | None = None) -> Fix:
    """`dtype`: bfloat16 (compute capability 8 and newer) or float16, which needs a GradScaler."""
    short = "bf16" if dtype == "bfloat16" else "fp16"
    lines = [
        f'with torch.autocast(device_type="cuda", dtype=torch.{dtype}):',
        "    loss = loss_fn(model(x), y)",
        f'# HF: TrainingArguments({short}=True); Accelerate: Accelerator(mixed_precision="{short}"); '
        f'Lightning: Trainer(precision="{short.removeprefix("fp")}-mixed")',
    ]
    if short == "fp16":
        lines[2:2] = ["scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"]
    return patch(
        f"Use autocast with {dtype}",
        "autocast",
        "\n".join(lines),
        "losses differ from fp32: compare the curves of a run",
        verify,
        params={"dtype": dtype},
        target=target,
    )


tf32 = patched(
    "Allow TF32",
    "matmul-precision",
    'torch.set_float32_matmul_precision("high")   # HF: TrainingArguments(tf32=True)',
    "matmuls keep ten bits of mantissa; never mix this with torch.backends...fp32_precision",
)
"""An edit: inputs of fp32 matmuls are rounded to ten bits of mantissa."""


def channels_last(verify: str, *, on_amd: bool = False) -> Fix:
    """An edit: same values, NHWC in memory, for convolutions on Tensor Cores. `on_amd`: MIOpen keeps the format only where it is told to."""
    amd_note = (
        "\n# AMD: PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment, else MIOpen converts them back"
        if on_amd
        else ""
    )
    return patch(
        "Use channels_last",
        "channels-last",
        f"model.to(memory_format=torch.channels_last)\nx = x.to(device, memory_format=torch.channels_last){amd_note}",
        f"{LAST_BITS}; layers without such a kernel convert back and forth",
        verify,
    )


cudnn_benchmark = patched(
    "Enable cudnn.benchmark",
    "set-config",
    "torch.backends.cudnn.benchmark = True   # Lightning: Trainer(benchmark=True)",
    "every new input shape is benchmarked and needs the largest workspace once; runs are not bitwise identical",
    params={"name": "torch.backends.cudnn.benchmark", "value": True},
)
"""An edit: pays where input shapes repeat."""

single_precision = patched(
    "Compute in float32",
    "single-precision",
    "model = model.float(); x = x.float()   # instead of .double(); torch.set_default_dtype(torch.float32)\n"
    "x = torch.from_numpy(a).float()        # NumPy makes float64 by default",
    "results differ in the seventh digit; random numbers of float32 are others; keep sums over very many values in float64",
)
"""An edit: float32 in place of float64."""
