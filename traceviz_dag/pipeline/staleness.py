"""What of an iteration is not made from what it should be made from: the one answer, for command, automation and night.

The lake records of each part, beside its digest, of what it was made: see ``pipeline/made.py``. A part is current where
its file is the one that was written, and that word is the one that its inputs give now.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from traceviz_dag.lake.digests import digest_of
from traceviz_dag.lake.inputs import IterationInputs, RankInput, registered_if_any
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.marking import mark_stale, unmark
from traceviz_dag.lake.partition_keys import iteration_key
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.lake.record_lines import Content
from traceviz_dag.lake.stale import Stale
from traceviz_dag.pipeline.findings import code_of_rules
from traceviz_dag.pipeline.formats.registry import trace_format
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.pipeline.made import CODE_VERSION, made_word, rank_word
from traceviz_dag.pipeline.memory import MemorySource, memory_word
from traceviz_dag.pipeline.steps import READS, STEPS, is_by_rank, lead_of
from traceviz_dag.pipeline.stored_topology import topology_version
from traceviz_dag.tables import (
    ACROSS_RANKS_TABLES,
    BY_ITERATION,
    FINDINGS,
    MEMORY_TABLES,
    RANK_TABLES,
    TOPOLOGY_TABLES,
    all_tables,
    derived_tables,
)
from traceviz_dag.vocabulary import StaleCause, StaleStage

PAIRS_VARIABLE = "TRACEVIZ_PAIRS"
"""Environment variable that names the file of pairs, where nothing else names one."""

LAST_WRITTEN = lead_of("kernels")
"""The table of a rank that speaks for all of them."""

ITERATION_TABLES = (*AGGREGATED_TABLES, *ACROSS_RANKS_TABLES)
"""Everything that is made once an iteration from the tables of its ranks."""

_CODE = "version of traceviz"
_NAMED = {"code": _CODE, "peaks": "table of peaks"}


def code_version_of(table: str) -> str:
    """The version of the code that makes a table.

    The columns of all tables of its step are a part of it, the code of the rules where findings are made, and of
    another package's table its query: homes get what is new by itself.
    """
    lead = lead_of(table)
    derived = derived_tables().get(table)
    # Automation looks at the lead of a step alone, so all tables of the step have one version.
    made = [all_tables()[name].version for name in STEPS.get(lead, (table,))]
    made += [derived.sql] if derived is not None else []
    made += [code_of_rules()] if lead == lead_of(FINDINGS.name) else []
    return f"{CODE_VERSION}-{xxhash.xxh3_64_hexdigest(' '.join(made).encode())}"


def topology_word(lake: Lake, inputs: IterationInputs) -> str:
    """Of what the topology is made: ask before anything is read, so that what changes meanwhile makes it stale.

    One that was made of all of it stays current when traces are moved away. The word of one that is made while some are
    away says which, so that it is made anew when they are back.
    """
    versions = [f"{entry.rank}:{entry.version}" for entry in inputs.ranks]
    text = Path(inputs.topology_file) if inputs.topology_file else None
    if text is not None and text.is_file():
        versions.append(digest_of(text))
    of = {"inputs": " ".join(versions), "code": code_version_of(TOPOLOGY_TABLES[0])}
    away = [str(entry.rank) for entry in inputs.ranks if not Path(entry.path).exists()]
    if not away or _are_made(lake, TOPOLOGY_TABLES, made_word(**of), inputs.run, inputs.iteration):
        return made_word(**of)
    return made_word(**of, away=" ".join(away))


def iteration_word(lake: Lake, run: str, iteration: int, table: str) -> str:
    """Of what a table of an iteration is made: ask before anything is read."""
    return made_word(of=_made_of(lake, run, iteration, table), code=code_version_of(table))


def topology_is_current(lake: Lake, inputs: IterationInputs, word: str | None = None) -> bool:
    """Whether the stored topology was made from these inputs by this code.

    Args:
        word: what :func:`topology_word` said, where that was asked already.
    """
    return _are_made(lake, TOPOLOGY_TABLES, word or topology_word(lake, inputs), inputs.run, inputs.iteration)


@dataclass(frozen=True, slots=True)
class RankState:
    """What the tables of a rank are, against what they should be.

    Attributes:
        is_whole: whether all of them are the files that were written, of one reading.
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

    @property
    def stays(self) -> bool:
        """Whether the tables stay, current or not: they are whole, and what they are made of cannot be read again."""
        return self.is_whole and self.is_gone


def rank_states(lake: Lake, inputs: IterationInputs, of_topology: str, rules_digest: str) -> list[RankState]:
    """The state of every registered rank."""
    digests = (rules_digest, home_peaks(lake.home).digest)
    return [_rank_state(lake, inputs, entry, of_topology, digests) for entry in inputs.ranks]


