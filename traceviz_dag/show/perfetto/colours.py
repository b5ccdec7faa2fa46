"""A category's colour in Perfetto's UI, which draws it from a hash of a text that the trace gives each slice.

From version 50 or so the UI hashes the slice's correlation id to a hue and a lightness, with one saturation for all.
The numbers behind the names are chosen so that the outcome comes near the colour of the figures. The greys of the
figures, which cannot be had, become hues that no other category has.
"""

from __future__ import annotations

from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.page import palette
from traceviz_dag.vocabulary import Category

_NUMBER: dict[str, int] = {
    Category.FWD_COMPUTATION: 171,
    Category.BWD_COMPUTATION: 361,
    Category.BWD_COMPUTATION_RECOMPUTE: 851,
    Category.OPTIMIZER_COMPUTATION: 150,
    Category.OTHER_COMPUTATION: 85,
    Category.UNCLASSIFIED: 537,
    Category.FWD_COMMUNICATION: 273,
    Category.BWD_COMMUNICATION: 165,
    Category.BWD_COMMUNICATION_RECOMPUTE: 657,
    Category.PP_COMMUNICATION: 67,
    Category.DP_COMMUNICATION: 1836,
    Category.OTHER_COMMUNICATION: 2676,
    Category.MEMORY: 1737,
}


_BY_COLOUR = {palette.CATEGORY[name]: f"{name} {number}" for name, number in _NUMBER.items()}


def colour_text(kind: str) -> str:
    """The correlation id of a kind's slices: that of the category of its colour, else the kind itself."""
    return _BY_COLOUR.get(word_of(kind).colour, kind)
