"""A folder dropped into a watched folder is analysed by a real daemon, without a hand."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from tests.end_to_end.automation_scenarios import once, whole, write
from tests.end_to_end.conftest import ITERATION_ASSETS
from tests.end_to_end.daemon import daemon_over_an_empty_folder, is_busy, news
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.orchestration.instance import open_instance


@pytest.mark.long
def test_a_dropped_folder_is_analysed_once(tmp_path: Path) -> None:
    with daemon_over_an_empty_folder(tmp_path, seconds=12) as daemon:
        daemon.start()
        write(daemon.root, "job", 0, 1)
        expected = whole("job@7", 0, 1)

        def aggregated(instance: dg.DagsterInstance) -> bool:
            key = dg.AssetKey(ITERATION_ASSETS[-1])
            return bool(instance.get_materialized_partitions(key)) and not is_busy(instance)

        daemon.wait("all tables", aggregated)
        with open_instance(daemon.home) as instance:
            assert news(instance, 0) == once(expected)
        assert open_lake(daemon.home).query("SELECT run, partial FROM iterations").to_pylist() == [
            {"run": "job", "partial": False}
        ]
