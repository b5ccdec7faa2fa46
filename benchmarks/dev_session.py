"""What automation runs after each kind of change, in one session of ``traceviz dev`` on simulated traces.

    python -m benchmarks.dev_session [--folder DIR] [--pictures] [--seconds 5] [--changes 2]

After each change it waits until nothing is under way and automation found nothing in three further looks. It prints a
Markdown row for each: Dagster's runs and their steps, partitions of assets that were made, seconds until the last table
of an iteration was made, and processor seconds of the whole session; then the sensors' ticks. Exit code 1 where a tick
or a run failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus

from tests.end_to_end.conftest import running_dagster, traceviz
from tests.end_to_end.daemon import is_busy, news, position
from traceviz_dag.orchestration.instance import open_instance
from traceviz_dag.pipeline.staleness import ITERATION_TABLES

RUN, RANKS, LONGEST_SECONDS, POLL_SECONDS = "job", 8, 1800, 3.0
RULES = '[[kernel]]\nname = "own_gemm"\npatterns = ["nothing_is_called_so*"]\nkind = "computation"\n'
LOOKS = {"trace_folders": 3, "automation": 3}
"""Ticks of a sensor that must end, after a change and after the last run, before the session counts as at rest."""


@dataclass(frozen=True)
class Session:
    """A home, the folder that it watches, and traces that are not there yet."""

    home: Path
    root: Path
    aside: Path

    def ticks(self, instance: dg.DagsterInstance, since: float) -> dict[str, list[InstigatorTick]]:
        """Sensor → its ticks that began after a time and have ended."""
        found = {
            state.instigator_name: instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
            for state in instance.all_instigator_state()
        }
        return {name: [tick for tick in ticks if tick.end_timestamp] for name, ticks in found.items()}

    def rest(self, since: float) -> None:
        """Wait until nothing is left to do."""
        idle_since, end = since, time.time() + LONGEST_SECONDS
        with open_instance(self.home) as instance:
            while time.time() < end:
                if is_busy(instance):
                    idle_since = time.time()
                ticks = self.ticks(instance, since)
                late = {name: [tick for tick in of if tick.timestamp > idle_since] for name, of in ticks.items()}
                if len(ticks.get("trace_folders", ())) >= LOOKS["trace_folders"] and (
                    len(late.get("automation", ())) >= LOOKS["automation"]
                ):
                    return
                time.sleep(POLL_SECONDS)
        sys.exit(f"not at rest after {LONGEST_SECONDS} s")

    def measure(self, title: str, change: Callable[[], object]) -> bool:
        """Make a change, wait, and print what it cost; whether all of its runs succeeded."""
        with open_instance(self.home) as instance:
            since, known = position(instance), {run.run_id for run in instance.get_runs()}
        begin, processor = time.time(), processor_seconds()
        change()
        self.rest(begin)
        spent = processor_seconds() - processor
        with open_instance(self.home) as instance:
            runs = [run for run in instance.get_runs() if run.run_id not in known]
            stats = [instance.get_run_stats(run.run_id) for run in runs]
            made = news(instance, since)
            aggregated = [
                record.timestamp - begin
                for name in ITERATION_TABLES
                for record in instance.fetch_materializations(
                    dg.AssetRecordsFilter(dg.AssetKey(name), after_timestamp=begin), limit=100
                ).records
            ]
        steps = sum(one.steps_succeeded + one.steps_failed for one in stats)
        took = f"{max(aggregated):.0f}" if aggregated else "–"
        kinds = Counter(partition.count("|") for _, partition in made.elements())
        print(
            f"| {title} | {len(runs)} | {steps} | {kinds[1]} | {kinds[0]} | {took} | {spent:.0f} |",
            flush=True,
        )
        return all(run.status is dg.DagsterRunStatus.SUCCESS for run in runs)

    def bring(self, iteration: int) -> None:
        """An iteration arrives; the topology file stays away."""
        (self.root / RUN).mkdir(parents=True, exist_ok=True)
        (self.aside / f"iteration_{iteration}").rename(self.root / RUN / f"iteration_{iteration}")

    def change_rank(self) -> None:
        """Rank 1 of iteration 10 gets the trace that it has in iteration 12, under its own name."""
        target = self._trace(self.root / RUN, 10)
        source = self._trace(self.aside, 12)
        shutil.copyfile(source, target.with_name(f".{target.name}"))
        target.with_name(f".{target.name}").rename(target)

    def bring_topology(self) -> None:
        """The run's topology text file arrives."""
        for path in self.aside.glob("unique_parallel_groups_*"):
            path.rename(self.root / RUN / path.name)

    def _trace(self, run: Path, iteration: int) -> Path:
        (found,) = (run / f"iteration_{iteration}").glob("rank_0001*")
        return found


