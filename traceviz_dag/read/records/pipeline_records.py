"""Reads the records of StragglerAnalysis: one row an operation of a pipeline stage, with its start and duration.

A Parquet file ``trace-NAME.parquet`` holds the rows; ``meta-NAME.yaml`` beside it states the sizes of the job. Times
are seconds from the start of the step, in float32: half a microsecond at eight seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml  # type: ignore[import-untyped]

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import MOST_RANKS, MOST_ROWS
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.toml_file import read_text

_REMEDY = "name a file trace-NAME.parquet of StragglerAnalysis"
_MOST_SECONDS = 1e6


class Operation(StrEnum):
    """What a row of the records is, by the name that the records give it."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECEIVE = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECEIVE = "backward-recv"
    GATHER = "params-all-gather"
    REDUCE_SCATTER = "grads-reduce-scatter"
    LAYERNORM = "layernorm-grads-all-reduce"
    EMBEDDING = "embedding-grads-all-reduce"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"
    GARBAGE_COLLECTION = "gc"
    FIRST = "first-op"


OPERATIONS = tuple(Operation)
"""Their codes are their places here."""


@dataclass(frozen=True, slots=True)
class PipelineRecords:
    """Operations of all ranks, sorted by step, data-parallel rank, stage and start.

    Attributes:
        rows: ``step``, ``dp_rank``, ``stage``, ``rank``, ``operation`` (code: place in ``OPERATIONS``), ``sequence``
            (number among its kind), ``chunk`` and ``microbatch`` (-1: none), ``start_ns`` from the start of the step,
            ``duration_ns``; all int64.
        data_parallel, stages, chunks: sizes of the job, as its meta file states them.
        faults: one line for each thing that is missing or was left out.
    """

    rows: pa.Table
    data_parallel: int
    stages: int
    chunks: int
    faults: tuple[str, ...]


_COLUMNS = {
    "step": "step",
    "dp_rank": "dp_rank",
    "stage": "stage",
    "rank": "rank",
    "seq_id": "sequence",
    "mc": "chunk",
    "mb_id": "microbatch",
}
_TIMES = {"start_ts": "start_ns", "duration": "duration_ns"}


def read_pipeline_records(path: Path) -> PipelineRecords:
    """Read the records of one job.

    Raises:
        BadInputError: a file is missing or none of this kind, or the two contradict each other.
    """
    table = _read_parquet(path)
    rows, faults = _rows(table, path)
    meta_path = path.with_name(f"{path.stem.replace('trace-', 'meta-', 1)}.yaml")
    data_parallel, stages, chunks = _sizes(meta_path)
    largest = {name: pc.max(rows[name]).as_py() or 0 for name in ("dp_rank", "stage")}
    if largest["dp_rank"] >= data_parallel or largest["stage"] >= stages:
        stated = f"dp_size {data_parallel} and pp_size {stages}"
        held = f"dp_rank {largest['dp_rank']} and stage {largest['stage']}"
        raise BadInputError(meta_path, f"states {stated}, but {path.name} holds {held}", "give the files of one job")
    return PipelineRecords(rows, data_parallel, stages, chunks, faults)


def _read_parquet(path: Path) -> pa.Table:
    try:
        with open_regular(path) as file, pq.ParquetFile(file) as parquet:
            if parquet.metadata.num_rows > MOST_ROWS:
                raise BadInputError(path, f"more than {MOST_ROWS:,} rows", "raise --most-rows")
            missing = sorted({*_COLUMNS, *_TIMES, "optype"} - set(parquet.schema_arrow.names))
            if missing:
                raise BadInputError(path, f"no column {', '.join(missing)}", _REMEDY)
            return parquet.read([*_COLUMNS, *_TIMES, "optype"])
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(path, f"no Parquet file ({' '.join(str(error).split())[:200]})", _REMEDY) from error
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror or error})", _REMEDY) from error


def _rows(table: pa.Table, path: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows that are sound, in order, and what is said of the others."""
    columns: dict[str, pa.ChunkedArray] = {}
    try:
        for name, ours in _COLUMNS.items():
            columns[ours] = pc.cast(table[name], pa.int64())
        seconds = {ours: pc.cast(table[name], pa.float64()) for name, ours in _TIMES.items()}
        names = pc.cast(table["optype"], pa.string())
    except pa.ArrowException as error:
        raise BadInputError(path, f"a column has another type ({error})", _REMEDY) from error
    codes = pc.index_in(names, pa.array([operation.value for operation in OPERATIONS]))
    sound = pc.and_(
        pc.is_valid(codes),
        pc.and_(*(pc.fill_null(_is_time(each), False) for each in seconds.values())),
    )
    for each in columns.values():
        sound = pc.and_(sound, pc.is_valid(each))
    left_out = len(sound) - pc.sum(sound).as_py() if len(sound) else 0
    if left_out == len(sound):
        raise BadInputError(path, "no row is an operation of a pipeline", _REMEDY)
    unknown = sorted(set(pc.unique(names.filter(pc.is_null(codes))).to_pylist()) - {None})
    columns["operation"] = pc.cast(codes, pa.int64())
    nanoseconds = {
        name: pc.cast(pc.round(pc.multiply(each.filter(sound), 1e9)), pa.int64()) for name, each in seconds.items()
    }
    rows = pa.table({**{name: each.filter(sound) for name, each in columns.items()}, **nanoseconds})
    keys = ("step", "dp_rank", "stage", "start_ns")
    rows = rows.take(np.lexsort([rows[name].to_numpy() for name in reversed(keys)]))
    if not left_out:
        return rows, ()
    why = f"unknown operations {', '.join(unknown[:5])}" if unknown else "no number, or a time that none can be"
    return rows, (f"{path}: {left_out} of {len(sound)} rows were left out ({why})",)


def _is_time(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(seconds, 0.0), pc.less(seconds, _MOST_SECONDS))


def _sizes(path: Path) -> tuple[int, int, int]:
    """Data-parallel size, stages and model chunks of a stage."""
    text = read_text(path)
    try:
        stated: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadInputError(path, f"no YAML ({' '.join(str(error).split())[:200]})", "mend the syntax") from error
    sizes = []
    for name in ("dp_size", "pp_size", "vpp_size"):
        size = stated.get(name) if isinstance(stated, dict) else None
        if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MOST_RANKS:
            raise BadInputError(path, f"states no {name}", "add it: dp_size, pp_size and vpp_size of the job")
        sizes.append(size)
    return sizes[0], sizes[1], sizes[2]
