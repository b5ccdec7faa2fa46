"""Matching in shards at thousands of ranks: what each worker takes of memory and processor, and what the caller takes.

    python -m benchmarks.shards [--ranks 1024 4096] [--collectives 2000] [--workers 2] [--compare]

The job of ``benchmarks.across_ranks``, whose tables are made when they are asked for: each rank has its own times and
groups. ``--compare`` also matches it in one process, and compares all rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from benchmarks.across_ranks import Job
from traceviz_dag.analyze.matching.communications import COMMUNICATION_COLUMNS
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.pipeline.shards import MatchedRanks, Sharding, match_ranks
from traceviz_dag.system.processes import WorkerDiedError, spread


@dataclass(frozen=True)
class Kernels:
    """The kernels of a job."""

    job: Job

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """One rank's; only the columns that matching or charging reads."""
        if "group_name" in columns:
            return self.job.communications(rank).select(list(COMMUNICATION_COLUMNS))
        table = self.job.kernels(rank)
        return table.append_column("beside_ns", pa.array([[]] * table.num_rows, pa.list_(pa.int64())))


@dataclass(frozen=True)
class Made:
    """A job as an iteration is read."""

    job: Job

    @property
    def ranks(self) -> tuple[int, ...]:
        """All."""
        return tuple(range(self.job.ranks))

    @property
    def topology(self) -> Topology:
        """Its groups and pipelines."""
        return self.job.topology

    @property
    def hosts(self) -> Mapping[int, int]:
        """Not known."""
        return {}

    @cached_property
    def stored_kernels(self) -> Kernels:
        """The kernels."""
        return Kernels(self.job)

    def kernels_in_turn(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Those of a rank."""
        return self.stored_kernels.kernels(rank, columns)

    def nodes(self, devices: Mapping[int, str | None] | None = None) -> Mapping[int, int]:
        """Eight ranks a node."""
        return {rank: rank // 8 for rank in self.ranks}

    @cached_property
    def microbatches(self) -> pa.Table:
        """Of all ranks."""
        return self.job.microbatches()


class Measured:
    """Work on other processes, with what it takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.mib: dict[str, float] = defaultdict(float)
        self.items: dict[str, int] = defaultdict(int)
        self.wall: dict[str, float] = defaultdict(float)

    def spread(
        self, work: Callable[..., Any], items: Sequence[Any], workers: int, arguments: tuple[Any, ...] = ()
    ) -> Iterator[tuple[int, Any]]:
        """As ``processes.spread``."""
        name = arguments[1].__name__ if work.__name__ == "_work_on" else work.__name__
        begin = time.perf_counter()
        for number, result in spread(_measured, items, workers, arguments=(work, *arguments)):
            if isinstance(result, WorkerDiedError):
                raise result
            found, seconds, mib = result
            self.seconds[name] += seconds
            self.items[name] += 1
            self.mib[name] = max(self.mib[name], mib)
            yield number, found
        self.wall[name] += time.perf_counter() - begin


def _measured(item: Any, work: Callable[..., Any], *arguments: Any) -> tuple[Any, float, float]:
    begin = time.process_time()
    result = work(item, *arguments)
    return result, time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(ranks: int, collectives: int, workers: int, compare: bool) -> None:
    """Print what one size takes."""
    iteration, measured = Made(Job(ranks, collectives)), Measured()
    begin, spent = time.perf_counter(), time.process_time()
    found = match_ranks(iteration, Sharding(workers, spread=measured.spread))
    wall, spent = time.perf_counter() - begin, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    matched = 1 - found.collectives["communication"].null_count / found.collectives.num_rows
    total = spent + sum(measured.seconds.values())
    print(f"{ranks} ranks, {found.collectives.num_rows} kernels, {matched:.3f} matched, {workers} workers")
    print(f"  {'work':15} {'items':>6} {'wall s':>8} {'processor s':>12} {'MiB of a worker':>16}")
    for name in measured.seconds:
        row = (measured.items[name], measured.wall[name], measured.seconds[name], measured.mib[name])
        print("  {:15} {:6} {:8.1f} {:12.1f} {:16.0f}".format(name.strip("_"), *row))
    print(
        f"  {'caller':15} {'':6} {wall:8.1f} {spent:12.1f} {peak:16.0f}   ({total:.0f} processor s in all)", flush=True
    )
    if compare:
        _compare(iteration, found)


def _compare(iteration: Made, found: MatchedRanks) -> None:
    begin = time.process_time()
    whole = match_ranks(iteration)
    charged = whole.charged()
    spent, peak = time.process_time() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for one, other in zip((charged, *whole[1:3]), found[:3], strict=True):
        for column in one.column_names:
            assert one[column].cast(_plain(one[column].type)).equals(other[column].cast(_plain(one[column].type))), (
                column
            )
    print(f"  in one process: the same, {spent:.1f} processor s, {peak:.0f} MiB", flush=True)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def main() -> None:
    """Measure the sizes that are asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--collectives", type=int, default=2000, help="communication kernels per rank")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--compare", action="store_true", help="also match in one process, and compare")
    # Workers find by name what they get.
    from benchmarks.shards import measure as measured

    options = parser.parse_args()
    for ranks in options.ranks:
        given = (ranks, options.collectives, options.workers, options.compare)
        process = multiprocessing.get_context("spawn").Process(target=measured, args=given)
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
