"""Input of which a part is lost, odd or of another job: never a silent success, whatever command reads it."""

from __future__ import annotations

import json
import pickle
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import traceviz_dag as tv
from benchmarks.accuracy import SMALL
from tests import damage
from tests.damage import call
from tests.kineto_file import KinetoFile
from tests.sets import fast
from tests.small_run import rank_file, two_ranks_analysed, write_run
from traceviz_dag.errors import ClusterError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.completeness import stored_completeness
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges

DAMAGED = 1
DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": damage.truncate,
    "missing": damage.remove,
    "foreign": damage.of_a_larger_world,
    "odd": damage.times_as_text,
}
MORE_ODD = {
    "huge": damage.huge_times,
    "negative": damage.negative_durations,
    "begins": damage.begins_alone,
}
ACROSS = ("waits", "clocks", "pipelines", "periods")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("traces") / "whole")


@pytest.fixture(scope="module")
def runs(whole, tmp_path_factory) -> dict[str, Path]:
    """One for each kind of damage."""
    return {kind: _damaged(whole, tmp_path_factory.mktemp(kind), change) for kind, change in DAMAGES.items()}


@pytest.fixture(params=fast(DAMAGES, "truncated"))
def damaged(request, runs) -> tuple[str, Path]:
    return request.param, runs[request.param]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


