"""A small analysed job that a test may change, and ``analyze`` without Dagster for tests of other things."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.jobs import analyse_without_dagster
from tests.damage import call
from tests.small_run import write_run


@pytest.fixture(scope="session")
def _kept(tmp_path_factory) -> tuple[Path, Path]:
    """Where a small run and its home were made, and a copy of both."""
    folder = tmp_path_factory.mktemp("small")
    run = write_run(folder / "place/job")
    assert call("analyze", run, "--home", folder / "place/home").code == 0
    shutil.copytree(folder / "place", folder / "kept")
    return folder / "place", folder / "kept"


@pytest.fixture
def small(_kept) -> Path:
    """A folder with the run ``job`` and its home as Dagster made it; what a test changes there is undone."""
    place, kept = _kept
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    return place


@pytest.fixture
def without_dagster(monkeypatch) -> None:
    """Let ``analyze``, and what calls it, fill the lake without Dagster: a quarter of the time."""
    monkeypatch.setattr("traceviz_dag.pipeline.analysis.analyse", analyse_without_dagster)
