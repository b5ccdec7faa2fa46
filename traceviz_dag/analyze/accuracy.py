"""How right the classification is, where the truth is known: each kernel as classified beside what it really was.

Shares are of kernel time, the sum of the kernels' durations. *Told* is what is neither unclassified nor unknown, and
*wrong* is what is reported and not true. To say nothing of a kernel that has no micro-batch is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table
from traceviz_dag.vocabulary import ALL_DIMENSIONS

ASPECTS = ("category", "phase", "dimension", "microbatch", "chunk")
"""What of a kernel is compared."""

TRUE = "_true"
"""Ends the names of the truth's columns."""

KERNEL_COLUMNS = (
    *("kernel_id", "correlation", "graph_node_id", "start_ns", "duration_ns", "device", "step", "stage"),
    *("kind", "dimension", "phase", "category", "microbatch", "chunk"),
    *("phase_evidence", "phase_rule", "dimension_evidence", "dimension_rule", "dimension_candidates"),
)
"""Columns of ``kernels`` that the comparison needs."""

_NUMBERS = ("microbatch", "chunk")
_NOT_TOLD = {"category": "unclassified", "phase": "unknown", "dimension": "unknown"}
_NO_NODE = -1


def compared(kernels: pd.DataFrame, truth: pd.DataFrame, keys: Sequence[str] = ()) -> pd.DataFrame:
    """Join kernels with their truth, by the launch that both name.

    Args:
        kernels: needs ``correlation`` and ``graph_node_id`` (NULL outside graphs).
        truth: as ``read_truth`` gives it; each correlation occurs once, or once per graph node.
        keys: columns that distinguish files, where both tables hold several.

    Returns:
        A row per kernel of either; what is only in the truth has no ``kernel_id``, what is only in the traces no
        ``category_true``. The truth's columns end in ``_true``.

    Raises:
        pandas.errors.MergeError: a launch occurs twice.
    """
    by = [*keys, "correlation", "graph_node_id"]
    # Nullable integers: a join would turn time stamps into floats, which cannot hold them.
    whole = {name: "Int64" for name in ("start_ns", "duration_ns") if name in kernels}
    kernels = _plain(kernels).astype(whole)
    kernels = kernels.assign(graph_node_id=kernels.graph_node_id.fillna(_NO_NODE).astype("int64"))
    truth = (
        _plain(truth)
        .astype({"duration_ns": "Int64"})
        .rename(columns={name: f"{name}{TRUE}" for name in truth if name not in by})
    )
    return truth.merge(kernels, on=by, how="outer", validate="1:1")


