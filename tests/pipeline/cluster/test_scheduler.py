"""A scheduler that somebody else started: unfit workers are named, and what is given up stops there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_process import ranks_in_this_process
from tests.pipeline.cluster import works
from tests.pipeline.cluster.servers import Servers, servers, tables, waited_for
from tests.small_run import write_run
from traceviz_dag.errors import ClusterError
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.cluster.clients import scheduler_address
from traceviz_dag.pipeline.cluster.opening import open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.system.processes import WorkerDiedError

pytestmark = pytest.mark.long

WITHOUT_TRACEVIZ = "import sys\nsys.modules['traceviz_dag'] = None\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with servers(tmp_path_factory.mktemp("cluster") / "servers") as started:
        started.worker("one")
        yield started


def test_traceviz_analyze_uses_it_and_gets_the_same_tables(running: Servers, tmp_path: Path):
    run = write_run(tmp_path / "job")
    with ranks_in_this_process():
        analyse(AnalysisSettings(tmp_path / "home"), inputs_below([run]))
    files = "".join(running.settings.read_text().splitlines(keepends=True)[1:])
    by_address = running.folder / "address.toml"
    by_address.write_text(f'address = "{scheduler_address(running.file)}"\n{files}')
    for number, settings in enumerate((running.settings, by_address)):
        home = tmp_path / f"home{number}"
        command = [Path(sys.executable).with_name("traceviz"), "analyze", run, "--home", home, "--cluster", settings]
        told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert told.returncode == 0 and not told.stderr, told.stderr
        assert len(tables(home)) > 20 and tables(home) == tables(tmp_path / "home")


def test_a_worker_without_this_program_is_named(running: Servers, tmp_path: Path):
    preload = tmp_path / "without.py"
    preload.write_text(WITHOUT_TRACEVIZ)
    started = running.worker("bare", f"--preload={preload}")
    try:
        with (
            open_cluster(str(running.settings), tmp_path / "home") as engine,
            pytest.raises(
                ClusterError, match=r"worker tls://.*: cannot run traceviz \(.*\); install traceviz .* on each"
            ),
        ):
            list(engine.spread(works.double, works.traces(tmp_path / "t", 2), None, (tmp_path,)))
    finally:
        ended(started)


DIES_OF_TRACEVIZ = """
import os
import sys

class Ends:
    def find_spec(self, name, *_):
        if name == "traceviz_dag":
            os._exit(1)

sys.meta_path.insert(0, Ends())
"""


def test_a_worker_that_dies_of_the_question_costs_nothing_beside_others(running: Servers, tmp_path: Path):
    preload = tmp_path / "dies.py"
    preload.write_text(DIES_OF_TRACEVIZ)
    started = running.worker("dies", f"--preload={preload}")
    try:
        with open_cluster(str(running.settings), tmp_path / "home") as engine:
            outcomes = dict(engine.spread(works.double, works.traces(tmp_path / "t", 2), None, (tmp_path,)))
    finally:
        ended(started)
    assert sorted(outcomes) == [0, 1]


def ended(worker: subprocess.Popen[bytes]) -> None:
    os.killpg(worker.pid, signal.SIGTERM)
    worker.wait(20)


def without(folder: Path) -> tuple[str, ...]:
    """A shell that sees another folder in the place of one, as on a machine that has another disk."""
    command = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting needs root")
    return command


@pytest.mark.parametrize(
    ("unseen", "told"),
    [
        ("home", "cannot write to .*/home, or has another folder there; have each worker see the home there"),
        ("t", r"cannot read .*/t/.*json; have each worker see the traces at the same path"),
    ],
)
def test_a_worker_that_does_not_see_home_or_traces_is_named(running: Servers, tmp_path: Path, unseen: str, told: str):
    (tmp_path / "home").mkdir()
    items = works.traces(tmp_path / "t", 2)
    started = running.worker(f"without-{unseen}", before=without(tmp_path / unseen))
    try:
        with (
            open_cluster(str(running.settings), tmp_path / "home") as engine,
            pytest.raises(ClusterError, match=f"worker tls://127.0.0.1:.*: {told}"),
        ):
            list(engine.spread(works.double, items, None, (tmp_path,)))
    finally:
        ended(started)


def test_an_unfit_worker_that_joins_later_is_not_used(running: Servers, tmp_path: Path):
    (tmp_path / "home").mkdir()
    items, later = works.traces(tmp_path / "t", 40), []

    def join() -> None:
        assert waited_for(lambda: list(tmp_path.glob("[0-9]*")))
        later.append(running.worker("late", before=without(tmp_path / "home")))

    joining = threading.Thread(target=join)
    joining.start()
    with open_cluster(str(running.settings), tmp_path / "home") as engine:
        outcomes = dict(engine.spread(works.complain_about_the_first, items[1:], None, (tmp_path,)))
    joining.join()
    assert sorted(outcome.rank for outcome in outcomes.values()) == list(range(1, 40))
    assert waited_for(lambda: later[0].poll() is not None), "it is retired"
    assert {path.name for path in tmp_path.glob("[0-9]*")} == {str(rank) for rank in range(1, 40)}


STOPPED = """
import signal
import sys
from pathlib import Path
from tests.pipeline.cluster import works
from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.pipeline.cluster.opening import open_cluster

