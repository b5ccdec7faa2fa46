"""Of what a topology is made is asked once, and it is made of all that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.classify.topology.test_topology_file import NEW_FORM
from tests.small_run import write_run
from traceviz_dag.lake import digests
from traceviz_dag.lake.inputs import IterationInputs, register, with_digests
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.making import make_topology

TEXT = "unique_parallel_groups_20260101_000000.txt"


def registered_run(folder: Path) -> tuple[Lake, IterationInputs]:
    run = write_run(folder / "job")
    (run / TEXT).write_text(NEW_FORM)
    (inputs,) = with_digests(folder / "home", inputs_below([run]))
    register(folder / "home", inputs)
    return Lake(folder / "home"), inputs


def test_a_text_file_is_digested_once_for_a_topology(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A text that changed in between would be recorded as what the topology is made of, and be none of it."""
    lake, inputs = registered_run(tmp_path)
    read: list[Path] = []

    def digest_of(path: Path) -> str:
        read.append(path)
        return digests.digest_of(path)

    monkeypatch.setattr("traceviz_dag.pipeline.staleness.digest_of", digest_of)
    make_topology(lake, inputs)
    assert [path.name for path in read] == [TEXT]
