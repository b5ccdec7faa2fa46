"""How commands print what overlap really saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.analyze.mean_savings import mean_savings
from traceviz_dag.commands.common.output import print_columns, print_wrapped


def print_savings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the means of the rows of table ``overlap_savings``; nothing where nothing is hidden."""
    known, unknown = mean_savings(rows)
    if known:
        print_columns(
            "What overlap saves, mean of the windows that show it: hidden communication less extra computation",
            known,
            [
                *("dimension", "windows", "hidden_ns", ("extra_ns", "extra computation"), "net_ns"),
                *(("low_ns", "at least"), ("high_ns", "at most"), "verdict"),
            ],
        )
    for each in unknown:
        print_wrapped(f"what overlap saves {each.where} (table overlap_savings): {each.reason}", 4, "  ")
