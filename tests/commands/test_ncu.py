"""``traceviz kernels --ncu``: each measured kernel is beside the operations that run it, and nothing else is."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.analyze.across_ranks import simulated
from tests.read.test_ncu import FIRST, FLOPS, METRICS, quoted, written
from traceviz_dag.commands.kernels.kernels import kernels
from traceviz_dag.errors import BadInputError, NoEvidenceError, UsageError
from traceviz_dag.lake.lake import Lake
from traceviz_dag.simulate import JobSettings

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(kernels)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@cache
def launches() -> tuple[Path, list[dict]]:
    """The home of a simulated job, and the kernels that are the longest of an operation with FLOPs."""
    iteration, _ = simulated(JobSettings(layers=2, hidden=1024, dp=2, microbatches=2, shapes=True))
    sql = """
        SELECT kernels.name AS name, grid_x, grid_y, grid_z, block_x, block_y, block_z, operation, flops,
            operations.bytes, shapes, count(*) AS launches, median(duration_ns)::BIGINT AS median_ns
        FROM kernels JOIN operations USING (run, iteration, rank, operation_id)
        WHERE kernels.name = operations.kernel AND operation_class = 'gemm' AND kernels.phase = 'forward'
        GROUP BY ALL ORDER BY sum(duration_ns) DESC"""
    return iteration.lake.home, iteration.lake.query(sql).to_pylist()


def export(rows, **changed) -> str:
    """An export of these kernels, with values of ``METRICS``."""
    units = (*[""] * len(FIRST), *(unit for unit, _ in METRICS.values()))
    body = [
        (
            *(str(number), "77", "python", "node", changed.get("name", row["name"]), "1", "7"),
            *(f"({row[f'{of}_x']}, {row[f'{of}_y']}, {row[f'{of}_z']})" for of in ("block", "grid")),
            *(text for _, text in METRICS.values()),
        )
        for number, row in enumerate(rows)
    ]
    return quoted((*FIRST, *METRICS), units, *body)


def test_a_measured_kernel_is_beside_each_operation_that_runs_it_with_its_model_and_its_counters(tmp_path):
    home, rows = launches()
    first = rows[0]
    path = written(tmp_path, export([first]))
    found = json.loads(run("--home", home, "--ncu", path, "--json"))
    here = ("name", "grid_x", "grid_y", "grid_z")
    alike = [row for row in rows if all(row[name] == first[name] for name in here)]
    forward = [row for row in found if row["phase"] == "forward"]
    assert {row["shapes"] for row in forward} == {row["shapes"] for row in alike}
    row = next(row for row in forward if row["shapes"] == first["shapes"])
    assert (row["operation"], row["flops"], row["bytes"]) == (first["operation"], first["flops"], first["bytes"])
    assert (row["launches"], row["median_ns"]) == (first["launches"], first["median_ns"])
    assert row["ncu_flops"] == pytest.approx(FLOPS) and row["ncu_bytes"] == pytest.approx(74_500_000)
    assert row["ncu_duration_ns"] == pytest.approx(80_000) and row["reason"] is None
    printed = run("--home", home, "--ncu", path)
    assert "51.540" in printed and "74.500" in printed and "Measured by Nsight Compute" in printed


def test_one_of_several_kernels_of_a_call_has_no_flops_of_the_whole_call_beside_it(tmp_path):
    home, _ = launches()
    sql = """
        SELECT kernels.name AS name, grid_x, grid_y, grid_z, block_x, block_y, block_z, count(*) AS launches,
            kernels.name = operations.kernel AS longest
        FROM kernels JOIN operations USING (run, iteration, rank, operation_id)
        WHERE operation = '_LayerNormLinearBackward' GROUP BY ALL ORDER BY sum(duration_ns) DESC"""
    rows = Lake(home).query(sql).to_pylist()
    products = [row for row in rows if row["name"].startswith(("nvjet", "sm90"))]
    norm = next(row for row in rows if "ln_bwd" in row["name"])
    assert products and not norm["longest"]
    path = written(tmp_path, export([products[0], norm]))
    found = json.loads(run("--home", home, "--ncu", path, "--json"))
    backward = [row for row in found if row["operation"] == "_LayerNormLinearBackward"]
    # A kernel that is not the longest is found, too; the model counts both products together.
    assert {row["kernel"] for row in backward} == {products[0]["name"], norm["name"]}
    assert all(row["flops"] is None and row["bytes"] is None and row["ncu_flops"] for row in backward)
    said = {row["kernel"]: row["model_reason"] for row in backward}
    assert said[products[0]["name"]] == "it is one of 2 kernels of a call that do the work that the model counts"
    assert said[norm["name"]] == "other kernels of its operation do the work that the model counts"
    assert "Not compared with the model" in run("--home", home, "--ncu", path)


def test_a_name_that_another_demangler_wrote_is_found_by_its_function_and_a_wrong_size_is_not(tmp_path):
    home, rows = launches()
    first = rows[0]
    other = f"void {first['name']}<(int)64>(T1 *, int)"
    (row, *_) = json.loads(run("--home", home, "--ncu", written(tmp_path, export([first], name=other)), "--json"))
    assert row["operation"] == first["operation"] and row["kernel"] == other
    both = written(tmp_path, export([first, {**first, "grid_x": 99_999}]))
    lacking = [row for row in json.loads(run("--home", home, "--ncu", both, "--json")) if row["operation"] is None]
    assert [row["reason"] for row in lacking] == ["no operation runs a kernel of this name and size"]
    assert "without an operation" in run("--home", home, "--ncu", both)


def test_what_cannot_be_joined_or_read_is_said(tmp_path):
    home, rows = launches()
    with pytest.raises(NoEvidenceError, match="runs a kernel"):
        run("--home", home, "--ncu", written(tmp_path, export(rows[:1], name="of_another_program")))
    with pytest.raises(UsageError, match="leave --by out"):
        run("--home", home, "--ncu", tmp_path / "kernels.csv", "--by", "module")
    with pytest.raises(BadInputError, match="no CSV export of Nsight Compute"):
        run("--home", home, "--ncu", written(tmp_path, "a,b\n"))
