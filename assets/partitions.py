"""The two dynamic dimensions of every asset: the iteration (a key names run and training step) and the rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import dagster as dg

from traceviz_dag.errors import UsageError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.partition_keys import parse_iteration_key, rank_key
from traceviz_dag.pipeline.steps import is_by_rank

iteration_partitions = dg.DynamicPartitionsDefinition(name="iteration")
rank_partitions = dg.DynamicPartitionsDefinition(name="rank")
rank_trace_partitions = dg.MultiPartitionsDefinition({"iteration": iteration_partitions, "rank": rank_partitions})

ranks_of_iteration = dg.MultiToSingleDimensionPartitionMapping("iteration")
"""An iteration depends on all its ranks, and a rank on its iteration."""


def one_iteration(context: dg.AssetExecutionContext) -> tuple[str, int]:
    """(run, iteration) of a run that makes what has a partition for each iteration.

    Raises:
        UsageError: the run is over a range of them, as nobody but a caller by hand asks for.
    """
    if not context.has_partition_key:
        keys = context.partition_keys
        raise UsageError(
            f"a run makes one iteration, not {len(keys)} ({keys[0]} to {keys[-1]}): choose them in the dialog "
            "Materialize, which launches a run for each"
        )
    return parse_iteration_key(context.partition_key)


def table_of_iteration(table: str) -> dg.AssetDep:
    """How an asset with a partition for each iteration depends on a table: on all ranks of one that is by rank."""
    return dg.AssetDep(table, partition_mapping=ranks_of_iteration) if is_by_rank(table) else dg.AssetDep(table)


def table_of_rank(table: str) -> dg.AssetDep:
    """How an asset with a partition for each rank depends on a table: on the iteration's of one that is not by rank."""
    return dg.AssetDep(table) if is_by_rank(table) else dg.AssetDep(table, partition_mapping=ranks_of_iteration)


def register_partitions(instance: dg.DagsterInstance, inputs: Sequence[IterationInputs]) -> None:
    """Add the keys of iterations and ranks. Ranks are added from 0 to the highest without gaps: a run covers a range
    of keys in the order in which they were added."""
    instance.add_dynamic_partitions("iteration", [entry.key for entry in inputs])
    highest = max((rank.rank for entry in inputs for rank in entry.ranks), default=-1)
    instance.add_dynamic_partitions("rank", [rank_key(rank) for rank in range(highest + 1)])


def ranks_by_iteration(keys: Iterable[str]) -> dict[str, list[str]]:
    """Iteration key → rank keys, of multi-partition keys."""
    grouped: dict[str, list[str]] = {}
    for key in keys:
        dimensions = rank_trace_partitions.get_partition_key_from_str(key).keys_by_dimension
        grouped.setdefault(dimensions["iteration"], []).append(dimensions["rank"])
    return grouped


def rank_trace_key(iteration: str, rank: str) -> dg.MultiPartitionKey:
    """The partition of one rank in one iteration."""
    return dg.MultiPartitionKey({"iteration": iteration, "rank": rank})
