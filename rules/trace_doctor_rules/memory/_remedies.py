"""What to do about memory, by what made it: shared by the rules that find a large or a failing allocation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trace_doctor import Fix, Target
from trace_doctor.arrays import I64
from trace_doctor.evidence.memory.blocks import DeviceBlocks
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage
from trace_doctor.snapshot import NO_STACK, StackFrame
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import advice

_LOSS = re.compile(r"cross_entropy|nll_loss|log_?softmax|NllLoss|LogSoftmax|CrossEntropy", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|sdpa", re.IGNORECASE)
_SOFTMAX = re.compile(r"softmax", re.IGNORECASE)
_SCORES = re.compile(r"matmul|bmm|baddbmm|einsum|masked_fill|where")
"""operators that make a score matrix, where the file alone is called attention"""
_NO_SCORES = re.compile(r"linear|addmm|gelu|silu|relu|\w*layer_norm|\w*rms_norm|embedding|conv\w*")
_OTHER_BLOCK = re.compile(r"(?:^|[^a-z])(?:mlp|moe|ffn|feed_?forward|experts?|router|gating)", re.IGNORECASE)
_LAYERS = re.compile(r"torch/nn/modules/(?:linear|activation|normalization|sparse|conv)\.py$")
_CALL = re.compile(r"torch/nn/modules/module\.py$")
_IN_TORCH = re.compile(r"(?:^|/)torch/(?!.*site-packages)")
_SDPA = re.compile(
    r"at::_ops::_?scaled_dot_product|ScaledDotProduct\w*AttentionBackward|_(?:efficient|flash|cudnn)_attention_(?:for|back)ward"
)
"""native frames of scaled_dot_product_attention: it is in use already"""
_WORKSPACE = re.compile(
    r"cudnn\w*[wW]orkspace|cudnn_convolution|raw_cudnn_conv|miopen_convolution|run_conv_plan"
)
_TENSOR = re.compile(r"at::(?:detail|native|_ops)::_?empty")
"""a tensor is made, no scratch space: a convolution makes its result as well"""
_SLICES = re.compile(r"(?:Cat|Slice|Select|Expand|Repeat|Index|Stack|Unsqueeze)Backward")
_OPTIMIZER_FILE = re.compile(r"torch/optim/(?:_multi_tensor/)?(\w+)\.py$")
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}

LOSS = "loss"
ATTENTION = "attention"
SDPA = "sdpa"
OPTIMIZER = "optimizer"
SLICES = "slices"
WORKSPACE = "workspace"
OTHER = "other"

GENERAL = "Compute in smaller parts"
"""title of the advice for what nothing is known of"""


def kind_of(stacks: MemoryStacks, stack: int) -> str:
    """What made an allocation, by the names in its stack, innermost frames first, up to the module that asked for it."""
    if stack >= 0 and stacks.stage[stack] == Stage.OPTIMIZER:
        return OPTIMIZER
    tensor = False
    near = _of_one_module(stacks.snapshot.frames_of(stack))
    for frame in near:
        text = f"{frame.filename} {frame.name}" if frame.is_python else frame.name
        tensor |= not frame.is_python and _TENSOR.search(text) is not None
        if _WORKSPACE.search(text) and not tensor:
            return WORKSPACE
        if _LOSS.search(text):
            return LOSS
        if _SLICES.search(text):
            return SLICES
        if _SDPA.search(frame.name) and not frame.is_python:
            return SDPA
    return ATTENTION if _is_attention(near, stacks.op(stack)) else OTHER


def blocks_of_kind(device: DeviceBlocks, moment: int, kind: str) -> I64:
    """Blocks alive at a moment that code of this kind has made: of all layers the score matrices, where one is asked about."""
    stack = np.where(device.history.alive(moment), device.history.stack, NO_STACK)
    alike = [s for s in np.unique(stack).tolist() if s >= 0 and kind_of(device.stacks, s) == kind]
    return np.flatnonzero(np.isin(stack, alike))


def _of_one_module(frames: Iterable[StackFrame]) -> list[StackFrame]:
    """The frames within the innermost module that is not torch's own: what called it is another block."""
    near: list[StackFrame] = []
    outside = False
    for frame in frames:
        path = frame.filename.replace("\\", "/")
        if outside and frame.is_python and _CALL.search(path):
            break
        outside |= frame.is_python and _IN_TORCH.search(path) is None
        near.append(frame)
    return near


