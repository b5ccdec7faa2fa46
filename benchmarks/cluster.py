"""What workers of Dask cost beside the ranks that they analyse: processor seconds per rank, against a single process.

    python -m benchmarks.cluster FOLDER --workers 1 2 4 [--cluster slurm.toml]

Each row analyses the folder's first iteration twice, and counts the second time, so that no start is in it. A cluster
elsewhere (``--cluster``) has the number of workers that its file says; only its wall time is seen from here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.cluster.opening import LOCAL, open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import Engine, IterationTask, analyse_into_lake, analyse_ranks


def processor_seconds() -> float:
    """Of this process and all that are its children now."""
    me = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (me, *me.children(recursive=True)))


def rows(folder: Path, home: Path, workers: list[int], cluster: str) -> Iterator[tuple[str, float, float, int]]:
    """What, wall seconds, processor seconds, ranks."""
    inputs = inputs_below([folder])[0]
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks})
    task = IterationTask(home, inputs.run, inputs.iteration, read_topology(inputs), load_rules())

    def measured(what: str, engine: Engine | None) -> tuple[str, float, float, int]:
        for _ in range(2):
            wall, processor = time.monotonic(), processor_seconds()
            if engine is None:
                outcomes = [analyse_into_lake(task, trace) for trace in traces]
            else:
                outcomes = list(analyse_ranks(task, traces, engine=engine))
            assert not any(outcome.failed for outcome in outcomes)
        return what, time.monotonic() - wall, processor_seconds() - processor, len(traces)

    yield measured("one process", None)
    for count in () if cluster != LOCAL else workers:
        with open_cluster(LOCAL, home, count) as engine:
            yield measured(f"{count} workers", engine)
    if cluster != LOCAL:
        with open_cluster(cluster, home) as engine:
            yield measured(cluster, engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cluster", default=LOCAL)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        for what, wall, processor, ranks in rows(given.folder, Path(home).resolve(), given.workers, given.cluster):
            print(f"{what:20} {ranks} ranks  {wall:6.1f} s  {processor / ranks:6.2f} processor s a rank", flush=True)


if __name__ == "__main__":
    main()
