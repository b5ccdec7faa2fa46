"""Work of operations: values counted by hand, and what must hold for any sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.analyze.operations.formulas import FORMULAS, NO_FORMULA, NOT_GATHERED, shards_of, work_of
from traceviz_dag.analyze.operations.tensors import Inputs
from traceviz_dag.read.events import OperatorInputs
from traceviz_dag.read.kineto.stated_inputs import VALUED

BF16, HALF, FP32, FP8, LONG = "c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn", "long int"
AUTOGRAD = ("FlashAttnFuncBackward",)
"""Formulas that ask for values of the forward pass."""

_SIZE = st.integers(1, 9)


def _work(name, sizes, types, values=(), strides=""):
    return work_of(name, OperatorInputs(json.dumps(sizes), json.dumps(types), strides, json.dumps(values)))


@pytest.mark.parametrize(
    ("name", "sizes", "types", "values", "flops", "moved"),
    [
        # 2·8944·1024·2816; two operands and the result.
        ("aten::mm", [[8944, 1024], [1024, 2816]], [BF16] * 2, (), 51_581_550_592, 74_457_088),
        # With beta 0 the first input is neither added nor read.
        (
            *("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []], [HALF] * 3 + ["Scalar"] * 2),
            *(["", "", "", "0.", "0.125"], 240, 188),
        ),
        ("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5], [], []], [HALF] * 3 + ["Scalar"] * 2, (), 270, 248),
        ("aten::_grouped_mm", [[7, 4], [3, 4, 5], [3]], [BF16, BF16, "int"], (), 280, 258),
        # The gradient of the weights: [4, 7] × [7, 5] in three groups.
        ("aten::_grouped_mm", [[4, 7], [7, 5], [3]], [BF16, BF16, "int"], (), 280, 258),
        ("_Linear", [[6, 4], [2, 3, 4], [6]], [BF16] * 3, (), 2 * 6 * 6 * 4 + 36, (24 + 24 + 6 + 36) * 2),
        ("_LayerNormMLP", [[2, 3, 4], [4], [16, 4], [4, 8]], [BF16] * 4, (), 2 * 6 * 96, (24 + 4 + 64 + 32 + 24) * 2),
        ("_GroupedLinear", [[6, 4], [5, 4], [5, 4]], [BF16] * 3, (), 2 * 6 * 20, (24 + 40 + 30) * 2),
        # A [K, M] and B [N, K] by columns give D [N, M]; 1 byte in, 2 out.
        (
            *("tex_ts::te_gemm_ts", [[4, 6], [], [], [], [], [5, 4], [], [], [], [], [5, 6]]),
            *(["unsigned char", *[""] * 4, "unsigned char", *[""] * 4, BF16], (), 240, 24 + 20 + 60),
        ),
        # Qwen 0.5B on H100: 10.239 GFLOP.
        (
            *("aten::_scaled_dot_product_flash_attention", [[16, 16, 559, 64]] * 3 + [[]] * 4),
            *([BF16] * 3 + ["Scalar"] * 4, ["", "", "", "0.", "True", "False", "0.125"], 10_239_377_408, 73_269_248),
        ),
        # A bias is read once and added to each of 2·4·16·16 scores.
        (
            *("aten::_scaled_dot_product_efficient_attention", [[2, 4, 16, 8]] * 3 + [[2, 4, 16, 16]]),
            *([BF16] * 4, [*[""] * 6, "False"], 2 * 4 * 256 * (4 * 8 + 1), (4 * 1_024 + 2_048) * 2),
        ),
        (
            *("aten::_scaled_dot_product_efficient_attention_backward", [[2, 4, 16, 8]] * 4 + [[2, 4, 16, 16]]),
            *([BF16] * 5, [*[""] * 11, "False"], 2 * 4 * 256 * (10 * 8 + 1), (8 * 1_024 + 2_048) * 2),
        ),
        # 2.5 times as much backward, with a quarter of the heads for keys and values.
        (
            *("aten::_scaled_dot_product_flash_attention_backward", [[1, 8, 16, 4]] * 2 + [[1, 2, 16, 4]] * 2),
            *([BF16] * 4, [*[""] * 11, "False"], 5 * 2 * 8 * 16 * 16 * 4, (4 * 512 + 4 * 128) * 2),
        ),
        (
            *(
                "aten::cudnn_convolution",
                [[10, 64, 56, 56], [128, 64, 3, 3]] + [[]] * 3,
                [BF16] * 2 + ["ScalarList"] * 3,
            ),
            *(["", "", "[1, 1]", "[2, 2]", "[1, 1]"], 1_156_055_040, 6_168_576),
        ),
        ("aten::mean", [[6, 4], [], []], [FP32, "ScalarList", "Scalar"], ["", "[-1]", "True"], 24, 96 + 24),
        ("aten::sum", [[6, 4], [], [], []], [BF16, "", "", "Scalar"], ["", "", "", "6"], 24, 48 + 4),
        ("aten::mul", [[6, 4], [4], []], [BF16, FP32, "Scalar"], (), 24, 48 + 16 + 96),
        # Leading dimensions are broadcast: six products of 4·4·4.
        ("aten::matmul", [[2, 1, 4, 4], [1, 3, 4, 4]], [BF16] * 2, (), 768, (32 + 48 + 96) * 2),
        # Of whole numbers: a quotient is a float, a sum of truth values a long number.
        ("aten::div", [[6], [6]], [LONG] * 2, (), 6, 48 + 48 + 24),
        ("aten::sum", [[6, 4], [], [], []], ["bool", "", "", ""], (), 24, 24 + 8),
        # A list is written; copied from another one that is read.
        ("aten::_foreach_copy_", [[[6], [4]], [[6], [4]]], [[FP32] * 2, [BF16] * 2], (), 10, 40 + 20),
        ("aten::_foreach_zero_", [[[6], [4]]], [[FP32] * 2], (), 0, 40),
        ("aten::gt", [[6, 4], []], [FP32, "Scalar"], (), 24, 96 + 24),
        ("aten::copy_", [[6, 4], [4], []], [FP32, BF16, "Scalar"], (), 24, 96 + 8),
        ("aten::embedding", [[1000, 8], [3, 5]], [BF16, LONG], (), 0, 15 * 8 + 2 * 15 * 8 * 2),
        ("aten::cat", [[[6, 4], [2, 4]], []], [[BF16, BF16], "Scalar"], (), 0, 128),
        (
            "aten::native_layer_norm",
            [[6, 4], [], [4], [4], []],
            [BF16, "ScalarList", BF16, BF16, "Scalar"],
            (),
            120,
            160,
        ),
    ],
)
def test_operations_and_bytes_are_those_counted_by_hand(name, sizes, types, values, flops, moved):
    assert _work(name, sizes, types, values)[:2] == (flops, moved)


@pytest.mark.parametrize(
    ("name", "sizes", "types", "values", "words"),
    [
        ("aten::mm", None, None, (), "sizes of its inputs are not recorded"),
        ("aten::mm", [[2, 3], [4, 5]], [BF16] * 2, (), "do not go together"),
        ("aten::mm", [[2, 3], [3, 5]], [], (), "types of its inputs are not recorded"),
        ("FlashAttnFunc", [[2, 8, 4, 16]] * 3, [BF16] * 3, (), "whether the mask is causal"),
        (
            "flash_attn::_flash_attn_varlen_forward",
            [[64, 4, 16]] * 3 + [[3]] * 2,
            [BF16] * 3 + ["int"] * 2,
            (),
            "packed",
        ),
        ("aten::cat", [[], []], ["TensorList", "Scalar"], (), "tensors in its list"),
        ("c10d::allreduce_", [[[64]]], ["TensorList"], (), "collectives"),
        ("aten::bernoulli_", [[64]], [BF16], (), NO_FORMULA),
        ("aten::mm", [[10**9, 10**9], [10**9, 10**9]], [BF16] * 2, (), "larger than any tensor"),
    ],
)
def test_what_the_inputs_do_not_show_is_unknown_with_its_reason(name, sizes, types, values, words):
    found = _work(name, sizes, types, values)
    assert None in found[:2] and words in found.reason


def test_an_expanded_input_is_read_once():
    dense, expanded = ("[[12, 4, 1]]", "[[4, 0, 1]]")
    types, sizes = [FP32], [[2, 3, 4]]
    assert _work("aten::neg", sizes, types, strides=dense).bytes == 2 * 96
    assert _work("aten::neg", sizes, types, strides=expanded).bytes == 96 + 32


@settings(max_examples=50, deadline=None)
@given(_SIZE, _SIZE, _SIZE, _SIZE, st.booleans())
def test_names_of_one_product_agree(batch, rows, inner, columns, biased):
    """However PyTorch or Transformer Engine names it, a product is the same work."""
    pair = [[batch * rows, inner], [inner, columns]]
    bias = [[columns]] if biased else []
    given = [[batch, rows, inner], [columns, inner], *bias]
    plain = _work("aten::mm", pair, [BF16] * 2)
    added = _work("aten::addmm", [[columns], *pair], [BF16] * 3) if biased else plain
    linear = _work("aten::linear", given, [BF16] * 3)
    engine = _work("_Linear", [given[1], given[0], *bias], [BF16] * 3)
    assert linear == added == engine
    assert added.flops == plain.flops + biased * batch * rows * columns
    assert _work("aten::bmm", [[1, *pair[0]], [1, *pair[1]]], [BF16] * 2) == plain


_LAYERS = {
    "_Linear": lambda given: [[6, 4], given],
    "_LayerNormLinear": lambda given: [given, [4], [6, 4]],
    "LinearWithGradAccumulationAndAsyncCommunication": lambda given: [given, [6, 4]],
}


def _stated(sizes):
    return OperatorInputs(json.dumps(sizes), json.dumps([BF16] * len(sizes)))


@pytest.mark.parametrize("name", _LAYERS)
def test_a_layer_multiplies_all_shards_of_its_activation_that_it_gathers(name):
    whole, shard = (_stated(_LAYERS[name]([tokens, 1, 4])) for tokens in (8, 2))
    assert work_of(name, shard, shards=4) == work_of(name, whole)
    assert work_of(name, whole).flops == 2 * 8 * 6 * 4
    assert work_of(name, shard, shards=None).reason == NOT_GATHERED
    # The gradient has the rows of all shards; a row-parallel layer states a shard of that instead.
    of_all, of_shard = _stated([[8, 1, 6]]), _stated([[2, 1, 6]])
    expected = work_of(f"{name}Backward", of_all, whole)
    # Of Megatron's layer the product for the gradient of the activation is an operator of its own.
    assert expected.flops == (1 if name.startswith("Linear") else 2) * 2 * 8 * 6 * 4
    assert work_of(f"{name}Backward", of_all, shard) == work_of(f"{name}Backward", of_shard, whole) == expected
    shown = [shards_of(name, *each) for each in ((shard, of_all), (whole, of_shard), (shard, OperatorInputs("[[]]")))]
    assert shown == ([None] * 3 if name.startswith("Linear") else [4, 1, None])
    assert work_of(f"{name}Backward", _stated([[9, 1, 6]]), whole).flops is None
    assert work_of(f"{name}Backward", OperatorInputs("[[]]"), whole).flops is None


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(FORMULAS)),
    st.recursive(st.integers(-2, 9) | st.text(max_size=2), lambda inner: st.lists(inner, max_size=5), max_leaves=20),
    st.lists(st.sampled_from(["", "Scalar", "TensorList", BF16, FP32, FP8, LONG, "?"]), max_size=6),
    st.lists(st.sampled_from(["", "True", "False", "[0]", "[1, 1]", "0", "-1", "x"]), max_size=12),
)
def test_any_inputs_give_whole_numbers_or_a_reason(name, sizes, types, values):
    found = _work(name, sizes, types, values)
    for number in found[:2]:
        assert number is None or (type(number) is int and number >= 0)
    assert (found.reason is None) == (None not in found[:2])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(FORMULAS)),
    st.integers(1, 5).flatmap(
        lambda dimensions: st.lists(
            st.lists(st.integers(0, 3), min_size=dimensions, max_size=dimensions) | st.lists(st.integers(0, 3)),
            min_size=3,
            max_size=6,
        )
    ),
    st.sampled_from([BF16, LONG, "bool"]),
    st.lists(st.sampled_from(["True", "[1, 1]", "[True, True, True]", "1", "0"]), min_size=12, max_size=15),
)
def test_tensors_of_any_sizes_give_whole_numbers_or_a_reason(name, sizes, kind, values):
    found = _work(name, sizes, [kind] * len(sizes), values)
    assert all(number is None or (type(number) is int and number >= 0) for number in found[:2])


@settings(max_examples=100, deadline=None)
@given(_SIZE, st.integers(-1, 12), st.integers(-1, 12), st.booleans())
def test_a_window_leaves_the_scores_that_it_shows(length, before, behind, is_causal):
    sizes = [[1, length, 1, 1]] * 3
    values = ["", "", "", "0.", "1.", str(is_causal), str(before), str(behind)]
    found = _work("flash_attn::_flash_attn_forward", sizes, [BF16] * 3, values)
    after = 0 if is_causal else behind
    reach = [length if number < 0 else number for number in (before, after)]
    pairs = [(query, key) for query in range(length) for key in range(length)]
    shown = sum(query - reach[0] <= key <= query + reach[1] for query, key in pairs)
    # A mask that hides the keys behind each query and nothing else counts as half of all.
    half = after == 0 and reach[0] >= length - 1
    assert found.flops == 4 * length**2 // 2 if half else found.flops == 4 * shown


def test_inputs_that_do_not_go_together_have_no_work():
    for name, sizes in (
        ("aten::bmm", [[8, 4, 4], [2, 4, 4]]),
        ("aten::baddbmm", [[8, 4, 4], [8, 4, 4], [2, 4, 4]]),
        ("aten::addmm", [[4], [1, 4, 4], [4, 4]]),
        ("aten::matmul", [[2, 1, 4, 4], [3, 3, 4, 4]]),
        ("aten::convolution", [[1, 2, 5, 5], [0, 2, 3, 3]]),
    ):
        assert _work(name, sizes, [BF16] * 3, ["True"] * 8)[:2] == (None, None), name


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_the_reader_keeps_the_values_that_a_formula_asks_for(dimensions, monkeypatch):
    asked = set()
    monkeypatch.setattr(Inputs, "value", lambda inputs, index: asked.add(index) or "True")
    for name in FORMULAS:
        asked.clear()
        _work(name, [[4] * dimensions] * 3 + [[]] * 12, [BF16] * 3 + [""] * 12, ["1"] * 15)
        assert not asked or name in VALUED or name in AUTOGRAD, name
