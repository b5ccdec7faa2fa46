"""A cluster of this machine: the tables of the local pool, a death costs at most its rank, nothing listens outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pipeline.cluster import works
from tests.pipeline.cluster.servers import SECONDS, tables, waited_for
from tests.small_run import write_run
from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.cluster.opening import open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.engines import Engine
from traceviz_dag.read.stated_bounds import RANKS_IN_ONE_PIECE, ROWS
from traceviz_dag.system.processes import WorkerDiedError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "home"


@pytest.fixture(scope="module")
def engine(home: Path) -> Iterator[Engine]:
    with open_cluster("local", home, workers=2) as opened:
        yield opened


def test_tables_equal_those_of_processes_byte_for_byte(
    home: Path, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = write_run(tmp_path / "job")
    (run / "iteration_7/rank_0003_iter_7.pt.trace.json").write_text("{")
    here = analyse(AnalysisSettings(tmp_path / "home", workers=1), inputs_below([run]))
    monkeypatch.setenv(RANKS_IN_ONE_PIECE.variable, "1")
    there = analyse(AnalysisSettings(home, engine=engine), inputs_below([run]))
    assert len(tables(home)) > 20 and tables(home) == tables(tmp_path / "home")
    assert [result.failed for result in there] == [result.failed for result in here] == [[3]]
    again = analyse(AnalysisSettings(home, engine=engine), inputs_below([run]))
    assert again[0].skipped == [0, 1, 2], "what is current is not sent"
    assert not (home / "cluster").exists()


@pytest.mark.long
def test_a_worker_that_dies_costs_at_most_the_rank_that_kills_it(engine: Engine, tmp_path: Path):
    outcomes = dict(engine.spread(works.die_or_double, works.traces(tmp_path / "t", 6), None, (tmp_path,)))
    assert isinstance(outcomes.pop(3), WorkerDiedError)
    assert {number: outcome.facts["double"] for number, outcome in outcomes.items()} == {0: 0, 1: 2, 2: 4, 4: 8, 5: 10}
    assert (tmp_path / "3").read_text() == "died\n" * 2, "in company, and alone"


@pytest.mark.long
def test_a_rank_whose_worker_is_killed_goes_elsewhere(engine: Engine, tmp_path: Path):
    def kill() -> None:
        assert waited_for(lambda: list(tmp_path.glob("0.*.began")))
        os.kill(int(next(tmp_path.glob("0.*.began")).name.split(".")[1]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    outcomes = dict(engine.spread(works.wait_for_death, works.traces(tmp_path / "t", 3), None, (tmp_path,)))
    killer.join()
    assert {number: outcome.facts["double"] for number, outcome in outcomes.items()} == {0: 0, 1: 2, 2: 4}


@pytest.mark.long
def test_an_error_of_the_work_is_raised_and_what_waits_is_not_begun(engine: Engine, tmp_path: Path):
    numbers = []
    with pytest.raises(OSError, match="No space left on device"):
        for number, _ in engine.spread(works.complain_about_the_first, works.traces(tmp_path / "t", 6), 2, (tmp_path,)):
            numbers.append(number)
    assert len(numbers) < 3 and {path.name for path in tmp_path.glob("[0-9]")} == {str(number) for number in numbers}


def test_bounds_that_the_user_states_hold_in_workers_for_as_long_as_they_are_stated(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = []
    for stated in ("12345", ""):
        monkeypatch.setenv(ROWS.variable, stated)
        (outcome,) = dict(engine.spread(works.stated_rows, works.traces(tmp_path / "t", 1), None, (tmp_path,))).values()
        found.append(outcome.facts["rows"])
    assert found == [12345, ROWS.default]


def test_nothing_listens_beyond_loopback_and_nobody_without_the_key_is_answered(engine: Engine, tmp_path: Path):
    import distributed

    list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))
    me = psutil.Process()
    open_ports = [one for each in (me, *me.children(recursive=True)) for one in each.net_connections("tcp")]
    listening = {one.laddr for one in open_ports if one.status == psutil.CONN_LISTEN}
    assert listening and {place.ip for place in listening} == {"127.0.0.1"}
    address = engine._client.scheduler.address
    assert address.startswith("tls://")
    for security in (None, distributed.Security.temporary()):
        with pytest.raises((OSError, TimeoutError)):
            distributed.Client(address.replace("tls", "tls" if security else "tcp"), security=security, timeout=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("fitness.program = lambda: 'traceviz 0.0'", "has traceviz 0.0, and traceviz .* is needed; install the same"),
        (
            "fitness._can_lock = lambda _: True",
            "does not see that files of .* are locked elsewhere; mount it with locks",
        ),
        ("fitness.load_rules = lambda: type('Rules', (), {'digest': ''})", "other built-in rules; install the same"),
    ],
)
def test_an_unlike_worker_is_named_with_what_to_do(engine: Engine, tmp_path: Path, change: str, told: str):
    client = engine._client
    client.run(exec, f"from traceviz_dag.pipeline.cluster import fitness\n{change}", {})
    try:
        with pytest.raises(ClusterError, match=f"worker tls://127.0.0.1:.*{told}"):
            list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))
        with pytest.raises(ClusterError, match=told):
            list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))
    finally:
        engine._failure = None
        # As it was. Dask's restart waits two minutes for workers that under load may not come back.
        again = "import importlib\nfrom traceviz_dag.pipeline.cluster import fitness\nimportlib.reload(fitness)"
        client.run(exec, again, {})


STOPPED = """
import sys
from pathlib import Path
import signal
from tests.pipeline.cluster import works
from tests.pipeline.cluster.servers import SECONDS, tables, waited_for
from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.pipeline.cluster.opening import open_cluster

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    # A shell that runs the tests in the background has it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on(signal.SIGTERM)
    with open_cluster("local", folder / "home", workers=2) as engine:
        list(engine.spread(works.sleep_long, works.traces(folder / "t", 4), None, (folder,)))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "hangs"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGKILL, False)],
)
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals, hangs: bool):
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    started = subprocess.Popen(
        [sys.executable, script, tmp_path], env=environment, stderr=subprocess.PIPE, start_new_session=True
    )
    assert waited_for(lambda: len(list(tmp_path.glob("*.began"))) == 2)
    workers = [int(path.name.split(".")[1]) for path in tmp_path.glob("*.began")]
    if hangs:
        os.kill(workers[0], signal.SIGSTOP)
    if number == signal.SIGINT:
        os.killpg(started.pid, number)
    else:
        started.send_signal(number)
    assert started.communicate(timeout=SECONDS)
    assert waited_for(lambda: not any(psutil.pid_exists(worker) for worker in workers), 5)
    assert not list(tmp_path.glob("*.ended"))


@pytest.mark.long
def test_ctrl_c_while_workers_start_ends_them_and_prints_nothing_of_dask(tmp_path: Path):
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    started = subprocess.Popen(
        [sys.executable, script, tmp_path], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )

    def workers() -> list[psutil.Process]:
        return [one for one in psutil.Process(started.pid).children() if "spawn_main" in " ".join(one.cmdline())]

    assert waited_for(lambda: len(workers()) == 2)
    begun = workers()
    started.send_signal(signal.SIGINT)
    told = started.communicate(timeout=SECONDS)[1]
    assert told.rstrip().endswith("KeyboardInterrupt")
    assert "atexit" not in told
    assert waited_for(lambda: not any(psutil.pid_exists(one.pid) for one in begun), 5)
    assert not list(tmp_path.glob("*.began"))
