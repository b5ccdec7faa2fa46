"""It runs by itself, with Dagster's records in PostgreSQL, as a server has them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from tests.end_to_end.automation_scenarios import Until, runs_by_itself
from tests.end_to_end.daemon import (
    APT_LINE,
    PASSWORD_VARIABLE,
    daemon_over_an_empty_folder,
    postgresql_programs,
    running_postgresql,
)


@pytest.mark.slow
def test_it_runs_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = postgresql_programs()
    missing = f"no PostgreSQL here: {APT_LINE}" if programs is None else ""
    if importlib.util.find_spec("dagster_postgres") is None:
        missing = missing or "Dagster cannot speak to PostgreSQL here: pip install dagster-postgres"
    if programs is None or missing:
        assert "TRACEVIZ_REQUIRE_POSTGRESQL" not in os.environ, missing
        pytest.skip(missing)
    monkeypatch.setenv(PASSWORD_VARIABLE, "any, since the server trusts this machine")
    with running_postgresql(programs) as storage, daemon_over_an_empty_folder(tmp_path, storage) as daemon:
        runs_by_itself(daemon, Until.CHANGED)