folder = Path(sys.argv[1])
end_on(signal.SIGTERM)
with open_cluster(sys.argv[2], folder / "home") as engine:
    list(engine.spread(works.sleep_long, works.traces(folder / "t", 4), None, (folder,)))
"""


def test_what_is_given_up_stops_and_the_cluster_goes_on(running: Servers, tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-c", STOPPED, tmp_path, running.settings]
    started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    assert waited_for(lambda: list(tmp_path.glob("*.began")))
    started.terminate()
    assert b"KeyboardInterrupt" in started.communicate(timeout=60)[1]
    (began,) = tmp_path.glob("*.began")
    assert waited_for(lambda: not Path(f"/proc/{began.name.split('.')[1]}").exists(), 5), "the rank goes on"
    with open_cluster(str(running.settings), tmp_path / "home") as engine:
        assert len(dict(engine.spread(works.double, works.traces(tmp_path / "t", 4), None, (tmp_path,)))) == 4


def test_a_rank_that_kills_workers_is_told_as_in_the_local_pool(running: Servers, tmp_path: Path):
    with open_cluster(str(running.settings), tmp_path / "home") as engine:
        items = works.traces(tmp_path / "t", 5)
        outcomes = dict(engine.spread(works.die_or_double, items, None, (tmp_path,)))
    assert isinstance(outcomes.pop(3), WorkerDiedError) and sorted(outcomes) == [0, 1, 2, 4]


def test_a_cluster_without_workers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("traceviz_dag.pipeline.cluster.engine._NO_WORKERS_SECONDS", 1)
    with (
        servers(tmp_path / "servers") as mine,
        open_cluster(str(mine.settings), tmp_path / "home") as engine,
        pytest.raises(ClusterError, match="has no workers; start some and run it again"),
    ):
        list(engine.spread(works.double, works.traces(tmp_path / "t", 1), None, (tmp_path,)))


def test_a_scheduler_that_goes_is_told_and_later_iterations_do_not_wait_for_it(tmp_path: Path):
    with servers(tmp_path / "servers") as mine:
        mine.worker("one")
        items = works.traces(tmp_path / "t", 2)

        def kill() -> None:
            assert waited_for(lambda: list(tmp_path.glob("*.began")))
            os.killpg(mine.scheduler.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with open_cluster(str(mine.settings), tmp_path / "home") as engine:
            for _ in range(2):
                with pytest.raises(ClusterError, match="its scheduler is gone, or was started anew; see its log"):
                    list(engine.spread(works.sleep_long, items, None, (tmp_path,)))
        killer.join()
