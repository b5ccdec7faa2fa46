"""Reads the records of StragglerAnalysis: one row an operation of a pipeline stage, with its start and duration.

A Parquet file ``trace-NAME.parquet`` holds the rows; ``meta-NAME.yaml`` beside it states the sizes of the job. Times
are seconds from the start of the step, in float32: half a microsecond at eight seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml  # type: ignore[import-untyped]

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import MOST_RANKS, MOST_ROWS
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.read.secrets import masked_words
from traceviz_dag.read.toml_file import read_text

_REMEDY = "name a file trace-NAME.parquet of StragglerAnalysis"
_MOST_SECONDS = 1e6
_LONGEST_NAME = 64
"""Bytes of the name of an operation; theirs have 26 at most."""
_TOLD = 5
"""Unknown operations that a message names."""
_LONGEST_CELL = 32
"""Bytes of a row in each column, numbers and what other programs add."""

_NAMES_OF_A_GROUP = 1 << 20
"""Bytes of names beside, for each row group: its dictionary."""


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
            _check_columns(parquet, path)
            # As codes: the names of all rows, written out, may take a thousand times what the file holds.
        with open_regular(path) as file, pq.ParquetFile(file, read_dictionary=["optype"]) as parquet:
            return parquet.read([*_COLUMNS, *_TIMES, "optype"])
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(path, f"no Parquet file ({' '.join(str(error).split())[:200]})", _REMEDY) from error
    except OSError as error:
        raise BadInputError(path, f"cannot be read ({error.strerror or error})", _REMEDY) from error


def _check_columns(parquet: pq.ParquetFile, path: Path) -> None:
    """Refuse columns that are missing, there twice, of another type, or far longer than names of operations."""
    needed = {*_COLUMNS, *_TIMES, "optype"}
    schema, held = parquet.schema_arrow, Counter(parquet.schema_arrow.names)
    missing, twice = sorted(needed - set(held)), sorted(name for name in needed if held[name] > 1)
    if missing or twice:
        fault = f"no column {', '.join(missing)}" if missing else f"more than one column {', '.join(twice)}"
        raise BadInputError(path, fault, _REMEDY)
    for name in (*_COLUMNS, *_TIMES):
        kind = schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise BadInputError(path, f"a column has another type ({name} holds no numbers)", _REMEDY)
    if pa.types.is_nested(schema.field("optype").type):
        raise BadInputError(path, "a column has another type (optype holds no names)", _REMEDY)
    # Of whole row groups: pyarrow ends the process where a damaged footer states odd statistics of a single column.
    rows, groups = parquet.metadata.num_rows, parquet.metadata.num_row_groups
    size = sum(parquet.metadata.row_group(group).total_byte_size for group in range(groups))
    if size > (_LONGEST_NAME + _LONGEST_CELL * len(schema.names)) * rows + _NAMES_OF_A_GROUP * groups:
        raise BadInputError(path, f"{size:,} bytes for {rows:,} operations, far more than their names", _REMEDY)


def _rows(table: pa.Table, path: Path) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows that are sound, in order, and what is said of the others."""
    columns: dict[str, pa.ChunkedArray] = {}
    try:
        for name, ours in _COLUMNS.items():
            columns[ours] = pc.cast(table[name], pa.int64())
        seconds = {ours: pc.cast(table[name], pa.float64()) for name, ours in _TIMES.items()}
        codes, unknown = _codes(table["optype"])
    except pa.ArrowException as error:
        raise BadInputError(path, f"a column has another type ({error})", _REMEDY) from error
    sound = pc.and_(
        pc.is_valid(codes),
        pc.and_(*(pc.fill_null(_is_time(each), False) for each in seconds.values())),
    )
    for each in columns.values():
        sound = pc.and_(sound, pc.is_valid(each))
    for name in ("dp_rank", "stage"):
        sound = pc.and_(sound, pc.fill_null(pc.greater_equal(columns[name], 0), False))
    left_out = len(sound) - pc.sum(sound).as_py() if len(sound) else 0
    why = f"unknown operations {', '.join(unknown)}" if unknown else "no number, or one that none can be"
    if left_out == len(sound):
        raise BadInputError(path, f"no row is an operation of a pipeline ({why})", _REMEDY)
    columns["operation"] = pc.cast(codes, pa.int64())
    nanoseconds = {
        name: pc.cast(pc.round(pc.multiply(each.filter(sound), 1e9)), pa.int64()) for name, each in seconds.items()
    }
    rows = pa.table({**{name: each.filter(sound) for name, each in columns.items()}, **nanoseconds})
    keys = ("step", "dp_rank", "stage", "start_ns")
    rows = rows.take(np.lexsort([rows[name].to_numpy() for name in reversed(keys)]))
    if not left_out:
        return rows, ()
    return rows, (f"{path}: {left_out} of {len(sound)} rows were left out ({why})",)


