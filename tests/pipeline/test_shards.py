"""Matched in shards, an iteration has the tables that it has in one piece, to the nanosecond, whatever its traces."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.analyze.across_ranks import communications, no_microbatches, part, simulated, topology
from tests.pipeline.cluster.servers import tables
from tests.sets import fast
from tests.simulate.conftest import small
from tests.small_run import write_run
from traceviz_dag.analyze.matching.communication_groups import group_labels
from traceviz_dag.analyze.matching.communications import COMMUNICATION_COLUMNS
from traceviz_dag.analyze.waits.shards import plan, survey
from traceviz_dag.classify.topology.types import Group, Topology
from traceviz_dag.errors import OutputError
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.shards import MatchedRanks, Sharding, match_ranks
from traceviz_dag.read.stated_bounds import RANKS_IN_ONE_PIECE
from traceviz_dag.tables import KERNELS
from traceviz_dag.vocabulary import Dimension, TopologySource

WORLD = 8


def here(work, items, workers, arguments=()) -> Iterator[tuple[int, object]]:
    """Workers in this process, to which nothing goes that cannot be sent; the last one ends first."""
    for number, item in reversed([*enumerate(items)]):
        sent = pickle.loads(pickle.dumps((item, *arguments)))
        yield number, pickle.loads(pickle.dumps(work(*sent)))


@dataclass
class Made:
    """An iteration of rows made by hand."""

    rows: list[dict]
    topology: Topology
    read: tuple[int, ...] = tuple(range(WORLD))
    hosts: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = communications(self.rows).table
        self.tables = {rank: known.filter(pc.equal(known["rank"], rank)) for rank in self.read}

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.read

    @property
    def stored_kernels(self) -> Made:
        return self

    def nodes(self, devices: Mapping[int, str | None] | None = None) -> Mapping[int, int]:
        return {rank: rank // 4 for rank in devices or ()}

    @property
    def microbatches(self) -> pa.Table:
        return no_microbatches()

    def kernels(self, rank: int, columns: Sequence[str]) -> pa.Table:
        table = self.tables[rank]
        for name in set(columns) - set(COMMUNICATION_COLUMNS):
            kind = KERNELS.schema.field(name).type
            nothing = [] if name == "beside_ns" else None
            table = table.append_column(name, pa.array([nothing] * table.num_rows, kind))
        return table.select(list(columns))

    kernels_in_turn = kernels


def same(whole: MatchedRanks, shards: MatchedRanks) -> None:
    both = ((each.charged(), each.rank_clocks, each.messages) for each in (whole, shards))
    for one, other in zip(*both, strict=True):
        assert one.schema.equals(other.schema)
        for column in one.column_names:
            assert one[column].to_pylist() == other[column].to_pylist(), column
    assert whole.nodes == shards.nodes


GROUPS = {
    "tp": [(0, 1), (2, 3), (4, 5), (6, 7)],
    "dp": [(0, 2, 4, 6), (1, 3, 5, 7)],
    "cp": [(0, 4), (1, 5), (2, 6), (3, 7)],
}
WRONG = [(0, 3), (1, 2), (4, 7), (5, 6)]
DIRT = (
    *("unnamed", "unknown", "duplicate", "sequences", "uneven", "launches", "lost", "unmarked", "cut", "missing"),
    *("file", "wrong", "hosts"),
)


def job(seed: int, dirt: set[str]) -> Made:
    """A job of 8 ranks with clocks of their own; messages go round rings, and dirt makes its traces worse."""
    draw = random.Random(seed)
    clocks, lost = [draw.randrange(10**9) for _ in range(WORLD)], 0.03 if "lost" in dirt else 0
    if "hosts" in dirt:
        clocks = [clocks[rank // 4] for rank in range(WORLD)]
    rows: list[dict] = []
    at = 0
    turns = draw.randrange(4, 14)
    for turn in range(turns):
        for place, kind in enumerate(draw.sample([*GROUPS], 3)):
            at += draw.randrange(10_000, 200_000)
            for members in GROUPS[kind]:
                # Groups meet when they like.
                begun = at + draw.randrange(0, 2_000_000)
                arrivals = [begun + draw.randrange(40_000) for _ in members]
                end = max(arrivals) + draw.randrange(5_000, 50_000)
                for rank, arrival in zip(members, arrivals, strict=True):
                    row = part(rank, clocks[rank] + arrival, clocks[rank] + end + draw.randrange(300))
                    row |= {"group_name": f"{kind}{min(members)}", "dimension": kind, "group_size": len(members)}
                    row |= {"collective": None, "name": "ncclDevKernel_SendRecv"} if kind == "cp" else {}
                    if "launches" in dirt:
                        row["launch_start_ns"] = row["start_ns"] - 5_000
                    if "sequences" in dirt:
                        row["sequence"] = turn + (place if rank % 2 and kind == "tp" else 0)
                    if kind == "tp" and {"unnamed", "file", "wrong", "unknown"} & dirt:
                        row["group_name"] = None
                    if kind == "tp" and "unknown" in dirt:
                        row |= {"dimension": "unknown", "group_size": None}
                    if kind == "dp" and "duplicate" in dirt:
                        row["group_name"] = "dp"
                    if "uneven" in dirt and draw.random() < 0.02:
                        row["collective"] = "allgather"
                    if draw.random() >= lost:
                        rows.append(row)
            at += 2_100_000
    if "sequences" in dirt:
        # A group that met once, of which numbers alone say nothing.
        rows += [
            part(rank, clocks[rank] + at, clocks[rank] + at + 9_000, "once", dimension="pp", sequence=rank)
            for rank in (0, 7)
        ]
    if "unmarked" in dirt:
        rows = [{**row, "step": None} if row["rank"] == 3 else row for row in rows]
    if "cut" in dirt:
        cut = sorted(row["start_ns"] for row in rows if row["rank"] == 5)[-3]
        rows = [row for row in rows if row["rank"] != 5 or row["start_ns"] < cut]
    read = tuple(rank for rank in range(WORLD) if not ("missing" in dirt and rank == 6))
    rows = sorted((row for row in rows if row["rank"] in read), key=lambda row: (row["rank"], row["start_ns"]))
    known = topology({f"{kind}{min(each)}": each for kind in GROUPS for each in GROUPS[kind]}, world=WORLD)
    known = replace(known, groups=tuple(replace(one, dimension=Dimension(one.name[:2])) for one in known.groups))
    if {"file", "wrong"} & dirt:
        # Groups of a file, of which the traces say nothing, beside those that they state.
        of_file = [
            Group(None, None, Dimension.TP, each, 2, TopologySource.TEXT_FILE)
            for each in (WRONG if "wrong" in dirt else GROUPS["tp"])
        ]
        known = replace(known, groups=(*of_file, *(one for one in known.groups if one.name[:2] != "tp")))
    return Made(rows, known, read, {rank: rank // 4 for rank in read} if "hosts" in dirt else {})


_drawn = given(
    seed=st.integers(0, 10**6), dirt=st.sets(st.sampled_from(DIRT)), most=st.integers(1, 60), chunk=st.integers(1, 9)
)


def _same_in_shards(seed, dirt, most, chunk):
    made = job(seed, dirt)
    same(match_ranks(made), match_ranks(made, Sharding(1, most, chunk, here)))


@settings(max_examples=8)
@_drawn
@example(seed=1, dirt={"unknown", "hosts"}, most=1, chunk=3)
@example(seed=2, dirt={"wrong"}, most=1, chunk=2)
@example(seed=3, dirt={"sequences"}, most=1, chunk=2)
@example(seed=49, dirt={"sequences", "duplicate", "unnamed", "uneven"}, most=1, chunk=1)
def test_shards_give_what_one_piece_gives(seed, dirt, most, chunk):
    _same_in_shards(seed, dirt, most, chunk)


@pytest.mark.long
@settings(max_examples=200)
@_drawn
def test_shards_give_what_one_piece_gives_in_many_jobs(seed, dirt, most, chunk):
    _same_in_shards(seed, dirt, most, chunk)


@pytest.mark.parametrize(
    "job_settings", fast([small(pp=2, dp=2), small(tp=2, pp=2, vpp=2), small(tp=2, cp=2, dp=2)], small(pp=2, dp=2))
)
def test_simulated_jobs_are_the_same_in_shards(job_settings):
    iteration, _ = simulated(job_settings)
    whole = match_ranks(iteration)
    assert whole.collectives["communication"].null_count < whole.collectives.num_rows
    same(whole, match_ranks(iteration, Sharding(1, 100, 1, here)))


@pytest.mark.long
def test_a_home_has_the_same_bytes_and_nothing_is_left_there(tmp_path, monkeypatch):
    run = write_run(tmp_path / "job")
    for name, ranks in (("whole", ""), ("shards", "1")):
        monkeypatch.setenv(RANKS_IN_ONE_PIECE.variable, ranks)
        analyse(AnalysisSettings(tmp_path / name, workers=2), inputs_below([run]))
    assert len(tables(tmp_path / "whole")) > 20 and tables(tmp_path / "whole") == tables(tmp_path / "shards")
    assert {each.name for each in (tmp_path / "shards").iterdir()} == {
        each.name for each in (tmp_path / "whole").iterdir()
    }


@pytest.mark.parametrize(
    "name", ["microbatches.arrow", "rows_0.arrow", "shard_0", "own_0.arrow", "collectives_0.arrow"]
)
def test_a_full_disk_is_a_line_that_names_the_file(tmp_path, monkeypatch, name):
    @contextmanager
    def scratch(_base):
        (tmp_path / name).symlink_to("/dev/full")
        yield tmp_path

    monkeypatch.setattr("traceviz_dag.pipeline.shards.scratch_folder", scratch)
    with pytest.raises(OutputError, match=f"{name}: cannot be written .*No space left.*; free space there"):
        match_ranks(job(1, set()), Sharding(1, 100, 3, here))


@pytest.mark.parametrize(
    ("dirt", "column", "word"),
    [
        ({"unknown", "hosts"}, "matched_by", "ends"),
        ({"wrong"}, "fault", "groups_contradicted"),
        ({"sequences"}, "matched_by", "order"),
    ],
)
def test_the_jobs_above_need_what_shards_tell_each_other(dirt, column, word):
    assert word in match_ranks(job(1, dirt)).collectives[column].to_pylist()


def test_a_shard_has_all_of_a_group_and_no_more_rows_than_it_must():
    made = job(1, set())
    found, _ = survey(communications(made.rows))
    grouped = group_labels(found, made.topology)
    shard = plan(found, grouped, made.topology, 40)
    assert len(set(shard.tolist())) > 3
    message = found["message"].to_numpy()
    for number in np.unique(grouped.group[message == 0]).tolist():
        assert len({*shard[(grouped.group == number) & (message == 0)].tolist()}) == 1
