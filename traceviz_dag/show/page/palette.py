"""The one palette of all figures: a hue a phase, dark for its communication, and colours that mean one thing only.

Chosen for a white page and for every kind of colour vision: colours that touch stay at least 14 (CIEDE2000) apart
for normal vision and for simulated protanopia, deuteranopia and tritanopia. The tests hold that.
"""

from __future__ import annotations

from traceviz_dag.analyze.wording import activity
from traceviz_dag.vocabulary import Category

PAPER = "#FFFFFF"
INK = "#22262B"
QUIET_INK = "#68707A"
RULE = "#D5D9DE"
ATTENTION = "#C2185B"
"""Who is at fault, and sentences that a reader must not miss; no category has this colour."""

STAGE_IDLE = "#ECEAE6"
STAGE_IDLE_LABEL = "stage idle: no micro-batch runs"
MISSING = "#F6F6F6"

CATEGORY: dict[str, str] = {
    Category.FWD_COMPUTATION: "#5394D2",
    Category.BWD_COMPUTATION: "#E6953A",
    Category.BWD_COMPUTATION_RECOMPUTE: "#96351F",
    Category.OPTIMIZER_COMPUTATION: "#1F7A5C",
    Category.OTHER_COMPUTATION: "#A3A3A3",
    Category.UNCLASSIFIED: "#3D3D3D",
    Category.FWD_COMMUNICATION: "#0B3A6B",
    Category.BWD_COMMUNICATION: "#A2672A",
    Category.BWD_COMMUNICATION_RECOMPUTE: "#55140C",
    Category.PP_COMMUNICATION: "#80589E",
    Category.DP_COMMUNICATION: "#20BDBD",
    Category.OTHER_COMMUNICATION: "#828385",
    Category.MEMORY: "#CFC36A",
}
"""The colour of each category."""

LATER_CHUNK: dict[str, str] = {Category.FWD_COMPUTATION: "#B8D5FA", Category.BWD_COMPUTATION: "#F7D4A6"}
"""Forward and backward steps of every second model chunk, so that neighbours differ under interleaving."""

COMPUTATION_ONLY = "#B4C4DA"
HIDDEN = "#57AF88"
EXPOSED = "#BF4095"
EXPOSED_WAIT, EXPOSED_TRANSFER, EXPOSED_UNTOLD = "#F1B1B6", "#DA0B95", "#B58AA0"
"""Exposed communication as a whole, and where waits are known: what waits is pale, so that the rank that all wait for,
which works, meets the eye first."""

IDLE = STAGE_IDLE
MEMORY_ONLY = CATEGORY[Category.MEMORY]

WAITING = ("#B7C4D4", "#7D8FA8", "#51627C", "#2B374B", "#060A13")
"""Waits from short to long, a class of lengths each; dark enough that a cell without a wait is not paper."""

FILL_DRAIN = "#47515C"
IMBALANCE = "#D9A21B"
JITTER = "#3D8F66"
STALL = CATEGORY[Category.PP_COMMUNICATION]
UNEXPLAINED = "#A3A9B2"
"""A gap of which nothing shows what filled it; pale, as there are many short ones."""

HOST, LAG = "#BCD4B5", "#000011"
"""On the critical path: time of the host; a lag between what a kernel waited for and its start."""

RANGE, OPERATOR, NCCL_RANGE = "#A9B8E0", "#8FBF9F", "#8FC7CF"
CALL, LAUNCHING_CALL, WAITING_CALL, MEMORY_CALL = "#B9C0C8", "#7FA7D1", "#D98C8C", "#D9C58B"
"""What the host does: tones that no kernel has."""

PAPER_OF_DARK = "#16191D"
ON_DARK = {LAG: "#AAFFFF", IDLE: "#8A9099"}
"""The dark page, and colours of the white one that are others there, as they could not be seen, or would be loudest."""

_ORDER = (
    *(Category.FWD_COMPUTATION, Category.BWD_COMPUTATION, Category.BWD_COMPUTATION_RECOMPUTE),
    *(Category.OPTIMIZER_COMPUTATION, Category.OTHER_COMPUTATION, Category.UNCLASSIFIED),
    *(Category.FWD_COMMUNICATION, Category.BWD_COMMUNICATION, Category.BWD_COMMUNICATION_RECOMPUTE),
    *(Category.PP_COMMUNICATION, Category.DP_COMMUNICATION, Category.OTHER_COMMUNICATION, Category.MEMORY),
)
LABEL: dict[str, str] = {
    name.value: activity(name)
    .removesuffix(" computation")
    .removesuffix(" communication")
    .removeprefix("communication of ")
    for name in _ORDER
}
"""The name of each category in legends below a heading that says computation or communication, in their order."""


def text_on(colour: str) -> str:
    """The ink, dark or white, that reads best on a fill."""
    on_white, on_ink = _contrast(colour, PAPER), _contrast(colour, INK)
    return PAPER if on_white > on_ink else INK


def _contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours as the Web Content Accessibility Guidelines 2 define it."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
