"""How commands print what overlap really saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceviz_dag.analyze.mean_savings import mean_savings
from traceviz_dag.analyze.wording import capitals, milliseconds
from traceviz_dag.commands.common.output import print_table, print_wrapped


def print_savings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the means of the rows of table ``overlap_savings``; nothing where nothing is hidden."""
    known, unknown = mean_savings(rows)
    if known:
        windows = max(len(mean.nets) for mean in known)
        print_table(
            f"What overlap saves, ms, mean of {windows} windows: hidden communication less extra computation",
            ["dimension", "hidden", "extra computation", "net", "at least", "at most", "verdict"],
            [
                [
                    capitals(mean.dimension),
                    *(
                        milliseconds(value)
                        for value in (mean.hidden_ns, mean.extra_ns, mean.net_ns, mean.low_ns, mean.high_ns)
                    ),
                    mean.verdict,
                ]
                for mean in known
            ],
        )
    for each in unknown:
        print_wrapped(f"what overlap saves {each.where} (table overlap_savings): {each.reason}", 4, "  ")
