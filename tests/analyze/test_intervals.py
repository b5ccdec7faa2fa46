"""The interval algebra agrees with sets of whole nanoseconds, whatever the intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.naive_measures import EPOCH_NS
from traceviz_dag.analyze.intervals import (
    Intervals,
    clip,
    intersect,
    lay_end_to_end,
    measure,
    measure_within,
    merge,
    subtract,
    union,
)
from traceviz_dag.arrays import number_groups

# A negative length represents an interval that ends before it starts: it covers nothing.
_pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(-2, 12)), max_size=10)
_windows = st.lists(st.tuples(st.integers(-5, 50), st.integers(-3, 30)), min_size=1, max_size=6)


def _intervals(pairs) -> Intervals:
    starts = np.array([EPOCH_NS + start for start, _ in pairs], dtype=np.int64)
    return Intervals(starts, starts + np.array([length for _, length in pairs], dtype=np.int64))


def _instants(intervals: Intervals) -> set[int]:
    return {
        instant
        for start, end in zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)
        for instant in range(start, end)
    }


def _assert_normal(intervals: Intervals) -> None:
    assert (intervals.ends > intervals.starts).all()
    assert (intervals.starts[1:] > intervals.ends[:-1]).all()
    assert intervals.starts.dtype == intervals.ends.dtype == np.int64


@given(_pairs)
@settings(max_examples=100, deadline=None)
def test_a_union_covers_the_same_instants_with_disjoint_intervals(pairs):
    given_intervals = _intervals(pairs)
    covered = union(*given_intervals)
    _assert_normal(covered)
    assert _instants(covered) == _instants(given_intervals)
    assert measure(given_intervals) == len(_instants(given_intervals))
    again = union(*covered)
    assert again.starts.tolist() == covered.starts.tolist() and again.ends.tolist() == covered.ends.tolist()


@given(_pairs, _pairs)
@settings(max_examples=100, deadline=None)
def test_intersection_difference_and_merge_are_those_of_sets(first, second):
    a, b = _intervals(first), _intervals(second)
    for result, expected in (
        (intersect(a, b), _instants(a) & _instants(b)),
        (subtract(a, b), _instants(a) - _instants(b)),
        (merge(a, b), _instants(a) | _instants(b)),
    ):
        _assert_normal(result)
        assert _instants(result) == expected


@given(_pairs, _windows)
@settings(max_examples=100, deadline=None)
def test_windows_hold_what_the_set_covers_inside_them(pairs, windows):
    intervals, frames = _intervals(pairs), _intervals(windows)
    expected = [
        len(_instants(intervals) & set(range(start, end)))
        for start, end in zip(frames.starts.tolist(), frames.ends.tolist(), strict=True)
    ]
    assert measure_within(union(*intervals), *frames).tolist() == expected
    clipped = [
        measure(clip(intervals, start, end))
        for start, end in zip(frames.starts.tolist(), frames.ends.tolist(), strict=True)
    ]
    assert clipped == expected


def test_a_clip_keeps_overlapping_intervals_apart():
    clipped = clip(Intervals(np.array([0, 2, 9]), np.array([5, 8, 12])), 1, 9)
    assert clipped.starts.tolist() == [1, 2]
    assert clipped.ends.tolist() == [5, 8]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 12)), min_size=1, max_size=15))
@settings(max_examples=100, deadline=None)
def test_one_axis_measures_each_group_as_if_it_were_alone(rows):
    intervals = _intervals([(start, length) for _, start, length in rows])
    first, group = number_groups(np.array([number for number, _, _ in rows]))
    starts = np.array([intervals.starts[group == each].min() for each in range(len(first))])
    ends = np.array([intervals.ends[group == each].max() for each in range(len(first))])
    axis = lay_end_to_end(starts, ends)
    together = union(*axis.place(intervals, group))
    alone = [
        measure(Intervals(intervals.starts[group == each], intervals.ends[group == each])) for each in range(len(first))
    ]
    assert measure_within(together, axis.segment_starts, axis.segment_ends).tolist() == alone
    assert (together.ends - together.starts).sum() == sum(alone)


def test_groups_too_long_for_one_axis_are_refused_rather_than_wrapped_around():
    length = np.array([2**61, 2**61, 2**61])
    with pytest.raises(OverflowError, match="3 groups"):
        lay_end_to_end(np.zeros(3, np.int64), length)
