"""What of an iteration is not made from what it should be made from: one answer for command line and automation."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import xxhash

from assets.conventions import (
    CODE_VERSION,
    CODE_VERSION_TAG,
    INPUT_VERSION_TAG,
    PAIRS_VARIABLE,
    RULES_TAG,
    code_version_of,
)
from assets.lineage.recorded_files import are_as_recorded, digests_in, lack_columns
from assets.partitions import is_by_rank, rank_trace_key
from assets.steps import READS, lead_of
from assets.topology import INPUTS_TAG, inputs_version
from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import IterationInputs, RankInput, registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.partition_keys import iteration_key, parse_iteration_key, rank_key
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.lake.stale import Stale
from traceviz_dag.pipeline.across_ranks import ACROSS_RANKS_TABLES
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.iteration import stored_topology
from traceviz_dag.pipeline.ranks import RANK_TABLES
from traceviz_dag.tables import BY_ITERATION, FINDINGS, MEMORY_TABLES, TOPOLOGY_TABLES, all_tables, derived_tables
from traceviz_dag.vocabulary import StaleCause, StaleStage

MADE_OF_TAG = "traceviz/made_of"
"""Of an iteration's own tables: what they were made of, as one digest; see ``made_of``."""

SNAPSHOTS_TAG = "traceviz/snapshots"
"""Of what snapshots of GPU memory tables were made."""

LAST_RECORDED = lead_of("kernels")
"""The table of a rank whose materialization is recorded after those of all others: where it is, all are."""

_MEMORY_LEAD = lead_of("memory_peaks")

_PAGE = 1000

_VERSION = "version of traceviz"

ITERATION_TABLES = (*AGGREGATED_TABLES, *ACROSS_RANKS_TABLES)
"""Everything that is made once an iteration from the tables of its ranks."""


def topology_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the stored topology was made from these inputs by this code."""
    for name in TOPOLOGY_TABLES:
        tags = latest_tags(instance, name, [inputs.key]).get(inputs.key, {})
        if (tags.get(INPUTS_TAG), tags.get(CODE_VERSION_TAG)) != (inputs_version(inputs), CODE_VERSION):
            return False
        if not are_as_recorded(lake, tags, [name], inputs.run, inputs.iteration):
            return False
    return True


@dataclass(frozen=True, slots=True)
class RankState:
    """What the tables of a rank are, against what they should be.

    Attributes:
        is_whole: whether all of them are the files that were recorded.
        differs: what they were made of that is something else now, in words; empty where nothing is.
    """

    entry: RankInput
    is_whole: bool
    differs: tuple[str, ...]

    @property
    def is_current(self) -> bool:
        """Whether they are what the trace, the topology, the rules and the code of now give."""
        return self.is_whole and not self.differs

    @property
    def is_gone(self) -> bool:
        """Whether the trace is not there any more."""
        return not Path(self.entry.path).exists()


def rank_states(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, topology_version: str, rules_digest: str
) -> list[RankState]:
    """The state of every registered rank: the one definition of what is stale, for command, automation and night."""
    partitions = {str(rank_trace_key(inputs.key, rank_key(entry.rank))): entry for entry in inputs.ranks}
    recorded = latest_tags(instance, LAST_RECORDED, list(partitions))
    found = []
    for key, entry in partitions.items():
        wanted = {
            "trace": (f"{INPUT_VERSION_TAG}raw_traces", entry.version),
            "topology": (f"{INPUT_VERSION_TAG}topology", topology_version),
            "rules": (RULES_TAG, rules_digest),
            _VERSION: (CODE_VERSION_TAG, CODE_VERSION),
        }
        tags = recorded.get(key, {})
        names = (*RANK_TABLES, *trace_format(entry.format).extra_tables)
        is_whole = are_as_recorded(lake, tags, names, inputs.run, inputs.iteration, entry.rank)
        differs = [what for what, (tag, version) in wanted.items() if tags.get(tag) != version]
        if _VERSION not in differs and lack_columns(lake, names, inputs.run, inputs.iteration, entry.rank):
            differs.append(_VERSION)
        found.append(RankState(entry, is_whole, tuple(differs)))
    return found


def stale_ranks(states: Iterable[RankState]) -> list[RankInput]:
    """Ranks to compute: their trace, topology, rules or code is not what their tables were made from, or the tables are
    gone or other files than those that were recorded: damaged, or written by a run that was killed.

    A rank whose file is gone keeps the tables that it has; see :func:`outdated_ranks`.
    """
    return [one.entry for one in states if not one.is_current and not (one.is_whole and one.is_gone)]


def outdated_ranks(states: Iterable[RankState]) -> list[RankInput]:
    """Ranks whose tables were made from another file, topology, rules or code, and cannot be made anew: their file is
    gone."""
    return [one.entry for one in states if not one.is_current and one.is_whole and one.is_gone]


def mark_of(state: RankState, fault: str = "") -> Stale:
    """How the tables of a rank are marked that are kept, since making them anew failed.

    Args:
        fault: why it failed, in a line; empty where the trace is gone.
    """
    rank = state.entry.rank
    if state.is_gone:
        gone = f"the trace is gone: {state.entry.path}"
        if state.is_current:
            return Stale(rank, StaleStage.RANKS, StaleCause.GONE, f"{gone}; nothing else changed")
        what = f"of another {', '.join(state.differs)}" if state.differs else "other files than those recorded"
        remedy = "put it back, or analyse into another home"
        return Stale(rank, StaleStage.RANKS, StaleCause.OUTDATED, f"{gone}, and the tables are {what}; {remedy}")
    return Stale(rank, StaleStage.RANKS, StaleCause.UNREADABLE, fault)


def iteration_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the iteration's own tables were made of what its ranks and its topology are now, by this code."""
    return _are_current(instance, lake, inputs, ITERATION_TABLES)


