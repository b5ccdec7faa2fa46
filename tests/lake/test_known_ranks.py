"""Iterations with the same traces: renamed only where one folder is gone, and the other is there."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.small_run import write_run
from traceviz_dag.lake.inputs import all_registered, register, with_digests
from traceviz_dag.lake.known_ranks import twin_of
from traceviz_dag.pipeline.discovery import inputs_below


def said_of(run: Path, home: Path, number: int) -> str:
    """What is said of an iteration when it is registered."""
    (inputs,) = with_digests(home, inputs_below([run / f"iteration_{number}"]))
    twin = twin_of(home, inputs)
    register(home, inputs)
    return twin.line.partition(";")[0] if twin is not None else ""


def test_a_copy_of_a_renamed_folder_is_a_copy_and_the_folder_that_is_gone_was_renamed(tmp_path):
    run, home = write_run(tmp_path / "job", {10: 2}, world=2), tmp_path / "home"
    assert said_of(run, home, 10) == ""
    (run / "iteration_10").rename(run / "iteration_110")
    assert said_of(run, home, 110) == "job@110 has the traces that job@10 had: a renamed folder"
    shutil.copytree(run / "iteration_110", run / "iteration_210")
    assert said_of(run, home, 210) == "job@210 has the traces that job@110 has: a copied folder"
    (former,) = (one for one in all_registered(home) if one.iteration == 10)
    twin = twin_of(home, former)
    assert twin is not None and twin.line.startswith("job@10 had the traces that job@110 has: a renamed folder;")
    (run / "iteration_210").rename(tmp_path / "archived")
    (run / "iteration_110").rename(tmp_path / "archived_too")
    twin = twin_of(home, former)
    assert twin is not None and not twin.is_renamed and ": of both the files are gone;" in twin.line
