"""The communication kernels of all ranks of an iteration as plain arrays: the input of everything across ranks.

One communication kernel is one row here, in the order of the tables it came from; every later step speaks of rows by
their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.kernel_intervals import codes, holds, numbers
from traceviz_dag.analyze.matching.operations import (
    OPERATIONS,
    Operation,
    element_bytes,
    message_bytes,
    operation_of,
    reduced_type,
)
from traceviz_dag.arrays import Int8, Int64
from traceviz_dag.read.events import MISSING
from traceviz_dag.vocabulary import Dimension, Kind, StepEvidence

COMMUNICATION_COLUMNS = (
    *("rank", "kernel_id", "name", "start_ns", "duration_ns", "device", "kind", "phase", "dimension", "role"),
    *(
        "stage",
        "chunk",
        "microbatch",
        "step",
        "step_evidence",
        "launch_start_ns",
        "collective",
        "group_name",
        "group_description",
    ),
    *("group_size", "group_ranks", "dtype", "in_elements", "out_elements", "in_split", "out_split", "sequence"),
    *("source_rank", "destination_rank", "group_address"),
)
"""Columns of ``kernels`` that the analysis across ranks reads."""


@dataclass(frozen=True, slots=True)
class Communications:
    """Communication kernels of all ranks; integers that a row does not have are ``MISSING``.

    Attributes:
        table: the rows, columns ``COMMUNICATION_COLUMNS``.
        rank, start_ns, end_ns: whose kernel it is, and when it ran on that rank's own clock.
        launch_ns: when the host launched it.
        operation: codes of ``OPERATIONS``.
        step: number of the ProfilerStep.
    """

    table: pa.Table
    rank: Int64
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    operation: Int64
    step: Int64

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a communication kernel, ascending."""
        return tuple(np.unique(self.rank).tolist())

    def order(self, rows: npt.NDArray[np.intp], queue: Int64) -> npt.NDArray[np.intp]:
        """Sort rows by queue, and within a queue by launch; by start where a launch of the queue is not known.

        A communicator's work is launched in the same order on every member, whatever streams it runs on.

        Args:
            rows: row numbers.
            queue: of each of them, the number of its queue: one rank's rows of one communicator.

        Returns:
            Positions in ``rows``.
        """
        launch, start = self.launch_ns[rows], self.start_ns[rows]
        unknown = np.bincount(queue, weights=launch == MISSING, minlength=int(queue.max(initial=0)) + 1) > 0
        return np.lexsort((start, np.where(unknown[queue], start, launch), queue))

    def integers(self, column: str) -> Int64:
        """An integer column, ``MISSING`` for NULL."""
        return optional_integers(self.table, column)


def select_communications(kernels: pa.Table, rank: int | None = None) -> pa.Table:
    """The communication kernels of a table ``kernels``, with the columns that are needed across ranks; those of a step
    that was cut are left out, since each rank has another part of them.

    Args:
        kernels: kernels of one rank or of several; with a column ``rank``, or of the rank that is given.
    """
    cut = holds(kernels, "step_evidence", StepEvidence.CUT.value)
    chosen = kernels.filter(pa.array(holds(kernels, "kind", Kind.COMMUNICATION.value) & ~cut))
    if rank is not None and "rank" not in chosen.column_names:
        chosen = chosen.add_column(0, "rank", pa.repeat(pa.scalar(rank, pa.int64()), chosen.num_rows))
    return chosen.select(list(COMMUNICATION_COLUMNS))


def gather_communications(parts: Iterable[pa.Table], known: pa.Table | None = None) -> Communications:
    """Join the communication kernels of several ranks; of a memory bounded by these, whatever else the ranks ran.

    Args:
        parts: tables as ``select_communications`` gives them.
        known: rank and step of all communications of the iteration; by default these are all.
    """
    tables = [part for part in parts if part.num_rows]
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else _nothing()
    rank, start = optional_integers(table, "rank"), optional_integers(table, "start_ns")
    return Communications(
        table=table,
        rank=rank,
        start_ns=start,
        end_ns=start + optional_integers(table, "duration_ns"),
        launch_ns=optional_integers(table, "launch_start_ns"),
        operation=_operations(table),
        step=_steps(rank, optional_integers(table, "step"), table if known is None else known),
    )


def _steps(rank: Int64, step: Int64, known: pa.Table) -> Int64:
    """Where the iteration is one step, a rank without any mark of it runs that step: its profiler stopped within."""
    of_rank, of_step = optional_integers(known, "rank"), optional_integers(known, "step")
    numbers = np.unique(of_step[of_step != MISSING])
    if len(numbers) != 1:
        return step
    unmarked = ~np.isin(rank, of_rank[of_step != MISSING])
    return np.where(unmarked, numbers[0], step)


def communication_bytes(rows: Communications) -> Int64:
    """The size of each communication as nccl-tests reports it, bytes; ``MISSING`` where it is not known.

    Where the trace states no type, the kernel's own name says what it reduces.
    """
    stated, types = labels(rows.table, "dtype")
    name, names = labels(rows.table, "name")
    size = np.array([element_bytes(each) or MISSING for each in types], dtype=np.int64)[stated]
    reduced = np.array([element_bytes(reduced_type(each)) or MISSING for each in names], dtype=np.int64)[name]
    size = np.where(size == MISSING, reduced, size)
    return message_bytes(rows.operation, rows.integers("in_elements"), rows.integers("out_elements"), size)


def optional_integers(table: pa.Table, column: str) -> Int64:
    """An integer column as int64, ``MISSING`` for NULL."""
    return numbers(table.column(column), MISSING)


def nullable(values: Int64) -> pa.Array:
    """An integer column of a table; ``MISSING`` is NULL."""
    return pa.array(values, mask=values == MISSING)


def word_column(codes: Int64 | Int8, words: Sequence[str | None]) -> pa.DictionaryArray:
    """A dictionary column; a negative code and the word None are NULL."""
    known = sorted({word for word in words if word is not None})
    place = np.array([-1 if word is None else known.index(word) for word in words] + [-1], dtype=np.int32)
    indices = place[np.where(codes < 0, len(words), codes).astype(np.int64)]
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=indices < 0), pa.array(known, pa.string()))


def labels(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """A text column as codes into its distinct values; a NULL is the code of None, the last value."""
    code, names = codes(table, column)
    return np.where(code < 0, len(names), code).astype(np.int64), [*names, None]


def _operations(table: pa.Table) -> Int64:
    """The operation of each row; a send-receive kernel of an expert dimension is how NCCL runs an all-to-all."""
    collective, words = labels(table, "collective")
    name, names = labels(table, "name")
    dimension, dimensions = labels(table, "dimension")
    combined = (collective * len(names) + name) * len(dimensions) + dimension
    distinct, which = np.unique(combined, return_inverse=True)
    result = np.empty(len(distinct), dtype=np.int64)
    for place, code in enumerate(distinct.tolist()):
        rest, of_dimension = divmod(code, len(dimensions))
        word, of_name = divmod(rest, len(names))
        operation = operation_of(words[word], names[of_name])
        if operation is Operation.SEND_RECEIVE and dimensions[of_dimension] in (Dimension.EP, Dimension.ETP):
            operation = Operation.ALL_TO_ALL
        result[place] = OPERATIONS.index(operation)
    return result[which] if len(which) else np.empty(0, np.int64)


def _nothing() -> pa.Table:
    from traceviz_dag.tables import KERNELS

    fields = [pa.field("rank", pa.int64())]
    fields += [KERNELS.schema.field(name) for name in COMMUNICATION_COLUMNS if name != "rank"]
    return pa.schema(fields).empty_table()
