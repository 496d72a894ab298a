"""What the names of kernels say: names of real captures, one of each family and library."""

from __future__ import annotations

import pytest

from trace_doctor.evidence.names.kernel_names import architecture, is_log_softmax, kernel_class

_CUBLAS = "cublasGemvTensorStridedBatched"
NAMES = {
    "matmul_k(float*, float*, float*, int, int, int)": ("gemm", "fp32"),
    "void matmul_tiled(float const*, float const*, float*, int)": ("gemm", "fp32"),
    "_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernel": ("attention", ""),
    "void flashinfer::mla::hopper::BatchMLAPageAttentionHopperKernel<__nv_bfloat16>": ("attention", "bf16"),
    "fused_moe_kernel": ("gemm", ""),
    "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const> >": ("gemm", "fp32"),
    "bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x64x128u2_s5_et128x64_m256x64x16_c2x1x1_16dp256b_rM_BN_transOut": ("gemm", "bf16"),
    "bmm_Fp16_Fp16Fp16_Fp32_t128x8x128_s6_et128x8_m128x8x16_c1x1x1_16dp256b_rM_BN_transOut_schedS": ("gemm", "fp16"),
    "gemm_Bfloat16_E4m3E4m3_Fp32_t128x8x128u2_s6_et64x8_m64x8x32_c1x1x1_16dp256b_rM_TN_transOut_noShflA_dsFp8": ("gemm", "fp8"),
    "Gemm_Bfloat16_E2m1E2m1_Fp32_t128x128x256u2_s4_et128x128_m128x128x64_cga1x1x1_16dp256b_TN_transOut": ("gemm", "fp8"),
    "bmm_E4m3_Bfloat16Bfloat16_Fp32_t128x64x128u2_s5_et128x64_m256x64x16": ("gemm", "bf16"),
    "cutlass3x_sm100_tensorop_s128x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_0_tnn_align8_1sm": ("gemm", "bf16"),
    "cutlass3x_sm90_tensorop_s64x128x8gemm_tf32_tf32_f32_f32_f32_64x128x32_0_tnn_align4": ("gemm", "tf32"),
    "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_64x128x64_0_tnn_align8": ("gemm", "fp16"),
    "fmhaSm103aKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64VarSeqQ128Kv128PersistentContext": ("attention", "bf16"),
    "fmhaSm100fKernel_QkvE4m3OBfloat16H128PagedKvCausalP64MultiCtasKvVarSeqQ8Kv128": ("attention", "fp8"),
    "ampere_sgemm_128x64_tn": ("gemm", "fp32"),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(…)": ("gemm", "fp32"),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x128x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4": ("gemm", "fp32"),
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_cublas": ("gemm", "tf32"),
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>(…)": ("gemm", "tf32"),
    "ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn": ("gemm", "fp16"),
    "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_tensor16x8x16_kernel": ("gemm", "fp16"),
    "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn": ("gemm", "fp16"),
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_nn_align1>(…)": ("gemm", "bf16"),
    "void cutlass::Kernel<cutlass_80_tensorop_d884gemm_32x32_16x5_tn_align1>(…)": ("gemm", "fp64"),
    "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT": ("gemm", ""),
    "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN": ("gemm", "fp32"),
    "Cijk_Alik_Bljk_S_MX_B_Bias_HA_S_SAV_UserArgs_MT128x128x32_MI16x16x1": ("gemm", "tf32"),
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN": ("gemm", "bf16"),
    f"void gemv2T_kernel_val<int, int, float, float, float, float, 128, {_CUBLAS}<float const>>": ("gemv", "fp32"),
    f"void dot_kernel<float, 128, 0, cublasDotParams<{_CUBLAS}<__nv_bfloat16 const>>>": ("gemv", "bf16"),
    "volta_scudnn_128x64_relu_medium_nn_v1": ("conv", "fp32"),
    "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1": ("conv", "fp32"),
    "void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false, true, true>(…)": ("conv", "fp32"),
    "void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(…)": ("conv", "fp32"),
    "void precomputed_convolve_sgemm<__nv_bfloat16, 1024, 5, 5, 4, 3, 3, 1, false>(…)": ("conv", "bf16"),
    "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16": ("conv", "tf32"),
    "igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x128x32_wt32x32x8": ("conv", "bf16"),
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)": ("attention", "fp32"),
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t>>": ("attention", "bf16"),
    "aiter::fmha_fwd_hd128_bf16_rtz": ("attention", "bf16"),
    "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>(…)": ("other", ""),
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>": ("layout", ""),
    "batched_transpose_16x64_pack_1x4_ediv_1x2_half": ("layout", ""),
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(…)": ("other", ""),
    "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(…)": ("other", ""),
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>(…)": ("other", ""),
    "triton_red_fused_add_addmm_clone_native_dropout_native_layer_norm_backward_13": ("other", ""),
    "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>(…)": ("other", ""),
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(…)": ("softmax", ""),
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>": ("other", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:60])
def test_a_name_says_what_a_kernel_does(name: str) -> None:
    found = kernel_class(name)
    assert (found.kind, found.precision) == NAMES[name]


def test_the_softmax_of_a_loss_is_another_one() -> None:
    assert is_log_softmax("void softmax_warp_forward<float, float, float, 10, true, false>(…)")
    assert not is_log_softmax("void softmax_warp_forward<float, float, float, 10, false, false>(…)")
    assert is_log_softmax("void cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>(…)")


def test_kernels_tell_the_least_architecture_that_they_run_on() -> None:
    assert architecture(["volta_sgemm_64x64_tn", "ampere_sgemm_128x64_tn"]) == (8, 0)
    assert architecture(["void gemv2T_kernel_val<int, int, float>"]) is None
