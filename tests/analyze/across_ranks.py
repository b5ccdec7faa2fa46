"""Iterations for tests across ranks: real traces and simulated jobs through the product, and rows made by hand."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pandas as pd
import pyarrow as pa

from tests.made_once import made_once
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.communications import (
    COMMUNICATION_COLUMNS,
    Communications,
    gather_communications,
    select_communications,
)
from traceviz_dag.analyze.matching.matches import Matches, match_communications
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.waits import BESIDE_COLUMNS, charge_waits
from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.types import Group, Replicas, Topology
from traceviz_dag.classify.topology.unite import topology_tables
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.across_ranks import analyse_across_ranks
from traceviz_dag.pipeline.discovery import IterationInputs, inputs_below
from traceviz_dag.pipeline.findings import iteration_findings
from traceviz_dag.pipeline.iteration import rank_traces, read_topology
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.pipeline.workers import IterationTask, analyse_into_lake
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.tables import KERNELS, MICROBATCHES
from traceviz_dag.vocabulary import Dimension, TopologySource

EPOCH_NS = 1_700_000_000_000_000_001
SMALL = {"layers": 8, "hidden": 2048, "heads": 16, "feed_forward": 8192, "sequence": 2048, "vocabulary": 8192}
"""A model small enough to simulate in a second, with kernels that are longer than their launches."""

TINY = {**SMALL, "layers": 4}


@cache
def analysed_all(folder: Path) -> tuple[StoredIteration, ...]:
    """The iterations below a folder, analysed once a run of the tests."""
    inputs = inputs_below([folder])
    home = made_once(_name("analysed", folder), lambda home: [_analyse(each, home) for each in inputs])
    return tuple(StoredIteration(open_lake(home), each.run, each.iteration, each) for each in inputs)


def analysed(folder: Path) -> StoredIteration:
    """The one iteration below a folder."""
    (iteration,) = analysed_all(folder)
    return iteration


def store_across_ranks(iteration: StoredIteration) -> None:
    """Write the tables across ranks of an iteration, and its findings, as ``traceviz analyze`` does."""
    lake, place = iteration.lake, {"run": iteration.run, "iteration": iteration.iteration}
    for name, table in analyse_across_ranks(iteration).items():
        lake.write(name, table, **place)
    lake.write("findings", iteration_findings(lake, **place), **place)


def analysed_here(folder: Path, home: Path) -> StoredIteration:
    """The one iteration below a folder, analysed into a home."""
    (inputs,) = inputs_below([folder])
    return _analyse(inputs, home)


def _analyse(inputs: IterationInputs, home: Path) -> StoredIteration:
    """In this process: for many small jobs faster than with workers."""
    lake, known = open_lake(home), read_topology(inputs)
    for name, table in zip(("topology", "process_groups"), topology_tables(known), strict=True):
        lake.write(name, table, run=inputs.run, iteration=inputs.iteration)
    task = IterationTask(lake.home, inputs.run, inputs.iteration, known, load_rules())
    for trace in rank_traces(inputs, {entry.rank for entry in inputs.ranks}):
        analyse_into_lake(task, trace)
    return StoredIteration(lake, inputs.run, inputs.iteration, inputs)


@cache
def simulated(settings: JobSettings) -> tuple[StoredIteration, Path]:
    """A simulated job and its truth folder, made once a run of the tests."""
    run = made_once(_name("job", settings), lambda folder: simulate(settings, folder, workers=1))
    return analysed(run), run / "truth"


def _name(what: str, of: object) -> str:
    return f"{what}_{hashlib.sha256(repr(of).encode()).hexdigest()[:16]}"


def truth_kernels(folder: Path) -> pd.DataFrame:
    """The truth of all ranks, a row per kernel."""
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("rank_*.parquet"))], ignore_index=True)
    return frame.astype({name: object for name in frame if str(frame[name].dtype) == "category"})


def matched(iteration: StoredIteration) -> Matches:
    """The matched communications of a stored iteration."""
    rows = gather_communications(
        select_communications(iteration.kernels(rank, COMMUNICATION_COLUMNS)) for rank in iteration.ranks
    )
    return match_communications(rows, iteration.topology, iteration.microbatches)


@cache
def charged_collectives(iteration: StoredIteration) -> pa.Table:
    """The table collectives alone; ``iteration.table`` would compute all tables across ranks."""
    matches = matched(iteration)
    clocks = solve_clocks(matches, iteration.ranks)
    return charge_waits(
        collectives_table(matches, clocks), matches, clocks, lambda rank: iteration.kernels(rank, BESIDE_COLUMNS)
    )


def part(rank: int, start: int, end: int, group: str | None = "1", **more: object) -> dict:
    """One communication kernel; times count from EPOCH_NS."""
    row = {
        "rank": rank,
        "start_ns": EPOCH_NS + start,
        "duration_ns": end - start,
        "kind": "communication",
        "collective": "allreduce",
        "group_name": group,
        "dimension": "tp",
        "device": f"gpu:{rank}",
        "step": 7,
    }
    return {**row, **more}


def communications(rows: list[dict]) -> Communications:
    """Communications of a few columns; what a row does not say is NULL, kernels are numbered per rank."""
    counts: dict[int, int] = {}
    complete = []
    for row in rows:
        counts[row["rank"]] = counts.get(row["rank"], -1) + 1
        complete.append({"kernel_id": counts[row["rank"]], **row})
    fields = [
        KERNELS.schema.field(name) if name != "rank" else pa.field("rank", pa.int64()) for name in COMMUNICATION_COLUMNS
    ]
    arrays = [pa.array([row.get(field.name) for row in complete], type=field.type) for field in fields]
    return gather_communications([pa.Table.from_arrays(arrays, schema=pa.schema(fields))])


def topology(
    groups: dict[str, tuple[int, ...]] | None = None, pipelines: tuple[tuple[int, ...], ...] = (), world: int = 8
) -> Topology:
    """A topology of named groups and pipelines."""
    named = tuple(
        Group(name, None, Dimension.TP, ranks, len(ranks), TopologySource.DISTRIBUTED_INFO)
        for name, ranks in (groups or {}).items()
    )
    return Topology(world, {}, named, pipelines, Replicas(), (TopologySource.DISTRIBUTED_INFO,))


def no_microbatches() -> pa.Table:
    return microbatch_rows([])


def microbatch_rows(rows: list[dict]) -> pa.Table:
    """Rows of the table microbatches of all ranks; what a row does not say is NULL."""
    fields = [pa.field("rank", pa.int64()), *MICROBATCHES.schema]
    arrays = [pa.array([row.get(field.name) for row in rows], type=field.type) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def match_rows(rows: list[dict], known: Topology | None = None) -> Matches:
    """Match rows made by hand, without any micro-batch."""
    return match_communications(communications(rows), known or topology(), no_microbatches())
