"""A soak of the automation: iterations dropped at random, in random order, some in halves, some rewritten, the daemon
killed twice; at the end every Parquet file of the lake equals that of a fresh analysis, byte for byte.

Run from the repository: ``python -m benchmarks.soak [--iterations 60] [--ranks 2] [--seed 1] [--folder DIR]``. Dagster
starts three runs an iteration at the least. Exit code 1 where anything differs; the folder then stays.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import dagster as dg

from assets.conventions import IN_FLIGHT
from sensors.ledger import FolderState, read_ledger
from tests.end_to_end.daemon import Daemon
from tests.small_run import rank_file
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline.staleness import pending_stage

RUNS = 6
REWRITTEN_SHARE = 0.25
HALF_WRITTEN_SHARE = 0.2
KILLS = 2
LONGEST_PAUSE_SECONDS = 2.0
POLL_SECONDS = 3.0


class Drops:
    """The files as a cluster would leave them: one by one, in an order of chance."""

    def __init__(self, root: Path, iterations: int, ranks: int, chance: random.Random) -> None:
        self.root, self.ranks, self.chance = root, ranks, chance
        places = [
            (f"job-{number % RUNS}", number // RUNS, rank) for number in range(iterations) for rank in range(ranks)
        ]
        rewritten = chance.sample(places, int(REWRITTEN_SHARE * len(places)))
        chance.shuffle(places)
        self.actions = [(place, 1) for place in places]
        for place in rewritten:
            first = self.actions.index((place, 1))
            self.actions.insert(chance.randint(first + 1, len(self.actions)), (place, 2))

    def drop(self, place: tuple[str, int, int], scale: int) -> None:
        """Write one trace: at once under its name, or first half of it and the rest after a while."""
        run, iteration, rank = place
        path = self.root / run / f"iteration_{iteration}/rank_{rank:04d}_iter_{iteration}.pt.trace.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}")
        rank_file(rank, self.ranks, step=iteration, scale=scale).write(temporary)
        if self.chance.random() < HALF_WRITTEN_SHARE:
            content = temporary.read_bytes()
            temporary.unlink()
            path.write_bytes(content[: len(content) // 2])
            time.sleep(self.chance.uniform(0, LONGEST_PAUSE_SECONDS))
            path.write_bytes(content)
        else:
            temporary.rename(path)


def main() -> int:
    """Soak, compare, and print what was seen."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--iterations", type=int, default=60)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, default=None, help="where it works; by default in /tmp")
    chosen = options.parse_args()
    base = Path(tempfile.mkdtemp(prefix="soak-", dir=chosen.folder))
    root = base / "runs"
    root.mkdir()
    daemon = Daemon(base / "home", root, storage=None)
    started = time.monotonic()
    try:
        drops = Drops(root, chosen.iterations, chosen.ranks, random.Random(chosen.seed))
        soak(daemon, drops)
        wait_until_done(daemon, chosen.iterations)
        print(f"{len(drops.actions)} files dropped, all settled after {time.monotonic() - started:.0f} s", flush=True)
    finally:
        daemon.kill()
    faults = compare(base, daemon.home, root) + account_for_runs(daemon.home)
    for fault in faults:
        print(f"FAULT {fault}")
    if not faults:
        shutil.rmtree(base)
    return 1 if faults else 0


def soak(daemon: Daemon, drops: Drops) -> None:
    """Drop everything, and kill the daemon with all of its processes on the way."""
    kills = {len(drops.actions) * (number + 1) // (KILLS + 1) for number in range(KILLS)}
    daemon.start()
    for index, (place, scale) in enumerate(drops.actions):
        if index in kills:
            # The first drops must have led to runs, so that there is something to kill.
            daemon.wait("a run under way", lambda instance: bool(_in_flight(instance)))
            daemon.kill()
            print(f"killed after {index} files", flush=True)
            time.sleep(1)
            daemon.start()
        drops.drop(place, scale)
        time.sleep(drops.chance.uniform(0, LONGEST_PAUSE_SECONDS))


def wait_until_done(daemon: Daemon, iterations: int) -> None:
    """Wait until every folder is registered as it is, everything is computed from that, and nothing is under way."""
    rules = load_rules(None).digest
    lake = open_lake(daemon.home)

    def done(instance: dg.DagsterInstance) -> bool:
        time.sleep(POLL_SECONDS)
        if _in_flight(instance):
            return False
        states = Counter(record.state for record in read_ledger(daemon.home).values())
        if states != {FolderState.REGISTERED: iterations}:
            return False
        return all(pending_stage(lake, inputs, rules) is None for inputs in all_registered(daemon.home))

    daemon.wait("everything computed", done, seconds=7200)


def compare(base: Path, home: Path, root: Path) -> list[str]:
    """Analyse the same folders in a fresh home, and compare every Parquet file."""
    fresh = base / "fresh"
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "analyze", str(root), "--home", str(fresh)]
    subprocess.run(command, check=True, capture_output=True)
    ours, theirs = _files(home), _files(fresh)
    faults = [f"only by automation: {name}" for name in sorted(ours.keys() - theirs.keys())]
    faults += [f"only by a fresh analysis: {name}" for name in sorted(theirs.keys() - ours.keys())]
    faults += [f"other bytes: {name}" for name in sorted(ours.keys() & theirs.keys()) if ours[name] != theirs[name]]
    print(f"{len(theirs)} Parquet files compared, {len(faults)} differ")
    return faults


def account_for_runs(home: Path) -> list[str]:
    """Every run ended; one that failed was tried again, unless it was killed with all of its steps done."""
    with open_instance(home) as instance:
        runs = instance.get_runs()
        retried = {run.parent_run_id for run in runs if run.parent_run_id}
        failed = [run for run in runs if run.status is dg.DagsterRunStatus.FAILURE and run.run_id not in retried]
        stats = {run.run_id: instance.get_run_stats(run.run_id) for run in failed}
    print(f"{len(runs)} runs: {dict(Counter(run.status.value for run in runs))}")
    kinds = Counter(
        "+".join(sorted(key.to_user_string() for key in run.asset_selection or ())) or run.job_name for run in runs
    )
    for kind, count in kinds.most_common():
        print(f"  {count:4d} {kind}")
    done = [run for run in failed if stats[run.run_id].steps_succeeded and not stats[run.run_id].steps_failed]
    print(f"{len(retried)} runs were killed and tried again, {len(done)} were killed after their last step")
    faults = [f"run {run.run_id} is {run.status.value}" for run in runs if run.status in IN_FLIGHT]
    return faults + [f"run {run.run_id} failed and was not tried again" for run in failed if run not in done]


def _in_flight(instance: dg.DagsterInstance) -> int:
    return instance.get_runs_count(dg.RunsFilter(statuses=IN_FLIGHT))


def _files(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted((home / "lake").rglob("*.parquet"))}


if __name__ == "__main__":
    sys.exit(main())
