"""An iteration of the lake as a screen walks through it: all ranks on one axis."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.kernel_intervals import codes, kernel_intervals
from traceviz_dag.analyze.nsys.activity import Activity, Clip
from traceviz_dag.analyze.nsys.summary import by_name
from traceviz_dag.analyze.overlap import WINDOW_COLUMNS, window_overlap
from traceviz_dag.arrays import NONE
from traceviz_dag.errors import UsageError
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes import names
from traceviz_dag.show.lanes.bundle import Bundle
from traceviz_dag.show.lanes.grouping import RankGroup, groupings
from traceviz_dag.show.lanes.iteration import (
    KERNEL_NAMES,
    OfAllRanks,
    rank_bundle,
    rank_key,
    root_bundle,
    spans_of,
)
from traceviz_dag.show.lanes.lane import LaneKind, Mark, MarkKind, Window
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.page.alignment import align, read_clocks
from traceviz_dag.show.page.facts import lead_in
from traceviz_dag.show.page.members import read_members
from traceviz_dag.show.report.places import places_of
from traceviz_dag.show.screens.lanes_model import LanesModel
from traceviz_dag.show.screens.model import MOST_NAMES, Aggregate, Detail, Fact, GroupMeasures, SliceId, TopName
from traceviz_dag.show.source import TableSource
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import Severity, TimeAlignment

_EVIDENCE = (
    *("phase_evidence", "phase_rule", "dimension_evidence", "dimension_rule", "dimension_candidates"),
    *("step_evidence", "producer_evidence", "matched_by"),
)

_TIMES = ("start_ns", "duration_ns", "run", "iteration", "rank", "name")
MOST_PLACED = 64
"""Findings whose places in time are asked for: the first ones."""

_FINDING = ("finding", "rule", "severity", *CULPRIT_COLUMNS, "statement", "evidence_sql")


class IterationSource(TableSource, Protocol):
    """The tables of one iteration, and answers to queries about it."""

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query about the iteration."""


