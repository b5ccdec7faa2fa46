"""How commands print what overlap really saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceviz_dag.commands.common.output import print_columns, print_wrapped


def print_savings(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows of ``lake.operation_summaries.overlap_savings``; nothing where nothing is hidden."""
    known = [row for row in rows if row["judged"]]
    if known:
        windows = max(row["judged"] for row in known)
        print_columns(
            f"What overlap saves, mean of {windows} windows: hidden communication less extra computation",
            known,
            [
                *("dimension", "hidden_ns", ("extra_ns", "extra computation"), "net_ns"),
                *(("net_low_ns", "at least"), ("net_high_ns", "at most"), "verdict"),
            ],
        )
    unknown = [row for row in rows if row["judged"] < row["windows"]]
    if unknown:
        worst = unknown[0]
        print_wrapped(
            f"what overlap saves is unknown in {worst['windows'] - worst['judged']} of {worst['windows']} windows "
            f"(table overlap_savings): {worst['reason']}",
            4,
            "  ",
        )
