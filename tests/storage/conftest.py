"""A store of objects, with a small run of four ranks in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import in_process
from tests.damage import call
from tests.object_server import ObjectServer, serving, variables
from tests.small_run import write_run


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run of four ranks on the disk, and a home that it was analysed into."""
    folder = tmp_path_factory.mktemp("stored")
    write_run(folder / "job")
    with in_process.ranks_in_this_process():
        assert call("analyze", folder / "job", "--home", folder / "home").code == 0
    return folder / "job"


@pytest.fixture
def store(monkeypatch, run) -> Iterator[ObjectServer]:
    """A store that holds the run at ``s3://bucket/job``; the environment leads to it."""
    store = ObjectServer()
    store.upload(run, "job")
    with serving(store) as port:
        for name, value in variables(port).items():
            monkeypatch.setenv(name, value)
        yield store


@pytest.fixture(autouse=True)
def _ranks_in_this_process() -> Iterator[None]:
    with in_process.ranks_in_this_process():
        yield
