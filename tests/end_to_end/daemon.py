"""A real dagster-daemon on a home, which a test can kill and start again, on SQLite or on PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus

from assets.conventions import IN_FLIGHT
from tests.end_to_end.conftest import ALL_ASSETS
from traceviz_dag.orchestration.instance import open_instance, prepare_instance

POSTGRESQL_SETTINGS = Path(__file__).parents[2] / "deploy/dagster.postgresql.yaml"
PASSWORD_VARIABLE = "DAGSTER_PG_PASSWORD"
APT_LINE = "apt-get install -y postgresql"

# The daemon as it is, with shorter waits: its loops sleep between 5 and 30 s, which no setting changes.
_START = """
import dagster._daemon.asset_daemon as asset_daemon
import dagster._daemon.controller as controller
import dagster._daemon.sensor as sensor
asset_daemon.MIN_INTERVAL_LOOP_SECONDS = 1
controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 1
sensor.MIN_INTERVAL_LOOP_TIME = 1
from dagster._daemon.cli import cli
cli()
"""
# A run's process takes seconds to import Dagster and the libraries; here it forks from one that has them.
_SITE = """
import multiprocessing.context as context
fork = context._concrete_contexts["forkserver"]
fork.set_forkserver_preload(["dagster._grpc.server", "pyarrow.parquet", "pyarrow.compute", "duckdb", "numpy"])
context._concrete_contexts["spawn"] = fork
"""
_SETTINGS = """
automation_seconds = {seconds}
[sensor]
interval_seconds = {look_seconds}
deadline_minutes = {deadline_minutes}
[[watch]]
path = "{root}"
[figures]
automatic = {pictures}
"""


class Daemon:
    """A home, the folder that it watches, and the daemon that works on it."""

    def __init__(
        self, home: Path, root: Path, storage: dict[str, object] | None, pictures: bool = False, seconds: int = 4
    ) -> None:
        self.home, self.root, self.pictures, self.seconds = home, root, pictures, seconds
        self.folder = prepare_instance(home)
        self.log = home / "daemon.log"
        settings = yaml.safe_load((self.folder / "dagster.yaml").read_text())
        settings["run_monitoring"] |= {"poll_interval_seconds": 5, "start_timeout_seconds": 90}
        settings["run_coordinator"] = {
            "module": "dagster.core.run_coordinator",
            "class": "QueuedRunCoordinator",
            "config": {"dequeue_interval_seconds": 1},
        }
        if storage is not None:
            settings["storage"] = storage
        (self.folder / "dagster.yaml").write_text(yaml.safe_dump(settings))
        self.set_deadline(60)
        (home / "workspace.yaml").write_text("load_from: [{python_file: {relative_path: traceviz_location.py}}]")
        self.use_code("")
        self.site = home / "site"
        self.site.mkdir(exist_ok=True)
        (self.site / "sitecustomize.py").write_text(_SITE)
        self._process: subprocess.Popen[bytes] | None = None
        # Daemon and test would create the same tables at the same time, and one of them fail.
        with open_instance(home):
            pass

    def set_deadline(self, minutes: float) -> None:
        """How long an incomplete folder waits; the next tick reads it."""
        (self.home / "traceviz.toml").write_text(
            _SETTINGS.format(
                root=self.root,
                deadline_minutes=minutes,
                pictures=str(self.pictures).lower(),
                seconds=self.seconds,
                look_seconds=self.seconds // 4,
            )
        )

    def use_code(self, changes: str) -> None:
        """The code location: the project's definitions, after some changes to its modules."""
        (self.home / "traceviz_location.py").write_text(f"{changes}\nfrom traceviz_dag.definitions import defs\n")

    def start(self) -> None:
        """Start the daemon in a process group of its own."""
        environment = os.environ | {
            "DAGSTER_HOME": str(self.folder),
            "TRACEVIZ_HOME": str(self.home),
            "PYTHONPATH": os.pathsep.join([str(self.site), *(path for path in sys.path if path)]),
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, "run", "-w", str(self.home / "workspace.yaml")],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.home,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the daemon, its code server and its runs at once, as a power cut does."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        self._process = None

    def wait(self, what: str, holds: Callable[[dg.DagsterInstance], bool], seconds: float = 600) -> None:
        """Wait until something holds; fail with the end of the daemon's log where it does not."""
        deadline = time.monotonic() + seconds
        with open_instance(self.home) as instance:
            while not holds(instance):
                assert self._process is None or self._process.poll() is None, self.log.read_text()[-3000:]
                if time.monotonic() > deadline:
                    pytest.fail(f"not {what} after {seconds:g} s\n{told(instance)}\n{self.log.read_text()[-3000:]}")
                time.sleep(1)

    def wait_until_idle(self, what: str, expected: Collection[tuple[str, str]], since: int) -> None:
        """Wait until these partitions were materialised, nothing is under way, and automation looked twice since
        without finding more."""
        idle_since = 0.0
        missing: set[tuple[str, str]] = set()

        def holds(instance: dg.DagsterInstance) -> bool:
            nonlocal idle_since
            missing.clear()
            missing.update(set(expected) - news(instance, since).keys())
            if missing or is_busy(instance):
                idle_since = 0.0
                return False
            idle_since = idle_since or time.time()
            return looks_of_automation(instance, idle_since) >= 2

        try:
            self.wait(what, holds)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error.msg}\nmissing: {sorted(missing)}")


