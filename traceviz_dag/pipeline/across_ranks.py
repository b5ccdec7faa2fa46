"""An iteration's tables across ranks, from its ranks' tables in the lake: matched, aligned, charged, replayed, paired.

Ranks are read one after the other. In memory are the communication kernels of all ranks, a table of their parts in each
communication, and the kernels of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.causes.causes_tables import messages_table
from traceviz_dag.analyze.causes.what_if import Suspects, WhatIf
from traceviz_dag.analyze.findings.fragments import HIDDEN_WAIT, PAUSES
from traceviz_dag.analyze.findings.rules import host_pauses, launch_bound
from traceviz_dag.analyze.findings.rules.registry import SHARED
from traceviz_dag.analyze.findings.verdict import Lead, lead_of
from traceviz_dag.analyze.matching.communications import (
    COMMUNICATION_COLUMNS,
    gather_communications,
    select_communications,
)
from traceviz_dag.analyze.matching.operations import Operation
from traceviz_dag.analyze.peaks import BUILT_IN, Peaks
from traceviz_dag.analyze.pipelines.named_pairs import (
    RANGES,
    annotation_ranges,
    named_range_periods,
    named_table_periods,
    stamped_periods,
)
from traceviz_dag.analyze.pipelines.period_summary import period_summary
from traceviz_dag.analyze.pipelines.periods import BUSY_COLUMNS, periods_table
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.analyze.slow_groups import NODE, STAGE, TENSOR_GROUP, slow_groups
from traceviz_dag.analyze.slow_kinds import name_kinds
from traceviz_dag.analyze.slow_ranks import SLOWER_THAN_FEW
from traceviz_dag.analyze.slow_ranks import speeds as rank_speeds
from traceviz_dag.analyze.slow_stages import stage_speeds
from traceviz_dag.analyze.slow_times import KERNEL_COLUMNS
from traceviz_dag.analyze.stage_times import STAGE_COLUMNS, StageTimes, stage_times
from traceviz_dag.analyze.step_time import WINDOW_COLUMNS, step_time
from traceviz_dag.analyze.step_utilization import step_utilization, step_windows
from traceviz_dag.analyze.waits.blame import blame_matrix, late_ranks
from traceviz_dag.analyze.waits.by_ends import match_and_solve
from traceviz_dag.analyze.waits.collectives import collectives_table, device_of_ranks
from traceviz_dag.analyze.waits.experts import expert_load
from traceviz_dag.analyze.waits.links import link_groups, link_speeds
from traceviz_dag.analyze.waits.nodes import nodes_of_devices, nodes_of_host_clocks
from traceviz_dag.analyze.waits.waits import BESIDE_COLUMNS, charge_waits
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.classify.topology.unite import topology_tables
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.across_ranks_views import rows_of_query
from traceviz_dag.lake.inputs import IterationInputs, registered_if_any
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.lake.operation_summaries import step_flops
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.queries import TraceFiles, trace_files
from traceviz_dag.lake.summaries import computation_by_kernel, stage_work
from traceviz_dag.pipeline.aggregates import stated_by
from traceviz_dag.pipeline.causes import CAUSES_TABLES, causes_tables, replayable_steps
from traceviz_dag.pipeline.completeness import Completeness, ranks_chosen_by_name, stored_completeness
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.findings import iteration_findings, speaking_rules
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.pipeline.iteration import rank_traces, read_topology, stored_topology
from traceviz_dag.pipeline.ranks import read_events
from traceviz_dag.pipeline.workers import IterationTask, analyse_ranks
from traceviz_dag.read.events import MISSING
from traceviz_dag.read.pairs_file import NamedPair, StageSelector, Stamp, read_stamps
from traceviz_dag.system.whole_files import scratch_folder
from traceviz_dag.tables import (
    BLAME,
    EXPERT_LOADS,
    FINDINGS,
    LATE_RANKS,
    LINKS,
    PERIOD_PERCENTILES,
    PERIODS,
    SYNCHRONIZATIONS,
    TOPOLOGY_TABLES,
    UTILIZATION,
)
from traceviz_dag.vocabulary import Dimension

ACROSS_RANKS_TABLES = (
    *("collectives", "rank_clocks", "late_ranks", "blame", "links", "expert_loads", "rank_speeds", "stage_speeds"),
    *("class_speeds", "group_speeds", "link_groups", "utilization"),
    *("pipelines", "periods", "period_percentiles", "messages", *CAUSES_TABLES, "findings"),
)
"""The tables across ranks, in the order in which they are made; ``pipeline.findings`` makes the last one of the others.
"""

_EDIT_OF_SET = {TENSOR_GROUP: "fix_group", NODE: "fix_node", STAGE: "fix_ranks"}
"""The edit that fixes ranks which are slow together."""

_HOST_CLUES_SQL = f"""
WITH clues AS (
    SELECT rank, synchronization_id, kernel_id, {HIDDEN_WAIT} AS waits,
        CASE WHEN {host_pauses.UNNAMED} THEN starved_ns ELSE doing_ns END AS pause_ns,
        -- What loading data usually takes, the graph itself shows.
        kernel_id IS NOT NULL AND (host_work IN {PAUSES} AND host_work <> 'data_loading'
            OR {host_pauses.UNNAMED} AND rank IN (SELECT rank FROM ({host_pauses.UNNAMED_SQL}))) AS pauses
    FROM gpu_gaps WHERE run = $run AND iteration = $iteration
)
SELECT
    rank, list(DISTINCT synchronization_id) FILTER (waits) AS waits,
    list({{'kernel_id': kernel_id, 'ns': pause_ns}}) FILTER (pauses) AS pauses
