"""It runs automatically, with Dagster's records in SQLite, as a home has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.automation_scenarios import runs_by_itself
from tests.end_to_end.daemon import daemon_over_an_empty_folder


@pytest.mark.long
def test_it_runs_by_itself(tmp_path: Path) -> None:
    with daemon_over_an_empty_folder(tmp_path) as daemon:
        runs_by_itself(daemon)
