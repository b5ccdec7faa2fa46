"""An iteration's tables across ranks, from its ranks' tables in the lake: matched, aligned, charged, replayed, paired.

Ranks are read one after the other; for causes many are read side by side. In memory are the communication kernels of
all ranks, a table of their parts in each communication, what causes need of all, and the kernels of one rank, or of
some small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.causes.what_if import Suspects, WhatIf
from traceviz_dag.analyze.matching.operations import Operation
from traceviz_dag.analyze.pipelines.period_summary import period_summary
from traceviz_dag.analyze.pipelines.periods import BUSY_COLUMNS, periods_table
from traceviz_dag.analyze.pipelines.pipelines import pipelines_table
from traceviz_dag.analyze.slow_groups import NODE, STAGE, TENSOR_GROUP, slow_groups
from traceviz_dag.analyze.slow_kinds import name_kinds
from traceviz_dag.analyze.slow_ranks import of_all_gpus, of_equal_gpus
from traceviz_dag.analyze.slow_ranks import speeds as rank_speeds
from traceviz_dag.analyze.slow_stages import stage_speeds
from traceviz_dag.analyze.slow_times import KERNEL_COLUMNS
from traceviz_dag.analyze.slow_words import SLOWER_THAN_FEW
from traceviz_dag.analyze.waits.blame import blame_matrix, late_ranks
from traceviz_dag.analyze.waits.experts import expert_load
from traceviz_dag.analyze.waits.links import link_groups, link_speeds
from traceviz_dag.lake.summaries import computation_by_kernel, stage_work
from traceviz_dag.pipeline.causes import RankTables, StoredSource, causes_tables, side_by_side
from traceviz_dag.pipeline.shards import MatchedRanks, Sharding, match_ranks
from traceviz_dag.pipeline.utilization import Measured, utilization_table
from traceviz_dag.tables import (
    BLAME,
    EXPERT_LOADS,
    LATE_RANKS,
    LINKS,
    PERIOD_PERCENTILES,
)
from traceviz_dag.vocabulary import Dimension

_EDIT_OF_SET = {TENSOR_GROUP: "fix_group", NODE: "fix_node", STAGE: "fix_ranks"}
"""The edit that fixes ranks which are slow together."""


class Iteration(StoredSource, Measured, Protocol):
    """What is read of an iteration."""

    @property
    def stored_kernels(self) -> RankTables:
        """Kernels and synchronisations, to be sent to other processes."""

    @property
    def step_ns(self) -> int | None:
        """How long its training steps take."""

    @property
    def hosts(self) -> Mapping[int, int]:
        """Rank → number of its host, as hosts' clocks show it; else empty."""

    @property
    def kept(self) -> list[WhatIf]:
        """Gets the replay of the only step."""

    def nodes(self, devices: Mapping[int, str | None] | None = None) -> Mapping[int, int]:
        """Rank → number of its node; empty where neither hosts nor devices show it."""

    def kernels_in_turn(self, rank: int, columns: Sequence[str]) -> pa.Table:
        """As ``kernels``, for who asks rank after rank."""

    @property
    def microbatches(self) -> pa.Table:
        """The forward and backward steps of the ranks that are counted."""

    def launch_bound_hosts(self) -> list[int]:
        """The ranks that are bound by launches."""

    def pausing_hosts(self) -> list[int]:
        """Ranks whose host alone does something else while its GPU is idle, the longest first."""


def analyse_across_ranks(
    iteration: Iteration, sharding: Sharding | None = None, workers: int = 1
) -> Mapping[str, pa.Table]:
    """Compute all tables across ranks of an iteration.

    Args:
        sharding: how communications are matched in shards; by default they are matched in this process.
        workers: processes that look for the causes of many ranks; of one, none is started.

    Returns:
        Table name → rows, for each of ``ACROSS_RANKS_TABLES`` but ``findings``.

    Raises:
        BadInputError: the iteration's ranks or topology are not in the lake.
    """
    # Shards are matched by as many processes.
    in_shards = None if sharding is None else match_ranks(iteration, sharding)
    with side_by_side(iteration, iteration.stored_kernels, workers) as processes:
        matched = in_shards or match_ranks(iteration)
        tables, suspects = _measured(iteration, matched)
        met = matched.collectives, matched.messages
        causes = causes_tables(iteration, *met, suspects, iteration.kept, matched.nodes, processes)
    return {**tables, **causes}


