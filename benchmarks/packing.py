"""What packing costs and saves: ``python -m benchmarks.packing --folder FOLDER [--iterations 100 --ranks 1024]``.

Each rank of each iteration has the kernels of one of eight simulated ranks, 977 of them, at times of their own: 100
million in all. The first two iterations are written rank by rank and packed; the packed files of the others are copies
of theirs. It prints processor seconds, takes five minutes and 4 GB, and removes what it wrote.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from benchmarks.causes_scale import JOB, analyse
from traceviz_dag.lake import packing, recorded
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.partitions import Partition
from traceviz_dag.lake.record_lines import NOTHING, SETTLED, begun, in_order, line_of, packed_folder
from traceviz_dag.lake.verify import verify
from traceviz_dag.simulate import simulate
from traceviz_dag.system.whole_files import scratch_folder
from traceviz_dag.tables import TABLES

ROWS = 977
RUN = "job"
WRITTEN = 2
_BY_CATEGORY = "SELECT category, sum(duration_ns) AS ns FROM kernels GROUP BY ALL ORDER BY ALL"
_OF_RANK = "SELECT sum(duration_ns) FROM kernels WHERE run = 'job' AND iteration = 3 AND rank = 517"
Result = TypeVar("Result")


def main() -> None:
    """Print the costs."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--iterations", type=int, default=100)
    options.add_argument("--ranks", type=int, default=1024)
    given = options.parse_args()
    lake = open_lake(given.folder / "packed_home")
    try:
        kernels = _kernels(given.folder)
        for iteration in range(WRITTEN):
            measure(f"written, iteration {iteration}", lambda at=iteration: _write(lake, kernels, at, given.ranks))
        _one_iteration(lake, given.ranks, kernels)
        for iteration in range(WRITTEN, given.iterations):
            _copy(lake, iteration % WRITTEN, iteration)
        print(f"{given.iterations * given.ranks:,} partitions")
        _all_iterations(lake, kernels)
    finally:
        shutil.rmtree(lake.home, ignore_errors=True)


def measure(title: str, work: Callable[[], Result]) -> Result:
    """Do it, and print what it took."""
    processor, wall = time.process_time(), time.perf_counter()
    result = work()
    print(f"{title}: {time.process_time() - processor:.3f} s, {time.perf_counter() - wall:.1f} s of wall", flush=True)
    return result


def _one_iteration(lake: Lake, ranks: int, kernels: list[pa.Table]) -> None:
    asked = _BY_CATEGORY.replace("FROM kernels", "FROM kernels WHERE iteration = 0")
    lake.refresh_catalogue()
    measure("one iteration by category, unpacked, first", lambda: lake.query(asked))
    before = measure("one iteration by category, unpacked, again", lambda: lake.query(asked))
    # In one piece: beside 60,000 small ones, packing would take twice as long as in a process of its own.
    rows = measure("all rows of an iteration, unpacked", lambda: lake.rows("kernels", RUN, 0)).combine_chunks()
    size = sum(lake.path("kernels", run=RUN, iteration=0, rank=rank).stat().st_size for rank in range(ranks))
    measure(f"packing {ranks:,} ranks", lambda: packing.pack(lake.tables_folder, RUN, 0))
    packed = lake.path("kernels", run=RUN, iteration=0, rank=0).stat().st_size
    print(f"{size / 1e6:.0f} MB of {ranks:,} files, {packed / 1e6:.0f} MB packed")
    lake.refresh_catalogue()
    assert lake.query(asked) == before, "an answer changed"
    # The second one: what was just read is compared again.
    assert measure("all rows of an iteration, packed", lambda: lake.rows("kernels", RUN, 0)) == rows
    del rows
    measure("one changed rank, written", lambda: _write(lake, kernels[1:], 0, 1))
    lake.refresh_catalogue()
    measure("one iteration by category, one rank changed", lambda: lake.query(asked))
    measure("packed anew with it", lambda: packing.pack(lake.tables_folder, RUN, 0, 1))
    packing.pack(lake.tables_folder, RUN, 1)
    for iteration in range(WRITTEN):
        pruned = measure("pruning", lambda at=iteration: packing.prune(lake.tables_folder, RUN, at))
        assert pruned == ranks


def _all_iterations(lake: Lake, kernels: list[pa.Table]) -> None:
    for remembered in (recorded._digest_in, recorded._record_in):
        remembered.cache_clear()
    measure("catalogue built", lake.refresh_catalogue)
    for title in ("first, with all files compared", "again"):
        measure(f"all iterations by category, {title}", lambda: lake.query(_BY_CATEGORY))
    [kernels_there] = lake.query("SELECT count(*) AS n FROM kernels")["n"].to_pylist()
    print(f"{kernels_there:,} kernels")
    for _ in range(2):
        measure("a query of nothing", lambda: lake.query("SELECT 1"))
        measure("one rank by SQL", lambda: lake.query(_OF_RANK))
        measure("one rank, two columns", lambda: lake.rows("kernels", RUN, 3, ["name", "duration_ns"], 517))
        measure("one rank, all columns", lambda: lake.rows("kernels", RUN, 3, rank=517))
    measure("one changed rank, written", lambda: _write(lake, kernels[1:], 3, 1))
    measure("all iterations by category, one rank changed", lambda: lake.query(_BY_CATEGORY))
    measure("again", lambda: lake.query(_BY_CATEGORY))
    assert not measure("verified", lambda: verify(lake)).faults


def _kernels(folder: Path) -> list[pa.Table]:
    """So many kernels of each of eight ranks."""
    with scratch_folder(folder) as scratch:
        simulate(JOB, scratch / "job")
        analyse(scratch)
        lake, names = open_lake(scratch / "home"), [column.name for column in TABLES["kernels"].columns]
        parts = lake.partitions("kernels")[:8]
        found = [lake.rows("kernels", one.run, one.iteration, names, one.rank) for one in parts]
    longer = (pa.concat_tables([rows] * (1 + ROWS // rows.num_rows)) for rows in found)
    return [rows.slice(0, ROWS).unify_dictionaries() for rows in longer]


def _write(lake: Lake, kernels: list[pa.Table], iteration: int, ranks: int) -> None:
    chance = np.random.default_rng(iteration)
    for rank in range(ranks):
        rows = kernels[(rank + iteration) % len(kernels)]
        # Times of their own: equal ones would be packed into next to nothing.
        for name in ("start_ns", "duration_ns"):
            times = pc.add(rows[name], pa.array(chance.integers(0, 1 << 12, rows.num_rows)))
            rows = rows.set_column(rows.column_names.index(name), name, times)
        lake.write("kernels", rows, run=RUN, iteration=iteration, rank=rank, made="trace=0,code=0")


def _copy(lake: Lake, source: int, iteration: int) -> None:
    """Another iteration whose packed file is a copy."""
    folder, place = lake.tables_folder, Partition(RUN, iteration).below
    pack = recorded.recorded(folder, RUN, source).packs["kernels"]
    sources = recorded.sources_of(folder, RUN, source, pack)
    assert sources is not None
    lines = [line_of(place, SETTLED, part, sources.contents[part][0]) for part in in_order(sources.contents)]
    data = b"".join([begun(place), *lines])
    packed = packed_folder(folder, RUN, iteration)
    packed.mkdir(parents=True)
    name = xxhash.xxh3_128_hexdigest(data)
    (packed / name).write_bytes(data)
    shutil.copyfile(pack.path(folder, RUN, source), pack.path(folder, RUN, iteration))
    recorded.write_packs(folder, RUN, iteration, [replace(pack, sources=name)], NOTHING)


if __name__ == "__main__":
    main()
