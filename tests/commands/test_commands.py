"""The commands as a user meets them: what they print, what they write, and what one wrong word gives."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from tests.end_to_end.conftest import program, traceviz
from tests.kineto_file import KinetoFile
from tests.small_run import rank_file, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("traces") / "job", {7: 4, 8: 4})


@pytest.fixture(scope="module")
def home(run, tmp_path_factory) -> Path:
    """A home with both iterations, made by ``batch`` with TraceViz's options."""
    home = tmp_path_factory.mktemp("home")
    arguments = ["batch", "--base-folder", run, "--iterations", "7,8", "--processes", "2", "--home", home, "--json"]
    summaries = json.loads(traceviz(*arguments).stdout)
    assert [(entry["iteration"], entry["ranks_computed"]) for entry in summaries] == [(7, 4), (8, 4)]
    return home


def test_batch_takes_repeated_folders_and_a_pattern(run, tmp_path):
    folders = ["--folders", run / "iteration_7", "--folders", run / "iteration_8", "--pattern", "rank_000[01]*"]
    summaries = json.loads(traceviz("batch", *folders, "--home", tmp_path / "home", "--json", "--allow-partial").stdout)
    assert [entry["ranks_computed"] for entry in summaries] == [2, 2]


def test_the_summary_says_step_time_exposed_communication_and_its_stages(run, home):
    text = traceviz("analyze", run / "iteration_7", "--home", home, "--tables").stdout
    assert "0 ranks computed, 4 unchanged" in text
    assert "step 0.100 ms over 4 ranks" in text
    assert "no stage is an outlier: stage 0 computes longest" in text
    assert "forward computation" in text


def test_classify_writes_the_kernels_it_prints(run, tmp_path):
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    answer = json.loads(traceviz("classify", "--input", trace, "--output", tmp_path / "k.parquet", "--json").stdout)
    table = pq.read_table(tmp_path / "k.parquet")
    assert sum(row["kernels"] for row in answer["categories"]) == table.num_rows == 10
    assert abs(sum(row["share"] for row in answer["categories"]) - 1) < 1e-9
    traceviz("classify", trace, "--output", tmp_path / "k.csv")
    assert pyarrow.csv.read_csv(tmp_path / "k.csv").num_rows == 10
    assert not list(tmp_path.glob(".*"))


@pytest.mark.long
def test_classify_and_batch_write_what_traceviz_writes(run, tmp_path):
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    traceviz("classify", "--input", trace, "--traceviz", tmp_path / "one", "--json")
    traceviz("batch", run / "iteration_7", "--traceviz", tmp_path / "all", "--home", tmp_path / "home", "--json")
    (folder,) = (tmp_path / "one").iterdir()
    assert folder.name.endswith("_kernel_analysis")
    names = {path.name for path in folder.iterdir()}
    assert {"fwd_computation.parquet", "Rank1_statistics.csv", "Rank1_commcompOverlap_analysis.csv"} <= names
    assert {"overlapping_timeline.png", "comm_comp_overlap_combined_rank1.png"} <= names
    for path in folder.iterdir():
        if path.suffix != ".png":
            assert (tmp_path / "all/iteration_7" / folder.name / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "all/iteration_7").iterdir())) == 4


def test_overlap_from_the_lake_equals_overlap_from_the_path(run, home):
    from_lake = json.loads(traceviz("overlap", "--home", home, "--json").stdout)
    from_path = json.loads(traceviz("overlap", run, "--json").stdout)
    key = ("run", "iteration", "rank", "device", "step", "dimension")

    def ordered(rows):
        return sorted(rows, key=lambda row: [str(row[name]) for name in key])

    assert ordered(from_lake) == ordered(from_path)
    clip = json.loads(traceviz("overlap", run / "iteration_7", "--start-ns", 0, "--end-ns", 50_000, "--json").stdout)
    assert {(row["window_name"], row["window_end_ns"]) for row in clip} == {("clip", 50_000)}


def test_doctor_says_what_a_capture_can_answer(run, tmp_path):
    (capture, _) = json.loads(traceviz("doctor", run, "--json").stdout)
    answers = {answer["question"]: answer["answer"] for answer in capture["questions"]}
    assert capture["ranks"] == capture["world_size"] == 4
    assert answers["Which micro-batch and chunk?"] == "yes"
    assert answers["How large are the tensors?"] == "no"
    bare = KinetoFile(rank=0, world_size=8)
    bare.operator("aten::mm", 0, 100)
    bare.kernel("gemm", 50, 90, launched=10)
    (capture,) = json.loads(traceviz("doctor", bare.write(tmp_path / "rank_0000.json"), "--json").stdout)
    answers = {answer["question"]: answer["answer"] for answer in capture["questions"]}
    assert answers["Which phase is a kernel in?"] == "no", "an operator alone tells none"
    assert answers["Which micro-batch and chunk?"] == "no"
    assert answers["Who waits for whom across ranks?"] == "no"


