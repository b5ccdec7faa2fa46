"""The truth that lies beside a simulated job: what every kernel of a rank really was, in the words of the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from traceviz_dag.errors import BadInputError
from traceviz_dag.vocabulary import Category, Kind, Phase

FOLDER = "truth"

_NEEDED = ("correlation", "dur_ns", "kind", "phase", "recompute", "category", "dimension", "microbatch", "chunk")
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
        iteration: only its kernels, where the file tells iterations apart (``tells_iterations``).

    Returns:
        A row per kernel, with columns correlation and graph_node_id (-1 outside CUDA graphs), duration_ns, kind,
        phase, category, dimension (NULL where it is no communication), microbatch and chunk (NULL where the truth
        says nothing), in the words of the table ``kernels``.

    Raises:
        BadInputError: there is no truth of that rank, or it lacks columns.
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
    path = folder / f"rank_{rank:04d}.parquet"
    if not path.is_file():
        raise BadInputError(path, f"there is no truth of rank {rank}", "simulate the job again, with its truth")
    try:
        table = pq.read_table(path)
    except pa.ArrowInvalid as error:
        raise BadInputError(path, f"it is no Parquet file ({error})", "simulate the job again") from error
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise BadInputError(path, f"it has no column {', '.join(missing)}", "use truth of traceviz simulate")
    return table


def _integers(values: Sequence[int]) -> pa.Array:
    return pa.array(values, type=pa.int64())


def _where_told(values: Sequence[int]) -> pa.Array:
    return pa.array([None if value == _NOTHING else int(value) for value in values], type=pa.int32())


def _words(values: pd.Series) -> pa.Array:
    words = values.astype(object)
    return pa.array(words.where(words.notna() & (words != ""), None).tolist(), type=pa.string())