FROM clues WHERE waits OR pauses GROUP BY rank
"""

_ON_PATH = (
    *("rank", "kernel_id", "kind", "name", "collective", "launch_start_ns", "operator", "launch_name", "module"),
)
_GAPS_SQL = """
SELECT rank, kernel_id, caller, doing, doing_ns, host_work FROM gpu_gaps
WHERE run = $run AND iteration = $iteration
"""

_STEP_COLUMNS = (
    *("rank", "step", "chunk", "microbatch", "phase", "dimension", "order_in_rank", "host_start_ns"),
    *("span_start_ns", "span_end_ns"),
)


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
        return stored_topology(self.lake, self.run, self.iteration)[0]

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one rank's kernels; of a rank without a mark, the step is that of the others."""
        table = self.lake.table("kernels", self.run, self.iteration, rank).arrow(columns)
        unmarked, number = self.unmarked
        return _with_step(table, number) if rank in unmarked and "step" in columns else table

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
        devices = pc.unique(self.kernels(rank, ("device",))["device"].cast(pa.string())).to_pylist()
        return devices[0] if len(devices) == 1 else None

    def microbatches(self) -> pa.Table:
        """The forward and backward steps of the ranks that are counted."""
        table = self.lake.table("microbatches", self.run, self.iteration).arrow(_STEP_COLUMNS)
        unmarked, number = self.unmarked
        if unmarked:
            mine = pc.is_in(table["rank"], pa.array(sorted(unmarked), table["rank"].type))
            table = pa.concat_tables([table.filter(pc.invert(mine)), _with_step(table.filter(mine), number)])
        if not self.completeness.in_part or self.with_partial:
            return table
        return table.filter(pc.is_in(table["rank"], pa.array(self.ranks, table["rank"].type)))

    def synchronizations(self, rank: int) -> pa.Table:
        """One rank's synchronisations; no rows where its trace has none."""
        if not self.lake.exists("synchronizations", run=self.run, iteration=self.iteration, rank=rank):
            return SYNCHRONIZATIONS.schema.empty_table()
        table = self.lake.table("synchronizations", self.run, self.iteration, rank).arrow()
        unmarked, number = self.unmarked
        return _with_step(table, number) if rank in unmarked else table

    def hidden_waits(self, rank: int) -> list[int]:
        """``synchronization_id`` of a rank's waits that need not be, and after which its GPU starved."""
        return self._host_clues.get(rank, {}).get("waits") or []

    def pauses(self, rank: int) -> dict[int, int]:
        """``kernel_id`` → how long a rank's host paused before its launch while the GPU starved, ns."""
        return {row["kernel_id"]: row["ns"] for row in self._host_clues.get(rank, {}).get("pauses") or []}

    def slow_hosts(self) -> list[int]:
        """The rank that alone is bound by launches; none where no rank is, or several are."""
        ranks = [row["rank"] for row in self._hosts[0]]
        return ranks if len(ranks) == 1 else []

    def pausing_hosts(self) -> list[int]:
        """Ranks whose host alone does something else while its GPU is idle, the longest first."""
        lost = [(row["starved_ns"], row["rank"]) for rows in self._hosts[2:] for row in rows if row["rank"] is not None]
        return [rank for _, rank in sorted(lost, key=lambda one: (-one[0], one[1]))]

    def windows(self, *more: str) -> pa.Table:
        """The windows of the ranks that are counted; no rows where none is in the lake.

        Args:
            more: columns beside ``WINDOW_COLUMNS``.
        """
        table = self.lake.rows("overlap", self.run, self.iteration, ["rank", *WINDOW_COLUMNS, *more])
        table = table.filter(pc.is_in(table["rank"], pa.array(self.ranks, table["rank"].type)))
        unmarked, number = self.unmarked
        if not unmarked:
            return table
        # The host of some ranks shows no step: all are measured alike, from the first kernel to the last.
        return _with_step(table.filter(pc.equal(table["window_name"].cast(pa.string()), "kernels")), number)

    @cached_property
    def unmarked(self) -> tuple[frozenset[int], int]:
        """Ranks whose files have no ProfilerStep mark, and the one step that the others' have: it is theirs, too. None
        where the others have several."""
        files = self.files.rows
        numbers = {number for row in files for number in row["taken_steps"] or ()}
        unmarked = frozenset(row["rank"] for row in files if not row["steps"]) if len(numbers) == 1 else frozenset()
        return unmarked, next(iter(numbers), MISSING)

    @property
    def step_ns(self) -> int | None:
        """How long the iteration's training steps take; None where no rank's windows are in the lake."""
        if not self.lake.partitions("overlap", self.run, self.iteration):
            return None
        return step_time(self.lake.table("overlap", self.run, self.iteration).arrow(WINDOW_COLUMNS))

    def ask(self, sql: str, **tables: pa.Table) -> pa.Table:
        """What ``rows_of_query`` gives of tables of this iteration."""
        return rows_of_query(sql, self.run, self.iteration, **tables)

    def of_path(self, segments: pa.Table) -> dict[str, pa.Table]:
        """The tables that a query about kernels and hosts of a critical path names, of its ranks.

        Args:
            segments: rows of table ``path_segments``.
        """
        ranks = pc.unique(segments["rank"]).to_pylist()
        kernels = pa.concat_tables([self.kernels(rank, _ON_PATH) for rank in ranks], promote_options="permissive")
        gaps = self.lake.query_iteration(_GAPS_SQL, run=self.run, iteration=self.iteration)
        return {"path_segments": segments, "kernels": kernels, "gpu_gaps": gaps}

    def table(self, name: str) -> pa.Table:
        """A table across ranks: as it is in the lake, else computed; findings from the other tables in the lake, and
        utilization without the others."""
        if self.lake.exists(name, run=self.run, iteration=self.iteration):
            return self.lake.table(name, self.run, self.iteration).arrow()
        if name == FINDINGS.name:
            return iteration_findings(self.lake, self.run, self.iteration, self.what_ifs)
        if name == UTILIZATION.name:
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
        for ranked in replayable_steps(self, self.table("collectives"), self.table("messages")):
            yield ranked.what_if()

    def sets_of_ranks(self, name: str) -> list[tuple[int, ...]]:
        """The tensor-parallel groups (``fix_group``) or nodes (``fix_node``) of which all ranks were read."""
        nodes = self.nodes() if name == "fix_node" else {}
        return [ranks for kind, ranks in _sets_of_ranks(self, nodes) if _EDIT_OF_SET[kind] == name]

    @cached_property
    def _host_clues(self) -> Mapping[int, dict[str, Any]]:
        return {row["rank"]: row for row in self._hosts[1]}

    @cached_property
    def _hosts(self) -> list[list[dict[str, Any]]]:
        """What is asked about the hosts: who is bound by launches, rows of ``_HOST_CLUES_SQL`` and of rules."""
        with self.lake.session(run=self.run, iteration=self.iteration) as session:
            pauses = [rule.sql for rule in speaking_rules(session, host_pauses.RULES)]
            answers = session.ask_each([launch_bound.RANKS_SQL, _HOST_CLUES_SQL, *pauses], SHARED)
        return [rows.to_pylist() for rows in answers]

    @cached_property
    def _computed(self) -> Mapping[str, pa.Table]:
        return analyse_across_ranks(self)


