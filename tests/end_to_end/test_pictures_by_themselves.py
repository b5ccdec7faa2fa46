"""From files dropped into a watched folder to figures and a Perfetto trace, by a real daemon, untouched by hand.

Dagster's records are in PostgreSQL here, as a server has them; in SQLite where PostgreSQL is not installed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.end_to_end.automation_scenarios import whole, write
from tests.end_to_end.daemon import (
    APT_LINE,
    PASSWORD_VARIABLE,
    daemon_over_an_empty_folder,
    is_busy,
    postgresql_programs,
    running_postgresql,
)
from traceviz_dag.orchestration.instance import open_instance

PICTURES = ("pipeline_figures", "replica_figures", "across_ranks_figures", "perfetto_trace", "report")


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object] | None]:
    """The storage section of a dagster.yaml; None takes Dagster's own."""
    programs = postgresql_programs()
    if programs is None or importlib.util.find_spec("dagster_postgres") is None:
        missing = f"no PostgreSQL here: {APT_LINE}; pip install dagster-postgres"
        assert "TRACEVIZ_REQUIRE_POSTGRESQL" not in os.environ, missing
        yield None
        return
    monkeypatch.setenv(PASSWORD_VARIABLE, "any, since the server trusts this machine")
    with running_postgresql(programs) as section:
        yield section


@pytest.mark.long
def test_dropped_files_become_figures_and_a_perfetto_trace(tmp_path: Path, storage: dict[str, object] | None) -> None:
    with daemon_over_an_empty_folder(tmp_path, storage, pictures=True) as daemon:
        daemon.start()
        write(daemon.root, "job", 0, 1)

        def all_drawn(instance: dg.DagsterInstance) -> bool:
            drawn = all("job@7" in instance.get_materialized_partitions(dg.AssetKey(name)) for name in PICTURES)
            ranks = instance.get_materialized_partitions(dg.AssetKey("rank_figures"))
            return drawn and len(ranks) == 2 and not is_busy(instance)

        daemon.wait("pictures", all_drawn)
        with open_instance(daemon.home) as instance:
            for asset, partition in whole("job@7", 0, 1):
                assert partition in instance.get_materialized_partitions(dg.AssetKey(asset))
    folder = daemon.home / "figures/job/7"
    for name in ("rank_0000/rank_timeline", "rank_0001/overlap_bars", "all_ranks_global", "previews/all_ranks_global"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
    (trace,) = (daemon.home / "perfetto").rglob("*.pftrace*")
    assert trace.stat().st_size > 1000
