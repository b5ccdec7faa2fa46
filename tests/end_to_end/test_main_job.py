"""The main job through a real Dagster instance: from the command line, from the UI and by a backfill, the same."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest

from assets.partitions import register_partitions
from tests.damage import call
from tests.end_to_end.conftest import (
    ITERATION_ASSETS,
    RANK_STEP,
    TOPOLOGY_ASSETS,
    expected,
    materialised,
    running_dagster,
    traceviz,
)
from tests.small_run import rank_file, write_run
from traceviz_dag.lake.inputs import register
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.simulate.settings import JobSettings

BOTH = {"job@7": [0, 1], "job@8": [0]}
RANK_1 = "iteration_7/rank_0001_iter_7.pt.trace.json"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two iterations, one of which lacks the file of a rank, and a home that holds both: nobody may change either."""
    folder = tmp_path_factory.mktemp("analysed")
    run = write_run(folder / "job", {7: 2, 8: 1}, world=2)
    traceviz("analyze", run, "--home", folder / "home", "--workers", "1", code=2)
    return run, folder / "home"


@pytest.fixture
def own(analysed: tuple[Path, Path], home: Path) -> Iterator[tuple[Path, Path]]:
    """The whole iteration, which a test may change, and a copy of the home."""
    run = analysed[0]
    yield run / "iteration_7", shutil.copytree(analysed[1], home)
    rank_file(1, 2).write(run / RANK_1)


def lake_files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted((home / "lake").rglob("*.parquet"))}


def test_analyze_records_each_rank_and_no_phantom(analysed):
    _, home = analysed
    assert materialised(home) == expected(BOTH)
    lake = open_lake(home)
    counts = lake.query("SELECT iteration, count(DISTINCT rank) AS ranks FROM kernels GROUP BY ALL ORDER BY iteration")
    assert counts.to_pylist() == [{"iteration": 7, "ranks": 2}, {"iteration": 8, "ranks": 1}]
    partial = lake.query("SELECT iteration, partial FROM iterations ORDER BY iteration").to_pylist()
    assert [row["partial"] for row in partial] == [False, True], "rank 1 of iteration 8 has no file"


def test_the_page_of_a_partition_shows_its_first_rows_and_where_its_columns_come_from(analysed):
    _, home = analysed
    with open_instance(home) as instance:

        def metadata(asset: str, partition: str) -> Mapping[str, Any]:
            wanted = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition])
            (record,) = instance.fetch_materializations(wanted, limit=1).records
            return record.asset_materialization.metadata

        of_rank, of_iteration = metadata("kernels", "job@7|0001"), metadata("iterations", "job@7")
    rows = open_lake(home).table("kernels", "job", 7, 1).arrow()
    assert [row.data["name"] for row in of_rank["preview"].records] == rows["name"].to_pylist()[:3]
    assert of_iteration["preview"].records[0].data["ranks"] == 2
    made_of = of_iteration["dagster/column_lineage"].column_lineage.deps_by_column["exposed_ns"]
    assert made_of == [dg.TableColumnDep(dg.AssetKey("overlap"), "exposed_ns")]


def test_unchanged_traces_are_skipped_and_a_changed_rank_alone_is_computed_again(own):
    iteration, home = own
    before = {path: path.stat().st_mtime_ns for path in (home / "lake").rglob("*.parquet")}
    (again,) = json.loads(traceviz("analyze", iteration, "--home", home, "--json").stdout)
    assert (again["ranks_computed"], again["ranks_skipped"]) == (0, 2)
    assert {path: path.stat().st_mtime_ns for path in (home / "lake").rglob("*.parquet")} == before
    rank_file(1, 2, scale=2).write(iteration.parent / RANK_1)
    (third,) = json.loads(traceviz("analyze", iteration, "--home", home, "--workers", "1", "--json").stdout)
    assert (third["ranks_computed"], third["ranks_skipped"]) == (1, 1)
    changed = {path for path in (home / "lake/kernels").rglob("*.parquet") if path.stat().st_mtime_ns != before[path]}
    assert {path.parent.name for path in changed} == {"rank=1"}


