"""What findings cost on large jobs: the rules are asked of tables in which the ranks of a small job are repeated.

Run: ``python -m benchmarks.findings_scale 64 1024`` (about two minutes). The tables of causes are there before, as they
are in a home. It prints a row for each size. With ``--commands`` it runs commands on such a home instead, and prints
what each takes and how long its answer is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.causes_scale import JOB, analyse
from traceviz_dag.lake.inputs import register, registered_if_any
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.record_lines import SETTLED, begun, in_order, line_of
from traceviz_dag.lake.recorded import FOLDER, recorded
from traceviz_dag.pipeline.findings import iteration_findings
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Faults
from traceviz_dag.system.whole_files import write_atomically
from traceviz_dag.tables import RANK_TABLES, TABLES

FAULTS = Faults(slow_gpu=5, slow_gpu_factor=1.3, data_stall=13, data_stall_ms=20)
"""What commands are to tell of a job."""


def repeat(home: Path, target: Path, ranks: int) -> tuple[str, int]:
    """Write the tables of a home's one iteration with its ranks repeated: run and iteration."""
    lake, larger = open_lake(home), open_lake(target)
    parts = lake.partitions("kernels")
    run, iteration, own = parts[0].run, parts[0].iteration, len(parts)
    place = {"run": run, "iteration": iteration}
    inputs = registered_if_any(home, iteration_key(run, iteration))
    assert inputs is not None
    repeated = tuple(replace(inputs.ranks[rank % own], rank=rank) for rank in range(ranks))
    register(target, replace(inputs, ranks=repeated))
    topology = lake.table("topology", run, iteration).arrow()
    numbers = {name: (pc.max(topology[name]).as_py() or 0) + 1 for name in ("rank", "pipeline", "model_replica")}
    for name, table in TABLES.items():
        if "rank" in table.partitioned_by or not lake.exists(name, **place):
            continue
        rows = lake.table(name, run, iteration).arrow().select([column.name for column in table.columns])
        if "rank" in rows.column_names and name != "what_if":
            # What is of no rank is of the job, and there once.
            once = rows.filter(pc.is_null(rows["rank"]))
            rows = rows.filter(pc.is_valid(rows["rank"]))
            copy = np.repeat(np.arange(ranks // own), rows.num_rows)
            rows = pa.concat_tables([rows] * (ranks // own))
            for column, apart in numbers.items():
                if column in rows.column_names:
                    shifted = pc.add(rows[column].cast(pa.int64()), pa.array(copy * apart)).cast(rows[column].type)
                    rows = rows.set_column(rows.column_names.index(column), column, shifted)
            rows = pa.concat_tables([once, rows])
        if name == "findings":
            # The worst first, as in a home.
            order = pa.array(np.arange(rows.num_rows), rows["finding"].type)
            rows = rows.sort_by("finding").set_column(rows.column_names.index("finding"), "finding", order)
        larger.write(name, rows, **place)
    # The record at once: a line of its own for each part would be read again with each.
    record = {part: held[-1] for part, held in recorded(larger.tables_folder, run, iteration).contents.items()}
    for name in RANK_TABLES:
        for part in lake.partitions(name):
            assert part.rank is not None
            content = lake.content(name, **place, rank=part.rank)
            assert content is not None
            for rank in range(part.rank, ranks, own):
                path = larger.path(name, **place, rank=rank)
                path.parent.mkdir(parents=True)
                os.link(lake.path(name, **place, rank=part.rank), path)
                record[name, rank] = content
    below = Partition(run, iteration).below
    lines = [line_of(below, SETTLED, part, record[part]) for part in in_order(record)]
    path = Partition(run, iteration).folder(larger.tables_folder / FOLDER)
    write_atomically(path, [begun(below), *lines])
    return run, iteration


def commands(home: Path, target: Path, ranks: int) -> None:
    """Print what commands take on a home of one size."""
    repeat(home, target, ranks)
    tables = ("findings", "waits", "overlap", "critical-path", "efficiencies", "pipelines", "clocks", "iterations")
    for name in (*tables, "report", "figures"):
        with tempfile.TemporaryFile() as said:
            ran = subprocess.Popen(["traceviz", name, "--home", str(target)], stdout=said)
            _, status, used = os.wait4(ran.pid, 0)
            said.seek(0)
            spent, lines = used.ru_utime + used.ru_stime, len(said.readlines())
        print(f"| {ranks:,} | {name} | {spent:.1f} | {used.ru_maxrss / 2**20:.2f} | {lines} |", flush=True)
        assert status == 0, status
    shutil.rmtree(target)


def measure(home: Path, target: Path, ranks: int) -> None:
    """Print what one size costs."""
    run, iteration = repeat(home, target, ranks)
    began = time.process_time()
    found = iteration_findings(open_lake(target), run, iteration)
    spent = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {ranks:,} | {found.num_rows} | {spent:.1f} | {peak:.2f} |", flush=True)
    shutil.rmtree(target)


def main() -> int:
    """Measure the sizes that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--commands", action="store_true")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = replace(JOB, faults=FAULTS) if given.commands else JOB
        simulate(job, folder / "job", workers=1)
        what = "command" if given.commands else "findings and notes"
        print(f"| ranks | {what} | processor s | peak memory, GiB |{' lines |' * given.commands}", flush=True)
        steps = [(analyse, (folder,))]
        measured = commands if given.commands else measure
        steps += [(measured, (folder / "home", folder / f"home_{ranks}", ranks)) for ranks in given.ranks]
        for target, arguments in steps:
            one = context.Process(target=target, args=arguments)
            one.start()
            one.join()
            if one.exitcode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
