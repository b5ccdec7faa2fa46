"""The colour of each kind of slice: that of the figures, where they have one."""

from __future__ import annotations

from traceviz_dag.show.page import palette
from traceviz_dag.show.report import bins
from traceviz_dag.vocabulary import Category, Kind

COLOURS: dict[str, str] = {
    **palette.CATEGORY,
    Kind.COMPUTATION.value: palette.CATEGORY[Category.FWD_COMPUTATION],
    Kind.COMMUNICATION.value: palette.CATEGORY[Category.PP_COMMUNICATION],
    Kind.MEMORY.value: palette.CATEGORY[Category.MEMORY],
    bins.EXPOSED_WAIT: palette.ATTENTION,
    bins.EXPOSED_TRANSFER: "#E58BB0",
    bins.EXPOSED_UNTOLD: "#B58AA0",
    bins.HIDDEN: palette.HIDDEN,
    bins.MEMORY_ALONE: palette.MEMORY_ONLY,
}
"""Word of a kind → #RRGGBB; a kind that is not here has ``OTHER``."""

OTHER = palette.QUIET_INK