def mark_aggregates(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, cause: StaleCause, reason: str
) -> bool:
    """Mark what was made of the iteration's ranks, where it was made of something else than what there is now; where
    it was not, take the mark away.

    Args:
        reason: what changed, or why it cannot be made anew.

    Returns:
        Whether the iteration's own tables are current.
    """
    run, iteration = inputs.run, inputs.iteration
    steps = {StaleStage.ITERATIONS.value: ITERATION_TABLES, **{name: (name,) for name in derived_tables()}}
    are_current = {stage: _are_current(instance, lake, inputs, names) for stage, names in steps.items()}
    outdated = [
        Stale(None, stage, cause, reason)
        for stage, names in steps.items()
        if not are_current[stage] and any(lake.exists(name, run=run, iteration=iteration) for name in names)
    ]
    for stage in steps.keys() - {row.stage for row in outdated}:
        unmark(lake, run, iteration, stage)
    mark_stale(lake, run, iteration, outdated)
    return are_current[StaleStage.ITERATIONS]


def unmark_where_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs) -> None:
    """Take the mark from the iteration's own tables once all of them were made anew."""
    run, iteration = inputs.run, inputs.iteration
    if lake.has_stale_measures(run, iteration) and iteration_is_current(instance, lake, inputs):
        unmark(lake, run, iteration, StaleStage.ITERATIONS)


def derived_is_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, name: str) -> bool:
    """The same of a table that another package derives from them."""
    return _are_current(instance, lake, inputs, [name])


def _are_current(instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, names: Collection[str]) -> bool:
    wanted: dict[str, str] = {}
    for name in names:
        lead = lead_of(name)
        if lead not in wanted:
            wanted[lead] = made_of(instance, lake, inputs.run, inputs.iteration, name)
        tags = latest_tags(instance, name, [inputs.key]).get(inputs.key, {})
        if (tags.get(MADE_OF_TAG), tags.get(CODE_VERSION_TAG)) != (wanted[lead], code_version_of(name)):
            return False
        if not are_as_recorded(lake, tags, [name], inputs.run, inputs.iteration):
            return False
        if lack_columns(lake, [name], inputs.run, inputs.iteration):
            return False
    return True


