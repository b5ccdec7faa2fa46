"""The shares of the long tests."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.sets import DEAR, numbers_of, share_of

PROJECT = Path(__file__).parents[1]
FILES = [path.relative_to(PROJECT).as_posix() for path in PROJECT.glob("tests/**/test_*.py")]


def test_dear_files_are_there_and_no_share_has_more_of_them_than_it_must():
    assert set(DEAR) <= set(FILES)
    loads = Counter()
    for file, seconds in DEAR.items():
        loads[share_of(file, 4)] += seconds
    assert max(loads.values()) <= max(*DEAR.values(), sum(DEAR.values()) / 4 + min(DEAR.values()))


def test_every_file_is_of_one_share_and_each_share_has_files():
    assert {share_of(file, 4) for file in FILES} == {1, 2, 3, 4}
    assert {share_of(file, 1) for file in FILES} == {1}


@pytest.mark.parametrize("none", ["0/4", "5/4", "4", "1/2/3", "a/b"])
def test_what_is_no_share_is_refused(none):
    assert numbers_of("4/4") == (4, 4)
    with pytest.raises(ValueError):
        numbers_of(none)
