"""Every layout in which Megatron-LM, TraceViz and torch write traces is found, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.read.synthetic import event, write
from traceviz_dag.errors import BadInputError
from traceviz_dag.read.layouts import RunFolder, discover
from traceviz_dag.read.placement import Placement, resolve


def trace(path: Path, *steps: int, rank: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    events = [event(step, "user_annotation", name=f"ProfilerStep#{step}") for step in steps]
    return write(path, [*events, event(1)], **({} if rank is None else {"distributedInfo": {"rank": rank}}))


def found(runs: list[RunFolder]) -> dict[str, list[tuple[str, int | None, int | None]]]:
    return {run.run: [(file.name, file.iteration, file.rank) for file in run.files] for run in runs}


def places(placement: Placement) -> list[tuple[str, int, int, str, int | None]]:
    return [(one.run, one.iteration, one.rank, one.name, one.step) for one in placement.traces]


LAYOUTS = {
    "iteration_12/rank_0003_iter_12.pt.trace.json": [(12, 3, None)],
    "iteration_12/rank_0003_iter_12.pt.trace.json.gz": [(12, 3, None)],
    "rank_0003_iter_12.pt.trace.json": [(12, 3, None)],
    "torch_profile/rank-3.json.gz": [(10, 3, 10), (11, 3, 11)],
    "rank4.1767595720694.pt.trace.json": [(10, 4, 10), (11, 4, 11)],
    "x_rank-2.json": [(10, 2, 10), (11, 2, 11)],
    "node17_41523.1767595720694123456.pt.trace.json": [(10, 7, 10), (11, 7, 11)],
    "worker.json": [(10, 7, 10), (11, 7, 11)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gives_run_iteration_rank_and_step(tmp_path, name):
    in_header = 7 if "rank" not in name else None
    path = trace(tmp_path / "job" / name, 10, 11, rank=in_header)
    for start in {tmp_path, tmp_path / "job", path.parent, path}:
        (run,) = discover([start])
        assert (run.run, run.folder) == ("job", tmp_path / "job")
        assert places(resolve(run.files)) == [("job", i, r, name, step) for i, r, step in LAYOUTS[name]]


def test_a_single_step_takes_the_whole_file_and_no_step_is_iteration_0(tmp_path):
    trace(tmp_path / "one" / "rank0.json", 42)
    trace(tmp_path / "none" / "rank0.json")
    placed = [place for run in discover([tmp_path]) for place in places(resolve(run.files))]
    assert placed == [("none", 0, 0, "rank0.json", None), ("one", 42, 0, "rank0.json", None)]


def test_what_is_no_trace_is_left_out(tmp_path):
    run = tmp_path / "job"
    wanted = trace(run / "iteration_1" / "rank_0000_iter_1.pt.trace.json")
    for other in (".tmp-rank_0001.pt.trace.json", ".cache/rank1.json", "chakra/rank-0.json", "truth/rank_0000.json"):
        trace(run / other)
    (run / "truth" / "rank_0000.parquet").write_bytes(b"PAR1")
    (run / "settings.json").write_text('{"ranks": 4}')
    (run / "log.txt").write_text("rank 0")
    (run / "snapshot_0.pickle").write_bytes(b"")
    assert [file.path for (one,) in [discover([run])] for file in one.files] == [wanted]


def test_several_runs_below_one_folder_and_equal_names(tmp_path):
    for name in ("a/job", "b/job", "b/other"):
        trace(tmp_path / name / "iteration_1" / "rank_0000_iter_1.pt.trace.json")
    runs = discover([tmp_path, tmp_path / "b"])
    names = [run.run for run in runs]
    assert len(runs) == 3 and names[2] == "other"
    assert all(name.startswith("job-") and len(name) == len("job-") + 8 for name in names[:2])
    assert len(set(names)) == 3
    assert names == [run.run for run in discover([tmp_path / "b", tmp_path / "a"])], "no matter what was asked first"
    assert [run.run for run in discover([tmp_path / "a"])] == ["job"]


def test_real_runs_of_a_tree(shared_data):
    runs = found(discover([shared_data / "megatron_gpu"]))
    assert list(runs) == ["pp2_dp2_distopt_overlap", "pp2_ep2_moe", "pp4_1f1b", "tp2_pp2_vpp2_full"]
    expected = [(f"iteration_2/rank_000{rank}_iter_2.pt.trace.json.gz", 2, rank) for rank in range(4)]
    assert all(files == expected for files in runs.values())
    (dlrm,) = discover([shared_data / "kineto" / "dlrm8"])
    assert [(one.iteration, one.rank) for one in resolve(dlrm.files).traces] == [(10, rank) for rank in range(8)]


def test_a_pattern_chooses_files(tmp_path):
    for rank in range(3):
        trace(tmp_path / "job" / "iteration_1" / f"rank_000{rank}_iter_1.pt.trace.json")
        trace(tmp_path / "job" / "iteration_2" / f"rank_000{rank}_iter_2.pt.trace.json")
    (by_name,) = discover([tmp_path], pattern="rank_0001*")
    (by_path,) = discover([tmp_path / "job"], pattern="iteration_2/*")
    assert [(file.iteration, file.rank) for file in by_name.files] == [(1, 1), (2, 1)]
    assert [(file.iteration, file.rank) for file in by_path.files] == [(2, 0), (2, 1), (2, 2)]
    with pytest.raises(BadInputError, match="no file matches"):
        discover([tmp_path], pattern="*.sqlite")


def test_the_newest_topology_file_goes_with_the_run(tmp_path):
    trace(tmp_path / "job" / "iteration_1" / "rank_0000_iter_1.pt.trace.json")
    for stamp in ("20260101_235959", "20260102_000000", "20251231_000000"):
        (tmp_path / "job" / f"unique_parallel_groups_{stamp}.txt").touch()
    (tmp_path / "job" / "unique_parallel_groups_copy.txt").touch()
    (run,) = discover([tmp_path])
    assert run.topology_file == tmp_path / "job" / "unique_parallel_groups_20260102_000000.txt"


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_path_without_traces_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInputError, match=r"no such file or folder|no trace files"):
        discover([tmp_path / name])


def test_a_rank_that_two_files_claim_is_taken_from_neither(tmp_path):
    first = trace(tmp_path / "job" / "iteration_1" / "rank_0001_iter_1.pt.trace.json")
    second = trace(tmp_path / "job" / "iteration_1" / "rank_0001_iter_1.pt.trace.json.gz")
    trace(tmp_path / "job" / "iteration_1" / "rank_0000_iter_1.pt.trace.json")
    placement = resolve(discover([tmp_path])[0].files)
    assert [one.rank for one in placement.traces] == [0]
    (problem,) = placement.problems
    assert str(first) in str(problem) and second.name in str(problem) and "rank 1 of iteration 1" in str(problem)


def test_files_of_one_rank_and_different_steps_do_not_collide(tmp_path):
    trace(tmp_path / "job" / "node_1.100.pt.trace.json", 5, 6, rank=0)
    trace(tmp_path / "job" / "node_1.200.pt.trace.json", 6, 7, rank=0)
    placement = resolve(discover([tmp_path])[0].files)
    assert [(one.iteration, one.name[:10]) for one in placement.traces] == [(5, "node_1.100"), (7, "node_1.200")]
    assert ["iteration 6" in str(problem) for problem in placement.problems] == [True]


def test_a_file_without_a_rank_is_rank_0_of_a_separate_run_unless_it_is_given(tmp_path):
    trace(tmp_path / "job" / "node_1.100.pt.trace.json", 5)
    files = discover([tmp_path])[0].files
    placement = resolve(files)
    assert [(one.run, one.iteration, one.rank) for one in placement.traces] == [("job-node_1.100", 5, 0)]
    assert "no rank in the name or in distributedInfo" in placement.warnings[0]
    assert [(one.run, one.iteration, one.rank) for one in resolve(files, rank=9).traces] == [("job", 5, 9)]


def test_the_header_wins_over_the_name_with_a_warning(tmp_path):
    trace(tmp_path / "job" / "iteration_1" / "rank_0001_iter_1.pt.trace.json", rank=4)
    placement = resolve(discover([tmp_path])[0].files)
    assert [one.rank for one in placement.traces] == [4]
    assert len(placement.warnings) == 1 and "rank 1" in placement.warnings[0] and "4" in placement.warnings[0]


def test_an_unreadable_file_keeps_its_place_where_its_path_shows_it(tmp_path):
    told = tmp_path / "job" / "iteration_1" / "rank_0001_iter_1.pt.trace.json"
    untold = tmp_path / "job" / "torch_profile" / "rank-0.json.gz"
    for path in (told, untold):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    placement = resolve(discover([tmp_path])[0].files)
    assert [(one.iteration, one.rank, one.path) for one in placement.traces] == [(1, 1, told)]
    assert ["empty file" in str(problem) for problem in placement.problems] == [True]