def _with_step(table: pa.Table, number: int) -> pa.Table:
    """The table with a number for the step where it has none."""
    place = table.column_names.index("step")
    return table.set_column(place, "step", pc.fill_null(table["step"], pa.scalar(number, table["step"].type)))


def analyse_across_ranks(iteration: StoredIteration) -> Mapping[str, pa.Table]:
    """Compute all tables across ranks of an iteration.

    Returns:
        Table name → rows, for each of ``ACROSS_RANKS_TABLES`` but ``findings``.

    Raises:
        BadInputError: the iteration's ranks or topology are not in the lake.
    """
    microbatches, topology = iteration.microbatches(), iteration.topology
    rows = gather_communications(
        select_communications(iteration.kernels(rank, COMMUNICATION_COLUMNS)) for rank in iteration.ranks
    )
    matches, clocks = match_and_solve(rows, topology, microbatches, iteration.ranks, iteration.hosts)
    nodes = iteration.nodes(device_of_ranks(matches))
    collectives = charge_waits(
        collectives_table(matches, clocks, nodes), matches, clocks, lambda rank: iteration.kernels(rank, BESIDE_COLUMNS)
    )
    periods = periods_table(microbatches, topology, lambda rank: iteration.kernels(rank, BUSY_COLUMNS), iteration.ranks)
    messages = messages_table(matches, clocks)
    links = link_speeds(collectives)
    work = computation_by_kernel(iteration.lake, iteration.run, iteration.iteration, iteration.ranks)
    late = late_ranks(collectives, iteration.step_ns)
    speeds, classes = name_kinds(
        *rank_speeds(work), links.to_pylist(), late.to_pylist(), lambda rank: iteration.kernels(rank, KERNEL_COLUMNS)
    )
    stages = _stage_speeds(iteration, speeds)
    together = slow_groups(work, speeds, stages, _sets_of_ranks(iteration, nodes))
    of_groups = link_groups(collectives, links)
    suspects = Suspects(
        _suspected_ranks(iteration, speeds, stages, late),
        _suspected_links(links, of_groups),
        iteration.slow_hosts(),
        _slow_together(together),
        _suspected_sets(links, of_groups),
    )
    return {
        "collectives": collectives,
        "rank_clocks": clocks,
        "late_ranks": LATE_RANKS.from_rows(late),
        "blame": BLAME.from_rows(blame_matrix(collectives)),
        "links": LINKS.from_rows(links),
        "expert_loads": EXPERT_LOADS.from_rows(expert_load(expert_exchanges(iteration, collectives))),
        "rank_speeds": speeds,
        "class_speeds": classes,
        "stage_speeds": stages,
        "group_speeds": together,
        "link_groups": of_groups,
        "utilization": utilization_table(iteration),
        "pipelines": pipelines_table(microbatches, topology),
        "periods": periods,
        "period_percentiles": PERIOD_PERCENTILES.from_rows(period_summary(periods)),
        "messages": messages,
        **causes_tables(iteration, collectives, messages, suspects, iteration.kept),
    }


