"""Matrix products by the names of kernels: which give gradients of weights."""

from __future__ import annotations

import pyarrow as pa
import pytest

from traceviz_dag.analyze.kernel_intervals import codes
from traceviz_dag.analyze.products import OF_WEIGHTS, PRODUCT, products


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", OF_WEIGHTS),
        ("nvjet_hsh_128x64_64x6_2x1_v_bz_coopA_NTT", OF_WEIGHTS),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_bias_TNN", PRODUCT),
        ("nvjet_hsh_192x128_64x5_2x1_v_bz_NNN", PRODUCT),
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_kernel__5x_cublas",
            OF_WEIGHTS,
        ),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel", PRODUCT),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nt", OF_WEIGHTS),
        ("ampere_fp16_s16816gemm_fp16_64x128_sliced1x2_ldg8_f2f_stages_64x3_nn", PRODUCT),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x128_32x5_nt_align8>(Params)", OF_WEIGHTS),
        ("Cijk_Ailk_Bjlk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", OF_WEIGHTS),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", PRODUCT),
        ("persistent_gemm", PRODUCT),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(gemm_nt)", 0),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<cutlass::gemm_nt_>", 0),
        ("void at::native::vectorized_elementwise_kernel<4, float>", 0),
    ],
)
def test_operands_of_products_tell_gradients_of_weights(name, code):
    table = pa.table({"name": [name, name, name], "operator": ["aten::mm", None, "aten::bmm"]})
    found = products(*codes(table, "name"), *codes(table, "operator"))
    assert found.tolist() == [code, code, 0], "products of attention are batched"
