"""Operations of models against those that published parameter counts and formulas give, and MFU against its parts."""

from __future__ import annotations

import pytest

from tests.analyze.test_metrics_handbook import HANDBOOK, tables_of
from traceviz_dag.analyze.model_flops import model_flops
from traceviz_dag.analyze.peaks import BUILT_IN, GpuRates, Peaks, peak_of
from traceviz_dag.analyze.utilization import Stated, utilization

GPT3 = {
    "global_batch_size": "1536",
    "seq_length": "2048",
    "num_layers": "96",
    "hidden_size": "12288",
    "num_attention_heads": "96",
    "kv_channels": "128",
    "group_query_attention": "False",
    "ffn_hidden_size": "49152",
    "swiglu": "False",
    "padded_vocab_size": "51200",
    "multi_latent_attention": "False",
    "bf16": "True",
}
LLAMA3_70B = GPT3 | {
    "global_batch_size": "512",
    "seq_length": "8192",
    "num_layers": "80",
    "hidden_size": "8192",
    "num_attention_heads": "64",
    "group_query_attention": "True",
    "num_query_groups": "8",
    "ffn_hidden_size": "28672",
    "swiglu": "True",
    "padded_vocab_size": "128256",
}
MIXTRAL_8X7B = LLAMA3_70B | {
    "seq_length": "4096",
    "num_layers": "32",
    "hidden_size": "4096",
    "num_attention_heads": "32",
    "ffn_hidden_size": "14336",
    "padded_vocab_size": "32000",
    "num_experts": "8",
    "moe_router_topk": "2",
    "moe_layer_freq": "1",
}


def test_a_dense_model_takes_what_the_paper_of_megatron_lm_says():
    """Its formula has a quarter on top for recompute and the whole matrix of attention; causal masks leave half."""
    batch, length, layers, hidden, words = 1536, 2048, 96, 12288, 51200
    terms = 12 * layers * hidden**2 * 12 + 12 * layers * hidden * length + 12 * hidden * words
    assert model_flops(GPT3).flops == batch * length * terms / 2
    assert model_flops(GPT3).flops * 4 / 3 == pytest.approx(
        96 * batch * length * layers * hidden**2 * (1 + length / 2 / (6 * hidden) + words / (16 * layers * hidden)),
        rel=0.003,  # the paper recomputes no logits
    )


def test_grouped_queries_gates_and_experts_count_as_the_published_parameters_do():
    """Each parameter of a product is used once forward and twice backward, a multiplication and an addition each."""
    norms, embedding = 161 * 8192, 128256 * 8192
    attention = 3 * 80 * 2 * 8192 * (64 * 128)
    products = 70_553_706_496 - embedding - norms
    assert model_flops(LLAMA3_70B).flops == 512 * 8192 * (6 * products + attention)

    unused = 32 * 6 * 3 * 4096 * 14336
    norms, embedding, routers = 65 * 4096, 32000 * 4096, 32 * 4096 * 8
    products = 46_702_792_704 - unused - norms - embedding - routers
    experts = 512 * 4096 * (6 * products + 3 * 32 * 2 * 4096 * (32 * 128))
    assert model_flops(MIXTRAL_8X7B).flops == experts

    # Half of the layers dense and as wide as one expert, the others with a shared expert of half this width beside.
    odd = {"moe_layer_freq": "[" + "0,1," * 15 + "0,1]", "moe_ffn_hidden_size": "14336"}
    shared = {"moe_shared_expert_intermediate_size": "7168"}
    fewer = 6 * 3 * 4096 * 14336 * (16 - 16 / 2)
    assert model_flops(MIXTRAL_8X7B | odd | shared).flops == experts - 512 * 4096 * fewer
    assert model_flops(MIXTRAL_8X7B | {"moe_layer_freq": "2"} | shared) == model_flops(MIXTRAL_8X7B | odd | shared)


def test_gates_other_than_swiglu_count_as_megatron_counts_them():
    """``gated_linear_multiplier = 3 / 2 if args.swiglu else 1``."""
    assert model_flops(GPT3 | {"quick_geglu": "True"}) == model_flops(GPT3)


