"""The public table ``docs/operations.csv``: the formulas still give its FLOPs and bytes, and real traces its times."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.check_table import COLUMNS, rows_of
from traceviz_dag.analyze.operations.formulas import work_of
from traceviz_dag.read.events import OperatorInputs

TABLE = Path(__file__).parents[3] / "docs" / "operations.csv"
GPUS = {"H100", "MI300X", "B200", "A100 80GB"}


def table() -> list[dict[str, str]]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_each_row_of_the_table_is_what_the_formulas_give_of_its_inputs():
    rows = table()
    assert len(rows) > 150 and {row["gpu"] for row in rows} == GPUS
    for row in rows:
        given = OperatorInputs(row["shapes"], row["types"], row["strides"], row["input_values"])
        work = work_of(row["operation"], given, OperatorInputs(sizes=row["forward_shapes"]))
        assert (work.flops, work.bytes) == (int(row["flops"]), int(row["bytes"])), row
        assert int(row["kernel_ns"]) > 0 and int(row["calls"]) > 0


def test_the_table_is_that_of_the_real_trace(shared_data):
    path = shared_data / "kineto" / "tracelens" / "h100_qwen05b.json.gz"
    made = rows_of("TraceLens h100_qwen05b", path)
    told = [row for row in table() if row["gpu"] == "H100"]
    shown = [{name: "" if row[name] is None else str(row[name]) for name in COLUMNS} for row in made]
    assert shown == told
