"""Which runs, iterations and ranks the exports of a folder are."""

from __future__ import annotations

import shutil

import pytest

from tests.nsys_file import SECOND, UTC, Export, node_export, small_export
from tests.small_run import write_run
from traceviz_dag.analyze.nsys.jobs import CaptureEvidence, Tie, job_name, jobs, tie, why_apart
from traceviz_dag.lake.inputs import IterationInputs, register
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.nsys.placement import place_exports
from traceviz_dag.read.layouts import discover


def ranks_by_run(found: list[IterationInputs]) -> dict[str, list[tuple[int, str]]]:
    return {one.run: [(entry.rank, entry.name) for entry in one.ranks] for one in found}


def evidence(name: str, seconds: tuple[int, int] | None = None, communicators: str = "") -> CaptureEvidence:
    first, last = seconds or (None, None)
    return CaptureEvidence(name, first and first * SECOND, last and last * SECOND, frozenset(communicators))


def test_a_rank_in_the_name_places_an_export_of_one_gpu(tmp_path):
    small_export().write(tmp_path / "profile_rank3.sqlite")
    other = small_export()
    other.kernel(3 * SECOND, 4 * SECOND)
    other.write(tmp_path / "profile_rank5.sqlite")
    placed = place_exports(discover([tmp_path])[0].files, None)
    assert [(trace.rank, trace.iteration, trace.name) for trace in placed.traces] == [
        (3, 5, "profile_rank3.sqlite"),
        (5, 5, "profile_rank5.sqlite"),
    ]
    assert placed.warnings == ()


def test_nodes_without_numbers_that_ran_together_count_by_name_and_it_is_said(tmp_path):
    for name in ("gpu-b", "gpu-a"):
        node_export(tmp_path / f"{name}.sqlite")
    (one,) = inputs_below([tmp_path])
    names = ["gpu-a.sqlite", "gpu-a.sqlite", "gpu-b.sqlite", "gpu-b.sqlite"]
    assert ranks_by_run([one]) == {tmp_path.name: list(enumerate(names))}
    assert all("by the order of names" in line for line in one.warnings)
    assert len(one.warnings) == 2


def test_an_export_without_kernels_and_a_broken_one_are_problems_and_the_rest_goes_on(tmp_path):
    small_export().write(tmp_path / "good_rank0.sqlite")
    (tmp_path / "broken_rank1.sqlite").write_bytes(b"SQLite format 3\0 and no more")
    empty = Export()
    empty.range(0, 10, "nothing")
    empty.write(tmp_path / "empty_rank2.sqlite")
    placed = place_exports(discover([tmp_path])[0].files, None)
    assert [trace.rank for trace in placed.traces] == [0]
    assert len(placed.problems) == 2
    assert any("no kernels were recorded" in str(problem) for problem in placed.problems)


def test_what_a_process_without_kernels_copied_is_said_to_be_of_no_rank(tmp_path):
    export = small_export()
    export.copy(100, 200, device=1)
    export.copy(100, 200, device=3)
    path = export.write(tmp_path / "job.sqlite")
    placed = place_exports(discover([tmp_path])[0].files, None)
    assert [trace.rank for trace in placed.traces] == [0]
    [line] = placed.warnings
    assert line == f"{path}: no rank has what a process without kernels there copied or set on GPUs 1, 3"


def test_two_real_profiles_of_different_days_are_two_runs_and_it_is_said(shared_data, tmp_path):
    for path in (shared_data / "nsys").glob("*.sqlite"):
        shutil.copy(path, tmp_path)
    found = inputs_below([tmp_path])
    assert {run: [rank for rank, _ in ranks] for run, ranks in ranks_by_run(found).items()} == {
        f"{tmp_path.name}-h100_2gpu_1s": [0, 1],
        f"{tmp_path.name}-mfu_2gpu_before": [0, 1],
    }
    assert sum("ran at another time (UTC)" in line and "a separate run" in line for line in found[0].warnings) == 2


def test_an_unrelated_export_that_comes_later_leaves_the_registered_run_as_it_is(tmp_path):
    folder, home = tmp_path / "profiles", tmp_path / "home"
    node_export(folder / "before.sqlite")
    (folder / "unique_parallel_groups_20260101_000000.txt").write_text("of the first job")
    (first,) = inputs_below([folder], home=home)
    assert first.run == "profiles" and first.warnings == ()
    register(home, first)
    node_export(folder / "after.sqlite", UTC + 3600 * SECOND)
    found = {one.run: one for one in inputs_below([folder], home=home)}
    assert ranks_by_run(list(found.values())) == {
        "profiles": [(0, "before.sqlite"), (1, "before.sqlite")],
        "profiles-after": [(0, "after.sqlite"), (1, "after.sqlite")],
    }
    assert (found["profiles"].topology_file is None, found["profiles-after"].topology_file) == (False, None)


