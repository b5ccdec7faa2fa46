"""Truth beyond single kernels: spans of micro-batches, pipelines with their bubbles."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.arrays import Int64
from traceviz_dag.schedules import Backward, Forward
from traceviz_dag.simulate.bubbles import Spans, bubble_parts
from traceviz_dag.simulate.covering import measure_until, union
from traceviz_dag.simulate.files.truth import MICROBATCH_SCHEMA, PIPELINE_SCHEMA, TruthTable
from traceviz_dag.simulate.settings import JobSettings
from traceviz_dag.vocabulary import Dimension, Kind, Phase

HostSpans = dict[tuple[int, int, int, str], list[int]]
"""(step, chunk, micro-batch, phase) → begin and end of the host's work, true ns."""

StageMeasures = dict[str, Int64 | int]
"""Of :func:`stage_measures`."""


def span_table(
    rank: int,
    stage: int,
    hosts: HostSpans,
    data: dict[str, Int64],
    truth: TruthTable,
) -> pa.Table:
    """Spans of each micro-batch on one rank, as ``MICROBATCH_SCHEMA``.

    Args:
        data: the kernels' columns.
    """
    keys = ("step", "chunk", "microbatch", "phase")
    grouped = pa.table({name: data[name] for name in (*keys, "start", "end")}).group_by(list(keys))
    measures = grouped.aggregate([("start", "min"), ("end", "max"), ("start", "count")]).to_pylist()
    kernels = {
        tuple(row[name] for name in keys): (row["start_min"], row["end_max"], row["start_count"]) for row in measures
    }
    rows: dict[str, list[object]] = {name: [] for name in MICROBATCH_SCHEMA.names}
    spans = [(key, host) for key, host in hosts.items()]
    spans += [((*key[:3], str(Phase.RECOMPUTE)), host) for key, host in hosts.items() if key[3] == Phase.BACKWARD]
    for (step, chunk, microbatch, phase), host in spans:
        of_phases = (phase, Phase.RECOMPUTE) if phase == Phase.BACKWARD else (phase,)
        places = ((step, chunk, microbatch, truth.code("phase", each)) for each in of_phases)
        found = [kernels[place] for place in places if place in kernels]
        if found:
            starts, ends, counts = zip(*found, strict=True)
            values = (rank, step, stage, chunk, microbatch, phase, *host, min(starts), max(ends), sum(counts))
            for name, value in zip(MICROBATCH_SCHEMA.names, values, strict=True):
                rows[name].append(value)
    return pa.table(rows, schema=MICROBATCH_SCHEMA)


def stage_measures(table: pa.Table, step: int) -> StageMeasures:
    """What a pipeline's row needs of one rank's kernels in one step: its step span and its busy intervals."""
    table = table.filter(pc.equal(table["step"], step)).combine_chunks()
    start = table.column("true_ts_ns").to_numpy()
    end = start + table.column("dur_ns").to_numpy()
    stepping = _is_one_of(table, "phase", Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
    stepping &= ~_is_one_of(table, "dimension", Dimension.DP)
    computes, communicates = (_is_one_of(table, "kind", kind) for kind in (Kind.COMPUTATION, Kind.COMMUNICATION))
    works = ~_is_one_of(table, "dimension", Dimension.PP)
    busy = union(start[works], end[works])
    computing = union(start[computes], end[computes])
    communicating = union(start[communicates], end[communicates])
    return {
        "first": int(start[stepping].min()),
        "last": int(end[stepping].max()),
        "busy_starts": busy[0],
        "busy_ends": busy[1],
        "computing_starts": computing[0],
        "computing_ends": computing[1],
        "communicating_starts": communicating[0],
        "communicating_ends": communicating[1],
    }


def _is_one_of(table: pa.Table, name: str, *words: str) -> npt.NDArray[np.bool_]:
    """Whether a column of codes, in one chunk, has one of some words."""
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    has = np.array([word in words for word in column.dictionary.to_pylist()], bool)
    return has[column.indices.to_numpy()]


def stage_steps(spans: pa.Table, step: int) -> Spans:
    """One rank's forward and backward steps of one training step, from its table of ``MICROBATCH_SCHEMA``."""
    found = {}
    for row in spans.to_pylist():
        if row["step"] == step and row["phase"] != Phase.RECOMPUTE:
            kind = Forward if row["phase"] == Phase.FORWARD else Backward
            found[kind(row["chunk"], row["microbatch"])] = row["start_ns"], row["end_ns"]
    return found


def pipeline_table(
    settings: JobSettings,
    step: int,
    pipelines: list[tuple[int, ...]],
    measures: dict[int, StageMeasures],
    steps: dict[int, Spans],
) -> pa.Table:
    """One step's rows of ``PIPELINE_SCHEMA``; ranks without measures (no file) are left out.

    Args:
        measures: of ``stage_measures``, steps: of ``stage_steps``, by rank.
    """
    rows: list[dict[str, int]] = []
    for ordinal, members in enumerate(pipelines):
        present = [rank for rank in members if rank in measures]
        if not present:
            continue
        window = (
            min(int(measures[rank]["first"]) for rank in present),
            max(int(measures[rank]["last"]) for rank in present),
        )
        whole = len(present) == len(members)
        parts = bubble_parts(settings, [steps[rank] for rank in members]) if whole else []
        for rank in present:
            stage = members.index(rank)
            row = {"step": step, "pipeline": ordinal, "stage": stage, "rank": rank}
            row |= _in_window(measures[rank], window) | (asdict(parts[stage]) if whole else {})
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=PIPELINE_SCHEMA)


def _in_window(found: StageMeasures, window: tuple[int, int]) -> dict[str, int]:
    busy, computing, communicating = (_within(found, what, window) for what in ("busy", "computing", "communicating"))
    return {
        "start_ns": window[0],
        "end_ns": window[1],
        "busy_ns": busy,
        "computation_ns": computing,
        "idle_ns": window[1] - window[0] - busy,
        "communication_ns": communicating,
        "exposed_ns": _within_both(found, window) - computing,
    }


def _within(found: StageMeasures, what: str, window: tuple[int, int]) -> int:
    starts, ends = np.asarray(found[f"{what}_starts"]), np.asarray(found[f"{what}_ends"])
    if not len(starts):
        return 0
    left, right = measure_until(starts, ends, np.array(window, np.int64)).tolist()
    return int(right - left)


def _within_both(found: StageMeasures, window: tuple[int, int]) -> int:
    names = ("computing", "communicating")
    starts = np.concatenate([np.asarray(found[f"{name}_starts"]) for name in names])
    ends = np.concatenate([np.asarray(found[f"{name}_ends"]) for name in names])
    left, right = union(starts, ends)
    return _within({"both_starts": left, "both_ends": right}, "both", window)
