"""What two readers made of one trace, row by row: equal rows cancel out, and what is left is reported and explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceviz_dag.read.events import CollectiveFacts, TraceEvents

TABLES = ("host", "launches", "device")
DROPPED = "slice_drop_overlapping_complete_event"
"""The statistic of Perfetto that counts slices which overlap another on their thread or stream."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How one table of two readers differs.

    Attributes:
        table: host, launches or device.
        own, other: rows of each reader.
        only_own, only_other: rows that the other one does not have, by all columns.
        on_odd_threads: of ``only_own``, rows whose thread has a negative id, which Perfetto puts on another thread.
        examples: names of some rows that differ.
    """

    table: str
    own: int
    other: int
    only_own: int
    only_other: int
    on_odd_threads: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReaderComparison:
    """All tables of two readers.

    Attributes:
        dropped: slices that Perfetto says it dropped.
    """

    differences: Sequence[Difference]
    dropped: int

    @property
    def unexplained(self) -> int:
        """Rows that differ although Perfetto did not say that it dropped them, and their thread is not odd."""
        missing = sum(each.only_own - each.on_odd_threads for each in self.differences)
        added = sum(max(each.only_other - each.on_odd_threads, 0) for each in self.differences)
        return max(missing - self.dropped, 0) + added


def compare(own: TraceEvents, other: TraceEvents) -> ReaderComparison:
    """Compare what our reader and Perfetto extract of one trace, in any order of rows."""
    differences = []
    for table in TABLES:
        left, right = rows_of(own, table), rows_of(other, table)
        unmatched_left, unmatched_right = _unmatched(left, right)
        odd = left["thread_id"].to_numpy()[unmatched_left] < 0 if "thread_id" in left else np.zeros(0, np.bool_)
        names = [*left["name"].iloc[unmatched_left].head(5), *right["name"].iloc[unmatched_right].head(5)]
        differences.append(
            Difference(
                table=table,
                own=len(left),
                other=len(right),
                only_own=len(unmatched_left),
                only_other=len(unmatched_right),
                on_odd_threads=int(odd.sum()),
                examples=tuple(dict.fromkeys(map(str, names))),
            )
        )
    return ReaderComparison(differences, other.report.dropped.get(DROPPED, 0))


def rows_of(events: TraceEvents, table: str) -> pd.DataFrame:
    """One table of a trace with its texts and thread ids instead of codes."""
    rows: Any = getattr(events, table)
    strings = np.array(events.strings, object)
    columns: dict[str, npt.NDArray[Any]] = {}
    for part in fields(rows):
        values = getattr(rows, part.name)
        if isinstance(values, CollectiveFacts):
            for fact in fields(values):
                facts = getattr(values, fact.name)
                columns[fact.name] = strings[facts] if facts.dtype == np.int32 else facts
        elif part.name == "name":
            columns["name"] = strings[values]
        elif part.name == "thread":
            ids = np.array([(each.process_id, each.thread_id) for each in events.threads], np.int64).reshape(-1, 2)
            columns["process_id"], columns["thread_id"] = ids[values].T
        elif part.name not in ("process", "input_sizes", "inputs"):  # PerfettoSQL is not asked for the sizes of inputs.
            columns[part.name] = values
    return pd.DataFrame(columns)


def _unmatched(left: pd.DataFrame, right: pd.DataFrame) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Places of rows on either side without a partner; of equal rows the first ones are paired."""
    keys = [pd.util.hash_pandas_object(side, index=False).to_numpy() for side in (left, right)]
    turns = [pd.Series(key).groupby(key).cumcount().to_numpy() for key in keys]
    pairs = [pd.MultiIndex.from_arrays([key, turn]) for key, turn in zip(keys, turns, strict=True)]
    missing = [np.flatnonzero(~pairs[side].isin(pairs[1 - side])) for side in (0, 1)]
    return missing[0], missing[1]
