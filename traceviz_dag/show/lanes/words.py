"""The words and colour of each kind of slice, and the labels of lanes: what every surface shows and says.

A kind is a colour key: a category, a part of a rank's time, a phase of micro-batches, a cause of the critical path and
so on. Surfaces take label and colour from here and nowhere else.
"""

from __future__ import annotations

from typing import NamedTuple

from traceviz_dag.analyze.wording import activity
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes import parts
from traceviz_dag.show.page import palette
from traceviz_dag.vocabulary import Category, Dimension, Kind, PathCause, Phase


class Word(NamedTuple):
    """What a kind is called, and its colour, #RRGGBB."""

    label: str
    colour: str


EXPOSED = "exposed"
"""Exposed communication where nothing shows a wait from a transfer."""

FORWARD_ODD, BACKWARD_ODD = "forward_odd", "backward_odd"
"""Micro-batches of odd model chunks, so that neighbours differ under interleaving."""

STEP_KINDS = (Phase.FORWARD.value, Phase.BACKWARD.value, FORWARD_ODD, BACKWARD_ODD)
BLOCKED, STARVED, UNEXPLAINED = "blocked", "starved", "unexplained_gap"
GAP_KINDS = (BLOCKED, STARVED, UNEXPLAINED)
"""What most of a gap is, as ``analyze/gaps/gpu_gaps.py`` splits it; it is UNEXPLAINED where no launch is known."""

RANGE_KINDS = ("range", "operator", "mark", "nccl")
CALL_KINDS = ("call", "launch_call", "synchronization", "memory_call")

_HOST, _LAG = palette.HOST, palette.LAG
WORDS: dict[str, Word] = {
    "": Word("other", palette.QUIET_INK),
    **{name: Word(activity(name), colour) for name, colour in palette.CATEGORY.items()},
    Kind.COMPUTATION: Word("computation", palette.CATEGORY[Category.FWD_COMPUTATION]),
    Kind.COMMUNICATION: Word("communication", palette.CATEGORY[Category.DP_COMMUNICATION]),
    Kind.MEMORY: Word("memory operations", palette.CATEGORY[Category.MEMORY]),
    parts.EXPOSED_WAIT: Word("exposed wait", palette.EXPOSED_WAIT),
    parts.EXPOSED_TRANSFER: Word("exposed transfer", palette.EXPOSED_TRANSFER),
    parts.EXPOSED_UNTOLD: Word("exposed, wait or transfer unknown", palette.EXPOSED_UNTOLD),
    EXPOSED: Word("exposed communication", palette.EXPOSED),
    parts.HIDDEN: Word("hidden communication", palette.HIDDEN),
    parts.MEMORY_ALONE: Word("memory operations alone", palette.MEMORY_ONLY),
    Phase.FORWARD: Word("forward", palette.CATEGORY[Category.FWD_COMPUTATION]),
    Phase.BACKWARD: Word("backward", palette.CATEGORY[Category.BWD_COMPUTATION]),
    FORWARD_ODD: Word("forward, odd model chunk", palette.LATER_CHUNK[Category.FWD_COMPUTATION]),
    BACKWARD_ODD: Word("backward, odd model chunk", palette.LATER_CHUNK[Category.BWD_COMPUTATION]),
    BLOCKED: Word("blocked by other GPU work", palette.STALL),
    STARVED: Word("starved by the host", _HOST),
    UNEXPLAINED: Word("unexplained gap", palette.UNEXPLAINED),
    PathCause.HOST: Word(activity(PathCause.HOST), _HOST),
    PathCause.SYNCHRONISATION: Word(activity(PathCause.SYNCHRONISATION), _HOST),
    **{cause: Word(activity(cause), _LAG) for cause in (PathCause.LAUNCH, PathCause.UNEXPLAINED, PathCause.LATE_BEGIN)},
    "range": Word("NVTX ranges", palette.RANGE),
    "operator": Word("operators", palette.OPERATOR),
    "mark": Word("NVTX marks", palette.ATTENTION),
    "nccl": Word("NCCL's ranges", palette.NCCL_RANGE),
    "call": Word("other calls", palette.CALL),
    "launch_call": Word("calls that launch", palette.LAUNCHING_CALL),
    "synchronization": Word("calls that wait", palette.WAITING_CALL),
    "memory_call": Word("calls for memory", palette.MEMORY_CALL),
}
"""Kind → its words and colour; kinds that are not there have those of the empty one."""


