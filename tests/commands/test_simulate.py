"""``traceviz simulate`` takes its options to the simulator and says what it made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from traceviz_dag.commands.main import app as traceviz
from traceviz_dag.commands.simulate import simulate
from traceviz_dag.errors import UsageError

_SMALL = ["--layers", "2", "--hidden", "512", "--sequence", "256", "--microbatches", "2", "--workers", "1"]


def _run(*arguments: str):
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, [*_SMALL, *arguments])


def test_simulates_a_job(tmp_path: Path):
    result = _run(
        str(tmp_path / "job"), "--pp", "2", "--dp", "2", "--recompute", "full", "--no-gzip", "--slow-gpu", "1"
    )
    assert result.exit_code == 0, result.output
    assert "4 ranks, 1 step in" in result.output
    assert len(list((tmp_path / "job" / "iteration_10").glob("*.pt.trace.json"))) == 4
    assert (tmp_path / "job" / "truth" / "culprits.parquet").is_file()


def test_faults_of_parts_of_a_job_have_options_and_one_for_how_slow(tmp_path: Path):
    result = _run(
        *(str(tmp_path), "--tp", "2", "--dp", "2", "--node-size", "2", "--slow-nic", "1", "--slow-group", "2"),
        *("--throttle", "0", "--throttle-from", "1", "--throttle-to", "2", "--slow-factor", "1.7"),
        *("--varying-sequences", "0.2", "--bursts", "0.1"),
    )
    assert result.exit_code == 0, result.output
    found = pq.read_table(tmp_path / "truth/culprits.parquet").to_pylist()
    assert [(row["fault"], row["ranks"], row["magnitude"]) for row in found] == [
        *(("throttle", [0], 1.7), ("slow_nic", [1], 1.7), ("slow_group", [2, 3], 1.7)),
        *(("varying_sequences", [], 0.2), ("bursts", [], 1.7)),
    ]


def test_refuses_contradictions(tmp_path: Path):
    result = _run(str(tmp_path / "job"), "--vpp", "2")
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "job").exists()


def test_refuses_a_fault_that_changes_nothing(tmp_path: Path):
    result = _run(str(tmp_path / "job"), "--layers", "3", "--pp", "3", "--data-stall", "1")
    assert isinstance(result.exception, UsageError)
    assert "rank 1 is in stage 1 and loads no data; ranks 0, 2 do" in str(result.exception)
    assert not (tmp_path / "job").exists()


def test_rows_of_synchronisation_are_there_when_asked_for(tmp_path: Path):
    for option, found in (("--cuda-sync", True), ("--no-cuda-sync", False)):
        assert _run(str(tmp_path / "job"), "--no-gzip", option).exit_code == 0
        text = next((tmp_path / "job/iteration_10").iterdir()).read_text()
        assert ('"cat": "cuda_sync"' in text) is found
        assert set(pq.read_table(tmp_path / "job/truth/edges.parquet").column("rank").to_pylist()) <= {0}


@pytest.mark.long
def test_exports_answer_nsys_commands_and_are_held_against_the_truth(tmp_path: Path):
    job, home = tmp_path / "job", tmp_path / "home"
    options = ["--format", "nsys", "--pp", "2", "--dp", "2", "--node-size", "2", "--iterations", "2"]
    result = _run(str(job), *options)
    assert result.exit_code == 0, result.output
    kept = ["node0.sqlite", "node1.sqlite", "truth", "unique_parallel_groups_20260101_000000.txt"]
    assert sorted(path.name for path in job.iterdir()) == kept
    overlap = _answer("nsys", "overlap", str(job / "node1.sqlite"), "--home", str(home))
    for device, found in enumerate(overlap):
        kernels = pq.read_table(job / f"truth/rank_{2 + device:04d}.parquet").to_pandas()
        assert found["kernels"] == len(kernels)  # copies and sets count
        for figure, kind in (("compute_ns", "computation"), ("communication_ns", "communication")):
            own = kernels[kernels.kind == kind]
            assert found[figure] == union_ns(zip(own.ts_ns, own.ts_ns + own.dur_ns, strict=True))
    # The activations of a micro-batch in bfloat16; a kernel that sends and receives sends one.
    exchanged = [
        row
        for row in _answer("nsys", "nccl", str(job / "node1.sqlite"), "--home", str(home))
        if row["operation"] == "SendRecv"
    ]
    assert len(exchanged) == 2
    assert all(row["bytes"] == row["count"] * 2 * 512 * 256 > 0 for row in exchanged)
    accuracy = _answer("accuracy", str(job), "--home", str(home))
    assert (accuracy["ranks"], accuracy["iterations"]) == (4, [0, 1])
    assert accuracy["kernels"] == accuracy["kernels_read"] > 0 == accuracy["kernels_not_in_truth"]
    assert accuracy["share_of_time_right"] > 0.99 and accuracy["overlap"]["missing"] == 0
    # What another simulation makes in the same folder leaves nothing of this one.
    assert _run(str(job)).exit_code == 0
    assert not list(job.glob("node*"))


@pytest.mark.parametrize(
    ("option", "value"), [("--contention", "inf"), ("--slow-factor", "nan"), ("--clock-skew", "nan")]
)
def test_a_number_that_is_none_is_refused(option, value, tmp_path):
    result = _run(str(tmp_path / "job"), option, value)
    assert isinstance(result.exception, UsageError) and str(result.exception) == f"{option} {value}: give a number"
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("options", [["--layout", "tensorboard"], ["--no-stacks"], ["--truncated-rank", "0"]])
def test_options_of_kineto_traces_are_refused_for_exports(tmp_path: Path, options: list[str]):
    result = _run(str(tmp_path / "job"), "--format", "nsys", *options)
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "job").exists()


def _answer(*words: str):
    result = CliRunner().invoke(traceviz, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Time that at least one of the spans covers."""
    total, end = 0, 0
    for begin, finish in sorted(spans):
        total += max(0, finish - max(begin, end))
        end = max(end, finish)
    return total