def _measured(iteration: Iteration, matched: MatchedRanks) -> tuple[Mapping[str, pa.Table], Suspects]:
    """All tables but those of causes, and whom they suspect."""
    topology = iteration.topology
    _, clocks, messages, nodes, charged = matched
    collectives = charged()
    busy = partial(iteration.kernels_in_turn, columns=BUSY_COLUMNS)
    periods = periods_table(iteration.microbatches, topology, busy, iteration.ranks)
    links = link_speeds(collectives)
    devices = {row["rank"]: row["device_name"] for row in iteration.files.rows}
    # A file that could not be read has a row, too, without a model.
    models = {rank: devices.get(rank) for rank in iteration.ranks}
    work = computation_by_kernel(iteration.lake, iteration.run, iteration.iteration, iteration.ranks)
    work = of_equal_gpus(work, models)
    late = late_ranks(collectives, iteration.step_ns)
    bound = iteration.launch_bound_hosts()
    speeds, classes = name_kinds(
        *rank_speeds(work),
        links.to_pylist(),
        # Where several hosts launch too slowly, who comes late among them does so by chance.
        [row for row in late.to_pylist() if len(bound) < 2 or row["rank"] not in bound],
        lambda rank: iteration.kernels(rank, KERNEL_COLUMNS),
    )
    speeds, classes = (of_all_gpus(table, models) for table in (speeds, classes))
    # Stages, groups and nodes on different models of GPU tell nothing of each other's work.
    alike = len({*models.values()}) == 1
    stages = _stage_speeds(iteration, speeds, alike)
    together = slow_groups(work, speeds, stages, _sets_of_ranks(iteration, nodes) if alike else [])
    of_groups = link_groups(collectives, links)
    suspects = Suspects(
        _suspected_ranks(iteration, speeds, stages, late),
        _suspected_links(links, of_groups),
        bound if len(bound) == 1 else [],
        _slow_together(together),
        _suspected_sets(links, of_groups),
    )
    tables = {
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
        "pipelines": pipelines_table(iteration.microbatches, topology),
        "periods": periods,
        "period_percentiles": PERIOD_PERCENTILES.from_rows(period_summary(periods)),
        "messages": messages,
    }
    return tables, suspects


def _suspected_ranks(iteration: Iteration, speeds: pa.Table, stages: pa.Table, late: pa.Table) -> list[int]:
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


def _sets_of_ranks(iteration: Iteration, nodes: Mapping[int, int]) -> list[tuple[str, tuple[int, ...]]]:
    """Tensor-parallel groups and nodes of two ranks or more that were read."""
    read = set(iteration.ranks)
    groups = {group.ranks for group in iteration.topology.groups if group.dimension is Dimension.TP}
    of_node: dict[int, tuple[int, ...]] = {}
    for rank, node in sorted(nodes.items()):
        of_node[node] = (*of_node.get(node, ()), rank)
    sets = [*((TENSOR_GROUP, ranks) for ranks in sorted(groups)), *((NODE, ranks) for ranks in of_node.values())]
    return [(kind, ranks) for kind, ranks in sets if len(ranks) > 1 and read.issuperset(ranks)]


def sets_of_ranks(iteration: Iteration, name: str) -> list[tuple[int, ...]]:
    """The tensor-parallel groups (``fix_group``) or nodes (``fix_node``) of which all ranks were read."""
    nodes = iteration.nodes() if name == "fix_node" else {}
    return [ranks for kind, ranks in _sets_of_ranks(iteration, nodes) if _EDIT_OF_SET[kind] == name]


def _slow_together(speeds: pa.Table) -> list[tuple[str, tuple[int, ...]]]:
    """The edits that fix ranks which are slow together."""
    return [(_EDIT_OF_SET[row["kind"]], tuple(row["members"])) for row in speeds.to_pylist() if row["slow"]]


def _stage_speeds(iteration: Iteration, speeds: pa.Table, comparable: bool) -> pa.Table:
    """The table ``stage_speeds``, over the ranks that are not slow among their peers; no rows where stages cannot be
    compared."""
    slow = set(speeds.filter(pc.is_valid(speeds["slow_in"]))["rank"].to_pylist())
    counted = [rank for rank in iteration.ranks if rank not in slow]
    of_stage: dict[int, tuple[int, ...]] = {}
    for rank in counted if comparable else ():
        stage = iteration.topology.stage_of(rank)[0]
        if stage is not None:
            of_stage[stage] = (*of_stage.get(stage, ()), rank)
    return stage_speeds(stage_work(iteration.lake, iteration.run, iteration.iteration, counted), of_stage)


def expert_exchanges(iteration: StoredSource, collectives: pa.Table) -> pa.Table:
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
