"""What an iteration needs besides its ranks: its topology from headers and text file, and the list of its traces."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from traceviz_dag.analyze.invariants import microbatch_violations, overlap_violations
from traceviz_dag.classify.topology.rank_grids import RankGrids
from traceviz_dag.classify.topology.types import Topology
from traceviz_dag.classify.topology.unite import topology_tables, unite
from traceviz_dag.errors import BadInputError
from traceviz_dag.lake.inputs import IterationInputs
from traceviz_dag.lake.lake import Lake
from traceviz_dag.pipeline.formats.registry import by_format
from traceviz_dag.pipeline.formats.trace_format import Headers, RankTrace
from traceviz_dag.read.events import TraceHeader
from traceviz_dag.read.topology_file import read_topology_file
from traceviz_dag.tables import TOPOLOGY_TABLES
from traceviz_dag.vocabulary import TopologySource, TraceStatus


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
    return _united(inputs, headers, stated(headers.values()) if stated is not None else None)


def topology_to_store(
    lake: Lake, inputs: IterationInputs, *, is_current: bool
) -> tuple[Topology, tuple[pa.Table, ...]]:
    """The topology of an iteration as :func:`read_topology` reads it, and its tables, in the order of TOPOLOGY_TABLES.

    Where headers cannot be read any more, as traces were moved away or are damaged, the stored tables stay if the ones
    of now say nothing that these do not: what a header said once is still so while the other traces are the same.

    Args:
        is_current: the stored tables are made of the same inputs, so that they stay whatever cannot be read any more.
    """
    read = _headers(inputs, lake.home)
    topology = _united(inputs, read.found, None)
    tables = topology_tables(topology)
    run, iteration = inputs.run, inputs.iteration
    known = all(lake.is_readable(name, run=run, iteration=iteration) for name in TOPOLOGY_TABLES)
    if not known or not read.faults or not (is_current or not _is_other_recording(lake, inputs, read.faults)):
        return topology, tables
    stored = tuple(
        lake.table(name, run, iteration).arrow(table.schema.names)
        for name, table in zip(TOPOLOGY_TABLES, tables, strict=True)
    )
    return topology, (stored if is_current or _says(*tables) < _says(*stored) else tables)


def _says(topology: pa.Table, groups: pa.Table) -> set[tuple[object, ...]]:
    """What a topology knows, to be compared: the places of ranks, and the groups that a source names."""
    rows = topology.drop(["source"]).to_pylist()
    places = {(row["rank"], *place) for row in rows for place in row.items() if place[1] is not None}
    return places | {
        (row["group_name"], *row["ranks"]) for row in groups.to_pylist() if row["source"] != TopologySource.COMPUTED
    }


def _is_other_recording(lake: Lake, inputs: IterationInputs, unread: Collection[int]) -> bool:
    """Whether a trace whose header can be read is not the one that the stored tables of its rank were made of."""
    stored = {}
    if lake.partitions("traces", inputs.run, inputs.iteration, with_stale=True):
        rows = lake.table("traces", inputs.run, inputs.iteration).arrow(["rank", "digest"]).to_pylist()
        stored = {row["rank"]: row["digest"] for row in rows}
    read = [entry for entry in inputs.ranks if entry.rank not in unread]
    return any(stored.get(entry.rank, entry.digest) != entry.digest for entry in read)


def _united(inputs: IterationInputs, headers: Mapping[int, TraceHeader], computed: RankGrids | None) -> Topology:
    if inputs.topology_file is None:
        return unite(headers, None, computed)
    try:
        return unite(headers, read_topology_file(Path(inputs.topology_file)), computed)
    except BadInputError as error:
        topology = unite(headers, None, computed)
        return replace(topology, disagreements=(*topology.disagreements, str(error)))


def _headers(inputs: IterationInputs, home: Path | None) -> Headers:
    """The headers of the ranks that are of this job; why the others show nothing."""
    found: dict[int, TraceHeader] = {}
    faults = {entry.rank: f"{entry.path}: {entry.refusal}" for entry in inputs.ranks if entry.refusal}
    mine = replace(inputs, ranks=tuple(entry for entry in inputs.ranks if not entry.refusal))
    for one, part in by_format(mine):
        headers = one.headers(part.ranks, home)
        found |= headers.found
        faults |= headers.faults
    return Headers(found, faults)


def unread_headers(inputs: IterationInputs) -> Iterator[tuple[int, str, str]]:
    """(rank, file, fault) of ranks whose header shows the topology nothing: unreadable, or of another job."""
    faults = _headers(inputs, None).faults
    for entry in inputs.ranks:
        if entry.rank in faults:
            yield entry.rank, entry.name, faults[entry.rank]


def rank_traces(inputs: IterationInputs, ranks: Collection[int], home: Path | None = None) -> list[RankTrace]:
    """The traces of those ranks that have a file.

    Args:
        home: where profiles of Nsight Systems are kept once they were read; None keeps nothing.
    """
    return [
        RankTrace(
            *(Path(entry.path), entry.name, entry.rank, entry.step, entry.part, home, entry.refusal, entry.format),
            *(entry.version, bool(entry.digest)),
        )
        for entry in inputs.ranks
        if entry.rank in ranks
    ]


def ranks_that_break_invariants(lake: Lake, run: str, iteration: int) -> list[int]:
    """Ranks of an iteration whose overlap or micro-batches do not add up."""
    names = ("overlap", "microbatches")
    return sorted({rank for name in names for rank, _ in violations_of_ranks(lake, run, iteration, name)})


def violations_of_ranks(lake: Lake, run: str, iteration: int, table: str) -> list[tuple[int, list[str]]]:
    """Ranks whose rows of ``overlap`` or ``microbatches`` break invariants, and the names of these."""
    violations = overlap_violations if table == "overlap" else microbatch_violations
    found: dict[int, set[str]] = {}
    for row in violations(lake.rows(table, run, iteration)).to_pylist():
        found.setdefault(row["rank"], set()).add(row["invariant"])
    return [(rank, sorted(found[rank])) for rank in sorted(found)]


def unread_ranks(lake: Lake, inputs: IterationInputs) -> list[int]:
    """Registered ranks without a readable trace in the lake."""
    traces = lake.rows("traces", inputs.run, inputs.iteration, ["rank", "status"]).to_pylist()
    read = {row["rank"] for row in traces if row["status"] != TraceStatus.FAILED.value}
    return sorted(entry.rank for entry in inputs.ranks if entry.rank not in read)
