"""The kernels of the steady steps: how long they ran, who launched them, on which device, and how much of it they fill."""

from __future__ import annotations

import numpy as np
import pytest

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.attention import MOST_BETWEEN, AttentionChains
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.compute.optimizer_work import OptimizerWork
from trace_doctor.evidence.trace.operator_inputs import OperatorInputs, tensor_bytes
from trace_doctor.testing import RunBuilder, captures_of
from trace_doctor_rules.kernels._underfilled_gpu_evidence import KernelGrids

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"


def facts(b: RunBuilder) -> Facts:
    return Facts(captures_of(b)[0])


def test_a_kernel_belongs_to_the_innermost_operator_around_its_launch() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::linear"), b.op("aten::addmm"):
            b.launch(100, GEMM)
        b.launch(50, "of_no_operator")
    kernels = facts(b)[Kernels]
    of_gemm = kernels.named(lambda n: n == GEMM)
    assert {kernels.run.text(o) for o in kernels.operator[of_gemm].tolist()} == {"aten::addmm"}
    assert (kernels.operator[~of_gemm] == -1).all()
    operators, ns = kernels.by_operator(np.ones(len(kernels.rows), dtype=bool))
    assert len(operators) == 3
    assert ns.tolist() == [100_000] * 3


def test_collectives_and_copies_are_no_kernels_that_compute() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(100, GEMM)
            b.launch(500, "ncclDevKernel_AllReduce_Sum_f16_RING_LL", stream=20)
            b.copy(300)
    kernels = facts(b)[Kernels]
    assert kernels.total == 300_000
    assert [name for name, _, _ in kernels.by_name(kernels.ns > 0)] == [GEMM]


def test_of_several_devices_the_one_that_computes_most_is_looked_at() -> None:
    b = RunBuilder(devices=2)
    for _ in range(3):
        with b.step():
            for device, us in ((0, 10), (1, 200)):
                b.device = device
                with b.op("aten::mm"):
                    b.launch(us, GEMM)
    assert facts(b)[Kernels].device == 1


@pytest.mark.parametrize("apart", [MOST_BETWEEN, MOST_BETWEEN + 1])
def test_a_softmax_too_far_from_its_products_is_no_attention(apart: int) -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            _batched(b)
            for _ in range(apart):
                with b.op("aten::mul"):
                    b.launch(10)
            with b.op("aten::_softmax"):
                b.launch(10, SOFTMAX)
            _batched(b)
    assert len(facts(b)[AttentionChains].softmax) == (3 if apart == MOST_BETWEEN else 0)


def test_products_of_another_stream_are_no_part_of_a_chain() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            _batched(b, stream=20)
            with b.op("aten::_softmax"):
                b.launch(10, SOFTMAX)
            _batched(b, stream=20)
    assert not len(facts(b)[AttentionChains].softmax)


def _batched(b: RunBuilder, stream: int = 7) -> None:
    with b.op("aten::bmm"):
        b.launch(100, GEMM, stream=stream)


@pytest.mark.parametrize(
    "args",
    [
        {"Input Dims": "none", "Input type": 3},
        {"Input Dims": [[1, "two"], None, {}], "Input type": ["float"]},
        {"Input Dims": [[[2, 3], [4]], []], "Input type": ["TensorList", ""]},
        {},
    ],
    ids=["no lists", "no numbers", "lists of tensors", "nothing"],
)
def test_inputs_of_any_shape_are_read(args: dict[str, object]) -> None:
    b = RunBuilder(shapes=True)
    for _ in range(3):
        with b.step(), b.op("aten::cat"):
            b.launch(10)
        with b.op("aten::mm", dims=[[2, 3]]):
            pass
    for event in b.events:
        if event["name"] == "aten::cat":
            event["args"] = dict(args)
    f = facts(b)
    rows = f.run.named("aten::cat".__eq__)
    for given in f[OperatorInputs].of(rows.tolist()):
        assert given.shape(0) == () or "[2" not in str(args)
        assert sum(tensor_bytes(*t) for t in given.tensors()) in (0, 40)
        assert given.type(9) == ""


def test_shapes_that_were_not_recorded_are_not_captured() -> None:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(10)
    with pytest.raises(NotCaptured, match="shapes"):
        facts(b)[OperatorInputs]


def test_grids_are_those_of_the_kernels_that_one_step_launched_however_late_they_run() -> None:
    b = RunBuilder()
    for n in range(4):
        with b.step(), b.op("aten::mm"):
            for _ in range(5):
                b.launch(1000, f"kernel_{n}", grid=[66 * (n + 1), 1, 1])
    grids = facts(b)[KernelGrids]
    assert len(grids.places) == 5
    assert len(set(grids.blocks_per_sm.tolist())) == 1


def test_work_of_an_optimizer_is_what_runs_and_is_launched_inside_its_marks() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            with b.op("aten::mm"):
                b.launch(100, GEMM)
            with b.optimizer_step("SGD"), b.op("aten::_fused_sgd_"), b.op("aten::empty"):
                b.launch(10)
    f = facts(b)
    work = f[OptimizerWork]
    assert work.optimizer(int(work.steps[0])) == "SGD"
    operators = work.operators(work.steps)
    assert {f.run.text(o) for o in operators.tolist()} == {"aten::_fused_sgd_"}
    assert f.run.dur[work.gpu_rows(operators)].tolist() == [10_000] * 3


def test_a_softmax_without_any_product_is_no_attention() -> None:
    b = RunBuilder()
    for _ in range(4):
        with b.step(), b.op("aten::_softmax"):
            b.launch(100, "void softmax_warp_forward<float>")
    assert len(facts(b)[AttentionChains].softmax) == 0


def test_the_first_event_of_a_capture_launches_as_others_do() -> None:
    b = RunBuilder()
    for _ in range(3):
        with b.op("aten::mm"):
            b.launch(10)
    kernels = facts(b)[Kernels]
    assert kernels.by_operator(np.ones(len(kernels.ns), dtype=bool))[1].tolist() == [10_000] * 3
