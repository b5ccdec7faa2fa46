"""What an iteration needs besides its ranks: its topology from headers and text file, and the list of its traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from traceviz_dag.analyze.invariants import microbatch_violations, overlap_violations
from traceviz_dag.classify.topology.rank_grids import RankGrids
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.classify.topology.unite import topology_from_tables, unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.formats.registry import by_format
from traceviz_dag.pipeline.formats.trace_format import Headers, RankTrace
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.topology_file import read_topology_file
from traceviz_dag.tables import TOPOLOGY_TABLES
from traceviz_dag.tables.rows import TraceStatusRow, columns_of, rows_of
from traceviz_dag.vocabulary import TraceStatus


def read_topology(
    inputs: IterationInputs,
    stated: Callable[[Iterable[TraceHeader]], RankGrids] | None = None,
    home: Path | None = None,
) -> Topology:
    """Unite the headers of all readable ranks and the text file.

    A rank whose file cannot be read, or is of another job, contributes nothing here; the step that reads its kernels
    reports it. A text file that cannot be read is one of the disagreements.

    Args:
        stated: makes the grids of sizes that a user gave, from the headers that complete them; compared with the rest.
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.
    """
    headers = _headers(inputs, home).found
    computed = stated(headers.values()) if stated is not None else None
    if inputs.topology_file is None:
        return unite(headers, None, computed)
    try:
        return unite(headers, read_topology_file(Path(inputs.topology_file)), computed)
    except BadInputError as error:
        topology = unite(headers, None, computed)
        return replace(topology, disagreements=(*topology.disagreements, str(error)))


def _headers(inputs: IterationInputs, home: Path | None) -> Headers:
    """The headers of the ranks that are of this job; why the others tell nothing."""
    found: dict[int, TraceHeader] = {}
    faults = {entry.rank: f"{entry.path}: {entry.refusal}" for entry in inputs.ranks if entry.refusal}
    mine = replace(inputs, ranks=tuple(entry for entry in inputs.ranks if not entry.refusal))
    for one, part in by_format(mine):
        headers = one.headers(part.ranks, home)
        found |= headers.found
        faults |= headers.faults
    return Headers(found, faults)


def unread_headers(inputs: IterationInputs) -> Iterator[tuple[int, str, str]]:
    """(rank, file, fault) of ranks whose header tells the topology nothing: unreadable, or of another job."""
    faults = _headers(inputs, None).faults
    for entry in inputs.ranks:
        if entry.rank in faults:
            yield entry.rank, entry.name, faults[entry.rank]


def stored_topology(lake: Lake, run: str, iteration: int) -> tuple[Topology, str]:
    """The topology of an iteration from the lake, and its data version.

    Raises:
        BadInputError: the topology was not computed yet.
    """
    topology, groups = (lake.table(name, run, iteration).arrow() for name in TOPOLOGY_TABLES)
    files = (lake.path(name, run=run, iteration=iteration) for name in TOPOLOGY_TABLES)
    return topology_from_tables(topology, groups), "-".join(map(digest_of, files))


def rank_traces(inputs: IterationInputs, ranks: Collection[int], home: Path | None = None) -> list[RankTrace]:
    """The traces of those ranks that have a file.

    Args:
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.
    """
    return [
        RankTrace(Path(entry.path), entry.name, entry.rank, entry.step, entry.part, home, entry.refusal, entry.format)
        for entry in inputs.ranks
        if entry.rank in ranks
    ]


def ranks_that_break_invariants(lake: Lake, run: str, iteration: int) -> list[int]:
    """Ranks of an iteration whose overlap or micro-batches do not add up."""
    broken: set[int] = set()
    for name, violations in (("overlap", overlap_violations), ("microbatches", microbatch_violations)):
        if lake.partitions(name, run, iteration):
            broken.update(violations(lake.table(name, run, iteration).arrow())["rank"].to_pylist())
    return sorted(broken)


def unread_ranks(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Registered ranks without a readable trace in the lake."""
    read = set()
    if lake.partitions("traces", inputs.run, inputs.iteration):
        traces = lake.table("traces", inputs.run, inputs.iteration).arrow(columns_of(TraceStatusRow))
        read = {row["rank"] for row in rows_of(traces, TraceStatusRow) if row["status"] != TraceStatus.FAILED.value}
    return sorted(entry.rank for entry in inputs.ranks if entry.rank not in read)
