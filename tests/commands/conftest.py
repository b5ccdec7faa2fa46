"""A small analysed job that a test may change, and ``analyze`` without its pool."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import in_process
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
    """A folder with the run ``job`` and its home; what a test changes there is undone."""
    place, kept = _kept
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    return place


@pytest.fixture(scope="module", autouse=True)
def _ranks_in_this_process(request) -> Iterator[None]:
    """All of them compute ranks in the process of the test, but pages of examples, which run as a user's do."""
    if request.module.__name__.endswith(".test_pages"):
        yield
        return
    with in_process.ranks_in_this_process():
        yield


@pytest.fixture
def ranks_in_this_process() -> Iterator[None]:
    """``analyze``, and what calls it, computes ranks in the process of the test."""
    with in_process.ranks_in_this_process():
        yield
