"""What must happen by itself: a daemon over folders that appear, change, come late, are broken, while it is killed.

One daemon serves all scenarios side by side, each in a run of its own; each asserts the exact set of (asset, partition)
that was materialised, and that nothing was materialised twice.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import dagster as dg

from assets.conventions import IN_FLIGHT
from sensors.ledger import FolderState, read_ledger
from tests.end_to_end.conftest import ITERATION_ASSETS, RANK_ASSETS, TOPOLOGY_ASSETS
from tests.end_to_end.daemon import Daemon, news, position
from tests.small_run import rank_file
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.under_way import analyses
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.tables import TOPOLOGY_TABLES

Partitions = set[tuple[str, str]]
NEW_CODE = """
import traceviz_dag.pipeline.made
traceviz_dag.pipeline.made.CODE_VERSION += "-next"
"""


def trace(root: Path, run: str, rank: int, iteration: int = 7) -> Path:
    return root / run / f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"


def write(root: Path, run: str, *ranks: int, iteration: int = 7, scale: int = 1, microbatches: int = 2) -> None:
    """Traces of a job of two ranks."""
    for rank in ranks:
        file = rank_file(rank, 2, step=iteration, scale=scale, microbatches=microbatches)
        path = trace(root, run, rank, iteration)
        file.write(path.with_name(f".{path.name}")).rename(path)


def whole(key: str, *ranks: int) -> Partitions:
    """Everything of an iteration, with the rank tables of these ranks."""
    return of_topology(key) | of_ranks(key, *ranks) | of_iteration(key)


def of_ranks(key: str, *ranks: int) -> Partitions:
    return {(asset, f"{key}|{rank:04d}") for asset in RANK_ASSETS for rank in ranks}


def of_iteration(key: str) -> Partitions:
    return {(asset, key) for asset in ITERATION_ASSETS}


def of_topology(key: str) -> Partitions:
    return {(asset, key) for asset in TOPOLOGY_ASSETS}


def once(expected: Partitions) -> Counter[tuple[str, str]]:
    return Counter(expected)


def runs_by_itself(daemon: Daemon, *, every: bool = False) -> None:
    """The scenarios one after the other on one daemon.

    Args:
        every: all of them, as ``benchmarks/automation.py`` runs them on both storages; else those that no test without
            a daemon can show.
    """
    _cold_start_and_a_half_written_folder(daemon)
    if every:
        _changed_rank_failed_rank_and_the_deadline(daemon)
    _late_rank_fixed_rank_and_a_new_folder_while_everything_is_killed(daemon)
    if every:
        _new_code(daemon)
    _every_run_is_accounted_for(daemon)


def _cold_start_and_a_half_written_folder(daemon: Daemon) -> None:
    """Three folders are there before the daemon: a whole one, a half-written one, and one that is short of a rank."""
    root = daemon.root
    write(root, "cold", 0, 1)
    write(root, "half", 0, 1)
    text = trace(root, "half", 1).read_text()
    trace(root, "half", 1).write_text(text[: len(text) // 2])
    write(root, "late", 0)
    daemon.start()
    expected = whole("cold@7", 0, 1)
    daemon.wait_until_idle("cold start", expected, since=0)
    ledger = read_ledger(daemon.home)
    half, late = (ledger[str(root / run / "iteration_7")] for run in ("half", "late"))
    assert half.state is FolderState.WAITING and "still being written" in half.reason
    assert late.state is FolderState.WAITING and "lacks ranks [1]" in late.reason
    with open_instance(daemon.home) as instance:
        assert news(instance, 0) == once(expected)


def _changed_rank_failed_rank_and_the_deadline(daemon: Daemon) -> None:
    """A rank changes; the half-written trace turns out broken; nothing comes for the folder that is short of a rank."""
    root = daemon.root
    with open_instance(daemon.home) as instance:
        since = position(instance)
    write(root, "cold", 1, scale=2)
    trace(root, "half", 1).write_text('{"traceEvents": "none"}')
    daemon.set_deadline(0.5)
    expected = of_topology("cold@7") | of_ranks("cold@7", 1) | of_iteration("cold@7")
    expected |= of_topology("half@7") | of_ranks("half@7", 0)
    expected |= whole("late@7", 0)
    daemon.wait_until_idle("what changed", expected, since)
    with open_instance(daemon.home) as instance:
        assert news(instance, since) == once(expected)
    flags = open_lake(daemon.home).query("SELECT run, partial FROM iterations ORDER BY run").to_pylist()
    assert flags == [{"run": "cold", "partial": False}, {"run": "late", "partial": True}]


def _late_rank_fixed_rank_and_a_new_folder_while_everything_is_killed(daemon: Daemon) -> None:
    """Everything dies while a new iteration is computed, something changes meanwhile; nothing is lost or done twice.

    Meanwhile the traces of another iteration get a new time of change and keep their content.
    """
    root = daemon.root
    touched = str(root / "cold/iteration_7")
    before = read_ledger(daemon.home)[touched]
    with open_instance(daemon.home) as instance:
        since = position(instance)
    write(root, "new", 0, 1, microbatches=5000)

    daemon.wait("it is computed", lambda _: any(one.key == "new@7" for one in analyses(daemon.home)))
    daemon.kill()
    write(root, "late", 1)
    write(root, "half", 1)
    for rank in (0, 1):
        os.utime(trace(root, "cold", rank))
    daemon.start()
    # What the headers of the late and of the fixed rank say of groups is new to the other rank, too.
    expected = whole("new@7", 0, 1) | whole("late@7", 0, 1) | whole("half@7", 0, 1)
    daemon.wait_until_idle("all after the restart", expected, since)
    assert read_ledger(daemon.home)[touched].digest != before.digest, "it was looked at again"
    with open_instance(daemon.home) as instance:
        found = news(instance, since)
        assert found.keys() == expected
        # What the killed run had made before the ranks may be recorded by itself, and again with these.
        topology = {(name, "new@7") for name in TOPOLOGY_TABLES}
        assert {one for one, count in found.items() if count > 1} <= topology, "a killed run records nothing"
        assert [run for run in instance.get_runs() if run.parent_run_id], "the killed run was tried again"
    assert open_lake(daemon.home).query("SELECT run FROM iterations WHERE partial").num_rows == 0


def _new_code(daemon: Daemon) -> None:
    """Other code, deployed while the daemon is down: everything that stands is computed again, and nothing else."""
    with open_instance(daemon.home) as instance:
        everything = set(news(instance, 0))
        since = position(instance)
    daemon.kill()
    daemon.use_code(NEW_CODE)
    daemon.start()
    daemon.wait_until_idle("everything by the new code", everything, since)
    with open_instance(daemon.home) as instance:
        assert news(instance, since) == once(everything)


def _every_run_is_accounted_for(daemon: Daemon) -> None:
    """Each run ended; those that failed are the broken trace's and the one that was killed, which was tried again."""
    with open_instance(daemon.home) as instance:
        runs = instance.get_runs()
        assert not [run for run in runs if run.status in IN_FLIGHT]
        retried = {run.parent_run_id for run in runs if run.parent_run_id}
        for run in runs:
            if run.status is dg.DagsterRunStatus.FAILURE and run.run_id not in retried:
                text = " ".join(entry.message for entry in instance.all_logs(run.run_id))
                assert "half@7 rank 1" in text and "JSON without traceEvents" in text, text[-2000:]