def _damaged(whole: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    run = folder / f"job_{folder.name}"
    shutil.copytree(whole, run)
    change(next(run.glob(f"iteration_7/rank_{DAMAGED:04d}*")))
    return run


def _names_the_rank(err: str) -> bool:
    lines = [line for line in err.splitlines() if f"rank {DAMAGED}" in line]
    return bool(lines) and "Traceback" not in err


def test_analyze_names_the_rank_and_counts_it_nowhere(damaged, whole, home):
    kind, run = damaged
    doctor = call("doctor", run)
    assert doctor.code == 2 and f"rank {DAMAGED}" in doctor.err + doctor.out, doctor
    assert "all ranks are there" not in doctor.out
    answer = call("analyze", run, "--home", home, "--json")
    (summary,) = answer.json
    assert answer.code == 2 and _names_the_rank(answer.err), answer.err
    assert summary["partial"] is True
    field = {"missing": "missing_ranks", "foreign": "failed_ranks"}.get(kind, "partial_ranks")
    assert summary[field] == [DAMAGED]
    if kind == "foreign":
        assert "world size is 8, that of rank 0 is 4" in answer.err and not summary["aggregated"]
        return
    if kind in ("truncated", "odd"):
        assert list(summary["faults"]) == [str(DAMAGED)] and not summary["ranks_failed"]
        asked = f"SELECT status, rows_read FROM traces WHERE run = '{run.name}' AND rank = {DAMAGED}"
        (row,) = call("sql", asked, "--home", home, "--json").json
        assert row["status"] == "partial" and row["rows_read"] > 0
    figures = summary["measures"]
    assert figures["partial"] is True and figures["covered_ranks"] == [0, 2, 3]
    rows = [row for row in call("overlap", whole, "--json").json if row["dimension"] == "all"]
    exposed = [row["exposed_ns"] for row in rows if row["rank"] != DAMAGED]
    assert figures["exposed_ns"] == round(sum(exposed) / 3)
    whole_ranks = [row for row in call("overlap", whole, "--json").json if row["rank"] != DAMAGED]
    time_ns = sum(row["window_end_ns"] - row["window_start_ns"] for row in rows if row["rank"] != DAMAGED)
    findings = call("findings", "--run", run.name, "--home", home, "--json").json
    (idle,) = [finding for finding in findings if finding["rule"] == "idle"]
    assert idle["value"] == pytest.approx(sum(row["idle_ns"] for row in rows if row["rank"] != DAMAGED) / time_ns)
    for finding in findings:
        if finding["rule"] == "exposed_communication":
            mine = [row["exposed_ns"] for row in whole_ranks if row["dimension"] == finding["culprit"]["dimension"]]
            assert finding["value"] == pytest.approx(sum(mine) / time_ns)
    printed = call("analyze", run, "--home", home)
    assert "PARTIAL" in printed.out and "over all ranks" not in printed.out


def test_every_other_command_says_it_too(damaged, tmp_path):
    home = tmp_path / "home"
    kind, run = damaged
    call("analyze", run, "--home", home, "--allow-partial", "--json")
    for command in ACROSS:
        answer = call(command, run, "--json", "--home", home)
        assert answer.code == 2 and _names_the_rank(answer.err), (command, answer.err)
        assert all(entry["partial"] is True for entry in answer.json)
        assert "PARTIAL" in call(command, "--home", home, "--run", run.name).out
    overlap = call("overlap", run, "--json", "--home", home)
    assert overlap.code == 2 and _names_the_rank(overlap.err)
    assert all(row["partial"] == (row["rank"] == DAMAGED) for row in overlap.json)
    assert {0, 2, 3} <= {row["rank"] for row in overlap.json}
    topology = call("topology", run, "--json")
    assert topology.code == (2 if kind == "foreign" else 0)
    assert topology.json[0]["topology"]["pipelines"] == [[0, 2], [1, 3]]
    drawn = call("figures", run, "--home", home, "--kind", "bubble_waterfall", "--formats", "svg", "-p", "1", "--json")
    assert drawn.code == 2 and _names_the_rank(drawn.err)
    out = tmp_path / "trace.pftrace"
    exported = call("perfetto", "export", run, "--home", home, "--out", out)
    assert exported.code == 2 and _names_the_rank(exported.err) and out.is_file()


@pytest.mark.parametrize("kind", MORE_ODD)
def test_rows_that_cannot_be_used_make_a_rank_partial(kind, whole, tmp_path):
    run = _damaged(whole, tmp_path, MORE_ODD[kind])
    answer = call("overlap", run, "--json")
    assert answer.code == 2 and _names_the_rank(answer.err)
    assert {row["rank"] for row in answer.json if row["partial"]} == {DAMAGED}
    assert call("doctor", run).code == 2
    file = next(run.glob(f"iteration_7/rank_{DAMAGED:04d}*"))
    classified = call("classify", file, "--json")
    assert classified.code == 2 and classified.json["partial"] is True and _names_the_rank(classified.err)


def test_a_rank_whose_kernels_start_before_their_launches_is_read_in_part(whole, tmp_path):
    run = _damaged(whole, tmp_path, damage.gpu_before_host)
    (summary,) = (answer := call("analyze", run, "--home", tmp_path / "home", "--json")).json
    assert answer.code == 2 and summary["partial_ranks"] == [DAMAGED] and _names_the_rank(answer.err)
    assert "start before the calls that launch them, by up to 500 ms: the clocks of GPU and host" in answer.err
    assert summary["measures"]["covered_ranks"] == [0, 2, 3]
    assert call("classify", next(run.glob(f"iteration_7/rank_{DAMAGED:04d}*")), "--json").json["partial"] is True


def test_a_mark_of_no_length_holds_no_training_step(whole, tmp_path):
    """A night of such marks would be better than any other."""
    run = _damaged(whole, tmp_path, damage.marks_without_length)
    answer = call("analyze", run, "--home", tmp_path / "home", "--json")
    assert answer.code == 2 and answer.json[0]["measures"]["covered_ranks"] == [0, 2, 3]
    assert "training step 7 is not recorded whole: its mark ends where it starts" in answer.err


def test_of_an_iteration_without_a_whole_rank_no_step_and_no_clock_is_told(whole, tmp_path):
    run, home = tmp_path / "run", tmp_path / "home"
    shutil.copytree(whole, run)
    for file in run.glob("iteration_7/*"):
        damage.truncate(file)
    assert call("analyze", run, "--home", home).code == 2
    trend = call("iterations", "--home", home)
    assert trend.code == 2 and "no measures of run 7: no rank was read whole" in trend.err
    assert "no step of a rank that was read whole" in call("findings", "--home", home).out
    assert "not solved: no rank was read whole" in call("clocks", "--home", home).out
    overlap = call("overlap", "--home", home).out
    assert "Communication is not known: no rank was read whole." in overlap and "0 windows" not in overlap


def test_kernels_without_length_have_no_share_of_anything(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for file in run.glob("iteration_7/*"):
        damage.kernels_without_length(file)
    answer = call("findings", run, "--json", "--home", tmp_path / "home")
    assert answer.json and "nan" not in answer.out


def test_doctor_finds_the_one_rank_whose_window_starts_in_the_middle_of_a_step(tmp_path):
    """Also where rank 0, which is classified for all, is whole: of the same stage or of another."""
    cut = Edges(window_from=0.5, window_rank=DAMAGED)
    for layout in (replace(SMALL, dp=2), replace(SMALL, pp=2)):
        run = simulate(replace(layout, edges=cut), tmp_path / f"pp{layout.pp}", workers=1)
        answer = call("doctor", run)
        assert answer.code == 2 and f"rank {DAMAGED}: training step" in answer.err, answer
        answers = {each["question"]: each for each in call("doctor", run, "--json").json[0]["questions"]}
        microbatch = answers["Which micro-batch and chunk?"]
        assert microbatch["answer"] == "in part" and f"rank {DAMAGED}: training step" in microbatch["why"]


@pytest.mark.long
def test_whole_input_is_not_called_partial(whole, home):
    for command in (*ACROSS, "overlap", "topology", "doctor"):
        answer = call(command, whole, *([] if command == "topology" else ["--home", home]))
        # Two micro-batches are too few for a period, and their communications for all clocks and waits, which is said.
        too_few = {
            "periods": "no pair has measures",
            "waits": "have no certain wait",
            "clocks": "not every clock is solved",
        }
        nothing = too_few.get(command, "no such command") in answer.err
        assert nothing or (answer.code, answer.err) == (0, ""), (command, answer.err)
        assert "PARTIAL" not in answer.out
    assert "all ranks are there" in call("doctor", whole).out


@pytest.mark.long
def test_allow_partial_counts_what_was_read_and_says_so(runs, home):
    run = runs["odd"]
    left_out = call("analyze", run, "--home", home, "--json").json[0]["measures"]
    answer = call("analyze", run, "--home", home, "--json", "--allow-partial")
    (summary,) = answer.json
    assert answer.code == 2 and summary["partial"] is True
    assert summary["measures"]["covered_ranks"] == [0, 1, 2, 3] and left_out["covered_ranks"] == [0, 2, 3]
    assert summary["measures"]["partial"] is True
    assert (
        "rank 1 read in part, and counted all the same"
        in call("analyze", run, "--home", home, "--allow-partial", "--tables").out
    )
    again = call("analyze", run, "--home", home, "--json").json[0]["measures"]
    assert again == left_out


def test_missing_ranks_are_meant_where_the_user_says_so(whole, runs, home):
    run = runs["missing"]
    for meant in (["--allow-partial"], ["--pattern", "rank_*"]):
        answer = call("analyze", run, "--home", home, "--json", *meant)
        assert answer.code == 0 and answer.json[0]["missing_ranks"] == [DAMAGED]
    one = next(whole.glob("iteration_7/rank_0002*"))
    assert call("overlap", one, "--json").code == 0


def test_a_rank_of_which_nothing_can_be_used_has_failed(home, tmp_path):
    file = KinetoFile(rank=0, world_size=1)
    file.kernel("gemm", 0, 10, launched=0)
    for event in file.events:
        event["ts"] = "soon"
    path = file.write(tmp_path / "alone" / "rank_0000.pt.trace.json")
    answer = call("analyze", path, "--home", home)
    assert answer.code == 2 and "1 ranks computed" not in answer.out
    assert "none of its 4 events can be used" in answer.err and str(path) in answer.err
    page = tmp_path / "page.html"
    answer = call("report", "--run", "alone", "--home", home, "-o", page)
    assert answer.code == 2 and "none of its 4 events can be used" in answer.err and page.is_file()


def test_a_rank_that_cannot_be_read_is_no_other_model_of_gpu(tmp_path):
    run = simulate(replace(SMALL, tp=2, pp=4, dp=2), tmp_path / "job", workers=1)
    (unread,) = run.glob("iteration_*/rank_0002_*")
    unread.write_text("no trace")
    answer = call("waits", run)
    assert answer.code == 2 and "not JSON" in answer.err and "fault of traceviz" not in answer.err
    assert "PARTIAL: rank 2 unusable" in answer.out


@pytest.mark.long
def test_a_table_that_somebody_deleted_is_named_by_what_reads_it(tmp_path):
    _, home = two_ranks_analysed(tmp_path)
    assert call("overlap", "--home", home, "--json").code == 0
    shutil.rmtree(home / "lake/gpu_gaps")
    answer = call("overlap", "--home", home, "--json")
    assert answer.code == 2 and f"job@7: rank 1: its table gpu_gaps is gone from {home}" in answer.err
    shutil.rmtree(home / "lake/overlap")
    for window in ("step", "kernels"):
        answer = call("overlap", "--home", home, "--window", window, "--json")
        assert answer.code == 2 and answer.json == [] and "no such run" not in answer.err
        for rank in (0, 1):
            assert f"job@7: rank {rank}: its tables gpu_gaps, overlap are gone from {home}" in answer.err
    assert tv.open(home).iteration().overlap().statements[0] == "Communication is not known: no rank was read whole"


READERS = ("overlap", "findings", "kernels", "waits", "critical-path", "efficiencies", "pipelines", "what-if", "advise")


@pytest.fixture(scope="module")
def two_iterations(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two_iterations")
    run = simulate(replace(SMALL, pp=2, iterations=2), folder / "job", workers=1)
    assert call("analyze", run, "--home", folder / "home", "--no-report").code == 0
    return folder / "home"


def _copied(home: Path, folder: Path) -> tuple[Path, int]:
    """The home once more, and the newer of its iterations."""
    numbers = [int(path.name.partition("=")[2]) for path in home.glob("lake/kernels/run=job/iteration=*")]
    return Path(shutil.copytree(home, folder / "home")), max(numbers)


def test_a_critical_path_over_a_rank_whose_tables_somebody_deleted_is_told_and_the_rank_named(two_iterations, tmp_path):
    home, newest = _copied(two_iterations, tmp_path)
    rank = f"SELECT rank FROM path_segments WHERE iteration = {newest} LIMIT 1"
    (row,) = call("sql", rank, "--home", home, "--json").json
    for folder in home.glob(f"lake/*/run=job/iteration={newest}/rank={row['rank']}"):
        shutil.rmtree(folder)
    answer = call("critical-path", "--home", home)
    assert answer.code == 2 and f"PARTIAL: rank {row['rank']} unusable" in answer.out
    assert f"job@{newest}: rank {row['rank']}: its tables" in answer.err


def test_an_iteration_whose_tables_somebody_deleted_is_named_by_every_command(two_iterations, tmp_path):
    home, newest = _copied(two_iterations, tmp_path)
    one, line = ("--run", "job", "--iteration", newest), f"run job, iteration {newest}"
    shutil.rmtree(home / f"lake/kernels/run=job/iteration={newest}")
    answer = call("iterations", "--home", home)
    assert answer.code == 2 and f"table kernels: the rows of {line}" in answer.err
    for folder in home.glob(f"lake/[!.]*/run=job/iteration={newest}"):
        shutil.rmtree(folder)
    for number in (newest, None):
        with pytest.raises(tv.IncompleteError, match=f"^table kernels of job {newest}: somebody deleted the files"):
            tv.open(home).iteration(number)
    assert tv.open(home).iteration(newest - 1).number == newest - 1
    for command in (*READERS, "statement", "clocks", "topology", "iterations", "lake status"):
        for options in ((), () if command == "iterations" else one, () if command == "statement" else ("--json",)):
            answer = call(*command.split(), "--home", home, *options)
            assert (answer.code, line in answer.err) == (2, True), (command, options, answer.err)
            assert "somebody deleted the file" in answer.err and "no such run" not in answer.err
            assert bool(answer.out.strip()) == (options != one or command == "lake status"), (command, options)
        if command not in ("iterations", "lake status"):
            assert call(command, "--home", home, "--iteration", newest - 1).code == 0, command
    for side, is_compared in ((home, True), (f"{home}@{newest}", False)):
        answer = call("diff", two_iterations, side, "--anyway")
        assert answer.code == 2 and line in answer.err and bool(answer.out.strip()) == is_compared


@pytest.mark.parametrize("gone", ["", "/run=job/iteration={}/rank=1"])
def test_ranks_of_which_nobody_knows_how_they_were_read_are_named(gone, two_iterations, tmp_path):
    home, newest = _copied(two_iterations, tmp_path)
    shutil.rmtree(home / f"lake/traces{gone.format(newest)}")
    for command in (*READERS, "statement", "topology"):
        answer = call(command, "--home", home)
        assert answer.code == 2 and f"job@{newest}: rank 1: its table traces is gone from {home}" in answer.err
    for command in (["iterations"], ["lake", "status"]):
        answer = call(*command, "--home", home)
        assert answer.code == 2 and "table traces: the rows of run job" in answer.err


@pytest.mark.parametrize("table", ["findings", "overlap", "traces"])
def test_text_and_json_of_a_damaged_home_have_the_same_exit_code(table, two_iterations, tmp_path):
    home, newest = _copied(two_iterations, tmp_path)
    path = sorted((home / f"lake/{table}/run=job/iteration={newest}").rglob("part.parquet"))[-1]
    held = path.read_bytes()
    path.write_bytes(held[:-20] + bytes([held[-20] ^ 1]) + held[-19:])
    assert (call("iterations", "--home", home).code == 2) == (table == "traces")
    for _ in ("damaged", "deleted"):
        codes = {name: [call(name, "--home", home, *more).code for more in ((), ("--json",))] for name in READERS}
        assert all(text == json for text, json in codes.values()), codes
        assert codes["overlap" if table == "overlap" else "waits"] == [2, 2]
        path.unlink(missing_ok=True)


@pytest.mark.long
def test_two_folders_of_one_name_stay_two_runs(home, tmp_path):
    for parent, ranks in (("x", (0, 1)), ("y", (2, 3))):
        for rank in ranks:
            rank_file(rank, 4).write(tmp_path / parent / "twin/iteration_7" / f"rank_{rank:04d}.pt.trace.json")
    first = call("analyze", tmp_path / "x/twin", "--home", home, "--json").json[0]
    second = call("analyze", tmp_path / "y/twin", "--home", home, "--json").json[0]
    assert first["run"] == "twin" and second["run"].startswith("twin-")
    assert (first["measures"]["covered_ranks"], second["measures"]["covered_ranks"]) == ([0, 1], [2, 3])
    both = call("analyze", tmp_path / "x", tmp_path / "y", "--home", home, "--json").json
    assert [entry["run"] for entry in both] == ["twin", second["run"]]
    assert all(entry["ranks_computed"] == 0 for entry in both)


def _database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE anything (number)")


OTHER_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "snapshot.pickle": (lambda path: path.write_bytes(pickle.dumps({"segments": []})), "a memory snapshot"),
    "records.parquet": (lambda path: path.write_bytes(b"PAR1" + bytes(64)), "a Parquet file"),
    "picture.png": (lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64)), "a picture"),
    "empty.json": (lambda path: path.write_bytes(b""), "empty file"),
    "other.json": (lambda path: path.write_text(json.dumps({"sizes": [1]})), "JSON without traceEvents"),
    "base.sqlite": (_database, "no export of Nsight Systems"),
    "unique_parallel_groups_20260101_000000.txt": (lambda path: path.write_text("TP SIZE: 2"), "traceviz topology"),
    "job.pftrace": (lambda path: path.write_bytes(b"\x0a\x04\x08\x01\x10\x02"), "traceviz perfetto open"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_that_is_no_trace_is_refused_by_what_it_is(name, tmp_path, home):
    write, said = OTHER_FILES[name]
    path = tmp_path / "with space" / name
    path.parent.mkdir()
    write(path)
    for command in ("analyze", "classify", "overlap", "doctor"):
        answer = call(command, path, "--home", home)
        assert answer.code == 2 and len(answer.err.strip().splitlines()) == 1, answer.err
        assert said in answer.err and str(path) in answer.err
        if said.startswith("traceviz"):
            assert shlex.quote(str(path if "perfetto" in said else path.parent)) in answer.err


@pytest.mark.long
def test_ranks_that_the_capture_did_not_choose_are_no_loss_and_every_line_counts_them(tmp_path):
    """One pipeline of four: all that was to be recorded is there; then one of its ranks is not."""
    settings = replace(SMALL, tp=1, pp=2, dp=4, edges=Edges(captured_ranks="0,4"))
    run, home = simulate(settings, tmp_path / "job"), tmp_path / "home"
    assert call("doctor", run).code == 0
    said = call("analyze", run, "--home", home)
    assert said.code == 0 and "2 of 8 ranks · step" in said.out and "PARTIAL" not in said.out
    assert "Unsure:" in said.out and "2 of 8 ranks: stages 0–1 of pipeline 0" in " ".join(said.out.split())
    assert "2 of 8 ranks: ranks 0, 4 ·" in call("overlap", run).out
    assert "2 of 8 ranks: stages 0–1 of pipeline 0" in call("statement", "--home", home).out
    for command in ("overlap", "statement"):
        assert {row["chosen"] for row in call(command, "--home", home, "--json").json} == {
            "2 of 8 ranks: stages 0–1 of pipeline 0"
        }
    # The path may run over ranks that nobody saw: it says so, and ends with 2.
    for command, code in {"findings": 0, "waits": 0, "overlap": 0, "critical-path": 2}.items():
        one = call(command, "--home", home)
        assert one.code == code and "2 of 8 ranks: stages 0–1 of pipeline 0" in " ".join(one.out.split()), one
    trend = call("iterations", "--home", home)
    assert trend.code == 0 and "2 of 8 " in trend.out and "(partial)" not in trend.out
    lost, other = tmp_path / "lost", tmp_path / "other"
    shutil.copytree(run, lost)
    next(lost.glob("iteration_*/rank_0004*")).unlink()
    assert "the capture chose 2 of 8 ranks: ranks 0, 4" in call("doctor", lost).err
    said = call("analyze", lost, "--home", other)
    assert said.code == 2 and "no trace of rank 4; the capture chose 2 of 8 ranks: ranks 0, 4" in said.err
    trend = call("iterations", "--home", other)
    assert trend.code == 2 and "1 of 8 (partial)" in trend.out
    assert "partial result" in call("overlap", lost).err


class LostAfterTwo:
    """A cluster that goes away after two ranks."""

    keeps_workers = True

    def spread(self, work, items, workers, arguments):
        for number, item in enumerate(items[:2]):
            yield number, work(item, *arguments)
        raise ClusterError("tls://head:8786", "its scheduler is gone", "see its log, and run this again")


def test_ranks_that_the_analysis_did_not_come_to_are_not_said_to_have_no_trace(tmp_path):
    run, home = write_run(tmp_path / "job"), tmp_path / "home"
    (result,) = analyse(AnalysisSettings(home, engine=LostAfterTwo()), inputs_below([run]))
    assert result.computed == [0, 1] and "its scheduler is gone" in result.failures[0]
    (run / "iteration_7/rank_0003_iter_7.pt.trace.json").unlink()
    told = stored_completeness(open_lake(home), "job", 7).as_json()
    assert (told["failed_ranks"], told["missing_ranks"]) == ([2], [3])
    said = call("overlap", "--home", home)
    assert "job@7: rank 2 not read: the analysis ended before; run it again" in said.err
    assert "no trace of rank 3; the world has 4 ranks" in said.err
    assert said.code == 2 and "rank 2 not read, rank 3 of 4 without a trace" in said.out