def test_doctor_answers_once_for_the_iterations_of_a_run_that_are_alike(tmp_path):
    run = write_run(tmp_path / "job", {7: 4, 8: 4, 9: 4})
    said = traceviz("doctor", run).stdout
    assert said.count("· questions") == 1 and "job · 3 iterations" in said and "as iteration 7 answers them" in said
    next((run / "iteration_9").glob("*0003*")).unlink()
    said = traceviz("doctor", run, code=2).stdout
    assert said.count("· questions") == 2 and "job · 2 iterations" in said and "job · iteration 9" in said


def test_doctor_without_a_path_shows_versions_and_the_home(home):
    state = json.loads(traceviz("doctor", "--home", home, "--json").stdout)
    assert state["packages"]["dagster"].startswith("1.13")
    assert state["home"]["kernels"] == 8 and state["home"]["iterations"] == 2


def test_topology_of_traces_lists_pipelines_in_stage_order(run):
    answer = json.loads(traceviz("topology", run / "iteration_7", "--json").stdout)
    assert answer[0]["topology"]["pipelines"] == [[0, 2], [1, 3]]


def test_sql_reads_the_tables_and_refuses_to_write(home):
    rows = json.loads(traceviz("sql", "SELECT count(*) AS n FROM kernels", "--home", home, "--json").stdout)
    assert rows == [{"n": 80}]
    refused = traceviz("sql", "DROP VIEW kernels", "--home", home, code=2)
    assert len(refused.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["overlap", "--window", "sideways"], "no window 'sideways'"),
        (["analyze", "/no/such/folder"], "no such file or folder"),
        (["classify"], "give one trace file"),
        (["batch", "--iterations", "1,2"], "--iterations needs --base-folder"),
        (["sql", "SELECT 1"], "holds no analysed traces"),
        (["topology", "--world", "7", "--tp", "2"], "7"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_two(arguments, said, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEVIZ_HOME", str(tmp_path / "empty"))
    result = traceviz(*arguments, code=2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


BAD_FILES = {
    1: (".json", b""),
    2: (".json", b"hello"),
    3: (".json", b'{"schemaVersion": 1}'),
    4: (".json.gz", b"\x1f\x8b\x08\x00garbage"),
}
"""Rank → suffix and content of its file."""


def test_each_bad_file_is_one_line_that_names_it_and_the_others_go_on(tmp_path):
    folder = write_run(tmp_path / "job", world=8)
    bad = []
    for rank, (suffix, content) in BAD_FILES.items():
        name = f"rank_{rank:04d}_iter_7.pt.trace"
        (folder / f"iteration_7/{name}.json").unlink()
        (folder / f"iteration_7/{name}{suffix}").write_bytes(content)
        bad.append(f"{name}{suffix}")
    result = program("analyze", folder, "--home", tmp_path / "home", "--json", code=2)
    (summary,) = json.loads(result.stdout)
    assert summary["ranks_failed"] == list(BAD_FILES) and summary["ranks_computed"] == 4
    for name in bad:
        naming = [line for line in result.stderr.splitlines() if name in line]
        assert len(naming) == 1 and ";" in naming[0], naming
    assert "Traceback" not in result.stderr


def test_a_rank_that_appears_twice_and_one_without_a_rank_are_named(tmp_path):
    folder = write_run(tmp_path / "job")
    rank_file(1, 4).write(folder / "iteration_7/copy_of_rank_0001.pt.trace.json")
    nobody = KinetoFile(rank=None)
    nobody.kernel("gemm", 0, 10, launched=0)
    nobody.write(folder / "iteration_7/host_77.1767595720694.pt.trace.json")
    result = traceviz("analyze", folder, "--home", tmp_path / "home", "--allow-partial", "--json", code=2)
    assert "copy_of_rank_0001.pt.trace.json" in result.stderr and "no rank in the name" in result.stderr
    (summary,) = json.loads(result.stdout)
    assert summary["ranks_computed"] == 4, "a copy costs its rank nothing"
