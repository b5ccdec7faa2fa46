"""The asset that fetches a profile from a hub."""

from __future__ import annotations

import hashlib

import dagster as dg

from assets.nsys_download import nsys_profile
from assets.resources import TracevizHome
from tests.hub_server import COMMIT, hub
from traceviz_dag.read.hub.public_profile import DATA_SET, PROFILE


def _materialise(home, endpoint: str, **more: str) -> dg.ExecuteInProcessResult:
    config = {"ops": {"nsys_profile": {"config": {"endpoint": endpoint, **more}}}}
    return dg.materialize(
        [nsys_profile],
        instance=dg.DagsterInstance.ephemeral(),
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
