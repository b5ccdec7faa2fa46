"""Figures as assets: each rank and each iteration recorded, phantoms left out, previews that a browser can show."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import dagster as dg
import pytest

from assets.iteration_figures import iteration_figures
from assets.partitions import register_partitions
from assets.perfetto_traces import perfetto_trace
from assets.rank_figures import rank_figures
from assets.rank_tables import rank_tables
from assets.report import report
from assets.resources import TracevizHome
from tests.show.home import fill_home
from tests.small_run import write_run
from traceviz_dag.pipeline.figures import figures_folder
from traceviz_dag.show.web.contents import REPORT_ENDING, held_file
from traceviz_dag.vocabulary import REPORTS_FOLDER

FEW = {"config": {"formats": ["png"]}}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    fill_home(folder, [write_run(folder / "traces" / "job", {7: 4, 8: 3})])
    return folder


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as made:
        made.add_dynamic_partitions("iteration", ["job@7", "job@8"])
        made.add_dynamic_partitions("rank", [f"{rank:04d}" for rank in range(4)])
        yield made


def materialise(home: Path, instance, selection, **how) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        selection, instance=instance, resources={"traceviz": TracevizHome(home=str(home), workers=1)}, **how
    )


def events(instance, asset: str) -> dict[str, dg.AssetMaterialization]:
    records = instance.fetch_materializations(dg.AssetKey(asset), limit=100).records
    return {record.partition_key: record.asset_materialization for record in records}


@pytest.mark.long
def test_each_rank_is_recorded_and_a_pair_without_a_trace_is_not(home, instance):
    ends = {"dagster/asset_partition_range_start": "job@8|0000", "dagster/asset_partition_range_end": "job@8|0003"}
    result = materialise(home, instance, [rank_figures], tags=ends, run_config={"ops": {"rank_figures": FEW}})
    assert result.success
    found = events(instance, "rank_figures")
    assert sorted(found) == [f"job@8|{rank:04d}" for rank in range(3)], "iteration 8 has no rank 3"
    metadata = found["job@8|0001"].metadata
    assert metadata["figures"].value == 2
    picture = Path(metadata["rank_timeline_file"].value)
    assert picture == figures_folder(home, "job", 8) / "rank_0001" / "rank_timeline.png" and picture.is_file()
    assert metadata["rank_timeline_title"].value.startswith("Rank 1: ")
    assert found["job@8|0001"].tags["dagster/data_version"] != found["job@8|0002"].tags["dagster/data_version"]


def test_iterations_have_their_pipelines_and_replicas_with_previews(home, instance):
    names = ("pipeline_figures", "replica_figures", "across_ranks_figures")
    config = {"ops": dict.fromkeys(names, FEW)}
    assert materialise(home, instance, list(iteration_figures), partition_key="job@7", run_config=config).success
    pipelines, replicas, across = (events(instance, name)["job@7"].metadata for name in names)
    assert (pipelines["figures"].value, across["figures"].value) == (2, 6)
    assert {"wait_map_file", "wait_map_preview", "bubble_waterfall_title"} <= set(across)
    assert [name for name in replicas if name.endswith("_file")] == ["all_ranks_global_file"], "no replica is known"
    for metadata in (pipelines, replicas, across):
        previews = [value.value for name, value in metadata.items() if name.endswith("_preview")]
        assert previews and max(map(len, previews)) < 1000, "longer ones need a click"
        for preview in previews:
            small, large = re.fullmatch(r"\[!\[\w+\]\((.*)\)\]\((.*)\)", preview).groups()
            for address in (small, large):
                path = home / unquote(urlsplit(address).path).lstrip("/")
                assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_same_tables_give_the_same_data_version(home, instance):
    (replicas,) = (asset for asset in iteration_figures if asset.key.path == ["replica_figures"])
    config = {"ops": {"replica_figures": FEW}}
    versions = []
    for _ in range(2):
        materialise(home, instance, [replicas], partition_key="job@7", run_config=config)
        versions.append(events(instance, "replica_figures")["job@7"].tags["dagster/data_version"])
    assert versions[0] == versions[1]


def test_in_a_run_that_makes_the_tables_no_figure_of_a_rank_is_recorded(home, instance):
    # Ranks are recorded by events of their own there, so Dagster skips what follows in the same run.
    register_partitions(instance, [])
    config = {"ops": {"rank_figures": FEW}}
    result = materialise(home, instance, [rank_tables, rank_figures], partition_key="job@7|0000", run_config=config)
    assert result.success
    assert events(instance, "kernels") and not events(instance, "rank_figures")


def test_the_perfetto_trace_says_how_to_open_it(home, instance):
    versions = []
    for _ in range(2):
        assert materialise(home, instance, [perfetto_trace], partition_key="job@7").success
        record = events(instance, "perfetto_trace")["job@7"]
        versions.append(record.tags["dagster/data_version"])
    path = Path(record.metadata["trace"].value)
    assert path.is_file() and path.is_relative_to(home / "perfetto")
    assert f"traceviz perfetto open {path}" in record.metadata["open"].value
    assert record.metadata["slices"].value > 20
    assert versions[0] == versions[1]


def test_the_report_links_to_its_page_on_the_server(home, instance):
    assert materialise(home, instance, [report], partition_key="job@8").success
    metadata = events(instance, "report")["job@8"].metadata
    address = urlsplit(metadata["traceviz_serve"].value)
    assert address.path == f"/{REPORTS_FOLDER}/job/8.html"
    served = held_file(home, REPORTS_FOLDER, "job/8.html", (REPORT_ENDING,))
    assert str(served) == metadata["report"].value
    assert f"traceviz serve --home {home}" in metadata["open"].value
