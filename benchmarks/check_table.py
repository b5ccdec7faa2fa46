"""A table of operations with their FLOPs, bytes and times on real GPUs, for others to hold their tools against.

    python -m benchmarks.check_table NAME=TRACE.json.gz … > docs/operations.csv

NAME says where a trace is from. Operations whose FLOPs or bytes are not known are left out, and so are communications;
those with equal inputs are one row. A test computes the FLOPs and bytes of each row of docs/operations.csv again.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from traceviz_dag.classify.rules import load_rules
from traceviz_dag.classify.topology.unite import unite
from traceviz_dag.pipeline.formats.trace_format import RankTrace
from traceviz_dag.pipeline.ranks import analyse_rank

INPUTS = ("operation", "shapes", "types", "strides", "input_values", "forward_shapes")
COLUMNS = ("source", "gpu", *INPUTS, "flops", "bytes", "number_format", "calls", "kernel_ns")


def rows_of(source: str, path: Path) -> list[dict[str, Any]]:
    """The rows of a trace, the longest first."""
    table = analyse_rank(RankTrace(path, path.name, 0), unite({}), load_rules())["operations"]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in table.to_pylist():
        if row["flops"] is None or row["bytes"] is None or row["operation_class"] == "communication":
            continue
        key = tuple(row[name] for name in (*INPUTS, "flops", "bytes"))
        mine = found.setdefault(key, {**row, "source": source, "calls": 0, "kernel_ns": 0})
        mine["calls"] += row["count"]
        mine["kernel_ns"] += row["kernel_ns"]
    return sorted(found.values(), key=lambda row: (-row["kernel_ns"], row["operation"], row["shapes"]))


def main() -> None:
    """Print the table of the traces that are named."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for given in sys.argv[1:]:
        source, _, path = given.partition("=")
        writer.writerows(rows_of(source, Path(path)))


if __name__ == "__main__":
    main()
