"""How the clocks of several ranks are laid on one axis, and the sentence with which a figure says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceviz_dag.show.activity import Activity


class TimeAlignment(StrEnum):
    """``global``: one zero for all ranks, their clocks as recorded; ``individual``: each rank from its first kernel."""

    GLOBAL = "global"
    INDIVIDUAL = "individual"


SENTENCE = {
    TimeAlignment.GLOBAL: "clocks as recorded, one zero for all ranks: shifts between ranks may be clock offsets",
    TimeAlignment.INDIVIDUAL: "each rank from its own first kernel: shifts between ranks are not shown",
}
"""What a figure says of its clocks."""

AXIS = {
    TimeAlignment.GLOBAL: "time since the first kernel of all ranks",
    TimeAlignment.INDIVIDUAL: "time since each rank's own first kernel",
}
"""The label of the time axis."""


@dataclass(frozen=True, slots=True)
class Aligned:
    """Ranks on one axis.

    Attributes:
        zero_ns: rank → instant of its own clock that lies at 0.
        span_ns: length of the axis.
    """

    zero_ns: Mapping[int, int]
    span_ns: int


def align(activities: Sequence[Activity], alignment: TimeAlignment, spans: Sequence[tuple[int, int]] = ()) -> Aligned:
    """Lay ranks on one axis; ranks without kernels take no part.

    Args:
        spans: further (start, end) that the axis of ``global`` must hold, so that several figures have one axis.
    """
    own = {activity.rank: span for activity in activities if (span := activity.span()) is not None}
    if alignment is TimeAlignment.INDIVIDUAL:
        lengths = [end - start for start, end in (*own.values(), *spans)]
        return Aligned({rank: start for rank, (start, _) in own.items()}, max(lengths, default=1))
    everything = [*own.values(), *spans]
    zero = min((start for start, _ in everything), default=0)
    last = max((end for _, end in everything), default=1)
    return Aligned(dict.fromkeys(own, zero), last - zero)
