"""One iteration as it lies in the lake, read piece by piece; what is asked of it and is not there is computed.

Commands start with it, so it imports what computes only where something is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from traceviz_dag.analyze.peaks import Peaks
from traceviz_dag.analyze.waits.nodes import nodes_of_devices, nodes_of_host_clocks
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.across_ranks_views import rows_of_query
from traceviz_dag.lake.inputs import IterationInputs, registered_if_any
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.operation_summaries import step_flops
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.queries import TraceFiles, trace_files
from traceviz_dag.lake.read_ahead import ReadAhead
from traceviz_dag.pipeline.completeness import Completeness, ranks_chosen_by_name, stored_completeness
from traceviz_dag.system.whole_files import scratch_folder
from traceviz_dag.tables import FINDINGS, SYNCHRONIZATIONS, UTILIZATION
from traceviz_dag.tables.rows import of_ranks

if TYPE_CHECKING:
    from traceviz_dag.analyze.causes.what_if import WhatIf
    from traceviz_dag.analyze.findings.verdict import Lead
    from traceviz_dag.analyze.stage_times import StageTimes
    from traceviz_dag.classify.topology.types import Topology

_ON_PATH = (
    *("rank", "kernel_id", "kind", "name", "collective", "launch_start_ns", "operator", "launch_name", "module"),
)
_GAPS = ("rank", "kernel_id", "caller", "doing", "doing_ns", "host_work")

_OF_WAITS = (
    *("synchronization_id", "kind", "thread", "start_ns", "duration_ns", "step", "stream", "wait_on_stream"),
    *("record_start_ns", "waited_for_kernel_id", "waiting_kernel_id", "evidence"),
)

_STEP_COLUMNS = (
    *("rank", "step", "chunk", "microbatch", "phase", "dimension", "order_in_rank", "host_start_ns"),
    *("span_start_ns", "span_end_ns"),
)


@dataclass(frozen=True, slots=True)
class StoredKernels:
    """The kernels of an iteration in a lake, and its synchronisations.

    Attributes:
        unmarked: ranks without a mark; number: of the step that is theirs.
    """

    lake: Lake
    run: str
    iteration: int
    unmarked: frozenset[int]
    number: int

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels."""
        table = self.lake.table("kernels", self.run, self.iteration, rank).arrow(columns)
        return _with_step(table, self.number) if rank in self.unmarked and "step" in columns else table

    def synchronizations(self, rank: int) -> pa.Table:
        """One rank's synchronisations; no rows where its trace has none."""
        if not self.lake.exists("synchronizations", run=self.run, iteration=self.iteration, rank=rank):
            return SYNCHRONIZATIONS.schema.empty_table()
        table = self.lake.table("synchronizations", self.run, self.iteration, rank).arrow(_OF_WAITS)
        return _with_step(table, self.number) if rank in self.unmarked else table


