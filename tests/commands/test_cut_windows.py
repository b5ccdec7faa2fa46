"""A capture that starts in the middle of a training step: every command says that it is partial, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import SMALL
from tests.damage import call
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges

WHY = "training step 10 is not recorded whole: the window starts in the middle of it"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    job = replace(SMALL, pp=2, microbatches=8, edges=Edges(window_from=0.4), seed=7)
    return simulate(job, tmp_path_factory.mktemp("cut") / "job", workers=1)


def test_doctor_says_why_micro_batches_are_unknown(run):
    said = call("doctor", run, "--json")
    (answer,) = [each for each in said.json[0]["questions"] if each["question"].startswith("Which micro-batch")]
    assert said.code == 2 and WHY in said.err
    assert answer["answer"] == "no" and WHY in answer["why"]


def test_the_iteration_is_partial_and_has_no_mfu(run, tmp_path):
    said = call("analyze", run, "--home", tmp_path, "--allow-partial", "--json")
    assert said.code == 2 and said.json[0]["partial_ranks"] == [0, 1] and WHY in said.err
    query = "SELECT partial, mfu, mfu_refusal FROM iterations"
    (row,) = call("sql", query, "--home", tmp_path, "--json").json
    assert row["partial"] and row["mfu"] is None and "in part" in row["mfu_refusal"]
    (traces,) = call("sql", "SELECT DISTINCT status FROM traces", "--home", tmp_path, "--json").json
    assert traces == {"status": "partial"}


def test_one_file_is_classified_in_part(run):
    file = next(run.glob("iteration_10/rank_0000*"))
    said = call("classify", file, "--json")
    assert said.code == 2 and said.json["partial"] is True and WHY in said.json["fault"]
    assert call("overlap", file, "--json").code == 2
