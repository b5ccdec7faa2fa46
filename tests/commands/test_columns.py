"""Tables on narrow screens: every number and every word is there, whole, and no line is too long."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sets import fast
from traceviz_dag.commands.common.columns import BETWEEN, EDGES, least_width, stacked
from traceviz_dag.commands.common.output import MOST_ROWS, at_most, print_table


@st.composite
def tables(draw, letters: int = 12):
    texts = st.lists(st.text("abcxyz", min_size=1, max_size=letters), min_size=1, max_size=6).map(" ".join)
    numbers = st.integers(0, 10**letters - 1).map(str)
    numeric = draw(st.lists(st.booleans(), min_size=1, max_size=12))
    names = [draw(texts) for _ in numeric]
    rows = draw(st.lists(st.tuples(*(numbers if number else texts for number in numeric)), min_size=1, max_size=5))
    return names, rows, numeric


@given(tables(), st.integers(40, 160))
def test_every_column_is_in_a_block_that_fits_and_each_block_begins_with_what_distinguishes_rows(table, width):
    names, rows, numeric = table
    blocks = stacked(names, rows, numeric, width)
    assert sorted({place for block in blocks for place in block}) == list(range(len(names)))
    least = [least_width(name, [row[place] for row in rows], numeric[place]) for place, name in enumerate(names)]
    for block in blocks:
        fits = sum(least[place] for place in block) + BETWEEN * (len(block) - 1) + EDGES <= width
        # What distinguishes the rows and one column more are together even where they do not fit.
        assert fits or block[:-1] == blocks[0][: len(block) - 1]
    if len(blocks) > 1:
        keys = [place for place in blocks[0] if all(place in block for block in blocks)]
        assert keys == list(range(len(keys))) and keys


@pytest.mark.parametrize("width", fast([60, 80, 140], 60))
@given(table=tables(letters=6))
def test_what_is_printed_holds_every_number_and_word_on_lines_that_fit(table, width):
    names, rows, _ = table
    printed = _printed(names, rows, width)
    cells = [*names, *(cell for row in rows for cell in row)]
    assert {word for text in cells for word in text.split()} <= set(printed.split())
    assert max(map(len, printed.splitlines())) <= width


@pytest.mark.parametrize(
    ("limit", "title", "printed", "left"),
    [
        (None, f"a table: the first {MOST_ROWS} of 300", MOST_ROWS, "280 more rows: --all"),
        (299, "a table: the first 299 of 300", 299, "1 more row: --all"),
        (300, "a table", 300, ""),
        (0, "a table", 300, ""),
    ],
)
def test_a_table_says_how_many_of_its_rows_it_shows(limit, title, printed, left):
    with nullcontext() if limit is None else at_most(limit):
        lines = _printed(["row"], [[number] for number in range(300)], 80).strip().splitlines()
    assert lines[0] == title and sum(line.strip().isdigit() for line in lines) == printed
    assert (lines[-1] if "more" in lines[-1] else "") == left


def test_columns_are_shared_out_evenly_among_blocks():
    names = [f"column{number}" for number in range(9)]
    blocks = stacked(names, [[str(row), *["1234567"] * 8] for row in range(3)], [True] * 9, 80)
    assert blocks == [[0, 1, 2, 3, 4], [0, 5, 6, 7, 8]]


def _printed(names, rows, width) -> str:
    import io
    from contextlib import redirect_stdout
    from unittest.mock import patch

    with redirect_stdout(io.StringIO()) as output, patch.dict("os.environ", {"COLUMNS": str(width)}):
        print_table("a table", names, rows)
    return output.getvalue()
