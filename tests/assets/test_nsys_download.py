"""The asset that fetches a profile from a hub."""

from __future__ import annotations

import hashlib

import dagster as dg
import pytest

from assets.conventions import INPUT_VERSION_TAG
from assets.nsys_download import nsys_profile
from assets.resources import TracevizHome
from sensors.downloads import left_of, next_download
from tests.assets.loop import QUIET
from tests.hub_server import COMMIT, hub
from tests.small_run import write_run
from traceviz_dag.definitions import ASSETS, defs
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE


def _materialise(
    home, endpoint: str, instance: dg.DagsterInstance | None = None, **more: str | bool
) -> dg.ExecuteInProcessResult:
    config = {"ops": {"nsys_profile": {"config": {"endpoint": endpoint, **more}}}}
    return dg.materialize(
        [nsys_profile],
        instance=instance or dg.DagsterInstance.ephemeral(),
        resources={"traceviz": TracevizHome(home=str(home))},
        run_config=config,
        raise_on_error=False,
    )


def test_the_asset_records_commit_and_checksum_of_what_it_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    data = b"SQLite format 3\0" + bytes(5000)
    with hub(DATA_SET, {f"h200/{PROFILE}.sqlite": data}) as server:
        refused = _materialise(tmp_path, server.address)
        assert not refused.success and not server.requests and not (tmp_path / "downloads").exists()
        monkeypatch.setenv("TRACEVIZ_HUB_ENDPOINTS", server.address)
        result = _materialise(tmp_path, server.address)
        assert result.success
        (event,) = result.asset_materializations_for_node("nsys_profile")
        assert event.metadata["revision"].value == COMMIT
        assert event.metadata["sha256"].value == hashlib.sha256(data).hexdigest()
        assert (tmp_path / "downloads").exists()
        assert not _materialise(tmp_path, server.address, file="no such file").success


@pytest.mark.long
def test_a_download_of_traces_is_followed_to_tables_and_figures_with_their_lineage(tmp_path, monkeypatch):
    """What the sensor asks for, run after run, as a daemon would launch it, until it asks for nothing."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    run = write_run(tmp_path / "there/job", world=2)
    files = {str(path.relative_to(tmp_path / "there")): path.read_bytes() for path in sorted(run.rglob("rank_*"))}
    home, instance = tmp_path / "home", dg.DagsterInstance.ephemeral()
    with hub("lab/traces", files) as server:
        monkeypatch.setenv("TRACEVIZ_HUB_ENDPOINTS", server.address)
        chosen = {"repository": "lab/traces", "file": "job/iteration_7/*", "every_match": True}
        assert _materialise(home, server.address, instance, **chosen).success
    assert instance.get_dynamic_partitions("iteration") == ["job@7"]
    download = next_download(instance, 0)
    assert download is not None and next_download(instance, download.storage_id) is None
    traceviz, jobs = TracevizHome(home=str(home), workers=1), []
    while requests := list(left_of(instance, traceviz, download)):
        for request in requests:
            jobs.append(request.job_name)
            job = defs().resolve_job_def(request.job_name)
            result = dg.materialize(
                ASSETS,
                selection=list(job.asset_layer.selected_asset_keys),
                instance=instance,
                resources={"traceviz": traceviz},
                partition_key=request.partition_key,
                tags={**request.tags, "dagster/run_key": request.run_key},
                run_config=QUIET,
            )
            assert result.success
    assert jobs == ["compute_topology", "compute_ranks", "compute_iterations", "draw_iteration", "draw_ranks"]
    lake = open_lake(home)
    for rank in (0, 1):
        (record,) = instance.fetch_materializations(
            dg.AssetRecordsFilter(dg.AssetKey("kernels"), asset_partitions=[f"job@7|{rank:04d}"]), limit=1
        ).records
        trace = run / f"iteration_7/rank_{rank:04d}_iter_7.pt.trace.json"
        assert record.asset_materialization.tags[f"{INPUT_VERSION_TAG}raw_traces"] == digest_of(trace)
        assert lake.table("overlap", "job", 7, rank).arrow().num_rows
    assert list((home / "figures").rglob("*.png"))
    graph = defs().resolve_asset_graph()
    assert {"kernels", "overlap", "pipeline_figures"} <= {
        key.to_user_string() for key in dg.AssetSelection.assets("nsys_profile").downstream().resolve(graph)
    }
