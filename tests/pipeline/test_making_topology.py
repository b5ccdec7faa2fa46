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
from traceviz_dag.pipeline.staleness import topology_is_current
from traceviz_dag.tables import TOPOLOGY_TABLES

TENSOR, PIPELINE = "Group 1: [0, 1]\nGroup 2: [2, 3]", "Group 1: [0, 2]\nGroup 2: [1, 3]"
OTHER_FORM = NEW_FORM.replace(TENSOR, "swapped").replace(PIPELINE, TENSOR).replace("swapped", PIPELINE)
TEXT = "unique_parallel_groups_20260101_000000.txt"


def registered_run(folder: Path) -> tuple[Lake, IterationInputs]:
    run = write_run(folder / "job")
    (run / TEXT).write_text(NEW_FORM)
    (inputs,) = with_digests(folder / "home", inputs_below([run]))
    register(folder / "home", inputs)
    return Lake(folder / "home"), inputs


def said(lake: Lake, inputs: IterationInputs) -> tuple[list, list]:
    """What both tables say."""
    return tuple(lake.table(name, inputs.run, inputs.iteration).arrow().to_pylist() for name in TOPOLOGY_TABLES)


def test_one_made_while_traces_are_away_is_made_anew_when_they_are_back(tmp_path):
    lake, inputs = registered_run(tmp_path)
    make_topology(lake, inputs)
    traces, text = tmp_path / "job/iteration_7", tmp_path / "job" / TEXT
    traces.rename(tmp_path / "away")
    assert topology_is_current(lake, inputs), "nothing that it is made of is another"
    text.write_text(OTHER_FORM)
    assert not topology_is_current(lake, inputs)
    make_topology(lake, inputs)
    without_traces = said(lake, inputs)
    assert topology_is_current(lake, inputs), "nothing more can be read"
    make_topology(lake, inputs)
    assert said(lake, inputs) == without_traces and topology_is_current(lake, inputs)
    (tmp_path / "away").rename(traces)
    assert not topology_is_current(lake, inputs)
    make_topology(lake, inputs)
    assert topology_is_current(lake, inputs) and said(lake, inputs) != without_traces
    anew = Lake(tmp_path / "anew")
    make_topology(anew, inputs)
    assert said(lake, inputs) == said(anew, inputs)


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
