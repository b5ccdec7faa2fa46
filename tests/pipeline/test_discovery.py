"""What is found below a path: nothing that is left out is left unnamed."""

from __future__ import annotations

from pathlib import Path

from tests.small_run import rank_file
from traceviz_dag.pipeline.discovery import inputs_below


def test_a_run_of_which_nothing_can_be_placed_is_named_beside_one_that_can(tmp_path):
    for name in ("rank_0000_iter_7.pt.trace.json", "rank_0001_iter_7.pt.trace.json"):
        rank_file(0, 2).write(tmp_path / "copied/iteration_7" / name)
    rank_file(0, 2).write(tmp_path / "sound/iteration_7/rank_0000_iter_7.pt.trace.json")
    (found,) = inputs_below([tmp_path], home=tmp_path / "home")
    assert found.run == "sound"
    (problem,) = found.problems
    assert "copied/iteration_7" in problem and "claimed by" in problem


def runs_below(folder: Path) -> dict[str, list[int]]:
    found = inputs_below([folder])
    assert not any(each.problems for each in found)
    return {each.run: [entry.rank for entry in each.ranks] for each in found}


def test_a_rank_that_appears_twice_in_a_folder_is_a_separate_run_and_the_job_stays_whole(tmp_path):
    job = tmp_path / "job"
    for rank in range(4):
        rank_file(rank, 4).write(job / f"rank_{rank}.json")
    rank_file(0, 4).write(job / "copied_0.json")
    assert runs_below(job) == {"job": [0, 1, 2, 3], "job-copied_0": [0]}
    [line] = [line for each in inputs_below([job]) for line in each.warnings]
    assert "job-copied_0: it has the rank and the steps of rank_0.json" in line
    (job / "rank_0.json").rename(job / "before_0.json")
    assert runs_below(job) == {"job": [1, 2, 3], "job-before_0": [0], "job-copied_0": [0]}


def test_a_job_that_was_recorded_twice_is_two_runs_by_the_time_of_its_traces(tmp_path):
    job = tmp_path / "job"
    for turn, start in enumerate((0, 3_600)):
        for rank in range(2):
            file = rank_file(rank, 2)
            file.header["baseTimeNanoseconds"] = (1_700_000_000 + start) * 10**9
            file.write(job / f"host_{turn}{rank}.json")
    assert runs_below(job) == {"job-host_00": [0, 1], "job-host_10": [0, 1]}
