"""What overlap saves of each dimension: means of table ``overlap_savings`` over windows, with one error bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, sqrt
from statistics import stdev
from typing import Any, NamedTuple

from traceviz_dag.analyze.wording import capitals, counted
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Savings

SAVINGS_COLUMNS = (
    *("rank", "device", "window_name", "step", "dimension", "hidden_ns", "judged_share", "extra_ns"),
    *("net_ns", "net_low_ns", "net_high_ns", "reason"),
)

_ERRORS = 2.0
"""Standard errors of the mean on either side."""


class MeanSaving(NamedTuple):
    """The means of a dimension over the windows (rank, device and step) whose saving is known, ns.

    Attributes:
        low_ns, high_ns: two standard errors of the mean on either side, from the spread of the windows, or that of
            their kernels where it is larger.
        verdict: what the error bar says.
        nets: the net savings of the windows.
    """

    dimension: str
    hidden_ns: int
    extra_ns: int
    net_ns: int
    low_ns: int
    high_ns: int
    verdict: Savings
    nets: Sequence[int]

    @property
    def windows(self) -> int:
        """How many windows it is the mean of."""
        return len(self.nets)


class UnknownSaving(NamedTuple):
    """Why the saving of a dimension is not known of some of its windows: the reason of the one that is known least."""

    dimension: str
    unknown: int
    windows: int
    reason: str

    @property
    def where(self) -> str:
        """Of which dimension, and how many windows, in words."""
        of = "all communication" if self.dimension == ALL_DIMENSIONS else capitals(self.dimension)
        return f"of {of} is unknown in {self.unknown} of {counted(self.windows, 'window', 'windows')}"


def mean_savings(rows: Sequence[Mapping[str, Any]]) -> tuple[list[MeanSaving], list[UnknownSaving]]:
    """Of rows with ``SAVINGS_COLUMNS`` the means, and what is unknown; all dimensions together first, then the least.

    Of a rank's device with training steps these count, else all its kernels.
    """
    marked = {(row["rank"], row["device"]) for row in rows if row["window_name"] == "step"}
    of: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if (row["window_name"] == "step") == ((row["rank"], row["device"]) in marked):
            of.setdefault(row["dimension"], []).append(row)
    means, lacking = [], []
    for dimension, mine in of.items():
        unknown = [row for row in mine if row["net_ns"] is None]
        if len(unknown) < len(mine):
            means.append(_mean(dimension, [row for row in mine if row["net_ns"] is not None]))
        if unknown:
            reason = min(unknown, key=lambda row: row["judged_share"])["reason"]
            lacking.append(UnknownSaving(dimension, len(unknown), len(mine), reason))
    return (
        sorted(means, key=lambda mean: (mean.dimension != ALL_DIMENSIONS, mean.net_ns, mean.dimension)),
        sorted(lacking, key=lambda each: (each.dimension != ALL_DIMENSIONS, each.dimension)),
    )


def _mean(dimension: str, rows: Sequence[Mapping[str, Any]]) -> MeanSaving:
    count = len(rows)
    nets = [row["net_ns"] for row in rows]
    hidden, extra, net = (fsum(row[name] for row in rows) / count for name in ("hidden_ns", "extra_ns", "net_ns"))
    spread = _ERRORS * stdev(nets) / sqrt(count) if count > 1 else 0.0
    measured = sqrt(fsum(((row["net_high_ns"] - row["net_low_ns"]) / 2) ** 2 for row in rows)) / count
    error = max(spread, measured)
    verdict = Savings.SAVES if net - error > 0 else Savings.COSTS if net + error < 0 else Savings.UNSURE
    low, high = round(net - error), round(net + error)
    return MeanSaving(dimension, round(hidden), round(extra), round(net), low, high, verdict, nets)