def dealt_out(truth: pd.DataFrame, kernels: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Share a file's truth out to the iterations in which its kernels were found.

    Args:
        truth: as ``read_truth`` gives it.
        kernels: of each iteration, with ``correlation``.

    Returns:
        Per iteration the truth of its launches; what no iteration holds is in the first.
    """
    rest = truth
    parts = []
    for rows in kernels:
        here = rest.correlation.isin(rows.correlation.dropna().astype("int64"))
        parts.append(rest[here])
        rest = rest[~here]
    return [pd.concat([parts[0], rest]), *parts[1:]]


def told_and_right(table: pd.DataFrame, aspect: str) -> tuple[pd.Series, pd.Series]:
    """Per kernel: whether something is reported of an aspect, and whether what is reported, or left unsaid, is true."""
    ours, truth = table[aspect], table[f"{aspect}{TRUE}"]
    if aspect in _NUMBERS:
        return ours.notna(), ours.fillna(-1) == truth.fillna(-1)
    ours = ours.fillna("")
    return ~ours.isin(["", _NOT_TOLD[aspect]]), ours == truth.fillna("")


def spanning_graphs(table: pd.DataFrame, keys: Sequence[str] = ()) -> pd.Series:
    """Mark the kernels of a CUDA graph whose one launch spans several micro-batches: nothing shows them apart."""
    rows = table[table.graph_node_id >= 0]
    by = [rows[name] for name in (*keys, "correlation")]
    microbatches = rows[f"microbatch{TRUE}"].fillna(-1).groupby(by).transform("nunique")
    return (microbatches > 1).reindex(table.index, fill_value=False)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of kernel time.

    Attributes:
        right, wrong: per aspect, of all kernel time.
        told: per aspect, of the time of kernels of which the truth says something.
        whole: right in category and, where the truth has one, in micro-batch and chunk.
    """

    right: Mapping[str, float]
    told: Mapping[str, float]
    wrong: Mapping[str, float]
    whole: float


def shares(table: pd.DataFrame) -> Shares:
    """Sum up a comparison; kernels that no trace holds count as not reported."""
    time_ns = table[f"duration_ns{TRUE}"].fillna(0)
    total = max(int(time_ns.sum()), 1)
    right, told, wrong = {}, {}, {}
    whole = pd.Series(True, index=table.index)
    for aspect in ASPECTS:
        says, same = told_and_right(table, aspect)
        same &= table.kernel_id.notna()
        right[aspect] = float(time_ns[same].sum() / total)
        sayable = table[f"{aspect}{TRUE}"].notna()
        told[aspect] = float(time_ns[says & sayable].sum() / max(int(time_ns[sayable].sum()), 1))
        wrong[aspect] = float(time_ns[says & ~same].sum() / total)
        if aspect == "category":
            whole &= same
        elif aspect in _NUMBERS:
            whole &= same | table[f"{aspect}{TRUE}"].isna()
    return Shares(right, told, wrong, float(time_ns[whole].sum() / total))


def by_category(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A row per true category: kernels, time, and the shares of that time that are right, unclassified and wrong."""
    rows = []
    for category, part in table.groupby(f"category{TRUE}"):
        told, same = told_and_right(part, "category")
        time_ns = part[f"duration_ns{TRUE}"]
        whole = max(int(time_ns.sum()), 1)
        rows.append(
            {
                "category": category,
                "kernels": len(part),
                "time_ns": int(time_ns.sum()),
                "right": float(time_ns[same].sum() / whole),
                "unclassified": float(time_ns[~told].sum() / whole),
                "wrong": float(time_ns[told & ~same].sum() / whole),
            }
        )
    return sorted(rows, key=lambda row: -row["time_ns"])


def confusion(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A row per pair of true and reported category: kernels and their time, the longest first."""
    told = table.category.where(table.kernel_id.notna(), "not in the traces")
    groups = table.groupby([f"category{TRUE}", told])[f"duration_ns{TRUE}"].agg(["size", "sum"])
    rows = [
        {"truth": truth, "told": ours, "kernels": int(size), "time_ns": int(time_ns)}
        for (truth, ours), (size, time_ns) in zip(groups.index, groups.to_numpy().tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -row["time_ns"])


def by_rule(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A row per evidence and rule, for phase and for dimension: kernels, time, and the share of it that is right."""
    rows = []
    for aspect in ("phase", "dimension"):
        read = table[table.kernel_id.notna() & table[f"category{TRUE}"].notna()]
        part = read[read.kind == "communication"] if aspect == "dimension" else read
        same = told_and_right(part, aspect)[1]
        names = [f"{aspect}_evidence", f"{aspect}_rule"]
        for (evidence, rule), rows_of in part.fillna(dict.fromkeys(names, "none")).groupby(names):
            time_ns = rows_of[f"duration_ns{TRUE}"]
            rows.append(
                {
                    "aspect": aspect,
                    "evidence": evidence,
                    "rule": rule,
                    "kernels": len(rows_of),
                    "time_ns": int(time_ns.sum()),
                    "right": float(time_ns[same[rows_of.index]].sum() / max(int(time_ns.sum()), 1)),
                }
            )
    return sorted(rows, key=lambda row: (row["aspect"], -row["time_ns"]))


@dataclass(frozen=True, slots=True)
class TableAgreement:
    """How the rows of a table agree with the same rows computed from the truth.

    Attributes:
        expected: rows that the truth gives. equal: of these, those that the table has, with the same measures.
        missing: those that it has not. unexpected: rows of the table that the truth does not give.
        largest_difference_ns: of any measure.
    """

    expected: int
    equal: int
    missing: int
    unexpected: int
    largest_difference_ns: int

    def __add__(self, other: TableAgreement) -> TableAgreement:
        return TableAgreement(
            self.expected + other.expected,
            self.equal + other.equal,
            self.missing + other.missing,
            self.unexpected + other.unexpected,
            max(self.largest_difference_ns, other.largest_difference_ns),
        )


NOTHING_COMPARED = TableAgreement(0, 0, 0, 0, 0)


def microbatch_agreement(table: pd.DataFrame, microbatches: pa.Table) -> TableAgreement:
    """Compare one rank's micro-batch spans with those of the kernels that the truth puts there."""
    keys = ["device", "step", "chunk", "microbatch", "phase", "dimension"]
    measures = ["span_start_ns", "span_end_ns", "kernels"]
    return _agreement(microbatches_table(_as_it_was(table)), microbatches, keys, measures)


def span_agreement(table: pd.DataFrame, microbatches: pa.Table) -> TableAgreement:
    """Compare start and end of one rank's micro-batches, whatever communication is in them."""
    keys = ["device", "step", "chunk", "microbatch", "phase"]
    expected, found = (
        rows.filter(pc.equal(rows["dimension"].cast(pa.string()), ALL_DIMENSIONS))
        for rows in (microbatches_table(_as_it_was(table)), microbatches)
    )
    return _agreement(expected, found, keys, ["span_start_ns", "span_end_ns"])


def overlap_agreement(table: pd.DataFrame, overlap: pa.Table) -> TableAgreement:
    """Compare one rank's overlap over its kernels with that of the kernels' true kinds and dimensions."""
    keys = ["device", "window_name", "dimension"]
    measures = ["compute_ns", "communication_ns", "hidden_ns", "exposed_ns", "memory_ns", "busy_ns", "idle_ns"]
    measured = overlap.to_pandas()
    found = pa.Table.from_pandas(measured[measured.window_name == "kernels"], preserve_index=False)
    return _agreement(overlap_table(_as_it_was(table)), found, keys, measures)


def _as_it_was(table: pd.DataFrame) -> pa.Table:
    """The kernels that the traces hold, classified by the truth."""
    rows = table[table.kernel_id.notna() & table[f"category{TRUE}"].notna()]
    columns: dict[str, pa.Array] = {
        "start_ns": pa.array(rows.start_ns.astype("int64")),
        "duration_ns": pa.array(rows.duration_ns.astype("int64")),
        "device": pa.array(rows.device, type=pa.string()),
        "step": _optional(rows.step),
        "stage": _optional(rows.stage),
    }
    for name in ("kind", "dimension", "phase"):
        columns[name] = pa.array(list(_absent_as_none(rows[f"{name}{TRUE}"])), type=pa.string())
    for name in _NUMBERS:
        columns[name] = _optional(rows[f"{name}{TRUE}"])
    return pa.table(columns)


def _agreement(expected: pa.Table, found: pa.Table, keys: Sequence[str], measures: Sequence[str]) -> TableAgreement:
    both = (
        _of_rows(expected, keys, measures)
        .add_suffix(" expected")
        .merge(_of_rows(found, keys, measures).add_suffix(" found"), how="outer", left_index=True, right_index=True)
    )
    absent, extra = both[f"{measures[0]} found"].isna(), both[f"{measures[0]} expected"].isna()
    pairs = both[~absent & ~extra]
    differences = np.array(
        [
            (pairs[f"{name} expected"].astype("int64") - pairs[f"{name} found"].astype("int64")).abs()
            for name in measures
        ]
    )
    equal = (differences == 0).all(axis=0) if len(pairs) else np.zeros(0, bool)
    times = differences[[index for index, name in enumerate(measures) if name.endswith("_ns")]]
    return TableAgreement(
        expected=int((~extra).sum()),
        equal=int(equal.sum()),
        missing=int(absent.sum()),
        unexpected=int(extra.sum()),
        largest_difference_ns=int(times.max()) if times.size else 0,
    )


def _of_rows(table: pa.Table, keys: Sequence[str], measures: Sequence[str]) -> pd.DataFrame:
    """The measures, labelled by the keys' values; the labels of two tables are equal where the values are."""
    columns = [table[name].cast(pa.string()).fill_null("").to_pylist() for name in keys]
    labels = pd.Index(["|".join(row) for row in zip(*columns, strict=True)], dtype=object)
    # Nullable integers: the join of tables with other rows would turn time stamps into floats, which cannot hold them.
    return table.select(list(measures)).to_pandas().astype("Int64").set_index(labels)


def _optional(values: pd.Series) -> pa.Array:
    return pa.array([None if value is None else int(value) for value in _absent_as_none(values)], type=pa.int64())


def _absent_as_none(values: pd.Series) -> Iterator[Any]:
    return (None if absent else value for value, absent in zip(values, values.isna(), strict=True))


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Categorical columns as plain ones, so that they compare with others."""
    return table.astype({name: object for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)})
