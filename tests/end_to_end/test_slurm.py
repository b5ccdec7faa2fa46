"""A real Slurm on loopback: the tables of the local pool, and no job that outlives the one who wanted it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.in_process import ranks_in_this_process
from tests.pipeline.cluster import works
from tests.pipeline.cluster.servers import tables, waited_for
from tests.slurm import missing, slurm
from tests.small_run import write_run
from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.cluster import job_array
from traceviz_dag.pipeline.cluster.opening import open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.read.stated_bounds import RANKS_IN_ONE_PIECE
from traceviz_dag.system.processes import WorkerDiedError

REQUIRED = "TRACEVIZ_REQUIRE_SLURM"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        bool(missing() or os.geteuid()) and not os.environ.get(REQUIRED),
        reason="needs root, and Debian's slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins and munge",
    ),
]
SETTINGS = '[slurm]\nworkers = 2\nmemory = "1G"\ntime = "10"\ninterface = "lo"\n'
ARRAY = SETTINGS.replace('interface = "lo"', "array = true")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm(tmp_path_factory.mktemp("slurm") / "files") as started:
        yield started | {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def settings(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("SLURM_CONF", "PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    path = tmp_path / "slurm.toml"
    path.write_text(SETTINGS)
    return path


@pytest.fixture
def arrays(settings: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job_array, "_ASK_SECONDS", 1)
    monkeypatch.setattr(job_array, "_SEEN_SECONDS", 3)
    settings.write_text(ARRAY)
    return settings


def jobs() -> list[str]:
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("is_array", [False, True])
def test_traceviz_analyze_starts_a_job_gets_the_same_tables_and_ends_it(
    settings: Path, tmp_path: Path, is_array: bool, monkeypatch: pytest.MonkeyPatch
):
    # Each would make a job without TLS, one that is never heard of, or several that are one.
    for name, value in (("SBATCH_EXPORT", "NONE"), ("SBATCH_WAIT", "1"), ("SBATCH_ARRAY_INX", "0-1")):
        monkeypatch.setenv(name, value)
    settings.write_text(SETTINGS + 'options = ["--export=NONE"]\n')
    if is_array:
        settings.write_text(ARRAY)
        (tmp_path / "without").mkdir()
        (tmp_path / "without/distributed.py").write_text("raise ModuleNotFoundError\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'without'}:{os.environ['PYTHONPATH']}")
        monkeypatch.setenv(RANKS_IN_ONE_PIECE.variable, "1")
    run, home = write_run(tmp_path / "job"), tmp_path / 'home #1 "%j"'
    with ranks_in_this_process():
        analyse(AnalysisSettings(tmp_path / "here"), inputs_below([run]))
    command = [Path(sys.executable).with_name("traceviz"), "analyze", run, "--home", home, "--cluster", settings]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0, told.stderr
    assert len(tables(home)) > 20 and tables(home) == tables(tmp_path / "here")
    (log,) = (home / "logs").glob("slurm_*.log")
    assert str(log) in told.stderr and ("Registered to" in log.read_text()) is not is_array
    assert not (home / "cluster").exists(), "nobody needs what the job had there any more"
    assert waited_for(lambda: not jobs())
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert again.returncode == 0 and not again.stderr, "no job for what is current"


def test_a_killed_worker_and_a_killed_rank_cost_what_they_cost_elsewhere(settings: Path, tmp_path: Path):
    def kill() -> None:
        assert waited_for(lambda: list(tmp_path.glob("0.*.began")))
        os.kill(int(next(tmp_path.glob("0.*.began")).name.split(".")[1]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with open_cluster(str(settings), tmp_path / "home") as engine:
        items = works.traces(tmp_path / "t", 4)
        outcomes = dict(engine.spread(works.wait_for_death, items, None, (tmp_path,)))
        (folder,) = (tmp_path / "home/cluster").iterdir()
        assert [path.name for path in folder.iterdir()] == ["scheduler.json"], "no key, which somebody could exchange"
    killer.join()
    assert {number: outcome.facts["double"] for number, outcome in outcomes.items()} == {0: 0, 1: 2, 2: 4, 3: 6}
    assert waited_for(lambda: not jobs())


STOPPED = """
import signal
import sys
from pathlib import Path
from tests.pipeline.cluster import works
from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.pipeline.cluster.opening import open_cluster