@pytest.mark.parametrize(
    ("model", "change", "words"),
    [
        (
            GPT3,
            {"padded_vocab_size": None, "swiglu": None},
            "settings of the job lack swiglu and padded_vocab_size",
        ),
        (LLAMA3_70B, {"num_query_groups": None}, "the settings of the job lack num_query_groups"),
        (MIXTRAL_8X7B, {"moe_router_topk": None}, "the settings of the job lack moe_router_topk"),
        (MIXTRAL_8X7B, {"moe_layer_freq": "[0,1]"}, "moe_layer_freq names 2 layers, num_layers is 32"),
        (GPT3, {"multi_latent_attention": "True"}, "multi-latent attention (multi_latent_attention)"),
        (GPT3, {"mtp_num_layers": "1"}, "multi-token prediction (mtp_num_layers)"),
        (GPT3, {"variable_seq_lengths": "True"}, "sequences of varying length (variable_seq_lengths)"),
        (GPT3, {"sft": "True"}, "sequences packed to a length (sft)"),
        (GPT3, {"seq_length": "-1"}, "the setting seq_length is -1, no whole number from 1"),
    ],
)
def test_what_is_not_stated_or_not_counted_is_no_number_and_named(model, change, words):
    counted = model_flops({name: value for name, value in (model | change).items() if value is not None})
    assert counted.flops is None and words in counted.refusal


H100 = "NVIDIA H100 80GB HBM3"


def stated(*settings, devices=(H100,), gpus=1024, step_ns=16_000_000_000) -> Stated:
    return Stated(settings or (GPT3,), devices, gpus, step_ns)


def test_the_worked_example_of_mfu():
    ((row,),) = tables_of(HANDBOOK, "Worked example: MFU")
    found = utilization(stated(devices=("NVIDIA A100-SXM4-80GB",), step_ns=30_000_000_000))
    assert row["operations of a token"] == model_flops(GPT3).flops // (2048 * 1536)
    assert (row["model_flops_per_gpu"], row["mfu"]) == (found.model_flops_per_gpu, round(found.mfu, 5))


def test_mfu_is_operations_over_step_time_gpus_and_the_peak_of_the_stated_number_format():
    flops = model_flops(GPT3).flops
    found = utilization(stated())
    assert (found.peak_format, found.peak_flops_per_s, found.mfu_refusal) == ("bf16", 989 * 10**12, None)
    assert found.model_flops_per_gpu == pytest.approx(flops / 1024, abs=0.5)
    assert found.mfu == pytest.approx(flops / (16 * 1024 * 989e12), rel=1e-12)
    narrow = utilization(stated(GPT3 | {"fp8": "hybrid"}))
    assert (narrow.peak_format, narrow.mfu) == ("fp8", pytest.approx(found.mfu * 989 / 1979))
    half = utilization(stated(GPT3 | {"bf16": "False", "fp16": "True"}, devices=("NVIDIA A100-SXM4-80GB",)))
    assert (half.peak_format, half.mfu) == ("fp16", pytest.approx(found.mfu * 989 / 312))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Stated((), (H100,), 8, 1), "no trace keeps the settings of the job"),
        (stated(GPT3, GPT3 | {"num_layers": "48"}), "the ranks state different values of num_layers"),
        (stated(gpus=None), "nothing shows how many GPUs the job has"),
        (stated(devices=()), "no trace names a GPU"),
        (stated(devices=(H100, "NVIDIA H200")), f"the ranks have different GPUs: {H100}, NVIDIA H200"),
        (stated(devices=("Tesla T4",)), "no bf16 peak of Tesla T4 is known"),
        (stated(GPT3 | {"fp8": "e4m3"}, devices=("NVIDIA A100-SXM4-80GB",)), "no fp8 peak of NVIDIA A100"),
        (stated(GPT3 | {"bf16": "False", "fp16": "False"}), "no number format whose peak is known (bf16 False, fp16"),
        (stated({name: GPT3[name] for name in GPT3 if name != "bf16"}), "lack its number format"),
        (stated(step_ns=None), "not every rank has a training step marked"),
        (stated(step_ns=1_000_000_000), "take longer than the step even at the peak"),
        (stated(GPT3 | {"global_batch_size": "9" * 12}, gpus=1), "take longer than the step even at the peak"),
    ],
)
def test_without_one_of_its_parts_there_is_no_mfu_but_a_reason(given, words):
    found = utilization(given)
    assert found.mfu is None and words in found.mfu_refusal


def test_the_form_of_a_gpu_decides_its_peak_and_a_part_of_one_has_none():
    names = ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200", "AMD Instinct MI300X")
    assert [peak_of(name) for name in names] == [tera * 10**12 for tera in (756, 835, 989, 1307)]
    part = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    assert peak_of(part) is None and peak_of(None) is None
    # What a home states of parts counts for them alone, and nothing of the whole GPU does.
    stated = Peaks({"A100 MIG 1g.10gb": GpuRates(bf16=44.0)})
    assert peak_of(part, "bf16", stated) == 44_000_000_000_000
    assert stated.of(part).memory_bytes_per_s is None
    assert stated.of("NVIDIA A100-SXM4-80GB") == BUILT_IN.of("NVIDIA A100-SXM4-80GB")
