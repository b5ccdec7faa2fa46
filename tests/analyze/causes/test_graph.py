"""Graphs of work and their replay, against a definition in a few lines of Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceviz_dag.analyze.causes.graph import NO_EDGE, CircleError, graph_of, tie


@st.composite
def _works(draw):
    """Nodes with durations, edges from later to earlier ones with lags, in any order."""
    nodes = draw(st.integers(1, 12))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    edges = [(max(pair), min(pair)) for pair in draw(st.lists(pairs, max_size=25))] if nodes > 1 else []
    names = draw(st.permutations(range(nodes)))
    durations = np.array(draw(st.lists(st.integers(0, 9), min_size=nodes, max_size=nodes)), np.int64)
    lags = np.array(draw(st.lists(st.integers(0, 5), min_size=len(edges), max_size=len(edges))), np.int64)
    waiting = np.array([names[later] for later, _ in edges], np.int64)
    waited_for = np.array([names[earlier] for _, earlier in edges], np.int64)
    return nodes, waiting, waited_for, durations, lags


def _end(node, waiting, waited_for, durations, lags):
    arrivals = [
        _end(other, waiting, waited_for, durations, lags) + lag
        for each, other, lag in zip(waiting, waited_for, lags, strict=True)
        if each == node
    ]
    return max(arrivals, default=0) + durations[node]


@given(_works())
def test_a_node_ends_its_duration_after_the_last_of_what_it_waits_for(work):
    nodes, waiting, waited_for, durations, lags = work
    graph = graph_of(nodes, waiting, waited_for)
    ends = graph.ends(durations, lags)
    assert ends.tolist() == [_end(node, waiting, waited_for, durations, lags) for node in range(nodes)]
    both = graph.ends(np.stack([durations, 2 * durations], axis=1), np.stack([lags, 2 * lags], axis=1))
    assert both.tolist() == [[end, 2 * end] for end in ends.tolist()]


@given(_works())
def test_the_binding_edge_is_the_one_that_arrived_last(work):
    nodes, waiting, waited_for, durations, lags = work
    graph = graph_of(nodes, waiting, waited_for)
    ends = graph.ends(durations, lags)
    for node, edge in enumerate(graph.binding(ends, lags).tolist()):
        if edge == NO_EDGE:
            assert node not in waiting
            assert ends[node] == durations[node]
        else:
            assert waiting[edge] == node
            assert ends[waited_for[edge]] + lags[edge] == ends[node] - durations[node]


def test_members_of_a_join_start_together_when_the_last_has_arrived():
    # Two queues, 0 → 1 → 2 and 3 → 4 → 5; 1 and 4 are one communication.
    waiting, waited_for = np.array([1, 2, 4, 5]), np.array([0, 1, 3, 4])
    join = np.array([-1, 0, -1, -1, 0, -1])
    graph = graph_of(*tie(6, waiting, waited_for, join))
    ends = graph.ends(np.array([5, 2, 1, 9, 3, 1, 0]))
    assert ends.tolist() == [5, 11, 12, 9, 12, 13, 9]
    late = graph.binding(ends)
    assert (late[1], late[4]) == (4, 5)
    assert late[6] == 2


def test_a_circle_is_refused_with_its_members():
    waiting, waited_for = np.array([1, 2, 3, 1, 4]), np.array([0, 1, 2, 3, 3])
    with pytest.raises(CircleError) as refused:
        graph_of(5, waiting, waited_for)
    members = refused.value.members.tolist()
    assert sorted(members) == [1, 2, 3]
    edges = set(zip(waiting.tolist(), waited_for.tolist(), strict=True))
    assert all((later, earlier) in edges for earlier, later in zip(members, members[1:] + members[:1], strict=True))


def test_nothing_to_do_takes_no_time():
    none = np.empty(0, np.int64)
    assert graph_of(0, none, none).ends(none).tolist() == []
    assert graph_of(2, none, none).ends(np.array([3, 4])).tolist() == [3, 4]
