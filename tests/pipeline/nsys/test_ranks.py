"""Nsight Systems exports as a source of the pipeline, held against simulated jobs whose truth is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.accuracy import NSYS_PIPELINE, compared_exports
from tests.nsys_file import small_export
from tests.sets import fast
from traceviz_dag.analyze.accuracy import shares
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.commands.main import app
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.ranks import analyse_rank, read_events
from traceviz_dag.simulate import simulate

JOB = replace(NSYS_PIPELINE, clock_skew_ms=0.0)
JOBS = {"1F1B": JOB, "interleaved": replace(JOB, vpp=2)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Folders of exports, two nodes each, with the topology text file beside them and the truth below."""
    made = {}
    for name, job in JOBS.items():
        made[name] = simulate(job, tmp_path_factory.mktemp(name) / "exports", workers=1)
    return made


@pytest.mark.parametrize("name", fast(JOBS, "interleaved"))
def test_kernels_of_exports_are_classified_as_they_really_were(runs, tmp_path, name):
    table, _ = compared_exports(runs[name], tmp_path / "home")
    assert set(table["rank"]) == set(range(8))
    assert table.kernel_id.notna().all() and table.category_true.notna().all()
    assert (table.duration_ns == table.duration_ns_true).all()
    found = shares(table)
    for aspect, least in (("phase", 0.99), ("dimension", 0.99), ("microbatch", 0.95)):
        assert found.right[aspect] >= least, aspect
        assert found.wrong[aspect] < 0.001, aspect


def test_ranks_of_nodes_and_iterations_are_found_and_lie_on_one_clock(runs, tmp_path):
    inputs = inputs_below([runs["1F1B"]], home=tmp_path / "home")
    assert [(one.iteration, len(one.ranks)) for one in inputs] == [(0, 8), (1, 8)]
    assert {entry.name for entry in inputs[0].ranks[:4]} == {"node0.sqlite"}
    assert all(entry.rank in range(4, 8) for entry in inputs[0].ranks if entry.name == "node1.sqlite")
    topology = read_topology(inputs[0], home=tmp_path / "home")
    assert sorted(topology.pipelines) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    starts = []
    for trace in rank_traces(inputs[0], {0, 7}, tmp_path / "home"):
        events = read_events(trace, topology, load_rules())
        starts.append(int(events.device.start_ns.min()))
    # Both nodes began within the same millisecond of UTC, though their captures count from different instants.
    assert abs(starts[0] - starts[1]) < 20_000_000
    assert starts[0] > 1_700_000_000_000_000_000


@pytest.mark.long
def test_analyze_takes_exports_the_same_way_as_traces(runs, tmp_path):
    home = tmp_path / "home"
    arguments = ["analyze", str(runs["1F1B"]), "--home", str(home), "--workers", "1", "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)) == 2
    lake = open_lake(home)
    counts = lake.query(
        "SELECT count(*) AS ranks, min(format) AS format, min(phase_known_ns / kernel_ns) AS phases FROM traces"
    ).to_pylist()[0]
    assert (counts["ranks"], counts["format"]) == (16, "nsys_sqlite")
    assert counts["phases"] > 0.99
    steps = lake.query("SELECT DISTINCT iteration, step FROM kernels ORDER BY ALL").to_pylist()
    assert steps == [{"iteration": 0, "step": 0}, {"iteration": 1, "step": 1}]
    ranges = lake.query("SELECT count(*) AS n, max(busy_ns) AS busy, count(communicator) AS calls FROM nvtx_ranges")
    row = ranges.to_pylist()[0]
    assert row["n"] > 1000
    assert row["busy"] > 0
    assert row["calls"] > 100
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert [(one["ranks_computed"], one["ranks_skipped"]) for one in json.loads(again.stdout)] == [(0, 8), (0, 8)]


def test_sizes_that_no_kernel_has_are_unknown_and_cost_no_row(tmp_path):
    export = small_export()
    export.kernel(710, 720, "gemm", gridX=2**62, gridY=-(2**63), blockX=-(2**40))
    (inputs,) = inputs_below([export.write(tmp_path / "node0.sqlite")], home=tmp_path / "home")
    (trace,) = rank_traces(inputs, [0], tmp_path / "home")
    kernels = analyse_rank(trace, read_topology(inputs, home=tmp_path / "home"), load_rules())["kernels"].to_pylist()
    names = ("grid_x", "grid_y", "block_x")
    sizes = {row["start_ns"] - kernels[0]["start_ns"]: [row[name] for name in names] for row in kernels}
    assert len(kernels) == 5 and sizes[610] == [None, None, None] and sizes[0][0] == 1