@dataclass(frozen=True)
class StoredIteration:
    """One iteration in a lake, read piece by piece.

    Attributes:
        inputs: its trace files, where they are known; annotations are read from them.
        with_partial: count ranks that were read in part; by default they are left out.
        by_name: files of ranks were named, and the others are left out on purpose.
        peaks: of GPUs; None: those of the lake's home.
    """

    lake: Lake
    run: str
    iteration: int
    inputs: IterationInputs | None = None
    with_partial: bool = False
    by_name: bool = False
    peaks: Peaks | None = None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with kernels in the lake that are counted."""
        partitions = self.lake.partitions("kernels", self.run, self.iteration)
        left_out = set() if self.with_partial else set(self.completeness.in_part)
        return tuple(sorted(part.rank for part in partitions if part.rank is not None and part.rank not in left_out))

    @cached_property
    def completeness(self) -> Completeness:
        """What of the iteration was not read."""
        key = iteration_key(self.run, self.iteration)
        inputs = self.inputs or registered_if_any(self.lake.home, key)
        found = stored_completeness(self.lake, self.run, self.iteration, inputs, self.files)
        return replace(found, expected=None, missing=()) if self.by_name else found

    @cached_property
    def files(self) -> TraceFiles:
        """How the trace of each rank was read."""
        return trace_files(self.lake, self.run, self.iteration)

    @cached_property
    def topology(self) -> Topology:
        """The job's topology."""
        from traceviz_dag.pipeline.stored_topology import stored_topology

        return stored_topology(self.lake, self.run, self.iteration)[0]

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels; of a rank without a mark, the step is that of the others."""
        return self.stored_kernels.kernels(rank, columns)

    def kernels_in_turn(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """The same, for who asks rank after rank: those of the next ranks are read along."""
        unmarked, number = self._unmarked
        table = self._ahead.rows("kernels", columns, rank)
        return _with_step(table, number) if rank in unmarked and "step" in columns else table

    @cached_property
    def _ahead(self) -> ReadAhead:
        return ReadAhead(self.lake, self.run, self.iteration)

    @cached_property
    def stored_kernels(self) -> StoredKernels:
        """The same, to be sent to other processes."""
        return StoredKernels(self.lake, self.run, self.iteration, *self._unmarked)

    @cached_property
    def hosts(self) -> dict[int, int]:
        """Rank → number of its host, where the traces of all ranks state their host's clocks; else empty."""
        return nodes_of_host_clocks({row["rank"]: row["host_clock_ns"] for row in self.files.rows})

    def nodes(self, devices: Mapping[int, str | None] | None = None) -> dict[int, int]:
        """Rank → number of its node, as hosts' clocks or devices show it; empty where neither does.

        Args:
            devices: rank → its device; by default those of its kernels.
        """
        return self.hosts or nodes_of_devices(devices or {rank: self.device(rank) for rank in self.ranks})

    def device(self, rank: int) -> str | None:
        """The one device of a rank; None where it has several, or none."""
        devices = self.kernels(rank, ("device",))["device"].unique().to_pylist()
        return devices[0] if len(devices) == 1 else None

    @cached_property
    def microbatches(self) -> pa.Table:
        """The forward and backward steps of the ranks that are counted."""
        table = self.lake.table("microbatches", self.run, self.iteration).arrow(_STEP_COLUMNS)
        unmarked, number = self._unmarked
        if unmarked:
            import pyarrow.compute as pc

            mine = pc.is_in(table["rank"], pa.array(sorted(unmarked), table["rank"].type))
            table = pa.concat_tables([table.filter(pc.invert(mine)), _with_step(table.filter(mine), number)])
        if not self.completeness.in_part or self.with_partial:
            return table
        return of_ranks(table, self.ranks)

    def synchronizations(self, rank: int) -> pa.Table:
        """One rank's synchronisations; no rows where its trace has none."""
        return self.stored_kernels.synchronizations(rank)

    def hidden_waits(self, rank: int) -> list[int]:
        """``synchronization_id`` of a rank's waits that need not be, and after which its GPU starved."""
        return self._host_clues.get(rank, {}).get("waits") or []

    def pauses(self, rank: int) -> dict[int, int]:
        """``kernel_id`` → how long a rank's host paused before its launch while the GPU starved, ns."""
        return {row["kernel_id"]: row["ns"] for row in self._host_clues.get(rank, {}).get("pauses") or []}

    def launch_bound_hosts(self) -> list[int]:
        """The ranks that are bound by launches."""
        return [row["rank"] for row in self._hosts[0]]

    def pausing_hosts(self) -> list[int]:
        """Ranks whose host alone does something else while its GPU is idle, the longest first."""
        lost = [(row["starved_ns"], row["rank"]) for rows in self._hosts[2:] for row in rows if row["rank"] is not None]
        return [rank for _, rank in sorted(lost, key=lambda one: (-one[0], one[1]))]

    def windows(self, *more: str) -> pa.Table:
        """The windows of the ranks that are counted; no rows where none is in the lake.

        Args:
            more: columns beside ``WINDOW_COLUMNS``.
        """
        from traceviz_dag.analyze.step_time import WINDOW_COLUMNS

        table = self.lake.rows("overlap", self.run, self.iteration, ["rank", *WINDOW_COLUMNS, *more])
        table = of_ranks(table, self.ranks)
        unmarked, number = self._unmarked
        if not unmarked:
            return table
        import pyarrow.compute as pc

        # The host of some ranks shows no step: all are measured alike, from the first kernel to the last.
        return _with_step(table.filter(pc.equal(table["window_name"].cast(pa.string()), "kernels")), number)

    def flops(self) -> pa.Table:
        """What ``operation_summaries.step_flops`` gives of the ranks."""
        unmarked, number = self._unmarked
        work = step_flops(self.lake, self.run, self.iteration)
        return _with_step(work, number) if unmarked else work

    @cached_property
    def _unmarked(self) -> tuple[frozenset[int], int]:
        """Ranks whose files have no ProfilerStep mark, and the one step that the others' have: it is theirs, too. None
        where the others have several."""
        files = self.files.rows
        numbers = {number for row in files for number in row["taken_steps"] or ()}
        unmarked = frozenset(row["rank"] for row in files if not row["steps"]) if len(numbers) == 1 else frozenset()
        return unmarked, next(iter(numbers), 0)

    @property
    def step_ns(self) -> int | None:
        """How long the iteration's training steps take; None where no rank's windows are in the lake."""
        from traceviz_dag.analyze.step_time import WINDOW_COLUMNS, step_time

        if not self.lake.partitions("overlap", self.run, self.iteration):
            return None
        return step_time(self.lake.rows("overlap", self.run, self.iteration, WINDOW_COLUMNS))

    def ask(self, sql: str, **tables: pa.Table) -> pa.Table:
        """What ``rows_of_query`` gives of tables of this iteration."""
        return rows_of_query(sql, self.run, self.iteration, **tables)

    def of_path(self, segments: pa.Table, ranks: Collection[int] | None = None) -> dict[str, pa.Table]:
        """The tables that a query about kernels and hosts of a critical path names, of its ranks.

        Args:
            segments: rows of table ``path_segments``. ranks: those that are asked for; by default all of the path.
        """
        ranks = set(segments["rank"].to_pylist()) if ranks is None else ranks
        # Tables that somebody deleted are named by who counts the ranks.
        there = {part.rank for part in self.lake.partitions("kernels", self.run, self.iteration)}
        kernels = [self.kernels(rank, _ON_PATH) for rank in sorted(ranks) if rank in there]
        parts = [part for part in self.lake.partitions("gpu_gaps", self.run, self.iteration) if part.rank in ranks]
        return {
            "path_segments": segments,
            "kernels": pa.concat_tables(kernels, promote_options="permissive"),
            "gpu_gaps": self.lake.rows_of("gpu_gaps", parts, _GAPS),
        }

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table across ranks: as it is in the lake, else computed; findings from the other tables in the lake, and
        utilization without the others.

        Args:
            columns: those that are read; by default all. A computed table has all.
        """
        if self.lake.exists(name, run=self.run, iteration=self.iteration):
            return self.lake.table(name, self.run, self.iteration).arrow(columns)
        if name == FINDINGS.name:
            from traceviz_dag.pipeline.findings import iteration_findings

            return iteration_findings(self.lake, self.run, self.iteration, self.what_ifs)
        if name == UTILIZATION.name:
            from traceviz_dag.pipeline.utilization import utilization_table

            return utilization_table(self)
        return self._computed[name]

    def findings(self) -> list[dict[str, Any]]:
        """Rows of table ``findings``; of traces that were given, computed.

        Raises:
            UsageError: the home was written by a version that had no findings.
        """
        if not self.has_findings:
            if self.inputs is None:
                place = f"{self.lake.home} has no findings of {self.run} {self.iteration}"
                raise UsageError(f"{place}; analyse its traces into it again")
            for name, table in self._computed.items():
                self.lake.write(name, table, run=self.run, iteration=self.iteration)
        return self.table(FINDINGS.name).to_pylist()

    @property
    def has_findings(self) -> bool:
        """Whether the lake has the iteration's findings."""
        return bool(self.lake.partitions(FINDINGS.name, self.run, self.iteration))

    @cached_property
    def lead(self) -> Lead:
        """What is said first of the iteration; of a home whose version had no findings, nothing."""
        from traceviz_dag.analyze.findings.verdict import lead_of

        return lead_of(self.findings() if self.inputs or self.has_findings else [])

    @cached_property
    def kept(self) -> list[WhatIf]:
        """The replay of the only step, once the tables across ranks were computed; else none."""
        return []

    def what_ifs(self) -> Iterator[WhatIf]:
        """The replays of the training steps that can be replayed, one after the other."""
        if self.kept:
            yield from self.kept
            return
        from traceviz_dag.pipeline.causes import replayable_steps

        for ranked in replayable_steps(self, self.table("collectives"), self.table("messages")):
            yield ranked.what_if()

    @cached_property
    def _host_clues(self) -> Mapping[int, dict[str, Any]]:
        return {row["rank"]: row for row in self._hosts[1]}

    @cached_property
    def _hosts(self) -> list[list[dict[str, Any]]]:
        from traceviz_dag.pipeline.host_clues import about_hosts

        return about_hosts(self.lake, self.run, self.iteration)

    @cached_property
    def _computed(self) -> Mapping[str, pa.Table]:
        from traceviz_dag.pipeline.across_ranks import analyse_across_ranks

        return analyse_across_ranks(self)


