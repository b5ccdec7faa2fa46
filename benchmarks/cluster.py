"""What workers of Dask cost beside the ranks that they analyse: processor seconds per rank, against a single process.

    python -m benchmarks.cluster FOLDER --workers 1 2 4 [--ranks 64] [--slurm | --cluster slurm.toml]

Each row is the median of a few rounds, by turns, over the folder's first iteration. What as many processes of the local
pool take more than one of it is the machine's share. ``--ranks`` repeats the traces under further numbers for the rows
of Dask. ``--slurm`` starts a Slurm of this machine alone (needs root and Debian's packages), and a job in it for each
number of workers. A cluster elsewhere (``--cluster``) has as many workers as its file says; only its wall time is seen
from here.
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
from statistics import median

import psutil

from tests.slurm import slurm
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.pipeline.cluster.opening import LOCAL, open_cluster
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.engines import Engine
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.workers import IterationTask, analyse_ranks

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


Row = tuple[float, float, float]
"""Processor seconds of a rank, those of the workers among them, wall seconds of all ranks."""


def rounds(
    folder: Path, home: Path, clusters: list[tuple[str, str, int]], ranks: int, count: int
) -> Iterator[tuple[str, Row]]:
    """What, and what it took; all by turns, ``count`` times, as the machine is not as fast in each minute.

    Args:
        clusters: what, where and workers of each. ranks: 0: those of the folder.
    """
    inputs = inputs_below([folder])[0]
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks})
    repeated = [replace(traces[rank % len(traces)], rank=rank) for rank in range(ranks or len(traces))]
    task = IterationTask(home, inputs.run, inputs.iteration, read_topology(inputs), load_rules())

    def measured(every_trace: list[RankTrace], engine: Engine | None, workers: int) -> Row:
        wall, (every, of_workers) = time.monotonic(), processor_seconds()
        outcomes = list(analyse_ranks(task, every_trace, None if engine else workers, engine=engine))
        failed = [outcome for outcome in outcomes if outcome.failed]
        assert not failed, failed[0]
        after, of_workers_after = processor_seconds()
        number = len(every_trace)
        return (after - every) / number, (of_workers_after - of_workers) / number, time.monotonic() - wall

    with ExitStack() as opened:
        counts = sorted({1, *(workers for _, _, workers in clusters)})
        ways: list[tuple[str, Engine | None, int]] = [(f"local pool, {workers}", None, workers) for workers in counts]
        for what, where, workers in clusters:
            ways.append((what, opened.enter_context(open_cluster(where, home, workers)), workers))
        for _, engine, workers in ways:
            measured(traces[: 4 * workers], engine, workers)  # no start is in what counts
        for _ in range(count):
            for what, engine, workers in ways:
                yield what, measured(repeated if engine else traces, engine, workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cluster", default=LOCAL)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slurm", action="store_true")
    given = parser.parse_args()
    with ExitStack() as started:
        scratch = Path(started.enter_context(tempfile.TemporaryDirectory())).resolve()
        clusters = [(f"{count} workers", LOCAL, count) for count in given.workers]
        if given.cluster != LOCAL:
            clusters = [(given.cluster, given.cluster, 1)]
        if given.slurm:
            # The jobs run side by side, so that their ranks can be read by turns.
            os.environ.update(started.enter_context(slurm(scratch / "slurm", cores=sum(given.workers))))
            clusters = [(f"Slurm, {count} workers", str(_settings(scratch, count)), count) for count in given.workers]
        taken: dict[str, list[Row]] = {}
        for what, row in rounds(given.folder, scratch / "home", clusters, given.ranks, given.rounds):
            taken.setdefault(what, []).append(row)
        print(f"{'':20} {'processor s a rank':>20} {'least to most':>16} {'of workers':>12} {'wall s':>8}", flush=True)
        for what, of_way in taken.items():
            processor, workers, wall = (median(figures) for figures in zip(*of_way, strict=True))
            span = f"{min(of_way)[0]:.3f} to {max(of_way)[0]:.3f}"
            print(f"{what:20} {processor:20.3f} {span:>16} {workers:12.3f} {wall:8.1f}", flush=True)


def _settings(folder: Path, workers: int) -> Path:
    path = folder / f"{workers}.toml"
    path.write_text(f'[slurm]\nworkers = {workers}\nmemory = "1G"\ninterface = "lo"\n')
    return path


if __name__ == "__main__":
    main()
