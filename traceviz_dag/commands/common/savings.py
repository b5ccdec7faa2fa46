"""How commands print what overlap really saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceviz_dag.analyze.wording import capitals, milliseconds
from traceviz_dag.commands.common.output import print_table, print_wrapped


def print_savings(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows of ``lake.operation_summaries.overlap_savings``; nothing where nothing is hidden."""
    known = [row for row in rows if row["judged"]]
    if known:
        windows = max(row["judged"] for row in known)
        print_table(
            f"What overlap saves, ms, mean of {windows} windows: hidden communication less extra computation",
            ["dimension", "hidden", "extra computation", "net", "at least", "at most", "verdict"],
            [
                [
                    capitals(row["dimension"]),
                    *(milliseconds(row[f"{name}_ns"]) for name in ("hidden", "extra", "net", "net_low", "net_high")),
                    row["verdict"],
                ]
                for row in known
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