def _with_step(table: pa.Table, number: int) -> pa.Table:
    """The table with a number for the step where it has none."""
    place = table.column_names.index("step")
    return table.set_column(place, "step", table["step"].fill_null(pa.scalar(number, table["step"].type)))


def stored_stage_times(lake: Lake, run: str, iteration: int) -> StageTimes:
    """What stages and ranks of an iteration compute for a micro-batch; nothing where no micro-batch is in the lake.

    Of the ranks that the row of ``iterations`` covers, so that all measures of an iteration speak of the same ranks.
    """
    from traceviz_dag.analyze.stage_times import STAGE_COLUMNS, StageTimes, stage_times

    table = lake.rows("microbatches", run, iteration, STAGE_COLUMNS)
    if not table.num_rows:
        return StageTimes(())
    rows: list[dict[str, list[int] | None]] = []
    if lake.exists("iterations", run=run, iteration=iteration):
        rows = lake.table("iterations", run, iteration).arrow(["covered_ranks"]).to_pylist()
    # An earlier version did not state them: it covered all.
    stated = [row["covered_ranks"] for row in rows if row["covered_ranks"] is not None]
    covered = [rank for ranks in stated for rank in ranks] if stated else StoredIteration(lake, run, iteration).ranks
    return stage_times(of_ranks(table, covered))