def told(instance: dg.DagsterInstance) -> str:
    """All runs, a line each, and the requested backfills, for whoever reads why a wait did not end."""
    runs = [
        f"run {run.run_id[:8]} {run.status.value} {sorted(key.to_user_string() for key in run.asset_selection or ())} "
        f"{run.tags.get('dagster/partition', '')} {run.tags.get('dagster/parent_run_id', '')[:8]}"
        for run in instance.get_runs()
    ]
    backfills = [f"backfill {one.backfill_id} {one.status.value}" for one in instance.get_backfills()]
    return "\n".join([*runs, *backfills])


def is_busy(instance: dg.DagsterInstance) -> bool:
    """Whether a run or a backfill is under way."""
    if instance.get_runs_count(dg.RunsFilter(statuses=IN_FLIGHT)):
        return True
    return bool(instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED]), limit=1))


def looks_of_automation(instance: dg.DagsterInstance, since: float) -> int:
    """How many ticks of the automation sensor began after a time and have ended."""
    found = [state for state in instance.all_instigator_state() if state.instigator_name == "automation"]
    ticks = [
        tick
        for state in found
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since, limit=5)
    ]
    return sum(tick.end_timestamp is not None for tick in ticks)


def news(instance: dg.DagsterInstance, since: int) -> Counter[tuple[str, str]]:
    """The (asset, partition) that were materialised after an event, and how often."""
    found: Counter[tuple[str, str]] = Counter()
    for asset in ALL_ASSETS:
        records_filter = dg.AssetRecordsFilter(dg.AssetKey(asset), after_storage_id=since)
        for record in instance.fetch_materializations(records_filter, limit=1000).records:
            found[(asset, str(record.partition_key))] += 1
    return found


def position(instance: dg.DagsterInstance) -> int:
    """The last materialization that is recorded so far."""
    return max(
        (
            storage_id
            for asset in ALL_ASSETS
            for storage_id in instance.get_latest_storage_id_by_partition(
                dg.AssetKey(asset), dg.DagsterEventType.ASSET_MATERIALIZATION
            ).values()
        ),
        default=0,
    )


def postgresql_programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where PostgreSQL is not installed."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed[-1].parent if installed else None


@contextmanager
def running_postgresql(programs: Path) -> Iterator[dict[str, object]]:
    """A server of its own on a free port, ended and deleted after; yields the storage section of a dagster.yaml."""
    folder = Path(tempfile.mkdtemp(prefix="traceviz-postgresql-"))
    # The server refuses to run as root, where containers often run tests.
    become = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if become:
        shutil.chown(folder, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command = [*become, str(programs / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=folder)

    try:
        run("initdb", "-D", str(data), "-U", "dagster", "--auth=trust", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        section = yaml.safe_load(POSTGRESQL_SETTINGS.read_text())["storage"]
        section["postgres"]["postgres_db"] |= {"hostname": "127.0.0.1", "port": port, "db_name": "postgres"}
        yield section
    finally:
        if (data / "postmaster.pid").exists():
            run("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def daemon_over_an_empty_folder(
    folder: Path, storage: dict[str, object] | None = None, pictures: bool = False, seconds: int = 4
) -> Iterator[Daemon]:
    """A daemon that is not started yet; whatever of it still runs is killed in the end.

    Args:
        seconds: between two looks of automation; each takes a second of processor time.
    """
    root = folder / "runs"
    root.mkdir()
    one = Daemon(folder / "home", root, storage, pictures, seconds)
    try:
        yield one
    finally:
        one.kill()
