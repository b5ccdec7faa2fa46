"""Every figure in the metrics handbook is what the product computes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from tests.analyze.naive_measures import kernel_table
from tests.analyze.test_known_values import KINETO
from traceviz_dag.analyze.invariants import INVARIANTS
from traceviz_dag.analyze.microbatches import microbatches_table
from traceviz_dag.analyze.overlap import overlap_table

HANDBOOK = Path(__file__).parents[2] / "docs" / "metrics.md"


def _value(text: str) -> object:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text.strip("`") or None


def _tables(section: str) -> list[list[dict]]:
    return tables_of(HANDBOOK, section)


def tables_of(page: Path, section: str) -> list[list[dict]]:
    """The Markdown tables of a page between a heading and the next one, each a list of rows."""
    text = page.read_text(encoding="utf-8")
    body = text.split(f"# {section}\n", 1)[1].split("\n#", 1)[0]
    tables = []
    for block in body.split("\n\n"):
        lines = block.strip().splitlines()
        if not lines or not lines[0].startswith("|"):
            continue
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]
        tables.append([dict(zip(header, map(_value, row), strict=True)) for row in rows])
    return tables


def _as_written(table: pa.Table, example: list[dict]) -> list[dict]:
    return [{name: row[name] for name in example[0]} for row in table.to_pylist()]


def test_the_worked_example_of_overlap():
    kernels, expected = _tables("Worked example: overlap")
    table = overlap_table(kernel_table([{**row, "device": "gpu:0"} for row in kernels]), [(3, 0, 100)])
    assert _as_written(table, expected) == expected


def test_the_worked_example_of_microbatches():
    kernels, expected = _tables("Worked example: micro-batches")
    table = microbatches_table(kernel_table([{**row, "device": "gpu:0"} for row in kernels]))
    assert _as_written(table, expected) == expected


def test_the_values_on_public_traces_are_those_that_the_tests_compute():
    (rows,) = _tables("Values on public traces")
    written = {row["trace"]: (row["kernels"], row["hidden_share"], row["hidden_over_min"]) for row in rows}
    assert written == {
        trace: (kernels, f"{hidden_percent:.2f} %", hidden_over_min)
        for trace, (kernels, hidden_percent, hidden_over_min) in KINETO.items()
    }


def test_the_invariants_are_those_that_are_checked():
    (rows,) = _tables("Invariants")
    assert {row["rule"]: row["statement"] for row in rows} == INVARIANTS
