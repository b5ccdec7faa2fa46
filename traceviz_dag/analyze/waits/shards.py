"""The communications of an iteration, matched in shards: each has all of its groups, so most is known of it alone.

What joins the shards is small: labels, which show the groups; whether sequence numbers are to be distrusted; whether a
file's groups are contradicted; ends of matched communications, which solve the clocks; and how numbers go on. One shard
is an iteration in one process.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.clocks.clock_evidence import MatchedEnds, join_ends, matched_ends
from traceviz_dag.analyze.clocks.clocks import clocks_of_ends
from traceviz_dag.analyze.matching.collective_matching import SequenceTrust
from traceviz_dag.analyze.matching.communication_groups import (
    NO_GROUP,
    GroupedRows,
    group_labels,
    label_communications,
)
from traceviz_dag.analyze.matching.communications import Communications, labels, optional_integers
from traceviz_dag.analyze.matching.matches import Matches, connected, match_communications
from traceviz_dag.analyze.matching.message_matching import is_message
from traceviz_dag.analyze.waits.by_ends import most_apart, open_rows, with_matches_by_ends
from traceviz_dag.analyze.waits.contradicted_groups import (
    Doubtful,
    chosen_to_judge,
    contradicted,
    doubtful,
    judge,
    mark_contradicted,
    stated_by_traces,
)
from traceviz_dag.analyze.waits.waits import Asked
from traceviz_dag.arrays import Int64
from traceviz_dag.classify.topology.types import Topology

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shard:
    """Communications of some groups and pipelines of an iteration, all of each.

    Attributes:
        place: its number. rows: in the order of the iteration.
        number: of each row, ascending; the same whatever the shards.
        grouped: groups by their numbers in the iteration.
        topology: of the iteration; microbatches: that table, of the pipelines of these ranks at least.
        known: its matches, once there are some; asked: what they ask of kernels.
    """

    place: int
    rows: Communications
    number: Int64
    grouped: GroupedRows
    topology: Topology
    microbatches: pa.Table
    known: Matches | None = None
    asked: Asked | None = None

    @property
    def matches(self) -> Matches:
        """Its matches, once there are some."""
        assert self.known is not None, "a shard is matched first"
        return self.known


class Shards(Protocol):
    """The shards of an iteration, wherever they are."""

    @property
    def labels(self) -> pa.Table:
        """The distinct labels of all communications, as ``survey`` gives them."""

    def share(self, grouped: GroupedRows, topology: Topology) -> None:
        """Make shards, of labels with these groups; those that were there are gone."""

    def each(
        self,
        work: Callable[..., tuple[Shard, Result]],
        /,
        *given: object,
    ) -> list[Result]:
        """Work on each shard, which the result replaces; the other results, in their order."""


@dataclass
class OneShard:
    """An iteration as one shard, in memory."""

    rows: Communications
    microbatches: pa.Table

    def __post_init__(self) -> None:
        self.labels, self._label = survey(self.rows)

    def share(self, grouped: GroupedRows, topology: Topology) -> None:
        """As ``Shards.share``."""
        of_rows, number = GroupedRows(grouped.group[self._label], grouped.groups), np.arange(len(self.rows))
        self.shard = Shard(0, self.rows, number, of_rows, topology, self.microbatches)

    def each(
        self,
        work: Callable[..., tuple[Shard, Result]],
        /,
        *given: object,
    ) -> list[Result]:
        """As ``Shards.each``."""
        self.shard, result = work(self.shard, *given)
        return [result]


def survey(rows: Communications) -> tuple[pa.Table, Int64]:
    """What must be known of all communications of an iteration before any is matched.

    Returns:
        A row per rank × distinct label: what ``group_labels`` takes; ``message``, ``device``, ``step``; how many
        ``rows`` have it, and their ``first_end_ns`` and ``last_end_ns``. And of each row its label.
    """
    device, step = labels(rows.table, "device"), rows.integers("step")
    message = is_message(rows).astype(np.int64)
    found, which = label_communications(rows, message, device[0], step)
    count = found.num_rows
    first, low, high = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    first[which] = np.arange(len(which))
    np.minimum.at(low, which, rows.end_ns)
    np.maximum.at(high, which, rows.end_ns)
    columns = {
        "message": message[first],
        "device": rows.table["device"].take(pa.array(first)),
        "step": rows.table["step"].take(pa.array(first)),
        "rows": np.bincount(which, minlength=count),
        "first_end_ns": low,
        "last_end_ns": high,
    }
    for name, values in columns.items():
        found = found.append_column(name, pa.array(values) if isinstance(values, np.ndarray) else values)
    return found, which


def plan(found: pa.Table, grouped: GroupedRows, topology: Topology, most_rows: int) -> Int64:
    """The shard of each label: about as many rows in each, no more than these unless what belongs together is more.

    A group's collectives belong together, all those without a group, and messages of ranks that pipelines or groups of
    messages join, directly or through others.

    Args:
        found, grouped: labels and their groups.
    """
    rank, message, rows = (optional_integers(found, name) for name in ("rank", "message", "rows"))
    if not len(rank):
        return np.empty(0, np.int64)
    messaging = message == 1
    groups, ranks = len(grouped.groups), int(max(rank.max(), *(max(each) for each in topology.pipelines), 0)) + 1
    joined = np.flatnonzero(messaging & (grouped.group != NO_GROUP))
    ends = [rank[joined], *(np.array(each, np.int64) for each in topology.pipelines)]
    others = [ranks + grouped.group[joined], *(np.full(len(each), each[0]) for each in topology.pipelines)]
    component = connected(np.concatenate(ends), np.concatenate(others), ranks + groups)
    unit = np.where(messaging, groups + 1 + component[rank], np.where(grouped.group == NO_GROUP, groups, grouped.group))
    _, unit = np.unique(unit, return_inverse=True)
    size = np.bincount(unit, weights=rows).astype(np.int64)
    count = max(-(-int(size.sum()) // most_rows), 1)
    shard, filled = np.zeros(len(size), np.int64), [(0, place) for place in range(count)]
    for each in np.argsort(-size, kind="stable").tolist():
        held, place = heapq.heappop(filled)
        shard[each] = place
        heapq.heappush(filled, (held + int(size[each]), place))
    return np.unique(shard[unit], return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Said:
    """What a shard's matches say to all.

    Attributes:
        open_rows: collectives of groups that nothing names.
        group_of: of each number of a collective its group; matched: how many numbers are used.
        lowest: of each number of messages the number of its first row.
    """

    trust: SequenceTrust
    ends: MatchedEnds
    doubtful: Doubtful
    open_rows: int
    group_of: Int64
    matched: int
    lowest: Int64


def match_shards(
    shards: Shards, topology: Topology, ranks: tuple[int, ...], hosts: Mapping[int, int] | None = None
) -> tuple[pa.Table, list[Int64]]:
    """Match the communications of all ranks: by names and order, which give the clocks, and then by ends.

    Groups of a topology file that the traces contradict match nothing.

    Args:
        topology: the job's groups and pipelines. ranks: all that were read.
        hosts: rank → number of its host; none where they are not known.

    Returns:
        The table ``rank_clocks``; and of each shard, which has its matches now, the number in the iteration of each of
        its communications.
    """
    everyone = np.unique(np.concatenate((optional_integers(shards.labels, "rank"), np.array(ranks, np.int64))))
    said = _match(shards, topology, everyone)
    doubts = chosen_to_judge([one.doubtful for one in said], topology)
    if (doubts.pairs or doubts.neighbours) and contradicted(shards.each(_judge, doubts, _span(shards.labels))):
        # Another job's groups: how this one divides its ranks is not known, so ends have nothing to choose from.
        matched = np.concatenate(shards.each(_matched))
        said = _match(shards, stated_by_traces(topology), everyone)
        clocks = clocks_of_ends(join_ends([one.ends for one in said]), everyone, hosts or {})
        shards.each(_mark, matched)
        return clocks, _numbers(said, [0] * len(said))
    ends = join_ends([one.ends for one in said])
    clocks = clocks_of_ends(ends, everyone, hosts or {})
    more = [0] * len(said)
    if any(one.open_rows for one in said) and topology.world_size == len(ranks):
        more = shards.each(_by_ends, clocks, ranks, most_apart(ends, everyone, clocks))
    return clocks, _numbers(said, more)


def match_and_solve(
    rows: Communications,
    topology: Topology,
    microbatches: pa.Table,
    ranks: tuple[int, ...],
    hosts: Mapping[int, int] | None = None,
) -> tuple[Matches, pa.Table]:
    """As ``match_shards``, in one.

    Args:
        microbatches: the table of that name of all ranks, with ``rank``.

    Returns:
        The matches, and the table ``rank_clocks``.
    """
    one = OneShard(rows, microbatches)
    clocks, _ = match_shards(one, topology, ranks, hosts)
    return one.shard.matches, clocks


def _match(shards: Shards, topology: Topology, everyone: Int64) -> list[Said]:
    shards.share(group_labels(shards.labels, topology), topology)
    said = shards.each(_matched_shard, everyone, False)
    trust = [one.trust for one in said]
    if any(one.distrusts for one in trust) and any(one.unchecked and not one.distrusts for one in trust):
        said = shards.each(_matched_shard, everyone, True)
    return said


def _matched_shard(shard: Shard, everyone: Int64, distrust: bool) -> tuple[Shard, Said]:
    matches = match_communications(shard.rows, shard.topology, shard.microbatches, shard.grouped, distrust=distrust)
    messages = np.flatnonzero(matches.is_message & (matches.communication >= 0))
    _, first = np.unique(matches.communication[messages], return_index=True)
    said = Said(
        trust=matches.trust,
        ends=matched_ends(matches, everyone),
        doubtful=doubtful(matches, shard.topology),
        open_rows=len(open_rows(matches)),
        group_of=matches.group_of,
        matched=int(matches.communication[~matches.is_message].max(initial=-1)) + 1,
        lowest=shard.number[messages[first]],
    )
    return replace(shard, known=matches), said


def _judge(shard: Shard, doubts: Doubtful, span_ns: int) -> tuple[Shard, tuple[list[tuple[str, bool]], list[bool]]]:
    return shard, judge(shard.matches, shard.topology, doubts, span_ns)


def _matched(shard: Shard) -> tuple[Shard, Int64]:
    return shard, shard.number[shard.matches.communication >= 0]


def _mark(shard: Shard, matched: Int64) -> tuple[Shard, None]:
    return replace(shard, known=mark_contradicted(shard.matches, np.isin(shard.number, matched))), None


def _by_ends(shard: Shard, clocks: pa.Table, ranks: tuple[int, ...], apart: int) -> tuple[Shard, int]:
    before = int(shard.matches.communication.max(initial=-1))
    found = with_matches_by_ends(shard.matches, clocks, shard.topology, ranks, apart)
    last = max(int(found.communication.max(initial=-1)), int(found.may_meet.max(initial=-1)))
    return replace(shard, known=found), max(last - before, 0)


def _span(found: pa.Table) -> int:
    first, last = optional_integers(found, "first_end_ns"), optional_integers(found, "last_end_ns")
    return int(last.max() - first.min()) if len(first) else 0


def _numbers(said: Sequence[Said], more: Sequence[int]) -> list[Int64]:
    """Of each shard the iteration's number of each of its communications.

    Collectives are numbered by group, messages then by their first row, and then those that ends show.

    Args:
        more: of each shard, how many ends showed.
    """
    groups = max((int(one.group_of.max(initial=-1)) for one in said), default=-1) + 1
    starts = np.cumsum([0, *sum((np.bincount(one.group_of, minlength=groups) for one in said), np.zeros(groups))])
    collectives = []
    for one in said:
        own = one.group_of[: one.matched]
        collectives.append(starts[own].astype(np.int64) + np.arange(len(own)) - np.searchsorted(one.group_of, own))
    first = max((int(each[-1]) for each in collectives if len(each)), default=-1) + 1
    lowest = np.sort(np.concatenate([one.lowest for one in said]))
    shown = first + len(lowest) + np.cumsum([0, *more])
    return [
        np.concatenate((own, first + np.searchsorted(lowest, one.lowest), at + np.arange(count)))
        for own, one, at, count in zip(collectives, said, shown.tolist(), more, strict=False)
    ]