def utilization_table(iteration: StoredIteration) -> pa.Table:
    """The table ``utilization`` of the ranks that are counted."""
    lake, run, number = iteration.lake, iteration.run, iteration.iteration
    unmarked, step = iteration.unmarked
    places = lake.rows("topology", run, number, ["rank", "stage", "model_replica"]).to_pylist()
    work = step_flops(lake, run, number)
    return step_utilization(
        _with_step(work, step) if unmarked else work,
        step_windows(iteration.windows("device", "compute_ns")),
        stated_by(iteration.files, None, iteration.with_partial),
        {row["rank"]: row for row in places},
        home_peaks(lake.home) if iteration.peaks is None else iteration.peaks,
    )


def _suspected_ranks(iteration: StoredIteration, speeds: pa.Table, stages: pa.Table, late: pa.Table) -> list[int]:
    """Ranks that findings name for their own work, hosts or lateness: those whose host pauses first."""
    found = iteration.pausing_hosts()
    found += [row["rank"] for row in speeds.to_pylist() if row["slow_in"] is not None]
    found += [
        row["rank"]
        for row in stages.to_pylist()
        if row["rank"] is not None and max(row["ratio"] or 0.0, row["memory_ratio"] or 0.0) >= 1 + SLOWER_THAN_FEW
    ]
    return [*dict.fromkeys([*found, *(row["rank"] for row in late.to_pylist() if row["blamed"])])]


