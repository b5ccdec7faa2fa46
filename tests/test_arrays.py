"""Rows of key columns are numbered in the keys' order, whether marked or sorted, however far apart they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.arrays import number_groups, rows_at

_NEAR = st.integers(-1, 2)
_FAR = st.sampled_from([-(2**63), -(2**62), -5_000, 0, 7, 5_000, 2**40, 2**62, 2**63 - 1])
_rows = st.integers(1, 4).flatmap(
    lambda columns: st.lists(st.tuples(*[_NEAR | _FAR for _ in range(columns)]), min_size=1, max_size=12)
)


@given(_rows, st.sampled_from([1, 1_000]))
@settings(max_examples=300, deadline=None)
def test_groups_are_numbered_in_the_order_of_their_keys(rows, times):
    keys = [np.tile(np.array(column, dtype=np.int64), times) for column in zip(*rows, strict=True)]
    first, number = number_groups(*keys)
    distinct = sorted(set(rows))
    assert list(rows_at(first, keys)) == distinct
    assert first.tolist() == [rows.index(row) for row in distinct]
    assert number.tolist() == [distinct.index(row) for row in rows] * times


@pytest.mark.parametrize("times", [1, 1_000])
def test_keys_may_be_of_any_whole_numbers_and_there_may_be_no_rows(times):
    keys = [np.array([2**64 - 1, 2**64 - 2, 2**64 - 1], np.uint64), np.array([1, 0, 1], np.int32)]
    first, number = number_groups(*(np.tile(key, times) for key in keys))
    assert (first.tolist(), number.tolist()) == ([1, 0], [1, 0, 1] * times)
    assert [each.tolist() for each in number_groups(np.zeros(0, np.int64), np.zeros(0, np.int32))] == [[], []]
