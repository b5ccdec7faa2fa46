"""Nesting by pointer jumping gives what a plain loop over rows gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traceviz_dag.arrays import NONE
from traceviz_dag.read.host_tree import build_tree, innermost

rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=60)


def tree_of(events):
    thread = np.array([event[0] for event in events], dtype=np.int32)
    start = np.array([event[1] for event in events], dtype=np.int64)
    duration = np.array([event[2] for event in events], dtype=np.int64)
    return build_tree(np.arange(len(events)), thread, start, duration)


@given(rows)
@settings(max_examples=100)
def test_a_parent_is_the_latest_row_of_the_thread_that_is_still_open(events):
    tree = tree_of(events)
    for position in range(len(tree)):
        open_before = [
            other
            for other in range(position)
            if tree.thread[other] == tree.thread[position] and tree.end_ns[other] > tree.start_ns[position]
        ]
        # Rows between a candidate and the position that have closed must not hide it, whatever overlaps improperly.
        expected = max(open_before, default=NONE)
        assert tree.parent[position] == expected


@given(rows, st.lists(st.tuples(st.integers(0, 3), st.integers(0, 70)), max_size=20))
@settings(max_examples=100)
def test_the_innermost_row_is_open_at_that_time(events, queries):
    tree = tree_of(events)
    thread = np.array([query[0] for query in queries], dtype=np.int32)
    time_ns = np.array([query[1] for query in queries], dtype=np.int64)
    for (wanted_thread, wanted_time), found in zip(queries, innermost(tree, thread, time_ns).tolist(), strict=True):
        candidates = [
            position
            for position in range(len(tree))
            if tree.thread[position] == wanted_thread and tree.start_ns[position] <= wanted_time < tree.end_ns[position]
        ]
        assert found == max(candidates, default=NONE)


def test_behind_rows_that_hang_below_another_thread_one_is_in_what_that_thread_does_by_now():
    # Thread 0 runs a step (0 to 100) with two passes; what thread 1 runs in the first one hangs below that.
    tree = tree_of([(0, 0, 100), (0, 10, 20), (0, 50, 40), (1, 15, 5)])
    parent = tree.parent.copy()
    parent[3] = 1
    times = np.array([12, 17, 25, 45, 60, 95, 120])
    found = innermost(replace(tree, parent=parent), np.ones(len(times), np.int32), times)
    assert found.tolist() == [NONE, 3, 1, 0, 2, 0, NONE]


@given(rows, st.data())
@settings(max_examples=100)
def test_the_nearest_marked_ancestor_is_found_at_any_depth(events, data):
    tree = tree_of(events)
    # What runs outermost on the other threads may hang below the first one.
    parent, on_first = tree.parent.copy(), np.flatnonzero(tree.thread == 0).tolist()
    for position in np.flatnonzero((tree.parent == NONE) & (tree.thread > 0)).tolist():
        parent[position] = data.draw(st.sampled_from([NONE, *on_first]))
    tree = replace(tree, parent=parent)
    marked = np.array(data.draw(st.lists(st.booleans(), min_size=len(tree), max_size=len(tree))))
    found = tree.nearest(marked)
    for position in range(len(tree)):
        at = position
        while at != NONE and not marked[at]:
            at = int(tree.parent[at])
        assert found[position] == at


def test_empty_input_gives_an_empty_tree():
    nothing = np.array([], dtype=np.int64)
    tree = build_tree(nothing, nothing.astype(np.int32), nothing, nothing)
    assert len(tree) == 0
    assert innermost(tree, np.array([0], dtype=np.int32), np.array([5])).tolist() == [NONE]
