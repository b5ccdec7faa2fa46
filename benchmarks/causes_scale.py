"""What graph, replay, critical path and usual what-ifs of a step cost, by the number of ranks.

Run: ``python -m benchmarks.causes_scale 64 256 1024``. A job of 16 ranks is simulated and analysed once. Larger jobs
are copies of its tables: each is a data-parallel replica, whose data-parallel communications have the members of all
copies, and whose other communications and messages stay within the copy. So every copy takes the same time; the work is
that of so many ranks, but a real job's ranks would differ. With ``--long`` each rank has 11,000 kernels instead of 800.
With ``--advice`` only graph and advice are made. Each size runs in a separate process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.advice.search import Advisor
from traceviz_dag.classify.topology.types import Replicas, Topology
from traceviz_dag.pipeline.causes import causes_tables, ranked_steps
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.simulate import JobSettings, simulate

JOB = JobSettings(tp=2, pp=4, dp=2, layers=8, microbatches=8, iterations=1, seed=3)

LONG = replace(JOB, layers=64, microbatches=16)

_APART_NS = 1_001
"""By how much the clocks of two copies differ."""

_JOINED = ("dp", "edp")
"""Dimensions whose communications have members in all copies."""


@dataclass(frozen=True)
class Copies:
    """A job's tables so many times."""

    stored: StoredIteration
    count: int

    @property
    def own(self) -> int:
        """Ranks of one copy."""
        return len(self.stored.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks of all copies."""
        return tuple(range(self.own * self.count))

    @cached_property
    def topology(self) -> Topology:
        """The topology of one copy, whose stages the others have, too."""
        return _Repeated(self.stored.topology, self.own, self.count)  # type: ignore[return-value]

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """One rank's kernels."""
        return self._on_its_clock(self.stored.kernels(rank % self.own, columns), rank // self.own)

    def synchronizations(self, rank: int) -> pa.Table:
        """One rank's synchronisations."""
        return self._on_its_clock(self.stored.synchronizations(rank % self.own), rank // self.own)

    def _on_its_clock(self, table: pa.Table, copy: int | pa.Array) -> pa.Table:
        """Each copy has a clock of its own: no two ranks have the same times."""
        for name in ("start_ns", "launch_start_ns", "window_start_ns", "window_end_ns"):
            if name in table.column_names:
                moved = pc.add(table[name], pc.multiply(copy, _APART_NS))
                table = table.set_column(table.column_names.index(name), name, moved)
        return table

    def hidden_waits(self, rank: int) -> Sequence[int]:
        """One rank's waits for its GPU that need not be."""
        return self.stored.hidden_waits(rank % self.own)

    def pauses(self, rank: int) -> Mapping[int, int]:
        """One rank's known pauses."""
        return self.stored.pauses(rank % self.own)

    def windows(self) -> pa.Table:
        """The windows of all ranks."""
        copied = self._copied(self.stored.windows(), ("rank",))
        return self._on_its_clock(copied, pc.divide(copied["rank"].cast(pa.int64()), self.own))

    def collectives(self) -> pa.Table:
        """The members of all communications."""
        table = self._copied(self.stored.table("collectives"), ("rank",))
        each = table.num_rows // self.count
        communication = table["communication"].to_numpy(zero_copy_only=False)
        apart = ~pc.is_in(table["dimension"].cast(pa.string()), pa.array(_JOINED)).to_numpy(zero_copy_only=False)
        step = int(np.nanmax(communication)) + 1
        shifted = communication + np.where(apart, np.repeat(np.arange(self.count), each) * step, 0)
        place = table.column_names.index("communication")
        return table.set_column(place, "communication", pa.array(shifted, from_pandas=True).cast(pa.int64()))

    def messages(self) -> pa.Table:
        """All messages."""
        return self._copied(self.stored.table("messages"), ("sender_rank", "receiver_rank"))

    def _copied(self, table: pa.Table, ranks: Sequence[str]) -> pa.Table:
        by = pa.array(np.repeat(np.arange(self.count), table.num_rows) * self.own)
        result = pa.concat_tables([table] * self.count)
        for name in ranks:
            place = result.column_names.index(name)
            result = result.set_column(place, name, pc.add(result[name], by))
        return result


@dataclass(frozen=True)
class _Repeated:
    """Stages of ranks beyond those of a job."""

    one: Topology
    ranks: int
    copies: int

    @property
    def world_size(self) -> int:
        """Ranks of all copies."""
        return self.ranks * self.copies

    @property
    def replicas(self) -> Replicas:
        """The model replicas of all copies."""
        first = self.one.replicas.closure
        copied = (tuple(rank + copy * self.ranks for rank in one) for copy in range(self.copies) for one in first)
        return Replicas(closure=tuple(copied))

    @property
    def pipelines(self) -> tuple[tuple[int, ...], ...]:
        """The pipelines of all copies."""
        copies = range(self.copies)
        return tuple(tuple(rank + copy * self.ranks for rank in one) for copy in copies for one in self.one.pipelines)

    def stage_of(self, rank: int) -> tuple[int | None, object]:
        """The stage of the rank in the same place of the first copy."""
        return self.one.stage_of(rank % self.ranks)


def measure(ranks: int, folder: Path, advice: bool) -> None:
    """Print what one size costs."""
    with iterations_at(None, folder) as (iteration,):
        source = Copies(iteration, ranks // len(iteration.ranks))
        collectives, messages = source.collectives(), source.messages()
        kernels = sum(iteration.kernels(rank, ("kernel_id",)).num_rows for rank in iteration.ranks) * source.count
        began, start = time.process_time(), time.perf_counter()
        if advice:
            (ranked,) = ranked_steps(source, collectives, messages)
            what_if = ranked.what_if()
            edits = len(Advisor(what_if.items, what_if, {}).advice)
        else:
            table = causes_tables(source, collectives, messages)["what_if"]
            whole = [row["refusal"] for row in table.to_pylist() if row["edit"] is None]
            assert not whole, whole
            edits = table.num_rows
        spent, passed = time.process_time() - began, time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"| {ranks:,} | {kernels:,} | {edits} | {spent:.1f} | {passed:.1f} | {peak:.2f} |", flush=True)


def main() -> int:
    """Measure the sizes that are asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--long", action="store_true", help="ranks with 11,000 kernels each")
    parser.add_argument("--advice", action="store_true", help="make only the graph and the advice")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        simulate(LONG if given.long else JOB, folder / "job", workers=1)
        analysed = context.Process(target=analyse, args=(folder,))
        analysed.start()
        analysed.join()
        print("| ranks | kernels | predictions | processor s | s | peak memory, GiB |")
        print("| --: | --: | --: | --: | --: | --: |", flush=True)
        for ranks in given.ranks:
            one = context.Process(target=measure, args=(ranks, folder / "home", given.advice))
            one.start()
            one.join()
            if one.exitcode:
                return 1
    return 0


def analyse(folder: Path) -> None:
    """Analyse the job into a home."""
    from typer.testing import CliRunner

    from traceviz_dag.commands.main import app

    result = CliRunner().invoke(app, ["analyze", str(folder / "job"), "--home", str(folder / "home")])
    if result.exit_code:
        raise RuntimeError(result.output)


if __name__ == "__main__":
    sys.exit(main())