@contextmanager
def iterations_at(
    path: Path | None, home: Path, rules: Path | None = None, rank: int | None = None, *, by_rank: bool = False
) -> Iterator[list[StoredIteration]]:
    """The iterations of a path, analysed into a lake that is gone afterwards; or, without a path, those of a home.

    Args:
        home: for a path, where profiles of Nsight Systems are kept once they were read.
        rank: rank of a single file that does not say its own.
        by_rank: each rank is measured alone, so that other ranks than those of a file that is named are not missed.

    Raises:
        BadInputError: the path holds no traces, or the home no analysed iteration.
    """
    if path is None:
        lake = open_lake(home, refresh=False)
        places = sorted({(part.run, part.iteration) for part in lake.partitions("kernels")})
        if not places:
            lake.table("kernels")
        yield [StoredIteration(lake, run, iteration) for run, iteration in places]
        return
    with scratch_folder() as folder:
        from traceviz_dag.pipeline.discovery import inputs_below
        from traceviz_dag.pipeline.home_settings import home_peaks
        from traceviz_dag.pipeline.path_analysis import analysed_into

        below = inputs_below([path], rank=rank, home=home)
        named = [by_rank and ranks_chosen_by_name(inputs, [path]) for inputs in below]
        lakes = [analysed_into(folder, inputs, rules, home) for inputs in below]
        yield [
            StoredIteration(lake, inputs.run, inputs.iteration, inputs, by_name=by_name, peaks=home_peaks(home))
            for lake, inputs, by_name in zip(lakes, below, named, strict=True)
        ]