def _is_attention(near: Sequence[StackFrame], op: str | None) -> bool:
    """Whether it is a score matrix: by the operator, by what functions are called, and least of all by the file."""
    python = [f for f in near if f.is_python]
    own = [f for f in python if not _IN_TORCH.search(f.filename.replace("\\", "/"))]
    files = [re.split(r"[\\/]", f.filename)[-1] for f in own]
    functions = [f.name for f in own]
    if any(map(_OTHER_BLOCK.search, [*functions[:1], *files[:1]])):
        return False
    if any(_SOFTMAX.search(f.name) for f in near):
        return True
    if any(_LAYERS.search(f.filename.replace("\\", "/")) for f in python) or _NO_SCORES.fullmatch(op or ""):
        return False
    if any(map(_ATTENTION.search, functions)):
        return True
    return any(map(_ATTENTION.search, files)) and (op is None or _SCORES.search(op) is not None)


def remedies(
    stacks: MemoryStacks,
    made_by: Iterable[int],
    target: Target | None,
    twins: Mapping[int, int] | None = None,
) -> list[Fix]:
    """Fixes for memory made by these stacks, the largest first. `twins`: for a stack of backward, the forward stack
    that it most likely belongs to."""
    fixes: dict[str, Fix] = {}
    for stack in made_by:
        kind = kind_of(stacks, stack)
        if kind == OTHER and twins and stack in twins:
            kind = kind_of(stacks, twins[stack])
        if kind not in fixes:
            fixes[kind] = _fix(kind, stacks, stack, target)
    if next(iter(fixes), None) != OTHER:
        fixes.pop(OTHER, None)
    loss = fixes.get(LOSS)
    each = (
        [fix, techniques.fused_loss(fix.verify, target)] if fix is loss else [fix] for fix in fixes.values()
    )
    return [fix for pair in each for fix in pair]


def _fix(kind: str, stacks: MemoryStacks, stack: int, target: Target | None) -> Fix:
    verify = "record the memory again: the peak has fallen and this finding is gone"
    if kind == LOSS:
        return techniques.chunked_loss(verify, target)
    if kind == ATTENTION:
        return techniques.use_sdpa(verify, target)
    if kind == SDPA:
        return techniques.sdpa_backend(verify, target)
    if kind == OPTIMIZER:
        return _optimizer(stacks, stack, verify, target)
    if kind == SLICES:
        return advice(
            title="Use split() or unbind() instead of slices",
            target=target,
            text="the gradient of a slice, select, expand or cat is a full-size tensor of zeros for every piece; "
            "q, k, v = qkv.unbind(2) or x.chunk(n, dim) makes one gradient for all",
            verify=verify,
        )
    if kind == WORKSPACE:
        return advice(
            title="Disable cudnn.benchmark",
            target=target,
            text="torch.backends.cudnn.benchmark = False   # benchmarking allocates the workspace of every algorithm\n"
            "# or fewer input shapes, so that it runs once; memory_format=torch.channels_last needs less",
            verify=verify,
            risk="another algorithm may be slower",
        )
    return advice(
        title=GENERAL,
        target=target,
        text=_in_parts(stacks, stack),
        verify=verify,
        risk="sums may not be bitwise identical",
    )


def _in_parts(stacks: MemoryStacks, stack: int) -> str:
    if stack >= 0 and stacks.stage[stack] == Stage.BACKWARD:
        return (
            "smaller micro-batches, or its forward over parts of the batch or sequence; checkpoint(block, x, "
            "use_reentrant=False) around the preceding blocks lowers the rest of the peak"
        )
    return (
        "compute it over parts of the batch or sequence, in place where autograd allows, or let torch.compile fuse the "
        "operators so that intermediate tensors are not allocated"
    )


def _optimizer(stacks: MemoryStacks, stack: int, verify: str, target: Target | None) -> Fix:
    files = [_OPTIMIZER_FILE.search(f.filename) for f in stacks.snapshot.frames_of(stack)]
    name = next((_OPTIMIZERS[f.group(1)] for f in files if f and f.group(1) in _OPTIMIZERS), None)
    return techniques.fused_optimizer(name, verify) if name else techniques.update_in_place(verify, target)
