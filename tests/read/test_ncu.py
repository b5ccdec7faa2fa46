"""Exports of Nsight Compute: both pages, in scaled and base units, give the same; what is no export is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.ncu import read_ncu

GEMM = "void cutlass::Kernel2<cutlass_80_wmma<64, (int)128>>(T1::Params)"
FIRST = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size")
METRICS = {
    "dram__bytes_read.sum": ("Mbyte", "50.5"),
    "dram__bytes_write.sum": ("Kbyte", "24,000.00"),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "41.5"),
    "gpu__time_duration.sum": ("usecond", "80.00"),
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum": ("", "51,539,607,552"),
    "sm__ops_path_tensor_src_bf16_dst_fp32_sparsity_off.sum": ("", "51,539,607,552"),
    "sm__ops_path_tensor_src_int8.sum": ("", "7,000,000,000,000"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "70.25"),
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": ("inst", "1,000"),
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("Kinst", "2.5"),
    "smsp__sass_thread_inst_executed_op_hfma_pred_on.sum": ("inst", "10"),
}
FLOPS = 51_539_607_552 + 1_000 + 2 * 2_500 + 4 * 10


def quoted(*rows) -> str:
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def first(number: int, name: str = GEMM) -> tuple[str, ...]:
    return (str(number), "77", "python", "node", name, "1", "7", "(128, 1, 1)", "(22, 70, 1)")


def raw(metrics=METRICS, names=(GEMM,)) -> str:
    header = (*FIRST, "Device", "CC", *metrics)
    units = (*[""] * (len(FIRST) + 2), *(unit for unit, _ in metrics.values()))
    rows = [(*first(n, name), "0", "9.0", *(text for _, text in metrics.values())) for n, name in enumerate(names)]
    return quoted(header, units, *rows)


def details(metrics=METRICS, names=(GEMM,)) -> str:
    header = (*FIRST, "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name")
    rows = [
        (*first(n, name), "0", "9.0", "Command line profiler metrics", metric, unit, text, "")
        for n, name in enumerate(names)
        for metric, (unit, text) in metrics.items()
    ]
    rule = (*first(0, names[0]), "0", "9.0", "SpeedOfLight", "", "", "", "SOLBottleneck")
    return quoted(header, *rows, rule)


def written(folder: Path, text: str) -> Path:
    path = folder / "kernels.csv"
    path.write_text(text)
    return path


BASE = {**METRICS, "dram__bytes_read.sum": ("byte", "50500000"), "dram__bytes_write.sum": ("byte", "24000000")}
BASE |= {
    "gpu__time_duration.sum": ("ns", "80000"),
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "2500"),
}


@pytest.mark.parametrize("page", [raw, details])
@pytest.mark.parametrize("metrics", [METRICS, BASE])
def test_both_pages_give_the_same_in_all_units(tmp_path, page, metrics):
    text = '==PROF== Connected to process 77\nloss 2.5 of "a\n' if page is details else ""
    text += page(metrics, (GEMM, "copy")) + "==PROF== Disconnected\n"
    kernels = read_ncu(written(tmp_path, text))
    assert [kernel.name for kernel in kernels] == [GEMM, "copy"]
    for kernel in kernels:
        assert (kernel.grid, kernel.block) == ((22, 70, 1), (128, 1, 1))
        assert kernel.duration_ns == pytest.approx(80_000) and kernel.bytes == pytest.approx(74_500_000)
        # Counters of tensor operations and of their parts count once, those of integers not at all.
        assert kernel.flops == pytest.approx(FLOPS, abs=1) and kernel.reason is None
        assert (kernel.compute_share, kernel.memory_share) == pytest.approx((0.7025, 0.415))


def test_rates_of_the_roofline_sections_count_over_the_clock_and_the_time(tmp_path):
    stem = "smsp__sass_thread_inst_executed_op"
    metrics = {
        "gpu__time_duration.sum": ("msecond", "2"),
        "smsp__cycles_elapsed.avg.per_second": ("Ghz", "1.5"),
        "dram__bytes.sum.per_second": ("Tbyte/second", "2"),
        f"{stem}_fadd_pred_on.sum.per_cycle_elapsed": ("inst/cycle", "100"),
        f"derived__{stem}_ffma_pred_on_x2": ("", "400"),
        "sm__ops_path_tensor_src_fp8_sparsity_on.sum.per_cycle_elapsed": ("", "30"),
        "sm__ops_path_tensor_src_fp8_sparsity_off.sum.per_cycle_elapsed": ("", "70"),
    }
    (kernel,) = read_ncu(written(tmp_path, raw(metrics)))
    assert kernel.flops == pytest.approx((100 + 400 + 100) * 3_000_000)
    assert kernel.bytes == pytest.approx(4_000_000_000)


def test_labels_of_the_details_page_have_time_and_bytes_and_flops_are_unknown(tmp_path):
    header = (*FIRST, "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    told = [
        ("Memory Throughput", "%", "14.26"), ("Duration", "us", "2.5"), ("Compute (SM) Throughput", "%", "9"),
        ("Memory Throughput", "Gbyte/s", "800"), ("Registers Per Thread", "register/thread", "n/a"),
    ]  # fmt: skip
    rows = [(*first(0), "0", "9.0", "Section", *each) for each in told]
    (kernel,) = read_ncu(written(tmp_path, quoted(header, *rows)))
    assert kernel.duration_ns == pytest.approx(2_500) and kernel.bytes == pytest.approx(2_000_000)
    assert (kernel.compute_share, kernel.memory_share) == pytest.approx((0.09, 0.1426))
    assert kernel.flops is None and "no counters of operations" in kernel.reason


def test_scalar_counters_alone_are_all_flops_only_where_the_tensor_pipe_is_idle(tmp_path):
    counts = {"fadd": "70", "fmul": "30", "ffma": "450"}
    stem = "smsp__sass_thread_inst_executed_op"
    scalar = {f"{stem}_{kind}_pred_on.sum": ("inst", text) for kind, text in counts.items()}
    (unknown,) = read_ncu(written(tmp_path, raw(scalar)))
    assert unknown.flops is None and "tensor operations" in unknown.reason
    for pipe, flops in (("0", 1000), ("12", None)):
        metrics = scalar | {"sm__inst_executed_pipe_tensor.sum": ("inst", pipe)}
        (kernel,) = read_ncu(written(tmp_path, raw(metrics)))
        assert kernel.flops == flops
        # Of some counters alone no sum is made.
        partly = {name: told for name, told in metrics.items() if "fmul" not in name}
        (kernel,) = read_ncu(written(tmp_path, raw(partly)))
        assert kernel.flops is None and kernel.reason is not None


@pytest.mark.parametrize("page", [raw, details])
def test_an_export_that_ends_within_a_launch_is_refused(tmp_path, page):
    lines = page(names=(GEMM, "copy")).splitlines(keepends=True)[: -1 if page is details else None]
    cells = lines[-1].rstrip().split(",")
    for cut in (",".join(cells[:-2]), ",".join(cells[:3]), lines[-1].rstrip()[:-1], ",".join(cells[:-2]) + "\n"):
        with pytest.raises(BadInputError, match="is cut off"):
            read_ncu(written(tmp_path, "".join(lines[:-1]) + cut))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no CSV export of Nsight Compute"),
        ("a,b\n1,2\n", "no CSV export of Nsight Compute"),
        (quoted((*FIRST, "Metric Name", "Metric Unit", "Metric Value")), "names no kernel"),
        (quoted(("Process ID", "Kernel Name", "Invocations", "Metric Name", "Average")), "sums over launches"),
        (raw({"gpu__time_duration.sum": ("usecond", "80,5")}), "'80,5', not a number"),
        (raw({"gpu__time_duration.sum": ("fortnight", "1")}), "is in fortnight"),
        (raw(METRICS | {"gpu__time_duration.sum": ("us", "-5.0")}), "is -5.0, which cannot be"),
        (
            raw(METRICS | {"sm__throughput.avg.pct_of_peak_sustained_elapsed": ("%", "712.00")}),
            "is 712.00, which cannot",
        ),
        # Of a locale with decimal commas, without a percentage: what is scaled has decimals, single things have none.
        (raw({"gpu__time_duration.sum": ("usecond", "80,123")}), "'80,123', not a number"),
        (raw({"dram__bytes_read.sum": ("Mbyte", "1"), "dram__bytes_write.sum": ("byte", "1.536")}), "'1.536', not"),
        ("".join(raw().splitlines(keepends=True)[::2]), "no row of units"),
    ],
)
def test_what_is_no_export_is_one_line_with_a_remedy(tmp_path, text, fault):
    with pytest.raises(BadInputError, match=r".+; .*export it with") as refused:
        read_ncu(written(tmp_path, text))
    assert fault in str(refused.value) and "\n" not in str(refused.value)


def test_a_report_and_a_missing_file_are_refused(tmp_path):
    report = tmp_path / "kernel.ncu-rep"
    report.write_bytes(bytes(range(256)) * 10)
    for path in (report, tmp_path / "absent.csv", tmp_path):
        with pytest.raises(BadInputError):
            read_ncu(path)