class IterationModel(LanesModel):
    """One iteration with all its ranks.

    Args:
        alignment: how the clocks of the ranks are laid on one another; as recorded where solved ones are refused.
        kept: as ``LanesModel`` takes it; by default nothing is kept.
        options: what commands that it names end with, such as ``--home``.
        mark: what of the iteration was not read, in words; the first of its notes, before what limits the step.

    Raises:
        UsageError: the iteration has no kernels.
    """

    def __init__(
        self,
        source: IterationSource,
        alignment: TimeAlignment = TimeAlignment.SOLVED,
        kept: Callable[[str], Path | None] = lambda _: None,
        options: Sequence[str] = (),
        mark: str = "",
    ) -> None:
        super().__init__(kept)
        self._options = options
        self._source, self._of_all_ranks = source, OfAllRanks(source)
        self._found: list[Mark] | None = None
        self._asked: tuple[SliceId, dict[str, Any]] | None = None
        self._spans = spans_of(source)
        if not self._spans:
            raise UsageError(f"iteration {source.iteration} of run {source.run} has no kernels to show")
        clocks = read_clocks(source, self._spans, alignment)
        self._aligned = align(self._spans, clocks)
        limit = printable(lead_in(source).limit)
        verdict = f"Verdict: {limit}." if limit else ""
        self._notes = [text for text in (mark, verdict, clocks.warning, clocks.sentence) if text]

    @property
    def title(self) -> str:
        """As ``ScreenModel`` says."""
        return printable(f"{self._source.run} iteration {self._source.iteration}")

    @property
    def span(self) -> Window:
        """As ``ScreenModel`` says."""
        return Window(0, max(self._aligned.span_ns, 1))

    @property
    def notes(self) -> Sequence[str]:
        """As ``ScreenModel`` says."""
        return self._notes

    @property
    def groupings(self) -> Mapping[str, Sequence[RankGroup]]:
        """As ``ScreenModel`` says."""
        return groupings(self._source, [one for one in read_members(self._source) if one.rank in self._spans])

    def marks(self, window: Window) -> Sequence[Mark]:
        """As ``ScreenModel`` says: a finding lies where the steps of the rank at fault do, or all of them."""
        with self._lock:
            if self._found is None:
                self._found = self._findings()
            every = [*self._iterations(), *self._found]
        touching = [mark for mark in every if mark.start_ns < window.end_ns and mark.end_ns > window.start_ns]
        return sorted(touching, key=lambda mark: (mark.start_ns, mark.kind, mark.number or 0))

    def follow(self, slice_id: SliceId) -> SliceId | None:
        """As ``ScreenModel`` says."""
        with self._lock:
            self.bounds(slice_id)
            lane = self.lane(slice_id.lane)
            source = int(self._rows(slice_id.lane).source[slice_id.row])
            if lane.kind is LaneKind.CALLS:
                return self._of_kernel(_rank(slice_id.lane), source)
            if lane.kind in (LaneKind.STREAM, LaneKind.DIMENSION):
                row = self._row(slice_id)
                start, thread = row.get("launch_start_ns"), row.get("launch_thread")
                return None if start is None else self._call(_rank(slice_id.lane), thread, start)
            return None

    def members(self, slice_id: SliceId) -> Sequence[SliceId]:
        """As ``ScreenModel`` says."""
        with self._lock:
            self.bounds(slice_id)
            if self.lane(slice_id.lane).kind not in (LaneKind.STREAM, LaneKind.DIMENSION):
                return ()
            kernel = int(self._rows(slice_id.lane).source[slice_id.row])
            table = self._source.table("collectives", ("rank", "kernel_id", "communication"))
            mine = table.filter(
                pc.and_(pc.equal(table["rank"], _rank(slice_id.lane)), pc.equal(table["kernel_id"], kernel))
            )
            number = mine["communication"][0].as_py() if mine.num_rows else None
            if number is None:
                return ()
            table = table.filter(pc.equal(table["communication"], number)).sort_by("rank")
            pairs = zip(table["rank"].to_pylist(), table["kernel_id"].to_pylist(), strict=True)
            return [found for found in (self._of_kernel(*pair) for pair in pairs) if found is not None]

    def detail(self, slice_id: SliceId) -> Detail:
        """As ``ScreenModel`` says."""
        with self._lock:
            window, lane = self.bounds(slice_id), self.lane(slice_id.lane)
            content = self._content(slice_id.lane)
            assert content is not None
            kind = content.kinds[content.rows.kind[slice_id.row]]
            own = self.own_time(slice_id.lane, window.start_ns)
            facts = [
                Fact("start", window.start_ns, "ns"),
                Fact("duration", window.length_ns, "ns"),
                Fact("start on the rank's clock", own, "ns"),
                Fact("rank", _rank(slice_id.lane)),
                Fact("lane", lane.label),
                Fact("shown as", word_of(kind).label),
            ]
            sql = self._sql(slice_id)
            row = self._row(slice_id) if sql else {}
            facts += _facts(row)
            evidence = [Fact(_label(name), printable(str(row[name]))) for name in _EVIDENCE if row.get(name)]
            if lane.kind is LaneKind.MICROBATCHES and row:
                evidence += self._evidence_of_step(_rank(slice_id.lane), row)
            launch = self.follow(slice_id)
            start = row.get("launch_start_ns")
            if lane.kind in (LaneKind.STREAM, LaneKind.DIMENSION) and start is not None:
                waited = own - start - (row.get("launch_duration_ns") or 0)
                facts.append(Fact("waited since the call returned", max(waited, 0), "ns"))
            name = self._name(slice_id) if content.words else word_of(kind).label
            return Detail(
                slice_id,
                window,
                name,
                self._full_name(slice_id) or name,
                tuple(facts),
                tuple(evidence),
                tuple(one for one in self.members(slice_id) if one.lane.partition("/")[0] != rank_key(_rank(lane.key))),
                launch,
                printable(sql),
                self._command(_rank(lane.key), window),
            )

    def aggregate(self, window: Window, lanes: Sequence[str] = ()) -> Aggregate:
        """As ``ScreenModel`` says."""
        measures: list[GroupMeasures] = []
        top: list[TopName] = []
        commands = []
        with self._lock:
            for group in self._busy_groups(lanes):
                rank, shift = _rank(group), self._shift(group)
                start, end = window.start_ns + shift, window.end_ns + shift
                kernels = self._source.table("kernels", (*WINDOW_COLUMNS, "name"), rank)
                rows = window_overlap(kernels, "clip", start, end).to_pylist()
                measures += [
                    GroupMeasures(
                        lane=group, **{key: row[key] for key in GroupMeasures.__dataclass_fields__ if key != "lane"}
                    )
                    for row in rows
                ]
                top += [
                    TopName(group, names.function_name(one.name), one.kind, one.count, one.total_ns, one.share)
                    for one in by_name(_activity(kernels), Clip(start, end))[:MOST_NAMES]
                ]
                commands.append(self._command(rank, window))
        return Aggregate(window, tuple(measures), tuple(top), tuple(commands))

    def _make_root(self) -> Bundle:
        return root_bundle(self._source, self._spans)

    def _make(self, group: str) -> Bundle:
        return rank_bundle(self._of_all_ranks, _rank(group))

    def _words(self, group: str, words: str) -> Sequence[str | None]:
        return self._bundle(group).words[words]

    def _own_words(self, words: str) -> bool:
        del words
        return True

    def _shorten(self, words: str) -> Callable[[str], str]:
        return names.function_name if words == KERNEL_NAMES else names.shown

    def _shift(self, group: str) -> int:
        return self._aligned.zero_ns[_rank(group)]

    def _findings(self) -> list[Mark]:
        found: list[Mark] = []
        rows = self._source.table("findings", _FINDING).sort_by("finding").to_pylist()
        ranks = [{"rank": rank, "first_ns": first} for rank, (first, _) in self._spans.items()]
        for row in rows:
            if row["severity"] == Severity.NOT_LOOKED_AT:
                continue
            rank = row["rank"]
            lane = rank_key(rank) if rank in self._spans else None
            window = self.span
            if lane is not None:
                first, last = self._spans[rank]
                window = Window(first - self._shift(lane), last - self._shift(lane))
            placed = places_of(self._source, row, rows, ranks) if len(found) < MOST_PLACED else []
            culprit = ", ".join(f"{name} {row[name]}" for name in CULPRIT_COLUMNS if row[name] is not None)
            found.append(
                Mark(
                    MarkKind.FINDING if row["severity"] == Severity.FINDING else MarkKind.NOTE,
                    window.start_ns,
                    window.end_ns,
                    printable(row["rule"]),
                    lane,
                    printable(row["statement"]),
                    row["finding"],
                    printable(culprit),
                    sql=printable(row["evidence_sql"] or "", lines=True),
                    places=tuple(self._place(*place) for place in placed),
                )
            )
        return found

    def _place(self, rank: int, since_first_ns: int, duration_ns: int) -> tuple[str, Window]:
        """The lane of a rank, and a window that is known from its first kernel."""
        lane = rank_key(rank)
        start = self._spans[rank][0] + since_first_ns - self._shift(lane)
        return lane, Window(start, start + duration_ns)

    def _sql(self, slice_id: SliceId) -> str:
        """A query whose one row is a slice; empty for parts of time, which are of no row."""
        lane = self.lane(slice_id.lane)
        rows = self._rows(slice_id.lane)
        start, end = int(rows.start_ns[slice_id.row]), int(rows.end_ns[slice_id.row])
        source = int(rows.source[slice_id.row])
        table, where = {
            LaneKind.STREAM: ("kernels", f"kernel_id = {source}"),
            LaneKind.DIMENSION: ("kernels", f"kernel_id = {source}"),
            LaneKind.CALLS: ("kernels", f"kernel_id = {source}"),
            LaneKind.GAPS: ("gpu_gaps", f"start_ns = {start} AND duration_ns = {end - start}"),
            LaneKind.PATH: ("path_segments", f"segment = {source} AND start_ns = {start}"),
            LaneKind.RANGES: ("nvtx_ranges", f"range_id = {source}"),
            LaneKind.MICROBATCHES: (
                "microbatches",
                f"span_start_ns = {start} AND span_end_ns = {end} AND dimension = 'all' AND phase <> 'recompute'",
            ),
        }.get(lane.kind, ("", ""))
        if not table:
            return ""
        run = self._source.run.replace("'", "''")
        return (
            f"SELECT * FROM {table} WHERE run = '{run}' AND iteration = {self._source.iteration} "
            f"AND rank = {_rank(slice_id.lane)} AND {where}"
        )

    def _row(self, slice_id: SliceId) -> dict[str, Any]:
        """The row of a slice."""
        # A detail asks for it more than once.
        if self._asked is None or self._asked[0] != slice_id:
            found = self._source.ask(self._sql(slice_id)).to_pylist()
            self._asked = (slice_id, found[0] if found else {})
        return self._asked[1]

    def _evidence_of_step(self, rank: int, row: Mapping[str, Any]) -> list[Fact]:
        """What decided that kernels belong to a micro-batch: how many by each observation."""
        sql = (
            "SELECT coalesce(phase_evidence, 'none') AS evidence, count(*) AS kernels FROM kernels "
            f"WHERE rank = {rank} AND microbatch = {row['microbatch']} AND chunk IS NOT DISTINCT FROM "
            f"{'NULL' if row['chunk'] is None else row['chunk']} AND start_ns >= {row['span_start_ns']} "
            f"AND start_ns < {row['span_end_ns']} GROUP BY 1 ORDER BY 2 DESC, 1"
        )
        found = self._source.ask(sql).to_pylist()
        return [Fact(f"phase by {one['evidence']}", one["kernels"], "kernels") for one in found]

    def _of_kernel(self, rank: int, kernel: int) -> SliceId | None:
        """The slice of a kernel in the lane of its stream."""
        if rank not in self._spans:
            return None
        for lane in self.lanes(rank_key(rank)):
            if lane.kind is not LaneKind.STREAM:
                continue
            source = self._rows(lane.key).source
            place = int(np.searchsorted(source, kernel))
            if place < len(source) and source[place] == kernel:
                return SliceId(lane.key, place)
        return None

    def _call(self, rank: int, thread: int | None, start: int) -> SliceId | None:
        key = f"{rank_key(rank)}/thread:{NONE if thread is None else thread}/calls"
        rows = self._rows(key)
        place = int(np.searchsorted(rows.start_ns, start))
        return SliceId(key, place) if place < len(rows) and rows.start_ns[place] == start else None

    def _command(self, rank: int, window: Window) -> str:
        start, end = (self.own_time(rank_key(rank), time) for time in window)
        words = ["traceviz", "overlap", "--run", self._source.run, "--iteration", str(self._source.iteration)]
        words += ["--rank", str(rank), "--start-ns", str(start), "--end-ns", str(end)]
        return printable(shlex.join([*words, *self._options]))