def _suspected_links(links: pa.Table, groups: pa.Table) -> list[int]:
    """Ranks whose links are slow."""
    alone = {rank for rank in groups["rank"].to_pylist() if rank is not None}
    return sorted({*links.filter(pc.fill_null(links["slow"], False))["rank"].to_pylist(), *alone})


def _suspected_sets(links: pa.Table, groups: pa.Table) -> list[tuple[int, ...]]:
    """Ranks of which one has slow links, and nothing shows which."""
    found = [tuple(row["members"]) for row in groups.to_pylist() if row["rank"] is None]
    tied = [tuple(sorted((row["rank"], *row["or_of"]))) for row in links.to_pylist() if row["or_of"]]
    return list(dict.fromkeys([*found, *tied]))


def _sets_of_ranks(iteration: StoredIteration, nodes: Mapping[int, int]) -> list[tuple[str, tuple[int, ...]]]:
    """Tensor-parallel groups and nodes of two ranks or more that were read."""
    read = set(iteration.ranks)
    groups = {group.ranks for group in iteration.topology.groups if group.dimension is Dimension.TP}
    of_node: dict[int, tuple[int, ...]] = {}
    for rank, node in sorted(nodes.items()):
        of_node[node] = (*of_node.get(node, ()), rank)
    sets = [*((TENSOR_GROUP, ranks) for ranks in sorted(groups)), *((NODE, ranks) for ranks in of_node.values())]
    return [(kind, ranks) for kind, ranks in sets if len(ranks) > 1 and read.issuperset(ranks)]


def _slow_together(speeds: pa.Table) -> list[tuple[str, tuple[int, ...]]]:
    """The edits that fix ranks which are slow together."""
    return [(_EDIT_OF_SET[row["kind"]], tuple(row["members"])) for row in speeds.to_pylist() if row["slow"]]


def _stage_speeds(iteration: StoredIteration, speeds: pa.Table) -> pa.Table:
    """The table ``stage_speeds``, over the ranks that are not slow among their peers."""
    slow = set(speeds.filter(pc.is_valid(speeds["slow_in"]))["rank"].to_pylist())
    counted = [rank for rank in iteration.ranks if rank not in slow]
    of_stage: dict[int, tuple[int, ...]] = {}
    for rank in counted:
        stage = iteration.topology.stage_of(rank)[0]
        if stage is not None:
            of_stage[stage] = (*of_stage.get(stage, ()), rank)
    return stage_speeds(stage_work(iteration.lake, iteration.run, iteration.iteration, counted), of_stage)


def stored_stage_times(lake: Lake, run: str, iteration: int) -> StageTimes:
    """What stages and ranks of an iteration compute for a micro-batch; nothing where no micro-batch is in the lake.

    Of the ranks that the row of ``iterations`` covers, so that all measures of an iteration speak of the same ranks.
    """
    if not lake.partitions("microbatches", run, iteration):
        return StageTimes(())
    table = lake.table("microbatches", run, iteration).arrow(STAGE_COLUMNS)
    rows: list[dict[str, list[int] | None]] = []
    if lake.exists("iterations", run=run, iteration=iteration):
        rows = lake.table("iterations", run, iteration).arrow(["covered_ranks"]).to_pylist()
    # An earlier version did not state them: it covered all.
    stated = [row["covered_ranks"] for row in rows if row["covered_ranks"] is not None]
    covered = [rank for ranks in stated for rank in ranks] if stated else StoredIteration(lake, run, iteration).ranks
    return stage_times(table.filter(pc.is_in(table["rank"], pa.array(covered, table["rank"].type))))


