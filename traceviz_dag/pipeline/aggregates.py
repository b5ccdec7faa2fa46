"""The tables with one row an iteration: its ranks' measures together, and what follows from the job's settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

import pyarrow as pa

from traceviz_dag.analyze.utilization import Stated, utilization
from traceviz_dag.lake.lake import Lake
from traceviz_dag.lake.queries import TraceFiles, iterations, rank_measures, runs, trace_files
from traceviz_dag.pipeline.home_settings import home_peaks
from traceviz_dag.tables import ITERATIONS
from traceviz_dag.vocabulary import TraceStatus


def aggregate(lake: Lake, run: str, iteration: int, *, with_partial: bool = False) -> Mapping[str, pa.Table]:
    """What the tables of an iteration say together.

    Args:
        with_partial: count ranks that were read in part in the measures, too.

    Returns:
        Table name → rows, for each of ``AGGREGATED_TABLES`` of ``lake.queries``.
    """
    files = trace_files(lake, run, iteration)
    return {
        "iterations": _measured(lake, run, iteration, files, with_partial=with_partial),
        "runs": runs(lake, run, iteration, files),
    }


def _measured(lake: Lake, run: str, iteration: int, files: TraceFiles, *, with_partial: bool) -> pa.Table:
    """The row of table ``iterations`` for one iteration; no row where no rank's overlap was measured."""
    measures = rank_measures(lake, run, iteration)
    rows = iterations(lake, run, iteration, with_partial=with_partial, files=files, measures=measures).to_pylist()
    if not rows:
        return ITERATIONS.schema.empty_table()
    covered = set(rows[0]["covered_ranks"])
    step_ns = rows[0]["step_ns"] if all(one["marked"] for one in measures if one["rank"] in covered) else None
    found = utilization(stated_by(files, step_ns, with_partial), home_peaks(lake.home))
    return pa.Table.from_pylist([rows[0] | asdict(found)], ITERATIONS.schema)


def stated_by(files: TraceFiles, step_ns: int | None, with_partial: bool) -> Stated:
    """What the traces of an iteration state of its job.

    Args:
        with_partial: whether ranks that were read in part are counted.
    """
    readable = [row for row in files.rows if row["status"] != TraceStatus.FAILED.value]
    return Stated(
        [json.loads(settings) for settings in sorted({row["settings"] for row in readable if row["settings"]})],
        sorted({row["device_name"] for row in readable if row["device_name"]}),
        max((files.described, *(row["world_size"] or 0 for row in readable))) or None,
        step_ns,
        with_partial and bool(files.in_part),
    )
