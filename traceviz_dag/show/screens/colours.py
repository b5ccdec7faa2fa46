"""The colour of each kind of slice: that of the figures, where they have one."""

from __future__ import annotations

from traceviz_dag.analyze.causes.critical_path import PathCause
from traceviz_dag.show.page import palette
from traceviz_dag.show.report import bins
from traceviz_dag.vocabulary import Category, Kind, Phase

COLOURS: dict[str, str] = {
    **palette.CATEGORY,
    Kind.COMPUTATION.value: palette.CATEGORY[Category.FWD_COMPUTATION],
    Kind.COMMUNICATION.value: palette.CATEGORY[Category.PP_COMMUNICATION],
    Kind.MEMORY.value: palette.CATEGORY[Category.MEMORY],
    bins.EXPOSED_WAIT: palette.EXPOSED_WAIT,
    bins.EXPOSED_TRANSFER: palette.EXPOSED_TRANSFER,
    bins.EXPOSED_UNTOLD: palette.EXPOSED_UNTOLD,
    bins.HIDDEN: palette.HIDDEN,
    bins.MEMORY_ALONE: palette.MEMORY_ONLY,
    Phase.FORWARD.value: palette.CATEGORY[Category.FWD_COMPUTATION],
    Phase.BACKWARD.value: palette.CATEGORY[Category.BWD_COMPUTATION],
    "blocked": palette.STALL,
    "starved": palette.HOST,
    "not_started": palette.IMBALANCE,
    "unexplained": palette.LAG,
    **dict.fromkeys((PathCause.HOST.value, PathCause.SYNCHRONISATION.value), palette.HOST),
    **dict.fromkeys((PathCause.LAUNCH.value, PathCause.LATE_BEGIN.value), palette.LAG),
    PathCause.WORK.value: palette.CATEGORY[Category.FWD_COMPUTATION],
    PathCause.TRANSFER.value: palette.CATEGORY[Category.DP_COMMUNICATION],
    PathCause.UNMATCHED.value: palette.CATEGORY[Category.OTHER_COMMUNICATION],
    "range": palette.COMPUTATION_ONLY,
    "operator": palette.CATEGORY[Category.OPTIMIZER_COMPUTATION],
    "mark": palette.ATTENTION,
    "nccl": palette.CATEGORY[Category.PP_COMMUNICATION],
    "call": palette.CATEGORY[Category.OTHER_COMPUTATION],
    "launch call": palette.HIDDEN,
    "synchronization": palette.WAITING[2],
}
"""Word of a kind → #RRGGBB; a kind that is not here has ``OTHER``."""

OTHER = palette.QUIET_INK
