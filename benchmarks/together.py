"""Eight analyses at once on one home, the sensor's ticks beside them, readers in a loop: everything must be right.

Run: ``python benchmarks/together.py [--rounds N] [--analyses 8] [--readers 2]``. In each round, on a fresh home:

- analyses of as many runs start at the same moment, the last two of one and the same run;
- a process evaluates the sensor of the watched folder and registers what it asks for, tick after tick;
- readers ask the catalogue, read whole tables, the lists of inputs and the sensor's ledger, in a loop.

Every analysis must exit with 0 and every table have the bytes that it has alone; no reader and no tick may see an
error, and no temporary may be left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.small_run import write_run
from traceviz_dag.lake.inputs import all_registered
from traceviz_dag.lake.lake import open_lake

ITERATION = 7
SQL = "SELECT count(*) AS n, count(DISTINCT run) AS runs FROM kernels"
TABLES = ("traces", "kernels", "iterations")


def analyse(run: Path, home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start one analysis."""
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "analyze", str(run), "--home", str(home)]
    with log.open("wb") as output:
        return subprocess.Popen([*command, "--workers", "2"], stdout=output, stderr=output)


def read_on(home: Path, seed: int, over: Event, result: Path) -> None:
    """Read in a loop; what was read, and every error, goes to a file."""
    chance, seen, errors = random.Random(seed), Counter[str](), list[str]()
    while not over.is_set():
        try:
            lake = open_lake(home)
            what = chance.choice(("query", "table", "inputs", "ledger"))
            if what == "query" and lake.partitions("kernels"):
                lake.query(SQL)
            elif what == "table" and lake.partitions(table := chance.choice(TABLES)):
                lake.table(table).arrow()
            elif what == "inputs":
                list(all_registered(home))
            elif what == "ledger":
                from sensors.ledger import read_ledger

                read_ledger(home)
            seen[what] += 1
        except Exception as error:  # noqa: BLE001 - every error counts here
            errors.append(f"{type(error).__name__}: {str(error)[:300]}")
        time.sleep(0.05)
    result.write_text(json.dumps({"seen": seen, "errors": errors}))


def tick_on(home: Path, over: Event, result: Path) -> None:
    """Evaluate the sensor in a loop as its daemon does, and register what it asks for."""
    import dagster as dg

    from assets.resources import TracevizHome
    from sensors.register_traces import register_traces
    from sensors.trace_folders import trace_folders_sensor
    from traceviz_dag.orchestration.instance import open_instance
    from traceviz_dag.pipeline.home_settings import load_settings

    seen, errors, cursor = Counter[str](), list[str](), None
    resource = TracevizHome(home=str(home))
    sensor = trace_folders_sensor(load_settings(home))
    with open_instance(home) as instance:
        while not over.is_set():
            try:
                context = dg.build_sensor_context(instance, cursor, resources={"traceviz": resource})
                asked = sensor.evaluate_tick(context)
                cursor = asked.cursor
                seen["ticks"] += 1
                for request in asked.run_requests or ():
                    done = register_traces.execute_in_process(
                        run_config=request.run_config, instance=instance, resources={"traceviz": resource}
                    )
                    seen["registered" if done.success else "failed"] += 1
            except Exception as error:  # noqa: BLE001 - every error counts here
                errors.append(f"{type(error).__name__}: {str(error)[:300]}")
            time.sleep(0.5)
    result.write_text(json.dumps({"seen": seen, "errors": errors}))


def one_round(base: Path, analyses: int, readers: int) -> list[str]:
    """One round; the faults that were seen."""
    home, clean, runs = base / "home", base / "clean", []
    for number in range(max(1, analyses - 1)):
        folder = base / "runs" / f"job-{number}"
        runs.append(write_run(folder, {ITERATION: 2}, 2))
    runs += runs[-1:] if analyses > 1 else []
    home.mkdir()
    (home / "traceviz.toml").write_text(f'[sensor]\ninterval_seconds = 1\n[[watch]]\npath = "{base / "runs"}"\n')
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    beside = [
        context.Process(target=read_on, args=(home, number, over, base / f"reader-{number}.json"))
        for number in range(readers)
    ]
    beside.append(context.Process(target=tick_on, args=(home, over, base / "ticks.json")))
    for process in beside:
        process.start()
    started = time.monotonic()
    running = [analyse(run, home, base / f"analyze-{number}.log") for number, run in enumerate(runs)]
    codes = [process.wait(1800) for process in running]
    seconds = time.monotonic() - started
    over.set()
    for process in beside:
        process.join(120)
    faults = [
        f"analysis {number} of {runs[number].name} ended with {code}: {_last_line(base / f'analyze-{number}.log')}"
        for number, code in enumerate(codes)
        if code
    ]
    for path in [*base.glob("reader-*.json"), base / "ticks.json"]:
        told = json.loads(path.read_text()) if path.exists() else {"seen": {}, "errors": ["it ended early"]}
        print(f"  {path.stem}: {told['seen']}, {len(told['errors'])} errors", flush=True)
        faults += [f"{path.stem}: {error}" for error in dict.fromkeys(told["errors"])]
    for run in dict.fromkeys(runs):
        analyse(run, clean, base / "clean.log").wait(1800)
    ours, theirs = _tables(home), _tables(clean)
    faults += [f"missing or other bytes: {name}" for name in sorted(theirs) if ours.get(name) != theirs[name]]
    faults += [f"only there together: {name}" for name in sorted(ours.keys() - theirs.keys())]
    left = [path for path in home.rglob(".*") if path.name.endswith((".writing", ".building"))]
    faults += [f"left over: {path.relative_to(home)}" for path in left]
    print(
        f"  {len(codes)} analyses in {seconds:.0f} s, {len(theirs)} tables compared, {len(faults)} faults", flush=True
    )
    return faults


def _tables(home: Path) -> dict[str, bytes]:
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted((home / "lake").rglob("*.parquet"))}


def _last_line(path: Path) -> str:
    return (path.read_text(errors="replace").strip().splitlines() or ["nothing was printed"])[-1][:300]


def main() -> int:
    """Some rounds; 1 where something was wrong."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--analyses", type=int, default=8)
    options.add_argument("--readers", type=int, default=2)
    options.add_argument("--folder", type=Path, default=None, help="where it works; by default in /tmp")
    chosen = options.parse_args()
    os.environ.pop("TRACEVIZ_HOME", None)
    faulty = 0
    for number in range(chosen.rounds):
        base = Path(tempfile.mkdtemp(prefix="together-", dir=chosen.folder))
        print(f"round {number}: {base}", flush=True)
        faults = one_round(base, chosen.analyses, chosen.readers)
        for fault in faults:
            print(f"  FAULT {fault}", flush=True)
        faulty += bool(faults)
        if not faults:
            shutil.rmtree(base)
    print(f"{chosen.rounds} rounds, {faulty} with faults")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
