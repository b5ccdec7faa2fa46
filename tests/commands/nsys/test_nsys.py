"""``traceviz nsys``: what each command prints and writes, and how it ends."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from tests.nsys_file import small_export
from traceviz_dag.commands.main import app
from traceviz_dag.errors import BadInputError, TracevizError, UsageError

KEYS = {
    *("device", "window_start_ns", "window_end_ns", "kernels", "span_ns", "compute_ns", "communication_ns"),
    *("hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns", "partial"),
}


@pytest.fixture
def export(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))
    return small_export().write(tmp_path / "small.sqlite")


def _run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["nsys", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def _json(*arguments: object):
    return json.loads(_run(*arguments, "--json"))


def test_overlap_prints_the_keys_that_others_read(export):
    (row,) = _json("overlap", export)
    assert set(row) == KEYS
    assert (row["kernels"], row["span_ns"], row["compute_ns"], row["hidden_ns"], row["exposed_ns"]) == (
        4,
        600,
        300,
        100,
        50,
    )
    (clipped,) = _json("overlap", export, "--gpu", "0", "--trim", "0.0000002", "0.0000004")
    assert (clipped["span_ns"], clipped["compute_ns"], clipped["memory_ns"], clipped["idle_ns"]) == (200, 100, 50, 0)


def test_each_command_prints_a_table_and_json(export):
    for name in ("info", "summary", "tree", "overlap", "nccl", "iterations", "gaps", "suggest", "map", "copies"):
        assert _run(name, export).strip(), name
        assert _json(name, export), name
    for name in ("launches", "ranges", "calls"):
        assert _run(name, export).strip(), name
        assert _json(name, export), name
    assert _json("iterations", export)[0]["number"] == 5
    assert _json("tree", export)[0]["ranges"][0]["children"][0]["name"] == "forward"
    assert _json("search", export, "gemm")[0]["count"] == 2
    assert "1 name holds gemm" in _run("search", export, "gemm")
    assert "idle time counts memory operations as busy" in _run("overlap", export).lower()


def test_exports_hold_every_operation_with_its_launch_and_ranges(export, tmp_path):
    _run("export-csv", export, "-o", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], row["ranges"], row["launch"]) for row in rows] == [
        ("gemm", "Iteration 5 / forward", "cudaLaunchKernel"),
        ("ncclDevKernel_AllReduce_Sum", "Iteration 5 / forward", "cudaLaunchKernel"),
        ("Memcpy HtoD", "", ""),
        ("gemm", "Iteration 5 / forward", "cudaLaunchKernel"),
    ]
    _run("export-json", export, "-o", tmp_path / "out.json", "--trim", "0", "0.0000003")
    document = json.loads((tmp_path / "out.json").read_text())
    assert [row["start_ns"] for row in document["operations"]] == [100, 200]
    assert document["overlap"][0]["compute_ns"] == 200


def test_diff_sums_to_the_change_and_says_how_comparable(export, tmp_path):
    slower = small_export()
    slower.kernel(900, 1400, "new_kernel")
    other = slower.write(tmp_path / "slower.sqlite")
    found = _json("diff", export, other)
    assert sum(part["change_ns"] for part in found["parts"].values()) == found["change_ns"] == 700
    assert [row["name"] for row in found["kernels"]["new"]] == ["new_kernel"]
    shown = _run("diff", export, other)
    assert "slower" in shown
    assert "new_kernel" in shown


def test_what_is_wrong_is_an_error_of_its_own_with_exit_code_two(export, tmp_path):
    other_name = tmp_path / "other name.sqlite"
    other_name.hardlink_to(export)
    cases = [
        (["overlap", tmp_path / "nothing.sqlite"], BadInputError),
        (["overlap", export, "--gpu", "9"], UsageError),
        (["overlap", export, "--gpu", "first"], UsageError),
        (["overlap", export, "--gpu", "²"], UsageError),
        (["overlap", export, "--gpu", ""], UsageError),
        (["overlap", export, "--trim", "2", "1"], UsageError),
        (["nccl", export, "--slow", "nan"], UsageError),
        (["gaps", export, "--least-us", "inf"], UsageError),
        (["export-csv", export, "-o", other_name], UsageError),
        *(([name, export, "-o", export], UsageError) for name in ("viewer", "perfetto", "export-csv", "export-json")),
    ]
    before = export.read_bytes()
    for arguments, kind in cases:
        with pytest.raises(TracevizError) as caught:
            CliRunner().invoke(app, ["nsys", *map(str, arguments)], catch_exceptions=False)
        assert isinstance(caught.value, kind)
        assert caught.value.exit_code == 2
    assert export.read_bytes() == before


@pytest.mark.parametrize("utc", [-5, 2**62])
def test_a_start_of_the_capture_that_is_no_date_is_reported_and_costs_only_that(tmp_path, monkeypatch, utc):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "home"))
    export = small_export()
    export.add("TARGET_INFO_SESSION_START_TIME", {"utcEpochNs": utc})
    # The capture's clock may count from later than the first call.
    export.call(-50, -40, correlation=99)
    path = export.write(tmp_path / "odd.sqlite")
    assert f"its start, {utc} ns, is no date" in _run("info", path)
    assert "slices" in _run("perfetto", path, "-o", tmp_path / "odd.pftrace")


def test_the_perfetto_trace_holds_streams_ranges_and_calls_with_arrows(export, tmp_path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    out = tmp_path / "small.pftrace"
    assert "slices" in _run("perfetto", export, "-o", out)
    packets = Trace.FromString(out.read_bytes()).packet
    tracks = {packet.track_descriptor.name for packet in packets if packet.HasField("track_descriptor")}
    assert {"GPU 0", "stream 7", "stream 20", "idle", "thread 7002", "NVTX", "CUDA calls"} <= tracks
    events = [packet.track_event for packet in packets if packet.HasField("track_event")]
    sent = [flow for event in events if event.type == 1 for flow in event.flow_ids]
    ended = [flow for event in events if event.type == 2 for flow in event.terminating_flow_ids]
    assert len(sent) == 3
    flows = sorted(sent), sorted(ended or [flow for event in events if event.type == 2 for flow in event.flow_ids])
    assert flows[0] == flows[1]


def test_diff_gates_and_compares_single_iterations(export, tmp_path):
    slower = small_export()
    slower.kernel(900, 1400, "gemm")
    other = slower.write(tmp_path / "slower.sqlite")

    def code(*words: object) -> int:
        result = CliRunner().invoke(app, ["nsys", "diff", *map(str, words)])
        assert result.exception is None or isinstance(result.exception, SystemExit | TracevizError), result.output
        return getattr(result.exception, "exit_code", result.exit_code)

    found = _json("diff", export, export)
    assert (found["outcome"], found["is_comparable"], found["change_ns"]) == ("no change", True, 0)
    assert code(export, export, "--gate") == code(export, other) == 0
    assert code(export, export, "--gate", "--trim", "0.0000002", "0.0000008", "--trim-b", "0.0000002", "0.0000004") == 2
    assert code(export, other, "--gate", "--json") == 2  # One call more: unequal work.
    longer = small_export(last_ns=800)
    assert code(export, longer.write(tmp_path / "longer.sqlite"), "--gate") == 1
    number = _json("iterations", export)[0]
    one = _json("diff", export, export, "--iteration", number["number"])
    assert one["window_a_ns"] == one["window_b_ns"] == number["span_ns"]
    for words, why in {
        ("--iteration", 99): "no iteration 99 on GPU 0; there are 5 to 5",
        ("--iteration-b", 5): "also give --iteration",
        ("--iteration", 5, "--trim", 0, 1): "both name a window",
    }.items():
        with pytest.raises(UsageError, match=why):
            _run("diff", export, export, *words)
