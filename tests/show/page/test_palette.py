"""Every kind of colour vision distinguishes the palette, and every category has its colour."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.show.colour_vision import distance, least_distance
from traceviz_dag.show import report
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.factor_rows import COLOURS
from traceviz_dag.vocabulary import Category

LEAST_DISTANCE = 14.0
"""Least CIEDE2000 difference between two colours that can touch, under every kind of colour vision."""

BLOCKS = (
    palette.CATEGORY[Category.FWD_COMPUTATION],
    palette.LATER_CHUNK[Category.FWD_COMPUTATION],
    palette.CATEGORY[Category.BWD_COMPUTATION],
    palette.LATER_CHUNK[Category.BWD_COMPUTATION],
    palette.CATEGORY[Category.BWD_COMPUTATION_RECOMPUTE],
    palette.CATEGORY[Category.OPTIMIZER_COMPUTATION],
    palette.CATEGORY[Category.OTHER_COMPUTATION],
    palette.CATEGORY[Category.UNCLASSIFIED],
    palette.STAGE_IDLE,
)
"""Colours that touch in a row of micro-batches and in the lane of computation."""

COMMUNICATION = (
    palette.CATEGORY[Category.FWD_COMMUNICATION],
    palette.CATEGORY[Category.BWD_COMMUNICATION],
    palette.CATEGORY[Category.BWD_COMMUNICATION_RECOMPUTE],
    palette.CATEGORY[Category.PP_COMMUNICATION],
    palette.CATEGORY[Category.DP_COMMUNICATION],
    palette.CATEGORY[Category.OTHER_COMMUNICATION],
    palette.CATEGORY[Category.UNCLASSIFIED],
    palette.PAPER,
)
"""Colours that touch in a strip or lane of communication."""

TOUCHING = {
    "blocks": BLOCKS,
    "communication": COMMUNICATION,
    "measures": (palette.COMPUTATION_ONLY, palette.HIDDEN, palette.EXPOSED, palette.IDLE, palette.MEMORY_ONLY),
    "waits": (palette.PAPER, *palette.WAITING),
    "bubble parts": (
        *(palette.PAPER, palette.COMPUTATION_ONLY, palette.FILL_DRAIN),
        *(palette.IMBALANCE, palette.JITTER, palette.STALL),
    ),
    "factors": (palette.PAPER, palette.COMPUTATION_ONLY, *COLOURS.values()),
}


def test_the_distance_is_that_of_the_published_test_data():
    # Pairs 1, 7, 17 and 25 of the CIEDE2000 reference data of Sharma, Wu and Dalal.
    known = [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ]
    for first, second, expected in known:
        assert distance(np.array(first), np.array(second)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("where", TOUCHING)
def test_colours_that_touch_differ_under_every_vision(where):
    for first, second in combinations(TOUCHING[where], 2):
        apart, vision = least_distance(first, second)
        assert apart >= LEAST_DISTANCE, f"{first} and {second} are {apart:.1f} apart under {vision}"


@pytest.mark.parametrize(
    ("paper", "lag"), [(palette.PAPER, palette.LAG), (palette.PAPER_OF_DARK, palette.ON_DARK[palette.LAG])]
)
def test_the_hosts_time_and_lags_on_the_path_differ_from_every_category(paper, lag):
    for colour in (palette.HOST, lag):
        for other in {*palette.CATEGORY.values(), paper, palette.HOST, lag} - {colour}:
            apart, vision = least_distance(colour, other)
            assert apart >= LEAST_DISTANCE, f"{colour} and {other} are {apart:.1f} apart under {vision}"


def test_the_dark_page_draws_what_would_not_be_seen_in_other_colours():
    style = (Path(report.__file__).parent / "scripts" / "report.css").read_text().lower()
    dark = style[style.index("prefers-color-scheme: dark") :]
    assert f"--paper: {palette.PAPER_OF_DARK.lower()}" in dark
    for colour, there in palette.ON_DARK.items():
        assert f'rect[fill="{colour.lower()}"] {{\n    fill: {there.lower()};' in dark
        assert palette._contrast(palette.text_on(colour), there) >= 4.5 or colour == palette.LAG


def test_the_test_can_fail():
    # Red and green of equal lightness: the classic pair that deuteranopes confuse.
    apart, vision = least_distance("#C8553D", "#6E8B3D")
    assert apart < LEAST_DISTANCE and vision in ("deuteranopia", "protanopia")


def test_every_category_has_a_colour_of_its_own_and_a_name():
    assert set(palette.CATEGORY) == set(palette.LABEL) == {category.value for category in Category}
    assert len({*palette.CATEGORY.values()}) == len(Category)
    assert palette.ATTENTION not in palette.CATEGORY.values()


def test_numbers_are_legible_on_every_block():
    for colour in {*BLOCKS} - {palette.STAGE_IDLE}:
        ink = palette.text_on(colour)
        assert palette._contrast(ink, colour) >= 4.5, f"{ink} on {colour}"