def made_of(instance: dg.DagsterInstance, lake: Lake, run: str, iteration: int, table: str) -> str:
    """Changes whenever something that a table of an iteration is made of has another content.

    That is the tables that its step reads, as automation asks them, of ranks as their versions are recorded; what is
    known of ranks that failed; and beside that, of ``runs`` the list of ranks, of tables across ranks the snapshots of
    GPU memory and the file that names pairs.
    """
    key, lead = iteration_key(run, iteration), lead_of(table)
    reads = READS[lead] if lead in READS else derived_tables()[table].made_of
    # A rank whose tables are stale is counted nowhere; becoming so, or current again, changes what is made of ranks.
    ranks = [part.rank for part in lake.partitions("traces", run, iteration) if part.rank is not None]
    partitions = {str(rank_trace_key(key, rank_key(rank))): rank for rank in ranks}
    recorded = latest_tags(instance, LAST_RECORDED, list(partitions)) if partitions else {}
    words = []
    for partition, rank in partitions.items():
        failed = not lake.exists(LAST_RECORDED, run=run, iteration=iteration, rank=rank)
        digests = digests_in(recorded.get(partition, {}))
        path = lake.path("traces", run=run, iteration=iteration, rank=rank)
        known = digest_of(path) if failed else {name: digests.get(name) for name in reads if is_by_rank(name)}
        words.append(f"rank {rank} {known}")
    of_iteration = [name for name in reads if all_tables()[name].partitioned_by == BY_ITERATION]
    paths = [lake.path(name, run=run, iteration=iteration) for name in of_iteration]
    if lead == "runs":
        inputs = registered_if_any(lake.home, key)
        words.append(f"registered {[entry.rank for entry in inputs.ranks] if inputs is not None else None}")
    if lead == lead_of(FINDINGS.name) or set(reads) & set(MEMORY_TABLES):
        words += _snapshots_made(instance, lake, key)
    if lead == lead_of(FINDINGS.name):
        pairs = os.environ.get(PAIRS_VARIABLE)
        paths += [Path(pairs)] if pairs else []
    words += [f"{path.name} {digest_of(path) if path.is_file() else None}" for path in paths]
    return xxhash.xxh3_128_hexdigest("\n".join(words).encode())


def _snapshots_made(instance: dg.DagsterInstance, lake: Lake, key: str) -> list[str]:
    """Of what snapshots the tables of GPU memory are, and which of them are there; nothing without any."""
    run, iteration = parse_iteration_key(key)
    ranks = [part.rank for part in lake.partitions(_MEMORY_LEAD, run, iteration)]
    if not ranks:
        return []
    tags = latest_tags(instance, _MEMORY_LEAD, [key]).get(key, {})
    return [f"snapshots {tags.get(SNAPSHOTS_TAG)} of {ranks}"]


def pending_stage(
    instance: dg.DagsterInstance, lake: Lake, inputs: IterationInputs, rules_digest: str
) -> tuple[str, list[int]] | None:
    """The next stage that an iteration needs, and the ranks that it concerns.

    Returns:
        ("topology", []), ("ranks", the stale ones) or ("iterations", []); None where everything is current.
    """
    if not topology_is_current(instance, lake, inputs):
        return ("topology", [])
    _, topology_version = stored_topology(lake, inputs.run, inputs.iteration)
    stale = stale_ranks(rank_states(instance, lake, inputs, topology_version, rules_digest))
    if stale:
        return ("ranks", [entry.rank for entry in stale])
    return None if iteration_is_current(instance, lake, inputs) else ("iterations", [])


def contiguous(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; one Dagster run covers one of them."""
    groups: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if groups and rank == groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], rank)
        else:
            groups.append((rank, rank))
    return groups


def latest_tags(instance: dg.DagsterInstance, asset: str, partitions: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """Tags of the latest materialization of each partition; partitions without one are absent."""
    wanted = set(partitions)
    found: dict[str, Mapping[str, str]] = {}
    cursor = None
    # Asked for no partition, Dagster would give them all.
    while missing := list(wanted - set(found)):
        records_filter = dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=missing)
        page = instance.fetch_materializations(records_filter, limit=_PAGE, cursor=cursor)
        for record in page.records:
            event = record.asset_materialization
            if event is not None and event.partition is not None:
                found.setdefault(event.partition, event.tags or {})
        if not page.has_more:
            break
        cursor = page.cursor
    return found
