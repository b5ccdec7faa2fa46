"""Truth beside a simulated job is a file like any other: damaged or of other types, it is refused in a line."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traceviz_dag.errors import BadInputError
from traceviz_dag.read.truth import read_truth, tells_iterations

ROWS = {
    "correlation": [1, 2],
    "dur_ns": [10, 20],
    "kind": ["compute", "comm"],
    "phase": ["forward", "p2p"],
    "recompute": [False, True],
    "category": ["other", "pp_communication"],
    "dimension": [None, "pp"],
    "microbatch": [0, -1],
    "chunk": [0, -1],
    "iteration": [7, 7],
}


def test_truth_is_reported_in_the_words_of_the_tables(tmp_path):
    pq.write_table(pa.table(ROWS), tmp_path / "rank_0000.parquet")
    assert tells_iterations(tmp_path, 0)
    assert read_truth(tmp_path, 0, 7).drop_columns(["correlation", "duration_ns", "graph_node_id"]).to_pylist() == [
        {"kind": "computation", "phase": "forward", "category": "other_computation", "dimension": None,
         "microbatch": 0, "chunk": 0},
        {"kind": "communication", "phase": "recompute", "category": "pp_communication", "dimension": "pp",
         "microbatch": None, "chunk": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("kind", [1, 2], "kind does not hold string"),
        ("dimension", [[1], [2]], "dimension does not hold string"),
        ("correlation", ["x", "y"], "correlation does not hold int64"),
        ("dur_ns", [None, 1], "dur_ns has empty cells"),
        ("microbatch", [2**40, 1], "microbatch does not hold int32"),
        ("iteration", ["7", "x"], "iteration does not hold int64"),
        ("chunk", None, "no column chunk"),
    ],
)
def test_columns_that_are_none_of_the_truth_are_named(tmp_path, name, values, words):
    rows = {key: column for key, column in (ROWS | {name: values}).items() if column is not None}
    path = tmp_path / "rank_0000.parquet"
    pq.write_table(pa.table(rows), path)
    with pytest.raises(BadInputError, match=words) as caught:
        read_truth(tmp_path, 0)
    assert str(caught.value).startswith(str(path))


def test_damage_behind_the_head_is_named(tmp_path):
    path = tmp_path / "rank_0000.parquet"
    pq.write_table(pa.table(ROWS), path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\xff" * 200 + data[204:])
    with pytest.raises(BadInputError, match="damaged"):
        read_truth(tmp_path, 0)