folder = Path(sys.argv[1])
end_on(signal.SIGTERM)
with open_cluster(sys.argv[2], folder / "home", tell=lambda line: print(line, flush=True)) as engine:
    list(engine.spread(works.sleep_long, works.traces(folder / "t", 4), None, (folder,)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_job_ends_with_the_process_that_wanted_it(settings: Path, tmp_path: Path, number: signal.Signals):
    started = subprocess.Popen([sys.executable, "-c", STOPPED, tmp_path, settings], stderr=subprocess.DEVNULL)
    assert waited_for(lambda: len(list(tmp_path.glob("*.began"))) == 2)
    started.send_signal(number)
    started.wait(30)
    assert waited_for(lambda: not jobs())
    assert not list(tmp_path.glob("*.ended"))


def test_a_job_whose_number_is_not_known_yet_is_cancelled(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    slow = tmp_path / "sbatch"
    slow.write_text(f'#!/bin/bash\n{shutil.which("sbatch")} "$@"\nsleep 60\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    started = subprocess.Popen([sys.executable, "-c", STOPPED, tmp_path, arrays], stderr=subprocess.DEVNULL)
    assert waited_for(jobs)
    started.terminate()
    started.wait(30)
    assert waited_for(lambda: not jobs())


def test_a_job_that_waits_says_why_and_is_cancelled(settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    settings.write_text(SETTINGS + 'options = ["--begin=now+1hour"]\n')
    command = [sys.executable, "-c", STOPPED, tmp_path, settings]
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    told = [started.stdout.readline(), started.stdout.readline()]
    assert "writes to" in told[0] and "waits: BeginTime" in told[1]
    started.terminate()
    started.wait(30)
    assert waited_for(lambda: not jobs())


def test_a_job_that_is_cancelled_or_refused_is_told(settings: Path, tmp_path: Path):
    def cancel() -> None:
        assert waited_for(lambda: list(tmp_path.glob("*.began")))
        subprocess.run(["scancel", "--user=root"], check=True)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    items = works.traces(tmp_path / "t", 2)
    with (
        open_cluster(str(settings), tmp_path / "home") as engine,
        pytest.raises(ClusterError, match="its scheduler is gone, or was started anew; see its log"),
    ):
        list(engine.spread(works.sleep_long, items, None, (tmp_path,)))
    canceller.join()
    settings.write_text(SETTINGS + 'partition = "nowhere"\n')
    with (
        open_cluster(str(settings), tmp_path / "home") as engine,
        pytest.raises(ClusterError, match=r"Slurm: refuses the job \(.*nowhere.*|Slurm: refuses the job \(.*partition"),
    ):
        list(engine.spread(works.double, items, None, (tmp_path,)))
    settings.write_text(ARRAY + 'options = ["--test-only"]\n')
    with open_cluster(str(settings), tmp_path / "home") as engine, pytest.raises(ClusterError, match="refuses the job"):
        list(engine.spread(works.double, items, None, (tmp_path,)))
    assert waited_for(lambda: not jobs())


def test_a_task_of_an_array_that_is_cancelled_costs_at_most_the_rank_that_has_it_cancelled(
    arrays: Path, tmp_path: Path
):
    told: list[str] = []
    with open_cluster(str(arrays), tmp_path / "home", tell=told.append) as engine:
        items = works.traces(tmp_path / "t", 5)
        outcomes = dict(engine.spread(works.die_with_its_task, items, None, (tmp_path,)))
    lost = outcomes.pop(1)
    assert isinstance(lost, WorkerDiedError) and "twice: for want of memory, or cancelled, or" in str(lost)
    assert {number: outcome.facts["double"] for number, outcome in outcomes.items()} == {0: 0, 2: 4, 3: 6, 4: 8}
    assert (tmp_path / "1").read_text() == "died\n" * 2, "in company, and alone"
    assert sum("writes to" in line for line in told) == 2
    assert not (tmp_path / "home/cluster").exists() and waited_for(lambda: not jobs())


def test_a_rank_whose_process_dies_or_complains_is_told_as_in_the_local_pool(arrays: Path, tmp_path: Path):
    arrays.write_text(ARRAY + "ranks_per_worker = 2\n")
    with open_cluster(str(arrays), tmp_path / "home") as engine:
        items = works.traces(tmp_path / "t", 6)
        outcomes = dict(engine.spread(works.die_or_double, items, None, (tmp_path,)))
        assert isinstance(outcomes.pop(3), WorkerDiedError)
        assert [outcomes[number].facts["double"] for number in (0, 1, 2, 4, 5)] == [0, 2, 4, 8, 10]
        (tmp_path / "marks").mkdir()
        with pytest.raises(OSError, match="No space left on device"):
            list(engine.spread(works.complain_about_the_first, items, 1, (tmp_path / "marks",)))
        assert not list((tmp_path / "marks").iterdir()), "what waits is not begun"


def test_a_node_that_does_not_see_the_traces_is_named(arrays: Path, tmp_path: Path):
    items = works.traces(tmp_path / "t", 2)
    with (
        open_cluster(str(arrays), tmp_path / "home", tell=lambda _: items[1].path.unlink(missing_ok=True)) as engine,
        pytest.raises(ClusterError, match=r"node .*: cannot read .*/t/1.json; have each worker see the traces at"),
    ):
        list(engine.spread(works.double, items, None, (tmp_path,)))


def test_an_array_opens_no_port_and_its_files_are_for_its_owner_alone(arrays: Path, tmp_path: Path):
    looked: list[list[object]] = []
    with open_cluster(str(arrays), tmp_path / "home") as engine:
        for _ in engine.spread(works.take_a_while, works.traces(tmp_path / "t", 4), None, (tmp_path,)):
            mine = [
                one
                for one in psutil.process_iter(["cmdline"])
                if job_array.__name__ in (words := " ".join(one.info["cmdline"] or ())) and str(tmp_path) in words
            ]
            assert len(mine) < 3
            for each in {child for one in mine for child in (one, *one.children(recursive=True))}:
                with suppress(psutil.NoSuchProcess):
                    looked.append(each.net_connections("inet"))
            (folder,) = (path for path in (tmp_path / "home/cluster").iterdir() if path.is_dir())
            assert folder.stat().st_mode & 0o077 == 0
    assert len(looked) > 2 and not any(looked)


def test_an_array_that_is_cancelled_whole_is_told_and_ends(arrays: Path, tmp_path: Path):
    def cancel(line: str) -> None:
        if "writes to" in line:
            subprocess.run(["scancel", "--user=root"], check=True)

    with (
        open_cluster(str(arrays), tmp_path / "home", tell=cancel) as engine,
        pytest.raises(ClusterError, match="Slurm: job arrays ended without a finished rank; see their logs in"),
    ):
        list(engine.spread(works.double, works.traces(tmp_path / "t", 2), None, (tmp_path,)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_array_ends_with_the_process_that_wanted_it(arrays: Path, tmp_path: Path, number: signal.Signals):
    script = STOPPED.replace("sleep_long", "take_a_while").replace("4)", "40)")
    started = subprocess.Popen([sys.executable, "-c", script, tmp_path, arrays], stderr=subprocess.DEVNULL)
    assert waited_for(lambda: len(list(tmp_path.glob("*.began"))) == 2)
    started.send_signal(number)
    started.wait(30)
    assert waited_for(lambda: not jobs())
    begun = list(tmp_path.glob("*.began"))
    # A killed process cancels nothing: ranks under way end, and what is nobody's any more stays in the home.
    assert len(begun) == 2 and len(list(tmp_path.glob("*.ended"))) == (2 if number == signal.SIGKILL else 0)
    assert (tmp_path / "home/cluster").exists() is (number == signal.SIGKILL)


def test_a_job_that_calls_it_takes_its_array_along_when_it_is_cancelled(arrays: Path, tmp_path: Path):
    (tmp_path / "outer.py").write_text(STOPPED)
    outer = f"srun {shlex.quote(sys.executable)} {tmp_path / 'outer.py'} {tmp_path} {arrays}"
    submit = ["sbatch", "--parsable", "-c", "1", "--mem=100M", f"--output={tmp_path / 'outer.log'}", "--wrap", outer]
    number = subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()
    assert waited_for(lambda: len(list(tmp_path.glob("*.began"))) == 2)
    subprocess.run(["scancel", number], check=True)
    assert waited_for(lambda: not jobs())
    assert not list(tmp_path.glob("*.ended")) and not (tmp_path / "home/cluster").exists()
