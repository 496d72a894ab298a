"""What launched each kernel, of which type it is, and the tree of Python frames."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import UNSET

import trace_doctor
from trace_doctor.capture import Capture
from trace_doctor.engine.detail.host_stacks import host_stacks_of
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.names.kernel_names import on_tensor_cores
from trace_doctor.model.detail import Detail
from trace_doctor.reporters import render
from trace_doctor.testing import RunBuilder


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x64_64x3_tn_align8>(Params)", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", True),
        ("turing_h1688gemm_128x128_ldg8_nn", True),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN", True),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel", True),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::half_t>>(Flash_fwd_params)", True),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_MI32x32x8x1_SE", True),
        ("ampere_sgemm_128x64_nn", False),
        ("volta_fp16_sgemm_fp16_128x32_nn", False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)", False),
        ("void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1>(int)", False),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>(float)", False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)", False),
        ("triton_poi_fused_add_0", None),
        ("triton_tem_fused_mm_3", None),
        ("volta_hgemm_128x64_nn", None),
        ("my_kernel(float*)", None),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_SE", None),
    ],
)  # fmt: skip
def test_a_name_says_tensor_cores_or_leaves_it_open(name: str, known: bool | None) -> None:
    assert on_tensor_cores(name) is known


def _trace(folder: Path, *, others: int = 0, rank: int = 0) -> Path:
    """A matmul that a function of the script launches, from a linear layer and once from elsewhere."""
    builder = RunBuilder(shapes=True, stacks=True, rank=rank, world_size=2)
    for step in range(3):
        with builder.step(step), builder.python("train.py", 10, "train"):
            for _ in range(2):
                with (
                    builder.python("torch/nn/functional.py", 5, "linear"),
                    builder.op("aten::mm", dims=[[8, 8], [8, 8]], types=["c10::BFloat16", "c10::BFloat16"]),
                ):
                    builder.launch(100.0, "nvjet_unnamed_type")
            with builder.op("aten::copy_"):
                builder.launch(10.0, "nvjet_unnamed_type")
            for n in range(others):
                builder.launch(500.0 + n, f"kernel_{n}")
            builder.sync()
    return builder.write(folder / f"trace_{rank}.json")


def _captured(folder: Path) -> Detail:
    result = trace_doctor.analyze(_trace(folder), detail=True)
    assert result.detail is not UNSET
    return result.detail[0]


def test_launches_add_up_over_ranks_though_a_saved_result_lists_the_kernel_of_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_doctor.engine.sizes.MAX_KERNELS", 6)
    _trace(tmp_path, rank=0)
    _trace(tmp_path, rank=1, others=5)  # five longer ones: it is not among the first three
    result = trace_doctor.analyze(tmp_path, detail=True)
    assert [(k.rank, k.count) for k in result.kernels if k.name == "nvjet_unnamed_type"] == [(0, 9)]
    page = render(result, "html")
    kernels = page[page.index('<section id="kernels"') : page.index('<section id="operators"')]
    assert "added up over 2 devices" in kernels
    [row] = [r for r in re.findall("<tr>.*?</tr>", kernels, re.DOTALL) if "nvjet_unnamed_type" in r]
    devices, launches, total = re.findall(r'title="([\d.]+)(?: µs)?"', row)[:3]
    assert (devices, launches, total) == ("2", "18", "1260.0")
    assert "launched by <bdi>aten::mm</bdi> (95%), <bdi>train() (train.py)</bdi>" in row


def test_a_kernel_is_of_the_operator_and_the_function_that_launched_most_of_it(tmp_path: Path) -> None:
    kernel = next(k for k in _captured(tmp_path).work.kernels if k.name == "nvjet_unnamed_type")
    assert kernel.count == 9
    assert kernel.operator is not None and kernel.site is not None
    assert (kernel.operator.name, kernel.site.name) == ("aten::mm", "train() (train.py)")
    assert kernel.operator.share == pytest.approx(200 / 210)
    assert kernel.site.share == 1.0
    assert (kernel.tensor_cores, kernel.dtype) == (True, "bf16")  # the name has no type: that of the inputs


def test_without_shapes_and_stacks_nothing_is_made_up(tmp_path: Path) -> None:
    builder = RunBuilder()
    for step in range(3):
        with builder.step(step):
            builder.launch(100.0, "triton_poi_fused_0")
            builder.sync()
    result = trace_doctor.analyze(builder.write(tmp_path / "trace.json"), detail=True)
    assert result.detail is not UNSET
    [kernel] = result.detail[0].work.kernels
    assert (kernel.tensor_cores, kernel.dtype, kernel.operator, kernel.site) == (None, "", None, None)
    assert result.detail[0].host_stacks is None


def test_the_frames_of_the_main_thread_add_up(tmp_path: Path) -> None:
    stacks = _captured(tmp_path).host_stacks
    assert stacks is not None
    [train] = stacks.root.children
    assert train.name == "train.py(10): train"
    assert [child.name for child in train.children] == ["torch/nn/functional.py(5): linear"]
    assert stacks.root.value == train.value > sum(child.value for child in train.children) > 0


def test_small_frames_are_added_up_and_no_time_is_lost() -> None:
    builder = RunBuilder(stacks=True)
    with builder.step(), builder.python("train.py", 1, "main"):
        for n in range(200):
            with builder.python("train.py", n + 2, f"f{n}"):
                builder.wait(10.0 + n)
    facts = Facts(Capture(rank=0, run=builder.run()))
    stacks = host_stacks_of(facts, 40)
    assert stacks is not None
    assert stacks.of == 201 and stacks.shown <= 40
    main = stacks.root.children[0]
    assert main.children[-1].name == "other"
    assert sum(child.value for child in main.children) == pytest.approx(sum(10.0 + n for n in range(200)))
