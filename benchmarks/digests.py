"""What it costs to compare parts with their digests: ``python -m benchmarks.digests --folder FOLDER [--parts 1000]``.

Writes so many parts of table ``kernels`` into a home below FOLDER, and prints processor seconds: of writing one, of
comparing all of them first and again in the same process, of a query over them, and of ``traceviz lake verify``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path

from traceviz_dag.lake import recorded
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.verify import verify
from traceviz_dag.tables import TABLES

ROWS = 700
_QUERY = "SELECT sum(duration_ns) FROM kernels"


def main() -> None:
    """Print the costs."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, required=True)
    options.add_argument("--parts", type=int, default=1000)
    given = options.parse_args()
    lake, kernels, chance = open_lake(given.folder / "home"), TABLES["kernels"], random.Random(1)
    columns: dict[str, list[object]] = {column.name: [None] * ROWS for column in kernels.columns}
    columns["name"] = [f"kernel_{number % 50}" for number in range(ROWS)]
    for name in ("start_ns", "duration_ns", "correlation"):
        columns[name] = [chance.randrange(1 << 30) for _ in range(ROWS)]
    data = kernels.from_columns(columns)

    def write() -> None:
        for rank in range(given.parts):
            lake.write("kernels", data, run="job", iteration=1, rank=rank)

    seconds = _processor_seconds(write)
    partitions = lake.partitions("kernels")
    size = sum(lake.path("kernels", run="job", iteration=1, rank=one.rank).stat().st_size for one in partitions)
    lake.refresh_catalogue()
    print(f"{len(partitions):,} parts of {size / len(partitions) / 1000:.0f} kB")
    print(f"written: {1000 * seconds / given.parts:.2f} ms each")
    for title in ("first", "again"):
        seconds = _processor_seconds(lambda: recorded.check(lake.tables_folder, kernels, partitions))
        print(f"compared {title}: {seconds:.3f} s")
    print(f"a query over them: {_processor_seconds(lambda: lake.query(_QUERY)):.3f} s")
    print(f"lake verify: {_processor_seconds(lambda: verify(lake)):.3f} s")


def _processor_seconds(call: Callable[[], object]) -> float:
    before = time.process_time()
    call()
    return time.process_time() - before


if __name__ == "__main__":
    main()