def _rank(lane: str) -> int:
    return int(lane.partition("/")[0].partition(":")[2])


def _facts(row: Mapping[str, Any]) -> list[Fact]:
    """What a row says beyond its time and what decided it; NULL is left out."""
    found = []
    for name, value in row.items():
        if value is None or name in _TIMES or name in _EVIDENCE:
            continue
        unit = "ns" if name.endswith("_ns") else "bytes" if name == "bytes" or name.endswith("_bytes") else ""
        found.append(Fact(_label(name), printable(value) if isinstance(value, str) else value, unit))
    size, length = row.get("bytes"), row.get("duration_ns")
    if size is not None and length:
        found.append(Fact("bandwidth", size / length, "GB/s"))
    return found


def _label(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")


def _activity(kernels: pa.Table) -> Activity:
    """Kernels of a rank as what measures names takes."""
    intervals = kernel_intervals(kernels)
    name, words = codes(kernels, "name")
    absent = np.full(len(intervals), NONE, np.int64)
    return Activity(
        device=0,
        intervals=intervals,
        kernel=~intervals.moves_memory(),
        name=np.where(name < 0, len(words), name).astype(np.int32),
        names=(*words, names.NO_NAME),
        stream=absent,
        process=absent,
        launch=absent,
        bytes=absent,
        row=np.arange(len(intervals), dtype=np.int64),
    )