def named_periods(iteration: StoredIteration, pairs: Sequence[NamedPair], periods: pa.Table | None = None) -> pa.Table:
    """The periods of the pairs that a user named.

    Args:
        periods: the iteration's table of that name; by default as it is in the lake, else computed.

    Raises:
        BadInputError: a file of time stamps or a trace with the annotations cannot be read.
    """
    parts, ranges = [PERIODS.schema.empty_table()], None
    for pair in pairs:
        if pair.stage0 is None or pair.stage1 is None:
            periods = iteration.table("periods") if periods is None else periods
            parts.append(named_table_periods(pair, periods.select(PERIODS.schema.names)))
        elif pair.timestamps is not None:
            parts.append(stamped_periods(pair, _stamps(pair, pair.stage0), _stamps(pair, pair.stage1)))
        else:
            ranges = _annotations(iteration) if ranges is None else ranges
            parts.append(named_range_periods(pair, ranges))
    return pa.concat_tables(parts)


def expert_exchanges(iteration: StoredIteration, collectives: pa.Table) -> pa.Table:
    """The matched all-to-alls with their message sizes: what ``experts.expert_load`` takes."""
    chosen = collectives.filter(
        pc.and_(
            pc.equal(collectives["operation"].cast(pa.string()), Operation.ALL_TO_ALL.value),
            pc.is_valid(collectives["communication"]),
        )
    ).select(["rank", "kernel_id", "communication"])
    parts = []
    for rank in pc.unique(chosen["rank"]).to_pylist():
        mine = chosen.filter(pc.equal(chosen["rank"], rank))
        parts.append(mine.join(iteration.kernels(rank, ("kernel_id", "in_elements", "out_elements")), "kernel_id"))
    names = ("rank", "communication", "in_elements", "out_elements")
    return pa.concat_tables(parts) if parts else pa.table({name: pa.array([], pa.int64()) for name in names})


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
        lake = open_lake(home)
        places = sorted({(part.run, part.iteration) for part in lake.partitions("kernels")})
        if not places:
            lake.table("kernels")
        yield [StoredIteration(lake, run, iteration) for run, iteration in places]
        return
    with scratch_folder() as folder:
        below = inputs_below([path], rank=rank, home=home)
        named = [by_rank and ranks_chosen_by_name(inputs, [path]) for inputs in below]
        found = [_analysed(folder, inputs, rules, home) for inputs in below]
        yield [replace(each, by_name=by_name) for each, by_name in zip(found, named, strict=True)]


def _analysed(folder: Path, inputs: IterationInputs, rules: Path | None, home: Path | None) -> StoredIteration:
    lake = open_lake(folder)
    topology = read_topology(inputs, home=home)
    for name, table in zip(TOPOLOGY_TABLES, topology_tables(topology), strict=True):
        lake.write(name, table, run=inputs.run, iteration=inputs.iteration)
    peaks = home_peaks(home) if home is not None else BUILT_IN
    task = IterationTask(lake.home, inputs.run, inputs.iteration, topology, load_rules(rules), peaks=peaks)
    traces = rank_traces(inputs, {entry.rank for entry in inputs.ranks}, home)
    outcomes = list(analyse_ranks(task, traces))
    if all(outcome.failed for outcome in outcomes):
        fault = f"no rank of {inputs.key} can be used ({outcomes[0].fault})"
        raise BadInputError(inputs.folder, fault, "export them again")
    return StoredIteration(lake, inputs.run, inputs.iteration, inputs, peaks=peaks)


def _stamps(pair: NamedPair, selector: StageSelector) -> list[Stamp]:
    assert pair.timestamps is not None
    stamps = read_stamps(pair.timestamps, selector.pattern, pair.time_unit_ns)
    return [stamp for stamp in stamps if selector.rank in (None, stamp.rank)]


def _annotations(iteration: StoredIteration) -> pa.Table:
    """The annotations of all ranks, from the traces themselves."""
    if iteration.inputs is None:
        return RANGES.empty_table()
    traces = rank_traces(iteration.inputs, {entry.rank for entry in iteration.inputs.ranks}, iteration.lake.home)
    topology, _ = stored_topology(iteration.lake, iteration.run, iteration.iteration)
    rules = load_rules()
    parts = [
        annotation_ranges(read_events(trace, topology, rules, every_annotation=True), trace.rank) for trace in traces
    ]
    return pa.concat_tables([RANGES.empty_table(), *parts])