def processor_seconds() -> float:
    """Of all sessions that this process started: their processes, and those of them that have ended."""
    found: list[tuple[int, int, int, int]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append((int(entry.name), int(fields[1]), int(fields[3]), sum(map(int, fields[11:15]))))
    sessions = {pid for pid, parent, session, _ in found if parent == os.getpid() and session == pid}
    return sum(ticks for *_, session, ticks in found if session in sessions) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="Where home and traces are written; default: a temporary folder.")
    parser.add_argument("--pictures", action="store_true", help="Have figures and Perfetto traces drawn, too.")
    parser.add_argument("--seconds", type=int, help="Between two looks of trace_folders and automation; default: 15.")
    parser.add_argument("--changes", type=int, default=6, help="Only so many of the changes.")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="traceviz-dev-"))
    session = Session(folder / "home", folder / "watched", folder / "aside")
    session.home.mkdir(parents=True)
    session.root.mkdir()
    size = ("--pp", "2", "--dp", "4", "--layers", "4", "--microbatches", "4", "--iterations", "3")
    traceviz("simulate", session.aside, *size)
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    (session.home / "traceviz.toml").write_text(
        f'rules = "{rules}"\nautomation_seconds = {given.seconds or 15}\n'
        f'[[watch]]\npath = "{session.root}"\nexpected_ranks = {RANKS}\n'
        f"[sensor]\ninterval_seconds = {given.seconds or 15}\n"
        f"[figures]\nautomatic = {str(given.pictures).lower()}\n"
    )
    begin = time.time()
    print(
        "| change | runs | steps | tables of ranks | of iterations | s to the last table | processor s |\n"
        "| --- | --: | --: | --: | --: | --: | --: |"
    )
    with running_dagster(session.home, folder / "dagster.log"):
        changes: dict[str, Callable[[], object]] = {
            "a new iteration": lambda: session.bring(10),
            "a second one": lambda: session.bring(11),
            "one changed rank": session.change_rank,
            "a comment in the rules": lambda: rules.write_text(f"# A comment.\n{RULES}"),
            "a topology file": session.bring_topology,
            "a renamed folder": lambda: (session.root / RUN / "iteration_11").rename(
                session.root / RUN / "iteration_111"
            ),
        }
        succeeded = [session.measure(title, change) for title, change in [*changes.items()][: given.changes]]
        with open_instance(session.home) as instance:
            ticks = session.ticks(instance, begin)
    print("\n| sensor | ticks | failed | longest, s |\n| --- | --: | --: | --: |")
    failed = 0
    for name, of in sorted(ticks.items()):
        faults = [tick for tick in of if tick.status is TickStatus.FAILURE]
        failed += len(faults)
        longest = max((tick.end_timestamp - tick.timestamp for tick in of if tick.end_timestamp), default=0)
        print(f"| `{name}` | {len(of)} | {len(faults)} | {longest:.1f} |")
        for tick in faults[:3]:
            print(str(tick.error)[:300], file=sys.stderr)
    if failed or not all(succeeded):
        sys.exit(1)


if __name__ == "__main__":
    main()
