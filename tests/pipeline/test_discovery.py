"""What is found below a path: nothing that is left out is left unnamed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.small_run import groups_of, rank_file
from traceviz_dag.lake.inputs import register
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


def write_job(folder: Path, name: str, world: int, ranks: Iterable[int], iteration: int = 7) -> None:
    for rank in ranks:
        rank_file(rank, world, step=iteration).write(folder / f"iteration_{iteration}" / name.format(rank=rank))


def test_two_jobs_in_the_folder_of_an_iteration_are_a_run_each(tmp_path):
    job = tmp_path / "job"
    for iteration in (7, 8):
        write_job(job, f"rank_{{rank:04d}}_iter_{iteration}.pt.trace.json", 8, range(8), iteration)
        write_job(job, f"rank-{{rank}}_iter_{iteration}.json", 4, range(4), iteration)
    assert runs_below(job) == {"job": [*range(8)], "job-rank-0": [0, 1, 2, 3]}
    found = inputs_below([job])
    assert sorted(each.key for each in found) == ["job-rank-0@7", "job-rank-0@8", "job@7", "job@8"]
    lines = [line for each in found for line in each.warnings]
    assert any("job-rank-0: its world size is 4, that of rank_0000_iter_7.pt.trace.json is 8" in line for line in lines)


def test_process_groups_tell_jobs_of_one_size_apart(tmp_path):
    job = tmp_path / "job"
    write_job(job, "rank_{rank}.json", 8, range(8))
    for rank in range(2, 5):
        file = rank_file(rank, 8)
        whole = {"pg_name": "9", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "pg_size": 8, "ranks": [*range(8)]}
        groups = [each for each in groups_of(rank, 8) if each["pg_desc"] != whole["pg_desc"]]
        file.header["distributedInfo"]["pg_config"] = [*groups, whole]
        file.write(job / "iteration_7" / f"other_{rank}.rank_{rank}.json")
    assert runs_below(job) == {"job": [*range(8)], "job-other_2.rank_2": [2, 3, 4]}


@pytest.mark.parametrize("same_bytes", [True, False])
def test_a_copy_beside_its_original_is_left_out_and_named(tmp_path, same_bytes):
    job = tmp_path / "job"
    write_job(job, "rank_{rank}.json", 4, range(4))
    trace = json.loads((job / "iteration_7/rank_3.json").read_bytes())
    if same_bytes:
        (job / "iteration_7/a_copy.json").write_bytes((job / "iteration_7/rank_3.json").read_bytes())
    else:
        (job / "iteration_7/a_copy.json.gz").write_bytes(gzip.compress(json.dumps(trace, indent=2).encode()))
    (found,) = inputs_below([job])
    assert [Path(entry.path).name for entry in found.ranks] == [f"rank_{rank}.json" for rank in range(4)]
    assert not found.problems and not found.disputed
    [line] = found.warnings
    assert "a_copy.json" in line and "left out, as it holds the same as rank_3.json" in line


def test_one_rank_recorded_twice_is_a_separate_run_where_it_holds_something_else(tmp_path):
    job = tmp_path / "job"
    write_job(job, "rank_{rank}.json", 4, range(4))
    rank_file(3, 4, microbatches=3).write(job / "iteration_7/again_3.json")
    assert runs_below(job) == {"job": [0, 1, 2, 3], "job-again_3": [3]}


def test_files_of_new_runs_alone_are_given_before_they_are_looked_into_by_iteration(tmp_path):
    job, home = tmp_path / "job", tmp_path / "home"
    for iteration in (7, 8):
        write_job(job, "rank_{rank}.json", 2, range(2), iteration)
    given: list[list[str]] = []

    def prepare(files: Sequence[Path]) -> None:
        given.append([str(file.relative_to(job)) for file in files])

    found = inputs_below([job], home=home, prepare=prepare)
    assert given == [[f"iteration_{one}/rank_{rank}.json" for rank in range(2)] for one in (7, 8)]
    register(home, found[0])
    inputs_below([job], home=home, prepare=prepare)
    assert len(given) == 2
