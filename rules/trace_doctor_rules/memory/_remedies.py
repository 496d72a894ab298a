"""What to do about memory, by what made it: shared by the rules that find a large or a failing allocation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from trace_doctor import Fix, Target
from trace_doctor.evidence.memory.stages import MemoryStacks, Stage
from trace_doctor_rules import techniques

_LOSS = re.compile(r"cross_entropy|nll_loss|log_?softmax|NllLoss|LogSoftmax|CrossEntropy", re.IGNORECASE)
_ATTENTION = re.compile(r"attention|attn|sdpa|softmax", re.IGNORECASE)
_SDPA = re.compile(
    r"at::_ops::_?scaled_dot_product|ScaledDotProduct\w*AttentionBackward|_(?:efficient|flash|cudnn)_attention_(?:for|back)ward"
)
"""native frames of scaled_dot_product_attention: it is in use already"""
_WORKSPACE = re.compile(r"cudnn\w*[wW]orkspace|cudnn_convolution|raw_cudnn_conv|miopen_convolution")
_SLICES = re.compile(r"(?:Cat|Slice|Select|Expand|Repeat|Index|Stack|Unsqueeze)Backward")
_FOREACH = re.compile(r"_multi_tensor_|_foreach_")
_OPTIMIZER_FILE = re.compile(r"torch/optim/(?:_multi_tensor/)?(\w+)\.py$")
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}

LOSS = "loss"
ATTENTION = "attention"
SDPA = "sdpa"
OPTIMIZER = "optimizer"
SLICES = "slices"
WORKSPACE = "workspace"
OTHER = "other"


def kind_of(stacks: MemoryStacks, stack: int) -> str:
    """What made an allocation, by the names in its stack: innermost frames first."""
    for frame in stacks.snapshot.frames_of(stack):
        text = f"{frame.filename} {frame.name}" if frame.is_python else frame.name
        if _FOREACH.search(text):
            return OPTIMIZER
        if _WORKSPACE.search(text):
            return WORKSPACE
        if _LOSS.search(text):
            return LOSS
        if _SLICES.search(text):
            return SLICES
        if _SDPA.search(frame.name) and not frame.is_python:
            return SDPA
        if _ATTENTION.search(text):
            return ATTENTION
    return OTHER


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
    if len(fixes) > 1:
        fixes.pop(OTHER, None)
    return list(fixes.values())


def _fix(kind: str, stacks: MemoryStacks, stack: int, target: Target | None) -> Fix:
    verify = "record the memory again: the peak has fallen and this finding is gone"
    if kind == LOSS:
        return techniques.chunked_loss(verify, target)
    if kind == ATTENTION:
        return techniques.use_sdpa(verify, target)
    if kind == SDPA:
        return techniques.sdpa_backend(verify, target)
    if kind == OPTIMIZER:
        return _optimizer(stacks, stack, verify)
    if kind == SLICES:
        return Fix(
            title="Take tensors apart with split or unbind instead of slices",
            kind="advice",
            safety="display",
            target=target,
            text="the gradient of a slice, select, expand or cat is a full-size tensor of zeros for every piece; "
            "q, k, v = qkv.unbind(2) or x.chunk(n, dim) makes one gradient for all",
            verify=verify,
        )
    if kind == WORKSPACE:
        return Fix(
            title="Keep convolution algorithms with large workspaces out",
            kind="advice",
            safety="display",
            target=target,
            text="torch.backends.cudnn.benchmark = False   # trying every algorithm takes the workspace of the largest\n"
            "# or fewer input shapes, so that it is tried once; memory_format=torch.channels_last needs less",
            verify=verify,
            risk="another algorithm may be slower",
        )
    return Fix(
        title="Compute it in parts, or recompute it in backward",
        kind="advice",
        safety="display",
        target=target,
        text=_in_parts(stacks, stack),
        verify=verify,
        risk="checkpointing repeats the forward of the block; results stay the same up to randomness",
    )


def _in_parts(stacks: MemoryStacks, stack: int) -> str:
    if stack >= 0 and stacks.stage[stack] == Stage.BACKWARD:
        return "checkpoint(block, x, use_reentrant=False) around the block whose backward needs it, or smaller micro-batches"
    return (
        "compute it over parts of the batch or sequence, in place where autograd allows, or let torch.compile fuse the "
        "operators so that intermediate results are not stored; in training: checkpoint(block, x, use_reentrant=False)"
    )


def _optimizer(stacks: MemoryStacks, stack: int, verify: str) -> Fix:
    files = [_OPTIMIZER_FILE.search(f.filename) for f in stacks.snapshot.frames_of(stack)]
    name = next((_OPTIMIZERS[f.group(1)] for f in files if f and f.group(1) in _OPTIMIZERS), None)
    return techniques.fused_optimizer(name, verify)
