"""A capture that starts in the middle of a training step: every command says that it is partial, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.accuracy import SMALL
from tests.damage import call, events_of, write_events
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


def test_doctor_says_that_the_first_rows_of_hosts_are_lost(tmp_path):
    job = replace(SMALL, cp=2, pp=2, node_size=4, microbatches=4, edges=Edges(lost_rows_to=0.17), seed=73201)
    said = call("doctor", simulate(job, tmp_path / "job", workers=1))
    assert said.code == 2 and "what its host did for" in said.err


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


@pytest.mark.long
def test_ranks_that_lost_their_marks_are_replayed_with_the_others(tmp_path):
    job = replace(SMALL, pp=2, dp=2, microbatches=4, seed=7)
    folder = simulate(job, tmp_path / "job", workers=1)
    answers = []
    for lost in ((), (1, 2)):
        for rank in lost:
            (path,) = folder.glob(f"iteration_10/rank_{rank:04d}*")
            trace = events_of(path)
            rows = [row for row in trace["traceEvents"] if "ProfilerStep#" not in row.get("name", "")]
            write_events(path, trace | {"traceEvents": rows})
        home = tmp_path / f"home{len(lost)}"
        said = call("analyze", folder, "--home", home, "--json")
        assert said.code == 0 and said.json[0]["partial_ranks"] == []
        query = "SELECT dimension, gain_ns FROM what_if WHERE edit = 'hide' ORDER BY ALL"
        answers.append(call("sql", query, "--home", home, "--json").json)
    whole, without = ({row["dimension"]: row["gain_ns"] for row in rows} for rows in answers)
    assert whole["pp"] and whole["dp"]
    assert without == pytest.approx(whole, rel=0.05, abs=20_000)