MICROBATCHES, GAPS, IDLE, PATH = "micro-batches", "without computation", "idle", "critical path"
QUEUE, IN_FLIGHT, EXPOSED_TIME = "launched, waiting", "micro-batches in flight", "exposed communication"
ALLOCATED, RESERVED, FROM_DRIVER = "memory allocated", "memory reserved", "memory from the driver"
LAUNCHES, CALLS, SYSTEM_CALLS, MARKS, ACROSS = (
    "launches",
    "CUDA calls",
    "system calls",
    "NVTX marks",
    "NVTX across threads",
)
"""Labels of lanes and counters. Idle is a GPU of a profile, of which nothing shows which operations compute."""

_SHOWN_DIMENSIONS = 3


def word_of(kind: str) -> Word:
    """The words and colour of a kind."""
    return WORDS.get(kind) or Word(printable(kind.replace("_", " ")), WORDS[""].colour)


def rank_label(rank: int, stage: int | None) -> str:
    """The lane of a rank."""
    return f"rank {rank}" + ("" if stage is None else f" · stage {stage}")


def gpu_label(device: int, name: str | None = None) -> str:
    """The lane of a GPU."""
    return f"GPU {device}" + (f" {printable(name)}" if name else "")


def stream_label(stream: int | None, device: str = "", holds: str = "") -> str:
    """The lane of a stream.

    Args:
        device: where streams of several lie beside each other. holds: what runs on it.
    """
    place = " ".join(filter(None, (device, "no stream" if stream is None else f"stream {stream}")))
    return f"{place} · {holds}" if holds else place


def dimension_label(dimension: str) -> str:
    """The lane of a dimension's communication."""
    return f"{dimension_name(dimension)} communication"


def dimension_name(dimension: str) -> str:
    """A dimension in the label of a lane."""
    return _DIMENSIONS.get(dimension, dimension.replace("_", " "))


def held_dimensions(dimensions: set[str]) -> str:
    """The dimensions of a stream's communication, the first ones of many."""
    named = [dimension_name(one) for one in sorted(dimensions)]
    return ", ".join(named[:_SHOWN_DIMENSIONS]) + (" …" if len(named) > _SHOWN_DIMENSIONS else "")


_DIMENSIONS: dict[str, str] = {
    **{one: one.value.upper() for one in (Dimension.TP, Dimension.CP, Dimension.EP, Dimension.PP, Dimension.DP)},
    Dimension.ETP: "expert TP",
    Dimension.EDP: "expert DP",
    Dimension.GRAD_NORM: "gradient norm",
    Dimension.UNKNOWN: "unknown group",
}


def thread_label(number: int, name: str | None = None) -> str:
    """The lanes of a thread."""
    return f"thread {number}" + (f" {printable(name)}" if name else "")


def ranges_label(depth: int, deepest: int) -> str:
    """The lane of NVTX ranges with so many around them; those that are nested deeper share the deepest one."""
    return ("NVTX" if depth <= 0 else f"NVTX {depth}") + (" and deeper" if depth == deepest else "")


def brief_name(name: str) -> str:
    """The name of a micro-batch's step where there is little room, such as ``F3/1``; others as they are."""
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        if name.startswith(f"{phase} "):
            return phase[0].upper() + name.removeprefix(f"{phase} ").replace(" chunk ", "/")
    return name


def step_names(backward: list[bool], microbatch: list[int], chunk: list[int], chunks: int) -> list[str]:
    """The names of micro-batches' steps, such as ``forward 3 chunk 1``; the chunk where the rank has several.

    Args:
        chunk: below 0 where it is unknown. chunks: how many the rank has.
    """
    return [
        f"{Phase.BACKWARD if back else Phase.FORWARD} {number}" + (f" chunk {one}" if chunks > 1 and one >= 0 else "")
        for back, number, one in zip(backward, microbatch, chunk, strict=True)
    ]