@pytest.mark.long
def test_a_bad_rank_lets_the_others_be_recorded_and_the_aggregates_wait(tmp_path, home):
    run = write_run(tmp_path / "job", world=2)
    analyze = ("analyze", run, "--home", home, "--workers", "1")
    bad = run / RANK_1
    bad.write_text("this is no trace")
    result = traceviz(*analyze, code=2)
    assert str(bad.name) in result.stderr and "Traceback" not in result.stderr
    recorded = materialised(home)
    assert {partition for asset, partition in recorded if asset == "kernels"} == {"job@7|0000"}
    assert not {asset for asset, _ in recorded} & {*ITERATION_ASSETS}
    rows = open_lake(home).query("SELECT rank, status, fault FROM traces ORDER BY rank").to_pylist()
    assert [row["status"] for row in rows] == ["read", "failed"]
    assert bad.name in rows[1]["fault"]
    traceviz(*analyze, "--allow-partial", code=2)
    assert {*ITERATION_ASSETS} <= {asset for asset, _ in materialised(home)}
    figures = open_lake(home).query("SELECT partial, failed_ranks FROM iterations JOIN runs USING (run, iteration)")
    assert figures.to_pylist() == [{"partial": True, "failed_ranks": [1]}]

    rank_file(1, 2).write(bad)
    traceviz(*analyze)
    assert materialised(home) == expected({"job@7": [0, 1]})


@pytest.mark.long
def test_a_launch_from_the_ui_and_a_backfill_give_what_the_command_line_gives(analysed, tmp_path, home):
    """All of iteration 7 by launches, the ranks of iteration 8 by a backfill: the same bytes."""
    run, reference = analysed
    inputs = inputs_below([run])
    for entry in inputs:
        register(home, entry)
    with open_instance(home) as instance:
        register_partitions(instance, inputs)
    with running_dagster(home, tmp_path / "dagster.log") as server:
        for key in BOTH:
            assert server.launch(TOPOLOGY_ASSETS, {"dagster/partition": key}) == "SUCCESS"
        ends = {
            "dagster/asset_partition_range_start": "job@7|0000",
            "dagster/asset_partition_range_end": "job@7|0001",
        }
        assert server.launch(RANK_STEP, ends) == "SUCCESS"
        # The backfill names a pair that has no file: iteration 8 has no rank 1.
        server.backfill(RANK_STEP, [f"job@8|{rank:04d}" for rank in range(2)])
        assert server.launch(ITERATION_ASSETS, {"dagster/partition": "job@7"}) == "SUCCESS"
    left = {(asset, "job@8") for asset in ITERATION_ASSETS}
    assert materialised(home) == materialised(reference) - left == expected(BOTH) - left
    made, wanted = lake_files(home), lake_files(reference)
    for asset in ITERATION_ASSETS:
        del wanted[f"lake/{asset}/run=job/iteration=8/part.parquet"]
    assert made == wanted


@pytest.mark.long
def test_a_lost_partition_of_the_lake_is_made_again(own):
    iteration, home = own
    before = lake_files(home)
    shutil.rmtree(home / "lake/kernels/run=job/iteration=7/rank=1")
    traceviz("analyze", iteration, "--home", home, "--workers", "1")
    assert lake_files(home) == before


def test_a_tables_file_opens_in_any_parquet_reader(analysed):
    _, home = analysed
    table = pq.read_table(home / "lake/kernels/run=job/iteration=7/rank=0/part.parquet", partitioning=None)
    assert table.num_rows == 10
    assert set(table["category"].to_pylist()) == {
        "fwd_computation", "bwd_computation", "pp_communication", "dp_communication", "optimizer_computation",
    }  # fmt: skip


@pytest.mark.long
def test_the_demo_says_what_it_found(tmp_path):
    home = tmp_path / "home"
    shown = call("demo", "--home", home)
    assert shown.code == 0, shown.err
    slow = JobSettings.demo().faults.slow_gpu
    (found,) = (
        open_lake(home)
        .query("SELECT rank FROM findings WHERE iteration = (SELECT max(iteration) FROM findings) AND finding = 0")
        .to_pylist()
    )
    assert found == {"rank": slow} and f"Rank {slow} " in shown.out
    page = re.search(r"^Report: (\S+)$", shown.out, re.MULTILINE)
    assert page is not None and Path(page[1]).is_file()
    named = re.findall(r"^  traceviz (findings|waits|pipelines|overlap) (.+)$", shown.out, re.MULTILINE)
    assert len(named) == 4
    for line in named:
        assert call(line[0], *shlex.split(line[1])).code == 0, line