def test_exports_beside_pytorch_traces_are_a_run_of_their_own(tmp_path):
    run = write_run(tmp_path / "job", {0: 1}, world=2)
    node_export(run / "node0.sqlite")
    found = inputs_below([tmp_path])
    assert [(one.run, len(one.ranks)) for one in found] == [("job", 1), ("job-nsys", 2)]
    assert "PyTorch traces are beside it" in found[0].warnings[0]


def test_names_that_count_nodes_bind_whatever_the_clocks_say_and_it_is_said(tmp_path):
    node_export(tmp_path / "job_node0.sqlite")
    node_export(tmp_path / "job_node1.sqlite", UTC + 3600 * SECOND)
    (one,) = inputs_below([tmp_path])
    assert [entry.rank for entry in one.ranks] == [0, 1, 2, 3]
    assert len(one.warnings) == 1 and "at another time" in one.warnings[0]


@pytest.mark.parametrize(("other", "runs"), [(7, 1), (8, 2)])
def test_a_common_communicator_binds_and_none_in_common_parts(tmp_path, other, runs):
    node_export(tmp_path / "a.sqlite", communicator=7)
    node_export(tmp_path / "b.sqlite", communicator=other)
    assert len(inputs_below([tmp_path])) == runs


def test_a_copy_of_an_export_is_no_further_node_of_its_job(tmp_path):
    node_export(tmp_path / "a.sqlite", communicator=7)
    shutil.copy(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    node_export(tmp_path / "c.sqlite", communicator=7)
    found = inputs_below([tmp_path])
    assert [(one.run, len(one.ranks)) for one in found] == [(f"{tmp_path.name}-a", 4), (f"{tmp_path.name}-b", 2)]
    assert any("b.sqlite" in line and "the same recording" in line for one in found for line in one.warnings)


def test_a_copy_that_is_named_as_a_node_is_said(tmp_path):
    node_export(tmp_path / "job_node0.sqlite")
    shutil.copy(tmp_path / "job_node0.sqlite", tmp_path / "job_node1.sqlite")
    (one,) = inputs_below([tmp_path])
    assert [line for line in one.warnings if "the same recording as job_node0.sqlite" in line]


def test_the_evidence_counts_in_the_order_of_its_strength():
    assert tie(evidence("n_node0", (0, 9)), evidence("n_node1", (99, 100))) is Tie.NAMES
    assert tie(evidence("a_node0", (0, 9)), evidence("b_node1", (99, 100))) is Tie.OTHER_TIME
    assert tie(evidence("a", (0, 9), "xy"), evidence("b", (99, 100), "y")) is Tie.OTHER_TIME
    assert tie(evidence("a", None, "xy"), evidence("b", (99, 100), "y")) is Tie.COMMUNICATORS
    assert tie(evidence("a", (0, 9), "x"), evidence("b", (1, 8), "y")) is Tie.OTHER_COMMUNICATORS
    assert tie(evidence("a", (0, 9), "x"), evidence("b", (13, 18))) is Tie.SAME_TIME, "clocks may differ by seconds"
    assert tie(evidence("a", (0, 9)), evidence("b")) is Tie.NOTHING
    assert not Tie.NOTHING.binds and not Tie.OTHER_TIME.binds and not Tie.OTHER_COMMUNICATORS.binds


def test_a_chain_of_ties_is_one_job_and_why_it_is_apart_is_the_weakest_reason():
    captures = [
        evidence("c", (0, 9)),
        evidence("a", (8, 30)),
        evidence("b", (28, 60)),
        evidence("d"),
        evidence("e_node2"),
    ]
    found = jobs(captures)
    assert found == [[1, 2, 0], [3], [4]]
    assert why_apart(captures[:3], captures[3:]) == Tie.NOTHING.value
    assert why_apart(captures[:1], captures[2:3]) == Tie.OTHER_TIME.value


def test_what_the_names_of_a_job_have_in_common():
    names = [
        "job-node_0-iter5.sqlite",
        "job-node_13-iter6.sqlite",
        "job node1.db",
        "profile_rank3.sqlite",
        "node2.sqlite",
    ]
    assert [job_name(name) for name in names] == ["job", "job", "job", "profile", ""]
    assert job_name("mynode3.sqlite") is None and job_name("gpu-899.sqlite") is None
