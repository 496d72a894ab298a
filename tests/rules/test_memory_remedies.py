"""What is advised for a large allocation, by the frames in its stack."""

from __future__ import annotations

import pytest

from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.memory.stages import MemoryStacks
from trace_doctor.testing import MIB, SnapshotBuilder, captures_of
from trace_doctor.testing.snapshot_builder import Frame
from trace_doctor_rules.memory._remedies import remedies

ADAM: list[Frame] = [
    ("/venv/site-packages/torch/optim/adam.py", 500, "_multi_tensor_adam"),
    ("/venv/site-packages/torch/optim/optimizer.py", 533, "wrapper"),
]
STEP: Frame = ("/venv/site-packages/torch/optim/optimizer.py", 533, "wrapper")
LION: list[Frame] = [("??", 0, "at::_foreach_mul_"), ("/home/me/lion.py", 40, "step"), STEP]
BY_HAND: list[Frame] = [("??", 0, "at::_ops::sqrt::call(...)"), ("/home/me/adam.py", 40, "step"), STEP]
LOSS: list[Frame] = [("??", 0, "at::_ops::log_softmax::call(...)"), ("/home/me/attention.py", 3, "forward")]
SDPA: list[Frame] = [("??", 0, "at::_ops::scaled_dot_product_attention::call(...)")]
NAMED_LIKE_SDPA: list[Frame] = [("/home/me/x.py", 7, "my_efficient_attention_forward")]
SLICES: list[Frame] = [("??", 0, "torch::autograd::generated::SliceBackward0::apply(...)")]
WORKSPACE: list[Frame] = [("??", 0, "at::native::raw_cudnn_convolution_forward_out(...)")]
EMPTY: Frame = ("??", 0, "at::detail::empty_cuda(...)")
CONVOLUTION: list[Frame] = [
    EMPTY,
    ("??", 0, "at::native::cudnn_convolution(...)"),
    ("/home/me/unet.py", 8, "forward"),
]
CALLED: Frame = ("/venv/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
LINEAR: Frame = ("/venv/site-packages/torch/nn/modules/linear.py", 134, "forward")
BLOCK: list[Frame] = [
    CALLED,
    ("/home/me/attention_block.py", 70, "attend"),
    CALLED,
    ("/home/me/train.py", 9, "cross_entropy"),
]


def within(op: str, *frames: Frame) -> list[Frame]:
    """An operator in these frames, in a block that is named after its attention."""
    return [("??", 0, f"at::_ops::{op}::call(...)"), *frames, *BLOCK]


def python(*frames: Frame) -> list[Frame]:
    return [*frames, *BLOCK]


FORWARD: list[Frame] = [("??", 0, "at::_ops::mm::call(...)"), ("/home/me/model.py", 30, "forward")]
BACKWARD: list[Frame] = [
    ("??", 0, "torch::autograd::generated::MmBackward0::apply(...)"),
    ("??", 0, "torch::autograd::Engine::evaluate_function(...)"),
]


def advised(*stacks: list[Frame], twins: dict[int, int] | None = None) -> list[str]:
    b = SnapshotBuilder()
    for frames in stacks:
        b.alloc(MIB, frames=frames)
    found = Facts(captures_of(b)[0])[MemoryStacks]
    made_by = [n for n in range(len(stacks)) if n not in (twins or {}).values()]
    return [f"{fix.title}: {fix.text}" for fix in remedies(found, made_by, None, twins)]


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        (ADAM, "Adam"),
        (LION, "Update parameters in place"),
        (BY_HAND, "Update parameters in place"),
        (LOSS, "Compute the loss in chunks"),
        (SDPA, "flash backend"),
        (NAMED_LIKE_SDPA, "Use scaled_dot_product_attention"),
        (SLICES, "split() or unbind()"),
        (WORKSPACE, "Disable cudnn.benchmark"),
        (CONVOLUTION, "over parts of the batch"),
        (within("gelu", ("/home/me/mlp.py", 8, "forward")), "over parts of the batch"),
        (
            within("linear", LINEAR, CALLED, ("/home/me/attention.py", 8, "forward")),
            "over parts of the batch",
        ),
        (within("mul_Tensor", ("/home/me/attention.py", 8, "forward")), "over parts of the batch"),
        (within("matmul", ("/home/me/attention.py", 8, "forward")), "Use scaled_dot_product_attention"),
        (within("div_Tensor", ("/home/me/x.py", 8, "attend_attention")), "Use scaled_dot_product_attention"),
        (within("softmax_int", ("/home/me/model.py", 8, "forward")), "Use scaled_dot_product_attention"),
        (within("softmax_int", ("/home/me/moe.py", 8, "forward")), "over parts of the batch"),
        (within("softmax_int", ("/home/me/model.py", 8, "router_weights")), "over parts of the batch"),
        (python(("/home/me/attention.py", 8, "forward")), "Use scaled_dot_product_attention"),
        (python(LINEAR, CALLED, ("/home/me/attention.py", 8, "forward")), "over parts of the batch"),
        (FORWARD, "over parts of the batch"),
        (BACKWARD, "smaller micro-batches"),
    ],
)
def test_the_frames_tell_what_to_do(frames: list[Frame], part: str) -> None:
    fix, *fused = advised(frames)
    assert bool(fused) == (frames == LOSS)
    assert part in fix


def test_a_general_advice_is_left_out_below_others_and_what_is_alike_is_said_once() -> None:
    fix, fused = advised(LOSS, FORWARD, LOSS[:1])
    assert "Compute the loss in chunks" in fix
    assert "Fuse the output layer" in fused


def test_a_general_advice_stays_first_where_it_is_for_what_holds_most() -> None:
    first, second, _ = advised(FORWARD, LOSS, LOSS[:1])
    assert "Compute in smaller parts" in first
    assert "Compute the loss in chunks" in second


def test_a_backward_that_says_nothing_is_treated_as_the_forward_that_it_most_likely_belongs_to() -> None:
    fix, _ = advised(BACKWARD, LOSS, twins={0: 1})
    assert "Compute the loss in chunks" in fix
    fix, _ = advised(BACKWARD, LOSS, FORWARD, twins={0: 1})
    assert "Compute the loss in chunks" in fix
    (fix,) = advised(SLICES, LOSS, twins={0: 1})
    assert "split() or unbind()" in fix
