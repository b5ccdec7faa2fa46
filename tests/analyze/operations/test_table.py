"""The table ``operations``: which operation a kernel belongs to, what is summed, and what is unknown, and why."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kineto_file import KinetoFile
from traceviz_dag.analyze.operations.formulas import NO_FORMULA
from traceviz_dag.analyze.operations.grouping import grouped
from traceviz_dag.analyze.operations.roofline import roofline
from traceviz_dag.analyze.operations.table import NO_OPERATOR, OF_A_GRAPH
from traceviz_dag.analyze.operations.work import Work
from traceviz_dag.analyze.peaks import BUILT_IN, GpuRates, Peaks
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.pipeline.ranks import analyse_rank
from traceviz_dag.vocabulary import Bound, OperationClass

_BF16 = "c10::BFloat16"
_MM = {"Input Dims": [[64, 32], [32, 16]], "Input type": [_BF16, _BF16]}
_LINEAR = {"Input Dims": [[16, 32], [4, 8, 32], [16]], "Input type": [_BF16] * 3, "Sequence number": 5}
_BACKWARD = {"Input Dims": [[4, 8, 16]], "Input type": [_BF16], "Sequence number": 5}


def _file(device="NVIDIA H100 80GB HBM3"):
    file = KinetoFile()
    file.header["deviceProperties"] = [{"id": 0, "name": device}]
    # Two calls of one product, the first with a memset and a copy inside.
    file.operator("aten::mm", 1_000, 2_000, **_MM)
    file.operator("aten::copy_", 1_500, 1_700, **{"Input Dims": [[64, 32], [64, 32], []], "Input type": [_BF16] * 3})
    file.kernel("Memset (Device)", 10_000, 10_100, launched=1_100, category="gpu_memset")
    file.kernel("copy", 10_200, 10_230, launched=1_600)
    file.kernel("gemm", 11_000, 11_500, launched=1_800)
    file.operator("aten::mm", 3_000, 4_000, **_MM)
    file.kernel("gemm", 12_000, 12_700, launched=3_100)
    file.operator("_Linear", 5_000, 6_000, **_LINEAR)
    file.kernel("nvjet_e4m3_128x128", 13_000, 13_250, launched=5_100)
    file.operator("_LinearBackward", 7_000, 8_000, **_BACKWARD)
    file.kernel("gemm", 14_000, 14_600, launched=7_100)
    file.kernel("replayed", 15_000, 15_300, launched=8_100, **{"graph node id": 3})
    file.kernel("library", 16_000, 16_200, launched=8_300)
    file.annotation("unit 17", 8_400, 8_900)
    file.kernel("in a range", 17_000, 17_100, launched=8_500)
    file.operator("aten::mul", 9_000, 9_500)
    file.kernel("elementwise", 18_000, 18_050, launched=9_100)
    return file


def _analysed(tmp_path, file, peaks=BUILT_IN):
    path = file.write(tmp_path / "rank_0.json")
    tables = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules(), peaks)
    rows = {row["operation"] or row["kernel"]: row for row in tables["operations"].to_pylist()}
    assert len(rows) == tables["operations"].num_rows
    return rows, tables


def test_all_kernels_of_a_call_belong_to_it_and_calls_are_counted(tmp_path):
    rows, tables = _analysed(tmp_path, _file())
    product = rows["aten::mm"]
    assert "aten::copy_" not in rows
    assert [product[name] for name in ("count", "kernels", "kernel_ns", "kernel")] == [2, 4, 1_330, "gemm"]
    assert [product[f"{name}_ns"] for name in ("shortest", "median", "p95", "longest")] == [630, 630, 700, 700]
    assert product["flops"] == 2 * 64 * 32 * 16 and product["bytes"] == 2 * (64 * 32 + 32 * 16 + 64 * 16)
    of_kernel = dict(
        zip(tables["kernels"]["name"].to_pylist(), tables["kernels"]["operation_id"].to_pylist(), strict=True)
    )
    assert of_kernel["Memset (Device)"] == product["operation_id"] and None not in of_kernel.values()


def test_a_backward_pass_is_counted_by_the_inputs_of_its_forward_pass(tmp_path):
    rows, _ = _analysed(tmp_path, _file())
    forward, backward = rows["_Linear"], rows["_LinearBackward"]
    assert forward["flops"] == 2 * 32 * 16 * 32 + 32 * 16 and forward["number_format"] == "fp8"
    assert backward["flops"] == 2 * 2 * 32 * 16 * 32 and backward["number_format"] == "bf16"
    assert (backward["shapes"], backward["forward_shapes"]) == ("[[4,8,16]]", "[[16,32],[4,8,32],[16]]")


@pytest.mark.parametrize("seen", ["gradient", "gather", "both", "nothing"])
def test_a_layer_that_states_a_shard_counts_what_it_gathers_by_its_gradient_or_its_gather(tmp_path, seen):
    file = KinetoFile()
    file.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    file.operator("_Linear", 5_000, 6_000, **_LINEAR)
    file.kernel("nvjet_hsh_128x128", 13_000, 13_250, launched=5_100)
    if seen in ("gather", "both"):
        file.operator("c10d::_allgather_base_", 5_010, 5_060, **{"Input Dims": [[16, 8, 32], [4, 8, 32]]})
        message = {"Collective name": "_allgather_base", "Group size": 4, "Process Group Name": "1"}
        file.kernel("ncclDevKernel_AllGather_RING_LL", 12_000, 12_500, launched=5_050, **message)
    if seen in ("gradient", "both"):
        file.operator("_LinearBackward", 7_000, 8_000, **_BACKWARD | {"Input Dims": [[16, 8, 16]]})
        file.kernel("nvjet_hsh_128x128", 14_000, 14_600, launched=7_100)
    rows, _ = _analysed(tmp_path, file)
    tokens = 4 * 8 if seen == "nothing" else 16 * 8
    assert rows["_Linear"]["flops"] == 2 * tokens * 16 * 32 + tokens * 16
    assert "gradient" not in seen or rows["_LinearBackward"]["flops"] == 2 * 2 * tokens * 16 * 32


@pytest.mark.parametrize(
    ("kernel", "number_format"),
    [
        ("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "fp8"),
        ("nvjet_sm100_qqtst_128x256_TNT", "fp8"),
        ("nvjet_ootst_128x256_256x5_2x2_2cta_h_bz_Avec16UE4M3_Bvec16UE4M3_TNT", "fp4"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopB_TNN", "bf16"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopB_TNN", "bf16"),
    ],
)
def test_the_name_of_a_product_says_that_its_inputs_were_cast(tmp_path, kernel, number_format):
    file = KinetoFile()
    file.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    file.operator("_Linear", 5_000, 6_000, **_LINEAR)
    file.kernel(kernel, 13_000, 13_250, launched=5_100)
    row = _analysed(tmp_path, file)[0]["_Linear"]
    assert row["number_format"] == number_format
    assert row["reason"] == ("no fp4 peak of NVIDIA H100 80GB HBM3 is known" if number_format == "fp4" else None)


def test_unknown_work_is_null_with_its_reason(tmp_path):
    rows, _ = _analysed(tmp_path, _file())
    reasons = {"replayed": OF_A_GRAPH, "library": NO_OPERATOR, "unit": NO_OPERATOR}
    reasons["aten::mul"] = "the sizes of its inputs are not recorded"
    for name, reason in reasons.items():
        row = rows[name]
        assert row["reason"] == reason
        assert {row[each] for each in ("flops", "bytes", "roofline_ns", "efficiency", "headroom_ns", "bound")} == {None}


def test_peaks_are_those_of_the_home_and_an_unknown_gpu_has_none(tmp_path):
    product = _analysed(tmp_path, _file())[0]["aten::mm"]
    assert (product["gpu"], product["memory_bytes_per_s"]) == ("H100", 3_350_000_000_000)
    assert product["headroom_ns"] == product["kernel_ns"] - product["roofline_ns"] > 0
    unknown = _analysed(tmp_path, _file("Toy GPU 3"))[0]["aten::mm"]
    assert (unknown["gpu"], unknown["roofline_ns"]) == (None, None) and "no peaks are known of Toy GPU 3" in unknown[
        "reason"
    ]
    (tmp_path / "traceviz.toml").write_text('[peaks."toy gpu"]\nbf16 = 0.1\nmemory = 1\n')
    peaks = home_peaks(tmp_path, {})
    known = _analysed(tmp_path, _file("Toy GPU 3"), peaks)[0]
    # 2 · 65,536 operations at 10^11 a second.
    assert known["aten::mm"]["roofline_ns"] == 1_311 and known["aten::mm"]["bound"] == "compute"
    assert known["aten::mm"]["headroom_ns"] == known["aten::mm"]["kernel_ns"] - 1_311
    assert known["_Linear"]["reason"] == "no fp8 peak of Toy GPU 3 is known"
    assert peaks.digest != BUILT_IN.digest


def test_peaks_of_a_home_replace_only_what_they_state():
    peaks = Peaks({"h100": GpuRates(bf16=700), "MI300X mine": GpuRates(memory=4)})
    found = peaks.of("NVIDIA H100 80GB HBM3")
    assert found.flops_per_s["bf16"] == found.flops_per_s["fp16"] == 700 * 10**12
    assert found.memory_bytes_per_s == BUILT_IN.of("NVIDIA H100 80GB HBM3").memory_bytes_per_s
    # A more specific table of the package stays.
    assert peaks.of("NVIDIA H100 PCIe").flops_per_s["bf16"] == 756 * 10**12
    assert peaks.of("AMD Instinct MI300X") == BUILT_IN.of("AMD Instinct MI300X")


@pytest.mark.parametrize(
    ("work", "operation_class", "expected", "bound"),
    [
        # 989 operations at 989 · 10^12 a second and 1 byte: one picosecond a call.
        (Work(989, 1, "bf16"), OperationClass.GEMM, 1, Bound.COMPUTE),
        (Work(0, 0, "bf16"), OperationClass.GEMM, 0, Bound.MEMORY),
        (Work(10**9, 3350, "fp32"), OperationClass.ELEMENTWISE, 1_000, Bound.MEMORY),
        (Work(10, 10, "fp64"), OperationClass.GEMM, None, None),
        (Work(None, 10, "bf16", "why"), OperationClass.ATTENTION, None, None),
        (Work(None, 3350, None, "why"), OperationClass.OPTIMIZER, 1_000, Bound.MEMORY),
    ],
)
def test_the_roofline_is_the_longer_of_both_and_nothing_is_divided_by_zero(work, operation_class, expected, bound):
    found = roofline(work, operation_class, 1_000, 10**6, BUILT_IN.of("NVIDIA H100"), "NVIDIA H100")
    assert (found.roofline_ns, found.bound) == (expected, bound)
    assert (found.reason is None) == (expected is not None)


def test_work_that_takes_longer_at_the_peak_than_it_took_has_no_roofline():
    work, peaks = Work(989 * 10**6, 1, "bf16"), BUILT_IN.of("NVIDIA H100")
    possible, impossible = (
        roofline(work, OperationClass.GEMM, 1_000, kernel_ns, peaks, "NVIDIA H100")
        for kernel_ns in (10**6, 10**6 * 9 // 10)
    )
    assert (possible.roofline_ns, possible.reason) == (10**6, None)
    assert impossible.roofline_ns is None and "sizes or peak are wrong" in impossible.reason


_KERNELS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(-1, 2), st.integers(-1, 4), st.integers(0, 3), st.integers(0, 50))
)


@settings(max_examples=100, deadline=None)
@given(_KERNELS)
def test_groups_are_those_of_a_plain_count(kernels):
    columns = [np.array(column, dtype=np.int64) for column in zip(*kernels, strict=True)] or [np.zeros(0, np.int64)] * 5
    found = grouped(columns[:2], *columns[2:])
    assert found.kernel_ns.tolist() == sorted(found.kernel_ns.tolist(), reverse=True)
    for number in range(len(found.first)):
        rows = [row for row in range(len(kernels)) if found.of_kernel[row] == number]
        assert rows == [row for row in range(len(kernels)) if kernels[row][:2] == kernels[rows[0]][:2]]
        calls, names = {}, {}
        for row in rows:
            call = kernels[row][2] if kernels[row][2] != -1 else ("own", row)
            calls[call] = calls.get(call, 0) + kernels[row][4]
            names[kernels[row][3]] = names.get(kernels[row][3], 0) + kernels[row][4]
        times = sorted(calls.values())
        assert (found.first[number], found.kernels[number], found.calls[number]) == (rows[0], len(rows), len(calls))
        assert (found.kernel_ns[number], found.main_name[number]) == (
            sum(times),
            min(names, key=lambda n: (-names[n], n)),
        )
        assert (found.shortest_ns[number], found.longest_ns[number]) == (times[0], times[-1])
        assert found.median_ns[number] == times[(len(times) - 1) // 2]
        assert found.p95_ns[number] == times[-(-95 * len(times) // 100) - 1]


def test_an_operator_without_a_formula_keeps_its_name_and_inputs(tmp_path):
    file = KinetoFile()
    file.operator("mine::fused", 1_000, 2_000, **_MM)
    file.kernel("fused", 10_000, 10_100, launched=1_100)
    row = _analysed(tmp_path, file)[0]["mine::fused"]
    assert (row["shapes"], row["reason"], row["operation_class"]) == ("[[64,32],[32,16]]", NO_FORMULA, "other")