def _rank_state(
    lake: Lake, inputs: IterationInputs, entry: RankInput, of_topology: str, digests: tuple[str, str]
) -> RankState:
    names = (*RANK_TABLES, *trace_format(entry.format).extra_tables)
    place = (inputs.run, inputs.iteration, entry.rank)
    contents = [_content(lake, name, *place) for name in names]
    known = _versions(contents[names.index(LAST_WRITTEN)])
    wanted = _versions(Content("", made=rank_word(entry.version, of_topology, *digests)))
    differs = [_NAMED.get(what, what) for what, version in wanted.items() if known.get(what) != version]
    if not known or any(content is not None and content.missing for content in contents):
        differs = [what for what in differs if known and what != _CODE] + [_CODE]
    one_reading = len({content.made if content is not None else None for content in contents}) == 1
    return RankState(entry, one_reading and _are_as_written(lake, names, *place), tuple(differs))


def stale_ranks(states: Iterable[RankState]) -> list[RankInput]:
    """Ranks to compute: their trace, topology, rules or code is not what their tables were made from, or the tables are
    gone or other files than those that were recorded: damaged, or written by a run that was killed.

    A rank whose file is gone keeps the tables that it has; see :func:`outdated_ranks`.
    """
    return [one.entry for one in states if not one.is_current and not one.stays]


def outdated_ranks(states: Iterable[RankState]) -> list[RankInput]:
    """Ranks whose tables were made from another file, topology, rules or code, and cannot be made anew: their file is
    gone."""
    return [one.entry for one in states if not one.is_current and one.stays]


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


def outdated_marks(lake: Lake, inputs: IterationInputs) -> dict[int | None, Stale]:
    """Rank → its mark, of those that are marked outdated."""
    rows = lake.stale(inputs.run, inputs.iteration)
    return {row.rank: row for row in rows if (row.stage, row.cause) == (StaleStage.RANKS, StaleCause.OUTDATED)}


def iteration_is_current(lake: Lake, inputs: IterationInputs) -> bool:
    """Whether the iteration's own tables were made of what its ranks and its topology are now, by this code."""
    return are_current(lake, inputs.run, inputs.iteration, ITERATION_TABLES)


def memory_is_current(lake: Lake, inputs: IterationInputs, sources: Sequence[MemorySource]) -> bool:
    """Whether the tables of GPU memory were made of these sources by this code.

    Those that are marked since another snapshot could not be read are not: the former one may be back.
    """
    place = (inputs.run, inputs.iteration)
    unread = {
        row.rank for row in lake.stale(*place) if row.stage == StaleStage.MEMORY and row.cause == StaleCause.UNREADABLE
    }
    return all(
        one.rank not in unread and _are_made(lake, MEMORY_TABLES, memory_word(one), *place, one.rank) for one in sources
    )


def mark_aggregates(lake: Lake, inputs: IterationInputs, cause: StaleCause, reason: str) -> bool:
    """Mark what was made of the iteration's ranks, where it was made of something else than what there is now; where
    it was not, take the mark away.

    Args:
        reason: what changed, or why it cannot be made anew.

    Returns:
        Whether the iteration's own tables are current.
    """
    run, iteration = inputs.run, inputs.iteration
    steps = {StaleStage.ITERATIONS.value: ITERATION_TABLES, **{name: (name,) for name in derived_tables()}}
    current = {stage: are_current(lake, run, iteration, names) for stage, names in steps.items()}
    outdated = [
        Stale(None, stage, cause, reason)
        for stage, names in steps.items()
        if not current[stage] and any(lake.exists(name, run=run, iteration=iteration) for name in names)
    ]
    for stage in steps.keys() - {row.stage for row in outdated}:
        unmark(lake, run, iteration, stage)
    mark_stale(lake, run, iteration, outdated)
    return current[StaleStage.ITERATIONS]


def unmark_where_current(lake: Lake, inputs: IterationInputs) -> None:
    """Take the mark from the iteration's own tables once all of them were made anew."""
    run, iteration = inputs.run, inputs.iteration
    if lake.has_stale_measures(run, iteration) and iteration_is_current(lake, inputs):
        unmark(lake, run, iteration, StaleStage.ITERATIONS)