def _codes(optype: pa.ChunkedArray) -> tuple[pa.ChunkedArray, list[str]]:
    """The code of each row's operation, NULL where it is unknown; and some unknown operations, as a message bears them.

    Raises:
        pyarrow.ArrowException: they are no texts.
    """
    if not pa.types.is_dictionary(optype.type):
        optype = pc.cast(optype, pa.string()).dictionary_encode()
    known = pa.array([operation.value for operation in OPERATIONS])
    chunks, unknown = [], set()
    for chunk in optype.chunks:
        words = pc.cast(chunk.dictionary, pa.string())
        words.validate(full=True)
        codes = pc.index_in(words, known)
        chunks.append(codes.take(chunk.indices))
        unknown |= set(words.filter(pc.is_null(codes)).slice(0, _TOLD).to_pylist()) - {None}
    told = [word[:_LONGEST_NAME] for word in masked_words(sorted(unknown)[:_TOLD])]
    return pa.chunked_array(chunks, pa.int32()), told


def _is_time(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(seconds, 0.0), pc.less(seconds, _MOST_SECONDS))


_SIZE_NAMES = ("dp_size", "pp_size", "vpp_size")
_SIZE = re.compile("[1-9][0-9]{0,8}")
_MOST_EVENTS = 10_000


def _sizes(path: Path) -> tuple[int, int, int]:
    """Data-parallel size, stages and model chunks of a stage."""
    found: dict[str, int] = {}
    try:
        for name, text in _plain_entries(path):
            if name in found:
                raise BadInputError(path, f"states {name} twice", "keep the line that is true")
            if name in _SIZE_NAMES and _SIZE.fullmatch(text) and int(text) <= MOST_RANKS:
                found[name] = int(text)
    except yaml.YAMLError as error:
        raise BadInputError(path, f"no YAML ({' '.join(str(error).split())[:200]})", "fix the syntax") from error
    for name in _SIZE_NAMES:
        if name not in found:
            raise BadInputError(path, f"states no {name}", "add it: dp_size, pp_size and vpp_size of the job")
    dp_size, pp_size, vpp_size = (found[name] for name in _SIZE_NAMES)
    return dp_size, pp_size, vpp_size


def _plain_entries(path: Path) -> Iterator[tuple[str, str]]:
    """Keys and unquoted values of the outermost mapping, as they are written.

    Nothing is constructed from the document: tags, aliases and merge keys can make of some bytes any time and memory.

    Raises:
        BadInputError: the file is missing, no text, or far larger than any of these.
        yaml.YAMLError: it is no YAML.
    """
    depth, key, documents = 0, None, 0
    for number, event in enumerate(yaml.parse(read_text(path), Loader=yaml.SafeLoader)):
        documents += isinstance(event, yaml.DocumentStartEvent)
        if number >= _MOST_EVENTS or documents > 1:
            raise BadInputError(path, "more than the sizes of one job", "name the meta file of the records")
        if depth == 0 and isinstance(event, yaml.SequenceStartEvent):
            return
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif depth == 1 and isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            scalar = isinstance(event, yaml.ScalarEvent)
            if key is None:
                key = event.value if scalar else ""
                continue
            if scalar and event.style is None:
                yield key, event.value
            key = None
