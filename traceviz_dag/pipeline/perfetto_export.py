"""An iteration of the lake as Perfetto traces: where they are, and what is known across its ranks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.matching.communications import (
    COMMUNICATION_COLUMNS,
    gather_communications,
    select_communications,
)
from traceviz_dag.analyze.waits.shards import match_and_solve
from traceviz_dag.lake.inputs import registered_if_any
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.partitions import escape
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.lake_source import LakeSource
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.read.kineto.memory import MEMORY
from traceviz_dag.show.perfetto.iteration import Matched, Scope, WrittenTrace, write_iteration_trace
from traceviz_dag.system.whole_files import remove_all_stale_temporaries
from traceviz_dag.tables import TOPOLOGY_TABLES
from traceviz_dag.vocabulary import PERFETTO_FOLDER


def export_folder(home: Path, run: str, iteration: int) -> Path:
    """HOME/perfetto/RUN/ITERATION, the run's name escaped as in the lake."""
    return home / PERFETTO_FOLDER / escape(run) / str(iteration)


def export_path(source: LakeSource, scope: Scope, number: int | None) -> Path:
    """HOME/perfetto/RUN/ITERATION/SCOPE_NUMBER.pftrace.gz."""
    name = scope.value if number is None else f"{scope}_{number}"
    return export_folder(source.lake.home, source.run, source.iteration) / f"{name}.pftrace.gz"


def match_ranks(source: LakeSource) -> Matched | None:
    """The matched communications of all ranks and their clocks.

    None for an iteration of one rank, or without micro-batches and topology in the lake.
    """
    iteration = StoredIteration(source.lake, source.run, source.iteration)
    needed = (*TOPOLOGY_TABLES, "microbatches")
    if len(iteration.ranks) < 2 or not all(
        source.lake.partitions(name, source.run, source.iteration) for name in needed
    ):
        return None
    rows = gather_communications(
        select_communications(iteration.kernels(rank, COMMUNICATION_COLUMNS)) for rank in iteration.ranks
    )
    return Matched(*match_and_solve(rows, iteration.topology, iteration.microbatches, iteration.ranks))


def export_iteration(
    source: LakeSource,
    scope: Scope = Scope.ITERATION,
    number: int | None = None,
    path: Path | None = None,
    recorded_clocks: bool = False,
) -> WrittenTrace:
    """Write an iteration, or one pipeline or replica of it, as a Perfetto trace.

    Args:
        path: where to; :func:`export_path` by default.
        recorded_clocks: leave clocks as recorded even where they are solved.

    Raises:
        UsageError: the topology knows no such pipeline or replica, or the iteration has no rank.
        OutputError: the file cannot be written.
    """
    target = path or export_path(source, scope, number)
    if path is None:
        remove_all_stale_temporaries(target.parent)
    matched = match_ranks(source)
    return write_iteration_trace(
        source, target, scope, number, matched, recorded_clocks, lambda rank: _memory(source, rank)
    )


def _memory(source: LakeSource, rank: int) -> pa.Table:
    """What a rank's devices have allocated over time; no rows where its trace is gone, or does not say."""
    inputs = registered_if_any(source.lake.home, iteration_key(source.run, source.iteration))
    entry = None if inputs is None else inputs.rank(rank)
    if entry is None or not Path(entry.path).exists():
        return MEMORY.empty_table()
    trace = RankTrace(Path(entry.path), entry.name, rank, entry.step, entry.part, source.lake.home)
    rows = trace_format(entry.format).memory(trace)
    return rows.filter(pc.is_valid(rows["allocated_bytes"]))
