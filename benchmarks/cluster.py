"""What workers of Dask cost beside the ranks that they analyse: processor seconds per rank, against a single process.

    python -m benchmarks.cluster FOLDER --workers 1 2 4 [--ranks 64] [--slurm | --cluster slurm.toml]

Each row analyses the folder's first iteration, after a few ranks that are not counted, so that no start is in it. What
as many processes of the local pool take more than a single one is the machine's share. ``--ranks`` repeats the traces
under further numbers for the rows of Dask. ``--slurm`` starts a Slurm of this machine alone (needs root and Debian's
packages), and a job in it for each number of workers. A cluster elsewhere (``--cluster``) has as many workers as
its file says; only its wall time is seen from here.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import psutil

from tests.slurm import slurm
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.cluster.opening import LOCAL, open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import Engine, IterationTask, analyse_into_lake, analyse_ranks

_SLURM = "SLURM_CONF"


def processor_seconds() -> tuple[float, float]:
    """Of this process, its children and what runs under a Slurm that it started; and of the workers among them."""
    mine = {each.pid for each in psutil.Process().children(recursive=True)} | {os.getpid()}
    every = workers = 0.0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid in mine or (_SLURM in os.environ and process.environ().get(_SLURM) == os.environ[_SLURM]):
                spent = sum(process.cpu_times()[:4])  # of children that ended, too
                every += spent
                # Dask's nannies start them so.
                workers += spent if any("spawn_main" in word for word in process.cmdline()) else 0.0
    return every, workers


def rows(
    folder: Path, home: Path, clusters: list[tuple[str, str, int]], ranks: int
) -> Iterator[tuple[str, float, float, float, int]]:
    """What, wall seconds, processor seconds, those of the workers alone, ranks.

    Args:
        clusters: what, where and workers of each. ranks: 0: those of the folder.
    """
    inputs = inputs_below([folder])[0]
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks})
    repeated = [replace(traces[rank % len(traces)], rank=rank) for rank in range(ranks or len(traces))]
    task = IterationTask(home, inputs.run, inputs.iteration, read_topology(inputs), load_rules())

    def measured(what: str, engine: Engine | None, workers: int) -> tuple[str, float, float, float, int]:
        every_trace = repeated if engine else traces
        for some in (every_trace[: 4 * workers], every_trace):
            wall, (every, of_workers) = time.monotonic(), processor_seconds()
            if engine or workers > 1:
                outcomes = list(analyse_ranks(task, some, None if engine else workers, engine=engine))
            else:
                outcomes = [analyse_into_lake(task, trace) for trace in some]
            failed = [outcome for outcome in outcomes if outcome.failed]
            assert not failed, failed[0]
        after, of_workers_after = processor_seconds()
        return what, time.monotonic() - wall, after - every, of_workers_after - of_workers, len(every_trace)

    yield measured("one process", None, 1)
    for workers in sorted({workers for _, _, workers in clusters} - {1}):
        yield measured(f"local pool, {workers}", None, workers)
    for what, where, workers in clusters:
        with open_cluster(where, home, workers) as engine:
            yield measured(what, engine, workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cluster", default=LOCAL)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--slurm", action="store_true")
    given = parser.parse_args()
    with ExitStack() as started:
        scratch = Path(started.enter_context(tempfile.TemporaryDirectory())).resolve()
        clusters = [(f"{count} workers", LOCAL, count) for count in given.workers]
        if given.cluster != LOCAL:
            clusters = [(given.cluster, given.cluster, 1)]
        if given.slurm:
            os.environ.update(started.enter_context(slurm(scratch / "slurm")))
            clusters = [(f"Slurm, {count} workers", str(_settings(scratch, count)), count) for count in given.workers]
        print(f"{'':20} {'ranks':>6} {'wall s':>8} {'processor s a rank':>20} {'of workers':>12}", flush=True)
        for what, wall, processor, workers, ranks in rows(given.folder, scratch / "home", clusters, given.ranks):
            print(f"{what:20} {ranks:6} {wall:8.1f} {processor / ranks:20.3f} {workers / ranks:12.3f}", flush=True)


def _settings(folder: Path, workers: int) -> Path:
    path = folder / f"{workers}.toml"
    path.write_text(f'[slurm]\nworkers = {workers}\nmemory = "1G"\ninterface = "lo"\n')
    return path


if __name__ == "__main__":
    main()
