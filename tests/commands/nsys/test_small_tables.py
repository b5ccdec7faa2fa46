"""Tables of ``traceviz nsys`` over exports written by hand: what real exports at hand do not hold, number by number."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import webbrowser
from contextlib import closing

import pytest
from typer.testing import CliRunner

from tests.nsys_file import PROCESS, SECRET, THREAD, Export, global_pid, global_tid, small_export
from traceviz_dag.commands.main import app
from traceviz_dag.errors import UsageError
from traceviz_dag.read.nsys.products import product_flops


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))


def run(*words: object) -> str:
    result = CliRunner().invoke(app, ["nsys", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*words: object):
    return json.loads(run(*words, "--json"))


def test_stalls_of_modules_allocation_and_garbage_collection_are_placed_in_their_ranges(tmp_path):
    export = Export()
    export.range(0, 1000, "step")
    export.range(100, 300, "forward")
    export.range(400, 600, "Python GC")
    export.range(450, 500, "gc generation 2")
    export.range(700, 720, "gcn_layer")
    for start, name in ((110, "cuLibraryLoadData"), (150, "cuModuleLoadDataEx"), (200, "cudaMalloc_v3020")):
        export.call(start, start + 30, start, name=name)
    export.call(800, 850, 9, name="cudaFree_v3020")
    export.call(1200, 1201, 10, name="cudaFree_v3020")
    export.call(120, 121, 11)
    export.kernel(2000, 2010)
    path = export.write(tmp_path / "stalls.sqlite")
    rows = {
        (row["kind"], *row["ranges"]): (row["count"], row["total_ns"], row["most_ns"]) for row in answer("stalls", path)
    }
    assert rows == {
        ("garbage collection", "step"): (1, 200, 200),
        ("module loading", "step", "forward"): (2, 60, 30),
        ("memory allocation", "step"): (1, 50, 50),
        ("memory allocation", "step", "forward"): (1, 30, 30),
        ("memory allocation",): (1, 1, 1),
    }
    cut = answer("stalls", path, "--trim", "0.000000125", "0.0000004500")
    assert {(row["kind"], row["total_ns"]) for row in cut} == {
        ("module loading", 45),
        ("memory allocation", 30),
        ("garbage collection", 50),
    }


def test_stalls_that_cannot_matter_are_only_counted(tmp_path):
    export, ms = Export(), 1_000_000
    lengths = {"large": 10_000, "enough": 11, "slight": 9, "least": 1}
    for number, (name, length) in enumerate(lengths.items()):
        start = number * 20_000 * ms
        export.range(start, start + 15_000 * ms, name)
        export.call(start, start + length * ms, number, name="cudaMalloc_v3020")
    path = export.write(tmp_path / "stalls.sqlite")
    said = run("stalls", path)
    assert "large" in said and "enough" in said and "slight" not in said and "least" not in said
    assert "2 more below 0.1 % of all together: 10.000 ms together." in said
    assert [row["ranges"] for row in answer("stalls", path)] == [[name] for name in lengths]


def test_calls_of_the_operating_system(tmp_path):
    export = small_export()
    for start, length, thread in ((0, 10, 1), (5, 30, 2), (50, 20, 2)):
        export.system_call(start, start + length, "poll", thread=thread)
    export.system_call(90, 95, "read")
    path = export.write(tmp_path / "osrt.sqlite")
    poll, read = answer("calls", path, "--system")
    assert (poll["name"], poll["threads"], poll["durations"]["count"], poll["durations"]["total_ns"]) == (
        "poll",
        2,
        3,
        60,
    )
    assert (poll["durations"]["median_ns"], read["durations"]["total_ns"]) == (20, 5)
    assert poll["share"] == pytest.approx(60 / 65)
    assert "poll" in run("calls", path, "--system")
    assert "holds no calls" in run("calls", small_export().write(tmp_path / "none.sqlite"), "--system")


def test_flop_utilisation_from_sizes_and_from_what_is_given(tmp_path):
    export = Export()
    export.add("TARGET_INFO_GPU", {"id": 0, "name": "NVIDIA H100 80GB HBM3"})
    for number, start in enumerate((0, 1000)):
        export.range(start, start + 500, "layer")
        export.range(
            start + 10, start + 90, f"aten::linear, seq = {number}, op_id = {number}, sizes = [[64, 32], [16, 32]]"
        )
        text = f"aten::addmm, seq = {number}, op_id = {number + 10}, sizes = [[16], [64, 32], [32, 16], [], []]"
        export.range(start + 20, start + 80, text)
        export.call(start + 30, start + 40, number + 1)
        export.kernel(start + 200, start + 300, correlation=number + 1)
    export.range(2000, 2100, "aten::mm, op_id = 99, sizes = [[8, 8], [8, 8]]")
    path = export.write(tmp_path / "flops.sqlite")
    (row,) = answer("flops", path, "layer")
    assert (row["count"], row["flops"]) == (2, 2 * (2 * 64 * 32 * 16 + 64 * 16))
    assert (row["gpu_ns"], row["busy_ns"], row["peak_flops_per_s"]) == (200, 200, 989 * 10**12)
    assert row["utilization_of_busy_time"] == pytest.approx(row["flops"] / 200e-9 / 989e12)
    (given,) = answer("flops", path, "layer", "--flops", "1000", "--peak", "0.1")
    assert (given["flops"], given["utilization_of_gpu_time"], given["above_peak"]) == (2000, pytest.approx(0.1), False)
    assert "cannot do more than its peak" in run("flops", path, "layer", "--flops", "1000", "--peak", "0.001")
    with pytest.raises(UsageError, match="launched anything"):
        run("flops", path, "mm*")


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("aten::mm, sizes = [[64, 32], [32, 16]]", 2 * 64 * 32 * 16),
        ("aten::bmm, sizes = [[4, 64, 32], [4, 32, 16]]", 2 * 4 * 64 * 32 * 16),
        ("aten::baddbmm, sizes = [[4, 64, 16], [4, 64, 32], [4, 32, 16]]", 4 * 64 * 16 * (2 * 32 + 1)),
        ("aten::mm, sizes = [[64, 32], [33, 16]]", None),
        ("aten::mm, sizes = [[64, 32]]", None),
        ("aten::mm, sizes = [[4611686018427387904, 4], [4, 4]]", None),
        ("aten::add, sizes = [[64, 32], [32, 16]]", None),
        ("aten::mm, sizes = [[64, 32], [32, 16", None),
    ],
)
def test_operations_of_a_matrix_product(text, flops):
    assert product_flops(text) == flops


def test_single_communications_that_take_long_beside_similar_ones(tmp_path):
    export = Export()
    payload = '{"NCCL communicator ID": 7, "Message size [bytes]": %d}'
    for number, (length, size) in enumerate([(10, 64), (11, 64), (12, 64), (40, 64), (9, 64), (500, 128), (10, 128)]):
        start = 1000 * number
        export.range(start, start + 20, "ncclAllReduce", payload=payload % size)
        export.call(start + 5, start + 8, number + 1)
        export.kernel(start + 100, start + 100 + length, "ncclDevKernel_AllReduce_Sum", correlation=number + 1)
    (row,) = answer("nccl", export.write(tmp_path / "slow.sqlite"), "--slow", "3")
    assert (row["start_ns"], row["duration_ns"], row["usual_ns"], row["alike"]) == (3100, 40, 11, 5)
    assert (row["bytes"], row["communicator"]) == (64, "0x0000000000000007")


def test_hardware_of_the_gpus(tmp_path):
    export = small_export()
    stated = {"smCount": 132, "totalMemory": 80 << 30, "memoryBandwidth": 3_350_000_000_000, "clockRate": 1_980_000_000}
    place = {"busLocation": "0000:1B:00.0", "computeMajor": 9, "computeMinor": 0}
    export.add("TARGET_INFO_GPU", {"id": 0, "name": "NVIDIA H100", **place, **stated})
    path = export.write(tmp_path / "gpu.sqlite")
    (gpu,) = answer("info", path, "--gpu", "0")
    assert gpu == {
        "device": 0,
        "name": "NVIDIA H100",
        "multiprocessors": 132,
        "memory_bytes": 80 << 30,
        "memory_bytes_per_s": 3_350_000_000_000,
        "clock_hz": 1_980_000_000,
        "compute_capability": "9.0",
        "bus": "0000:1B:00.0",
    }
    assert "80.00 GiB" in run("info", path, "--hardware")


def test_short_ranges_are_left_out(tmp_path):
    path = small_export().write(tmp_path / "short.sqlite")
    shown = ["forward" in run("tree", path, "--least-ms", least) for least in ("0.0003", "0.0004")]
    assert shown == [True, False], "it takes 390 ns"


def test_map_of_a_metric(tmp_path):
    export = small_export()
    for time, value in ((100, 10), (200, 30), (500, 90)):
        export.add("GPU_METRICS", {"timestamp": time, "typeId": 0, "metricId": 1, "value": value})
    export.add("TARGET_INFO_GPU_METRICS", {"typeId": 0, "metricId": 1, "metricName": "SMs Active"})
    path = export.write(tmp_path / "metric.sqlite")
    found = answer("map", path, "--metric", "SMs Active", "--parts", "3")
    assert found["edges_ns"] == [100, 300, 500, 700]
    assert found["gpus"] == [{"device": 0, "metric": "SMs Active", "means": [20.0, None, 90.0]}]
    assert "a full block is 90" in run("map", path, "--metric", "SMs Active", "--parts", "3")
    with pytest.raises(UsageError, match="there is SMs Active"):
        run("map", path, "--metric", "Tensor")


def test_threads_are_ordered_by_their_sampled_cycles(tmp_path):
    export = small_export()
    for time, thread, cycles in ((10, THREAD, 30), (20, THREAD + 1, 60), (30, THREAD, 10)):
        export.add("COMPOSITE_EVENTS", {"start": time, "globalTid": global_tid(thread=thread), "cpuCycles": cycles})
    path = export.write(tmp_path / "sampled.sqlite")
    rows = answer("threads", path)
    assert [(row["process"], row["thread"], row["samples"], row["cycles"], row["share"]) for row in rows] == [
        (PROCESS, THREAD + 1, 1, 60, 0.6),
        (PROCESS, THREAD, 2, 40, 0.4),
    ]
    assert [row["cycles"] for row in answer("threads", path, "--trim", "0", "0.000000015")] == [30]


def test_instructions_are_joined_to_kernels_of_the_same_bare_name_alone(tmp_path):
    export = Export()
    export.kernel(0, 100, "void flash::flash_fwd_kernel<Traits<(int)128>>(Params)")
    export.kernel(100, 130, "void flash::flash_fwd_kernel<Traits<(int)64>>(Params)")
    export.kernel(200, 210, "flash_fwd_kernel_splitkv")
    path = export.write(tmp_path / "traced.sqlite")
    counts = tmp_path / "counts"
    counts.mkdir()
    head = "warp_id,region_id,instruction,count,cycles\n"
    rows = "0,0,HMMA,30,90\n1,0,HMMA,10,10\n1,0,LDG,60,900\n"
    (counts / "kernel_flash_fwd_kernel_0123abcd_hist.csv").write_text(head + rows)
    (counts / "kernel_0123abcd_other_hist.csv").write_text(head + "0,0,FFMA,1,4\n")
    first, second = answer("instructions", path, counts)
    assert (len(first["names"]), first["launches"], first["total_ns"]) == (2, 2, 130)
    assert (first["issued"], first["tensor_share"], first["cycles"]) == (100, 0.4, {"LDG": 900, "HMMA": 100})
    assert (second["kernel"], second["names"], second["total_ns"]) == ("other", [], None)
    assert "LDG 90.0 %" in run("instructions", path, counts)


def test_what_cutracer_itself_writes_is_joined_by_mangled_names(tmp_path):
    export = Export()
    export.kernel(0, 100, "void flash::flash_fwd_kernel<Traits<(int)128>>(Params)")
    export.kernel(100, 110, "add_kernel")
    path = export.write(tmp_path / "traced.sqlite")
    counts = tmp_path / "counts"
    counts.mkdir()
    head = "warp_id,region_id,instruction,count\n"
    launches = ("7fa21c3_iter0__ZN5flash16flash_fwd_kernelI6TraitsILi128EEEEv6Params", "add_iter0_add_kernel")
    for name in (*launches, launches[0].replace("iter0", "iter1")):
        (counts / f"kernel_{name}_hist.csv").write_text(head + '0,0,"HMMA.16816.F32",30\n0,0,"LDG.E",70\n')
    flash, add = answer("instructions", path, counts)
    assert (len(flash["names"]), flash["total_ns"], flash["issued"], flash["tensor_share"]) == (1, 100, 200, 0.3)
    assert (add["kernel"], add["names"], add["cycles"]) == ("add_kernel", ["add_kernel"], {})
    printed = run("instructions", path, counts)
    assert "most issued" in printed
    assert "LDG.E 70.0 %, HMMA.16816.F32 30.0 %" in printed


def test_a_script_counts_the_instructions_of_the_dearest_kernels_of_all_gpus(tmp_path):
    export = Export()
    for device in (0, 1):
        export.kernel(0, 100, "void flash::Flash_fwd_kernel<Traits<(int)128>>(Params)", device=device)
        export.kernel(100, 150, "void flash::Flash_fwd_kernel<Traits<(int)64>>(Params)", device=device)
        export.kernel(150, 250, "_Z6gemm_Av", device=device)
        export.kernel(250, 900, "ncclDevKernel_AllReduce_Sum", device=device)
        export.copy(900, 5000, device=device)
    export.kernel(300, 320, "rare\x1b[31m, kernel()")
    path = export.write(tmp_path / "a profile.sqlite")
    found = answer("instructions", path, "--plan", "env", "--top", "2")
    flash, gemm = found["kernels"]
    assert (flash["kernel"], len(flash["names"])) == ("Flash_fwd_kernel", 2)
    assert (flash["launches"], flash["total_ns"]) == (4, 300)
    assert (gemm["kernel"], gemm["total_ns"], gemm["share"]) == ("gemm_A", 200, 200 / 520)
    script = run("instructions", path, "my counts", "--plan", "env; pwd", "--trim", "0", "1")
    assert "\x1b" not in script
    ran = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    given = dict(line.partition("=")[::2] for line in ran.stdout.splitlines())
    assert given["KERNEL_FILTERS"] == "Flash_fwd_kernel,gemm_A,kernel"
    assert given["CUTRACER_OUTPUT_DIR"] == str(tmp_path / "my counts")
    assert given["CUTRACER_ANALYSIS"] == "proton_instr_histogram"
    assert ran.stdout.endswith(f"{tmp_path}\n")
    assert (tmp_path / "my counts").is_dir()
    one = answer("instructions", path, "--plan", "env", "--gpu", "1", "--trim", "0", "0.0000002")
    assert [(row["kernel"], row["total_ns"]) for row in one["kernels"]] == [("Flash_fwd_kernel", 150), ("gemm_A", 50)]


def test_no_script_without_a_command_or_a_kernel(tmp_path):
    export = Export()
    export.copy(0, 10)
    path = export.write(tmp_path / "copies.sqlite")
    with pytest.raises(UsageError, match="no computation kernels"):
        run("instructions", path, "--plan", "env")
    with pytest.raises(UsageError, match="give the command that starts the program"):
        run("instructions", path, "--plan", " ")
    with pytest.raises(UsageError, match="or --plan COMMAND"):
        run("instructions", path)
    with pytest.raises(UsageError, match="also give --plan"):
        run("instructions", path, tmp_path, "--top", "2")


def test_one_iteration_in_order_shows_kernels_where_they_were_launched(tmp_path):
    path = small_export().write(tmp_path / "order.sqlite")
    (gpu,) = answer("tree", path, "--in-order")
    thread = global_tid() & 0xFFFFFF
    steps = [
        (step["thread"], step["depth"], step["name"], step["launched_ns"], step["operations"]) for step in gpu["steps"]
    ]
    assert steps == [
        (thread, 0, "Iteration 5", 0, 3),
        (thread, 1, "forward", 10, 3),
        (thread, 2, "gemm", 20, None),
        (thread, 2, "ncclDevKernel_AllReduce_Sum", 30, None),
        (thread, 2, "gemm", 40, None),
    ]
    assert [step["name"] for step in answer("tree", path, "--iteration", "5")[0]["ranges"]] == ["Iteration 5"]
    with pytest.raises(UsageError, match="no iteration 4 on GPU 0; there are 5 to 5"):
        run("tree", path, "--iteration", "4")
    with pytest.raises(UsageError, match="give one of them"):
        run("tree", path, "--iteration", "5", "--trim", "0", "1")


def test_the_viewer_opens_in_a_browser_on_demand(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    path, page = small_export().write(tmp_path / "a.sqlite"), tmp_path / "the report.html"
    run("viewer", path, "-o", page)
    assert asked == []
    run("viewer", path, "-o", page, "--open")
    assert asked == [page.as_uri()]


def test_tables_are_listed_with_their_columns_but_those_that_can_hold_secrets(tmp_path):
    export = small_export()
    export.secrets()
    export.table("OF_OTHERS\x1b[1m", ["a", "b\x1b[2m"], [("x", 1)])
    path = export.write(tmp_path / "a.sqlite")
    found = answer("info", path, "--columns")
    with closing(sqlite3.connect(path)) as connection:
        there = connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        ).fetchall()
    there = [row for row in there if row[0] not in ("META_DATA_CAPTURE", "ProcessStreams", "PROCESSES")]
    # Nsight Systems names tables and columns in words; whatever else a name holds may be anything.
    there = [row for row in there if all(map(str.isidentifier, row))]
    listed = [(table, column) for table, columns in found.items() for column in columns]
    assert sorted(listed) == sorted(there)
    printed = run("info", path, "--columns", "--all")
    assert all(f" {table} " in printed and f" {column} " in printed for table, column in there)
    assert SECRET not in printed + json.dumps(found)
    assert "\x1b" not in printed and "OF_OTHERS" not in printed
    assert "columns" not in answer("info", path)


def test_help_groups_the_commands(tmp_path):
    shown = run("--help")
    headings = [shown.index(heading) for heading in ("What is in it", "GPUs", "Host, NVTX ranges", "Files")]
    assert headings == sorted(headings)
    assert (
        headings[1]
        < shown.index("launches")
        < headings[2]
        < shown.index("stalls")
        < headings[3]
        < shown.index("viewer")
    )


def test_copies_by_the_form_of_their_call_and_unknown_sizes(tmp_path):
    export = small_export()
    export.tables.pop("CUPTI_ACTIVITY_KIND_MEMCPY")
    for number, (name, kind, size) in enumerate(
        [("cudaMemcpyAsync_v3020", 1, 64), ("cudaMemcpy_v3020", 0, 32), ("cudaGraphLaunch_v10000", 1, -5)]
    ):
        export.call(number, number + 1, 50 + number, name=name)
        copy = {"start": 100 * number, "end": 100 * number + 8, "deviceId": 0, "streamId": 7, "globalPid": global_pid()}
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            {**copy, "correlationId": 50 + number, "bytes": size, "copyKind": 1, "srcKind": kind, "dstKind": 2},
        )
    rows = answer("copies", export.write(tmp_path / "copies.sqlite"))
    found = {(row["source"], row["asynchronous"]): (row["bytes"], row["bytes_per_s"]) for row in rows}
    assert found == {
        ("pinned", True): (64, 8 * 10**9),
        ("pageable", False): (32, 4 * 10**9),
        ("pinned", None): (None, None),
    }