def pending_stage(lake: Lake, inputs: IterationInputs, rules_digest: str) -> tuple[str, list[int]] | None:
    """The next stage that an iteration needs, and the ranks that it concerns.

    Returns:
        ("topology", []), ("ranks", the stale ones and those whose mark is wrong) or ("iterations", []); None where
        everything is current.
    """
    if not topology_is_current(lake, inputs):
        return ("topology", [])
    version = topology_version(lake, inputs.run, inputs.iteration)
    states = rank_states(lake, inputs, version, rules_digest)
    marked = outdated_marks(lake, inputs)
    stale = {entry.rank for entry in stale_ranks(states)}
    stale |= {
        one.entry.rank
        for one in states
        if one.stays and marked.get(one.entry.rank) != (None if one.is_current else mark_of(one))
    }
    if stale:
        return ("ranks", sorted(stale))
    return None if iteration_is_current(lake, inputs) else ("iterations", [])


def contiguous(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers; one Dagster run covers one of them."""
    groups: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if groups and rank == groups[-1][1] + 1:
            groups[-1] = (groups[-1][0], rank)
        else:
            groups.append((rank, rank))
    return groups


def are_current(lake: Lake, run: str, iteration: int, names: Collection[str]) -> bool:
    """The same of some tables of an iteration, those that other packages derive among them."""
    words: dict[str, str] = {}
    for name in names:
        # What a step is made of is asked once.
        lead = lead_of(name)
        if lead not in words:
            words[lead] = iteration_word(lake, run, iteration, name)
        if not _are_made(lake, [name], words[lead], run, iteration):
            return False
    return True


def _are_made(lake: Lake, names: Sequence[str], word: str, run: str, iteration: int, rank: int | None = None) -> bool:
    """Whether tables are made of that, with all of their columns, and their files are those that were written."""
    contents = [_content(lake, name, run, iteration, rank) for name in names]
    made = all(content is not None and content.made == word and not content.missing for content in contents)
    return made and _are_as_written(lake, names, run, iteration, rank)


def _are_as_written(lake: Lake, names: Sequence[str], run: str, iteration: int, rank: int | None = None) -> bool:
    return all(lake.is_as_written(name, run=run, iteration=iteration, rank=rank) for name in names)


def _content(lake: Lake, name: str, run: str, iteration: int, rank: int | None = None) -> Content | None:
    return lake.content(name, run=run, iteration=iteration, rank=rank)


def _versions(content: Content | None) -> Mapping[str, str]:
    """What a part is made of → its version; nothing where an earlier version of the program wrote it."""
    made = content.made if content is not None else ""
    return dict(each.split("=", 1) for each in made.split(",") if "=" in each)


def _made_of(lake: Lake, run: str, iteration: int, table: str) -> str:
    """Changes whenever something that a table of an iteration is made of has another content.

    That is the tables that its step reads; what is known of ranks that failed; and beside that, of ``runs`` the list of
    ranks and the peaks of the home, of tables across ranks those of GPU memory and the file that names pairs.
    """
    lead = lead_of(table)
    reads = READS[lead] if lead in READS else derived_tables()[table].made_of
    words = []
    # A rank whose tables are stale is counted nowhere; becoming so, or current again, changes what is made of ranks.
    for part in lake.partitions("traces", run, iteration):
        failed = not lake.exists(LAST_WRITTEN, run=run, iteration=iteration, rank=part.rank)
        asked = ["traces"] if failed else [name for name in reads if is_by_rank(name)]
        words.append(f"rank {part.rank} {_computed(lake, asked, run, iteration, part.rank)}")
    of_iteration = [name for name in reads if all_tables()[name].partitioned_by == BY_ITERATION]
    words.append(str(_computed(lake, of_iteration, run, iteration)))
    if lead == "runs":
        inputs = registered_if_any(lake.home, iteration_key(run, iteration))
        words.append(f"registered {[entry.rank for entry in inputs.ranks] if inputs is not None else None}")
        # Utilisation is held against them.
        words.append(f"peaks {home_peaks(lake.home).digest}")
    if lead == lead_of(FINDINGS.name) or set(reads) & set(MEMORY_TABLES):
        words += [
            f"memory of {part.rank} {_computed(lake, MEMORY_TABLES, run, iteration, part.rank)}"
            for part in lake.partitions(lead_of(MEMORY_TABLES[0]), run, iteration)
        ]
    pairs = os.environ.get(PAIRS_VARIABLE)
    if lead == lead_of(FINDINGS.name) and pairs:
        words.append(f"pairs {digest_of(Path(pairs)) if Path(pairs).is_file() else None}")
    return "\n".join(words)


def _computed(
    lake: Lake, names: Iterable[str], run: str, iteration: int, rank: int | None = None
) -> dict[str, str | None]:
    """Table → digest of its file as it was computed; None where it is not recorded."""
    contents = {name: _content(lake, name, run, iteration, rank) for name in names}
    return {name: content.computed if content is not None else None for name, content in contents.items()}
