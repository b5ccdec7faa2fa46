"""What findings cost on large jobs: the rules are asked of tables in which the ranks of a small job are repeated.

Run: ``python -m benchmarks.findings_scale 64 1024`` (about two minutes). The tables of causes are there before, as they
are in a home. It prints a row for each size.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.causes_scale import JOB, analyse
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.recorded import change_of
from traceviz_dag.pipeline.findings import iteration_findings
from traceviz_dag.simulate import simulate
from traceviz_dag.tables import RANK_TABLES, TABLES


def repeat(home: Path, target: Path, ranks: int) -> tuple[str, int]:
    """Write the tables of a home's one iteration with its ranks repeated: run and iteration."""
    lake, larger = open_lake(home), open_lake(target)
    parts = lake.partitions("kernels")
    run, iteration, own = parts[0].run, parts[0].iteration, len(parts)
    place = {"run": run, "iteration": iteration}
    for copy in range(ranks // own):
        for name in RANK_TABLES:
            for part in lake.partitions(name):
                assert part.rank is not None
                content = lake.content(name, **place, rank=part.rank)
                assert content is not None
                rank = part.rank + copy * own
                path = larger.path(name, **place, rank=rank)
                path.parent.mkdir(parents=True)
                with change_of(larger.tables_folder, name, Partition(run, iteration, rank), content):
                    os.link(lake.path(name, **place, rank=part.rank), path)
    for name, table in TABLES.items():
        if "rank" in table.partitioned_by or not lake.exists(name, **place):
            continue
        rows = lake.table(name, run, iteration).arrow().select([column.name for column in table.columns])
        if "rank" in rows.column_names and name != "what_if":
            by = np.repeat(np.arange(ranks // own) * own, rows.num_rows)
            rows = pa.concat_tables([rows] * (ranks // own))
            column = rows.column_names.index("rank")
            shifted = pc.add(rows["rank"].cast(pa.int64()), pa.array(by)).cast(rows["rank"].type)
            rows = rows.set_column(column, "rank", shifted)
        larger.write(name, rows, **place)
    return run, iteration


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
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate(JOB, folder / "job", workers=1)
        print("| ranks | findings and notes | processor s | peak memory, GiB |")
        print("| --: | --: | --: | --: |", flush=True)
        steps = [(analyse, (folder,))]
        steps += [(measure, (folder / "home", folder / f"home_{ranks}", ranks)) for ranks in given.ranks]
        for target, arguments in steps:
            one = context.Process(target=target, args=arguments)
            one.start()
            one.join()
            if one.exitcode:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
