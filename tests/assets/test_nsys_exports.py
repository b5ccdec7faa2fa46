"""Exports of two nodes through sensor, conditions and assets: what is made, of what, and what a late node changes."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from assets import groups
from assets.conventions import DATA_VERSION_TAG, INPUT_VERSION_TAG
from sensors.nightly import left_at_first
from tests.assets.loop import PROFILE_ASSETS, Loop, of_iterations, of_ranks, of_topology
from traceviz_dag.definitions import defs
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Format
from traceviz_dag.tables import NVTX_RANGES

JOB = JobSettings(
    layers=2,
    microbatches=2,
    hidden=512,
    heads=4,
    feed_forward=1024,
    sequence=256,
    vocabulary=1024,
    node_size=1,
    pp=2,
    iterations=2,
    format=Format.NSYS,
)
KEYS = ("job@0", "job@1")


def everything(*ranks: int) -> set[tuple[str, str]]:
    by_rank = set().union(*(of_ranks(key, *ranks) for key in KEYS))
    return of_topology(*KEYS) | by_rank | of_iterations(*KEYS)


def latest(loop: Loop, asset: str, partition: str) -> dg.AssetMaterialization:
    records = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition])
    (record,) = loop.instance.fetch_materializations(records, limit=1).records
    assert record.asset_materialization is not None
    return record.asset_materialization


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> list[Path]:
    folder = simulate(JOB, tmp_path_factory.mktemp("simulated"), workers=1)
    return sorted(folder.glob("node*.sqlite"))


@pytest.fixture(scope="module")
def computed(tmp_path_factory, exports) -> Loop:
    """Both nodes at once."""
    folder = tmp_path_factory.mktemp("computed")
    (folder / "runs/job").mkdir(parents=True)
    loop = Loop(folder / "home", folder / "runs")
    for export in exports:
        shutil.copy(export, folder / "runs/job")
    loop.settle()
    loop.compute()
    return loop


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory, exports) -> Loop:
    """Both nodes, the second one after the first was computed."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "runs/job").mkdir(parents=True)
    loop = Loop(folder / "home", folder / "runs")
    shutil.copy(exports[0], folder / "runs/job")
    loop.settle()
    loop.compute()
    assert loop.news() == everything(0)
    loop.evaluate()
    shutil.copy(exports[1], folder / "runs/job")
    loop.settle()
    loop.automate()
    return loop


@pytest.mark.long
def test_what_was_stale_before_the_first_look_of_automation_is_asked_for_stage_by_stage(tmp_path, exports):
    """The second node comes after the first was computed, and before automation began."""
    (tmp_path / "runs/job").mkdir(parents=True)
    loop = Loop(tmp_path / "home", tmp_path / "runs")
    shutil.copy(exports[0], tmp_path / "runs/job")
    loop.settle()
    loop.compute()
    shutil.copy(exports[1], tmp_path / "runs/job")
    loop.settle()
    loop.evaluate()
    now = datetime.now(UTC).timestamp()
    assert left_at_first(loop.instance, loop.traceviz, now, now) is None, "automation may be about to ask for the same"
    registered_later = left_at_first(loop.instance, loop.traceviz, now + 300, now - 3600)
    assert registered_later == [], "automation sees that itself, and would ask for it a second time"
    asked = left_at_first(loop.instance, loop.traceviz, now + 300, now + 300)
    assert [(one.job_name, one.partition_key) for one in asked] == [("compute_topology", key) for key in KEYS]
    loop.compute()
    assert loop.pending() == {} and loop.news() == everything(0, 1)
    assert left_at_first(loop.instance, loop.traceviz, now + 300, now + 300) == []


@pytest.mark.long
def test_a_node_that_comes_later_adds_its_ranks_and_recomputes_what_it_changes(one_by_one):
    news = one_by_one.news()
    assert news >= of_topology(*KEYS) | of_ranks("job@0", 1) | of_ranks("job@1", 1) | of_iterations(*KEYS)
    assert news == everything(0, 1), "communicators have members that nobody knew, so rank 0 is classified again"
    assert one_by_one.failures == []
    rows = open_lake(one_by_one.home).query("SELECT iteration, ranks FROM iterations ORDER BY iteration")
    assert [tuple(row.values()) for row in rows.to_pylist()] == [(0, 2), (1, 2)]


def test_kernels_overlap_and_nvtx_ranges_stand_in_the_lake_with_their_lineage(computed):
    lake = open_lake(computed.home)
    export = digest_of(computed.root / "job/node1.sqlite")
    for asset in ("kernels", "overlap", "nvtx_ranges"):
        event = latest(computed, asset, "job@1|0001")
        counted = lake.query(f"SELECT count(*) AS n FROM {asset} WHERE iteration = 1 AND rank = 1").to_pylist()
        assert event.metadata["dagster/row_count"].value == counted[0]["n"] > 0, asset
        assert event.tags[f"{INPUT_VERSION_TAG}raw_traces"] == export
        path = lake.path(asset, run="job", iteration=1, rank=1)
        assert event.metadata["dagster/uri"].value == path.as_uri()
        assert event.tags[DATA_VERSION_TAG] == digest_of(path)
    assert lake.query("SELECT count(*) AS rows FROM nvtx_ranges WHERE busy_ns > 0").to_pylist()[0]["rows"] > 100


def test_the_asset_of_nvtx_ranges_says_what_it_holds():
    (spec,) = [spec for spec in defs().resolve_all_asset_specs() if spec.key == dg.AssetKey("nvtx_ranges")]
    columns = [column.name for column in spec.metadata["dagster/column_schema"].columns]
    assert columns == ["run", "iteration", "rank", *(column.name for column in NVTX_RANGES.columns)]
    assert spec.group_name == groups.RANKS and spec.skippable and "Nsight" in spec.description
    assert PROFILE_ASSETS == ("nvtx_ranges",)


def test_ranges_that_are_gone_are_made_again(computed):
    computed.news()
    lake = open_lake(computed.home)
    lake.delete("nvtx_ranges", run="job", iteration=0, rank=1)
    computed._execute(of_ranks("job@0", 0, 1))
    assert computed.news() == of_ranks("job@0", 1)
    assert lake.exists("nvtx_ranges", run="job", iteration=0, rank=1)
