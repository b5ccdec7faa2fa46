"""A failure is reported and ends with 2; nothing stale or damaged stays; what is killed or interrupted can go on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tests.end_to_end.boundaries import tables
from tests.end_to_end.conftest import program, traceviz
from tests.in_process import ranks_in_this_process
from tests.small_run import rank_file, two_ranks_analysed, write_run
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.record_lines import Content
from traceviz_dag.lake.write import store_parts
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline import making, workers
from traceviz_dag.pipeline.analysis import AnalysisSettings, IterationResult, _Analysis, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.system.processes import WorkerDiedError
from traceviz_dag.tables import TABLES

PROGRAM = [sys.executable, "-m", "traceviz_dag.commands.main"]
RANK_1 = "iteration_7/rank_0001_iter_7.pt.trace.json"


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return two_ranks_analysed(tmp_path_factory.mktemp("analysed"))


@pytest.fixture
def own(analysed: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """The ranks, which a test may change, and a copy of the home."""
    run, home = analysed
    yield run, shutil.copytree(home, tmp_path / "a home")
    # A home knows where its runs are: in another folder, this would be another run.
    write_run(run, world=2)


def analyse_one(run: Path, home: Path, **settings: bool) -> IterationResult:
    (result,) = analyse(AnalysisSettings(home, workers=1, **settings), inputs_below([run]))
    return result


def slowest(home: Path) -> int:
    return (
        open_lake(home)
        .query("SELECT longest_computation_rank FROM iterations")
        .to_pylist()[0]["longest_computation_rank"]
    )


@pytest.mark.long
def test_a_step_that_fails_is_reported_with_its_partition_and_a_remedy(own, capfd):
    run, home = own
    shutil.rmtree(home / "lake/iterations")
    (home / "lake/iterations").write_text("a file in the way")
    result = traceviz("analyze", run, "--home", home, "--workers", "1", "--json", code=2)
    assert "job@7, aggregates: " in result.stderr and "move it away" in result.stderr
    assert "Traceback" not in result.stderr + "".join(capfd.readouterr())
    (answer,) = json.loads(result.stdout)
    assert not answer["aggregated"] and "lake/iterations" in answer["failures"][0]
    (home / "lake/iterations").unlink()
    assert analyse_one(run, home).aggregated


def test_whatever_a_trace_provokes_costs_that_rank_alone(tmp_path, monkeypatch):
    run, home = write_run(tmp_path / "job", world=2), tmp_path / "home"
    original = workers.analyse_steps

    def provoked(traces, *others):
        if traces[0].rank == 1:
            raise KeyError("an exception\nof two lines")
        return original(traces, *others)

    monkeypatch.setattr(workers, "analyse_steps", provoked)
    with ranks_in_this_process():
        result = analyse_one(run, home)
    assert (result.computed, result.failed, result.aggregated) == ([0], [1], False)
    log = home / "logs/job@7_rank_0001.log"
    assert RANK_1 in result.faults[1] and str(log) in result.faults[1] and "\n" not in result.faults[1]
    assert "Traceback" in log.read_text() and "Traceback" not in result.faults[1]
    monkeypatch.undo()
    assert analyse_one(run, home).aggregated
    assert not log.exists()


def test_a_worker_that_dies_across_ranks_costs_the_verdict_alone(own, monkeypatch):
    run, home = own

    def died(*_: object) -> None:
        raise WorkerDiedError

    monkeypatch.setattr(making, "analyse_across_ranks", died)
    ended = traceviz("analyze", run, "--home", home, "--workers", "1", "--force", code=2)
    assert "aggregates: a worker died" in ended.stderr and "fault of traceviz" not in ended.stderr
    assert "Step:" not in ended.stdout, "what was known of the step before is not said of this one"


def test_a_daemon_may_start_no_processes_and_analyses_ranks_itself(own, monkeypatch):
    run, home = own
    asked = []
    across = making.analyse_across_ranks
    monkeypatch.setattr(making, "analyse_across_ranks", lambda *given: (asked.append(given[2]), across(*given))[1])
    (inputs,) = inputs_below([run])
    making.make_across_ranks(open_lake(home), inputs, workers=2)
    monkeypatch.setattr(making, "current_process", lambda: SimpleNamespace(daemon=True))
    making.make_across_ranks(open_lake(home), inputs, workers=2)
    assert asked == [2, 1]


def test_what_an_interrupted_analysis_left_is_not_shown_as_whole_and_the_same_command_goes_on(own, monkeypatch):
    run, home = own
    rank_file(1, 2, scale=3).write(run / RANK_1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_Analysis, "make_iteration_tables", interrupted)
        ended = traceviz("analyze", run, "--home", home, "--workers", "1", code=130)
    assert "2 of 2 ranks of job@7 are done and kept; run the same command again" in ended.stderr
    told = traceviz("iterations", "--home", home, code=2)
    assert "job@7 was cut off" in told.stderr and "run traceviz analyze" in told.stderr
    again = analyse_one(run, home)
    assert (again.computed, again.aggregated) == ([], True)
    traceviz("iterations", "--home", home)
    assert slowest(home) == 1


DAMAGE = {
    "kernels": lambda data: data[: len(data) // 2],
    "overlap": lambda data: b"\0" * len(data),
    "iterations": lambda _: b"",
    "topology": lambda data: data[:-9] + b"garbage!!",
}


def test_damaged_files_are_named_with_their_remedy_and_made_anew(own):
    """All at once: each is made anew for its own damage, since a rank that is made anew comes out as before."""
    run, home = own
    before = tables(home)
    paths = {table: sorted((home / "lake" / table).rglob("*.parquet"))[table == "overlap"] for table in DAMAGE}
    for table, path in paths.items():
        whole = path.read_bytes()
        path.write_bytes(DAMAGE[table](whole))
        with pytest.raises(BadInputError, match="run traceviz analyze on its traces again") as told:
            open_lake(home).query(f"SELECT * FROM {table}")
        assert str(path) in str(told.value)
        with pytest.raises(BadInputError, match="run traceviz analyze on its traces again"):
            open_lake(home).table(table).arrow()
        path.write_bytes(whole)
    for table, path in paths.items():
        path.write_bytes(DAMAGE[table](path.read_bytes()))
    result = analyse_one(run, home)
    assert result.aggregated and not result.failures
    assert tables(home) == before


def test_flipped_bits_and_swapped_ranks_are_made_anew_and_named_until_then(own):
    """As a disk does it: neither size nor time changes."""
    run, home = own
    before = tables(home)
    first, second = sorted((home / "lake/kernels").rglob("*.parquet"))
    whole, times = first.read_bytes(), first.stat()
    for path in (first, second, home / "lake/microbatches/run=job/iteration=7/rank=1/part.parquet"):
        changed = bytearray(path.read_bytes() if path != first else second.read_bytes())
        changed[600] ^= path not in (first, second)
        former = path.stat()
        path.unlink()
        path.write_bytes(bytes(changed) if path != second else whole)
        os.utime(path, ns=(former.st_atime_ns, former.st_mtime_ns))
    assert times.st_mtime_ns == first.stat().st_mtime_ns
    told = traceviz("sql", "SELECT sum(duration_ns) FROM kernels", "--home", home, code=2)
    assert "table kernels, run job, iteration 7, rank 0: the file is damaged, or is not the one" in told.stderr
    result = analyse_one(run, home)
    assert (result.computed, result.aggregated, result.failures) == ([0, 1], True, [])
    assert tables(home) == before


def test_what_lacks_a_column_of_this_version_is_made_anew_and_kept_where_the_trace_is_gone(own):
    run, home = own
    lake = open_lake(home)
    place = Partition("job", 7, 1)

    def of_earlier_version() -> None:
        before = lake.content("gpu_gaps", run="job", iteration=7, rank=1)
        data = lake.table("gpu_gaps", "job", 7, 1).arrow(TABLES["gpu_gaps"].schema.names)
        data = data.set_column(0, data.schema.field(0), pa.nulls(len(data), data.schema.field(0).type))
        former = Content("", before.digest, (data.schema.names[0],), before.made)
        store_parts(lake.tables_folder, place, [(TABLES["gpu_gaps"], data)], former)

    before = tables(home)
    of_earlier_version()
    assert tables(home) != before
    assert analyse_one(run, home).computed == [1]
    assert tables(home) == before
    of_earlier_version()
    older = tables(home)
    (run / RANK_1).unlink()
    result = analyse_one(run, home)
    assert (result.computed, result.vanished) == ([], [1])
    assert "rank 1 cannot be made anew, as the trace is gone" in result.failures[0]
    kept = tables(home)
    assert kept.pop("lake/stale_tables/run=job/iteration=7/part.parquet") and kept == older


def test_a_home_that_was_copied_is_not_computed_again(own):
    run, home = own
    for path in (home / "lake").rglob("*.parquet"):
        os.utime(path)
    before = {path: path.stat().st_mtime_ns for path in (home / "lake").rglob("*.parquet")}
    result = analyse_one(run, home)
    assert (result.computed, result.skipped) == ([], [0, 1])
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.long
def test_analyses_start_together_on_a_new_home(tmp_path):
    home = tmp_path / "home"
    runs = [write_run(tmp_path / f"job{number}", world=2) for number in range(2)]
    command = [*PROGRAM, "analyze", "--home", str(home), "--workers", "1", "--json"]
    together = [
        subprocess.Popen([*command, str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for run in runs
    ]
    for process in together:
        out, err = process.communicate(timeout=500)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)[0]["aggregated"]
    assert len(open_lake(home).partitions("iterations")) == 2


def test_records_that_cannot_be_fixed_are_named_with_a_remedy(own):
    _, home = own
    with open_instance(home):
        pass
    (home / "dagster/history/runs.db").write_bytes(b"no database" * 1000)
    with pytest.raises(BadInputError, match="move the folder away"), open_instance(home):
        pass


def test_json_is_printed_on_faults_too(own, tmp_path):
    _, home = own
    for words in (["sql", "SELECT nothing", "--home", home], ["waits", tmp_path / "nowhere"], ["analyze"]):
        answer = json.loads(program(*words, "--json", code=2).stdout)
        assert answer["exit_code"] == 2 and answer["error"]


def test_a_reader_that_has_seen_enough_makes_no_failure(own):
    _, home = own
    query = "SELECT unnest(range(300000)) AS number"
    command = [*PROGRAM, "sql", query, "--home", str(home), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(3) == b"[\n{"
    process.stdout.close()
    assert (process.wait(timeout=120), process.stderr.read()) == (0, b"")


def test_printed_hints_are_words_of_a_shell(own):
    run, home = own
    printed = traceviz("analyze", run, "--home", home, "--workers", "1").stdout
    hint = next(line for line in printed.splitlines() if line.startswith("Next: "))
    assert shlex.split(hint.partition("traceviz findings ")[2]) == ["--home", str(home)]


@pytest.mark.long
def test_ctrl_c_says_what_is_done_and_how_to_go_on(tmp_path):
    run, home = write_run(tmp_path / "job", world=24), tmp_path / "home"
    command = [*PROGRAM, "analyze", str(run), "--home", str(home), "--workers", "2"]
    # Shells let what they start in the background ignore it, and so would the program.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    signal.signal(signal.SIGINT, before)
    end = time.monotonic() + 200
    while len(list((home / "lake").glob("overlap/*/*/*/part.parquet"))) < 1 and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 130, err
    assert "of 24 ranks of job@7 are done and kept; run the same command again" in err
    assert "Traceback" not in err


def test_an_unknown_table_is_still_the_users_fault(own):
    with pytest.raises(UsageError, match="there is no table kernel"):
        open_lake(own[1]).query("SELECT * FROM kernel")
