"""Arrow tables in scratch files of which any rows can be read alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from traceviz_dag.system.whole_files import unwritable

Range = tuple[int, int]
"""The first row of some, and the one after the last."""


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write a table in one piece; nobody may look for the file until this returns.

    Raises:
        OutputError: it cannot be written.
    """
    whole = table.unify_dictionaries().combine_chunks()
    try:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole)
    except OSError as error:  # Arrow's has no file name.
        raise unwritable(path, error) from error


def read_arrow(path: Path, ranges: Iterable[Range] | None = None) -> pa.Table:
    """Some rows of a file, in the order of the ranges; only their part of it is read. All by default."""
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
        if ranges is None:
            return table
        rows = [np.arange(*one) for one in ranges]
        return table.take(pa.array(np.concatenate(rows) if rows else np.empty(0, np.int64)))
