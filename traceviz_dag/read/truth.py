"""The truth that lies beside a simulated job: what every kernel of a rank really was, in the words of the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.limits import MOST_ROWS
from traceviz_dag.read.regular_file import open_regular
from traceviz_dag.vocabulary import Category, Kind, Phase

FOLDER = "truth"

_WORD = pa.dictionary(pa.int32(), pa.string())
_NEEDED = {
    "correlation": pa.int64(),
    "dur_ns": pa.int64(),
    **dict.fromkeys(("kind", "phase", "category", "dimension"), _WORD),
    "recompute": pa.bool_(),
    **dict.fromkeys(("microbatch", "chunk"), pa.int32()),
}
_NOT_IN_ALL = dict.fromkeys(("iteration", "graph_node_id"), pa.int64())
_MAY_BE_NULL = ("dimension", "category", "phase")
_KINDS = {"compute": Kind.COMPUTATION.value, "comm": Kind.COMMUNICATION.value}
_OTHER_PHASES = ("p2p", "finalize", "zero_grad_buffer")
_OTHER_CATEGORIES = {
    Kind.COMPUTATION.value: Category.OTHER_COMPUTATION.value,
    Kind.COMMUNICATION.value: Category.OTHER_COMMUNICATION.value,
    Kind.MEMORY.value: Category.MEMORY.value,
}
_NOTHING = -1


def truth_folder(path: Path) -> Path:
    """The folder with the truth of a run: ``truth`` in it, or in the run that an iteration's folder lies in.

    Raises:
        BadInputError: there is none.
    """
    for folder in (path, path.parent):
        if any((folder / FOLDER).glob("rank_*.parquet")):
            return folder / FOLDER
    raise BadInputError(
        path,
        f"there is no {FOLDER}/rank_*.parquet beside its traces",
        "name the folder of a simulated run (traceviz simulate writes the truth with the traces)",
    )


def tells_iterations(folder: Path, rank: int) -> bool:
    """Whether the truth of a rank says of which iteration each kernel is; that of exports cannot, since they count
    iterations by evidence of their own.

    Raises:
        BadInputError: there is no truth of that rank, or it cannot be read.
    """
    table = _read(folder, rank)
    return "iteration" in table.column_names and not pc.any(pc.equal(table["iteration"], _NOTHING)).as_py()


def read_truth(folder: Path, rank: int, iteration: int | None = None) -> pa.Table:
    """What the kernels of one rank really were.

    Args:
        iteration: only its kernels, where the file distinguishes iterations (``tells_iterations``).

    Returns:
        A row per kernel, with columns correlation and graph_node_id (-1 outside CUDA graphs), duration_ns, kind,
        phase, category, dimension (NULL where it is no communication), microbatch and chunk (NULL where the truth
        says nothing), in the words of the table ``kernels``.

    Raises:
        BadInputError: there is no truth of that rank, it is damaged, or lacks columns or has them in other types.
    """
    table = _read(folder, rank)
    rows = table.to_pandas(strings_to_categorical=False)
    rows = rows.astype({name: object for name in _NEEDED if isinstance(rows[name].dtype, pd.CategoricalDtype)})
    if iteration is not None and "iteration" in rows:
        rows = rows[rows.iteration.isin((iteration, _NOTHING))]
    kind = rows.kind.replace(_KINDS)
    category = rows.category.where(rows.category != "other", kind.map(_OTHER_CATEGORIES))
    phase = rows.phase.where(~rows.recompute.astype(bool), Phase.RECOMPUTE.value)
    count = len(rows)
    return pa.table(
        {
            "correlation": _integers(rows.correlation),
            "graph_node_id": _integers(rows.graph_node_id if "graph_node_id" in rows else [_NOTHING] * count),
            "duration_ns": _integers(rows.dur_ns),
            "kind": _words(kind),
            "phase": _words(phase.replace(dict.fromkeys(_OTHER_PHASES, Phase.OTHER.value))),
            "category": _words(category),
            "dimension": _words(rows.dimension.where(kind == Kind.COMMUNICATION.value, None)),
            "microbatch": _where_told(rows.microbatch),
            "chunk": _where_told(rows.chunk),
        }
    )


def _read(folder: Path, rank: int) -> pa.Table:
    """The columns that are asked for, in the types that they are asked for in."""
    path = folder / f"rank_{rank:04d}.parquet"
    if not path.is_file():
        raise BadInputError(path, f"there is no truth of rank {rank}", "simulate the job again, with its truth")
    try:
        with open_regular(path) as opened, pq.ParquetFile(opened) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise BadInputError(path, f"more than {MOST_ROWS:,} rows", "raise --most-rows")
            held = Counter(file.schema_arrow.names)
            wanted = {**_NEEDED, **{name: kind for name, kind in _NOT_IN_ALL.items() if name in held}}
            odd = [name for name in wanted if held[name] != 1]
            if odd:
                fault = f"it has {'no' if not held[odd[0]] else 'more than one'} column {odd[0]}"
                raise BadInputError(path, fault, "use truth of traceviz simulate")
            table = file.read(list(wanted)).select(list(wanted))
    except (pa.ArrowException, OSError, ValueError) as error:
        fault = f"it is no Parquet file, or damaged ({' '.join(str(error).split())})"
        raise BadInputError(path, fault, "simulate the job again") from error
    return pa.table({name: _as(table[name], kind, name, path) for name, kind in wanted.items()})


def _as(values: pa.ChunkedArray, kind: pa.DataType, name: str, path: Path) -> pa.ChunkedArray:
    """A column in its type."""
    try:
        found = values.cast(kind)
    except (pa.ArrowException, OverflowError) as error:
        fault = f"its column {name} does not hold {kind.value_type if kind == _WORD else kind}"
        raise BadInputError(path, fault, "use truth of traceviz simulate") from error
    if found.null_count and name not in _MAY_BE_NULL:
        raise BadInputError(path, f"its column {name} has empty cells", "use truth of traceviz simulate")
    return found


def _integers(values: Sequence[int]) -> pa.Array:
    return pa.array(values, type=pa.int64())


def _where_told(values: Sequence[int]) -> pa.Array:
    return pa.array([None if value == _NOTHING else int(value) for value in values], type=pa.int32())


def _words(values: pd.Series) -> pa.Array:
    words = values.astype(object)
    return pa.array(words.where(words.notna() & (words != ""), None).tolist(), type=pa.string())
