"""A change put in class by class adds up on any steps, and a step against itself has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings

from tests.analyze.causes.small_steps import small_steps
from traceviz_dag.analyze.causes.step_work import StepWork
from traceviz_dag.analyze.diff.replayed import (
    AMOUNT,
    HOSTS,
    REMAINDER,
    ReplayedStep,
    SideKernels,
    counterparts,
    lengths,
    replay_rows,
    replayed_change,
)


def replayed(step: StepWork) -> ReplayedStep:
    """A step whose kernels of one name digest are one operation, a stage for each rank."""
    stages = tuple(range(len(step.ranks)))
    return ReplayedStep(step, stages, [work.kernels.signature for work in step.works])


@settings(max_examples=60, deadline=None)
@given(small_steps(), small_steps())
def test_classes_add_up_to_the_change_of_any_two_steps(first, second):
    a, b = replayed(first), replayed(second)
    ((length, free),), ((other, _),) = lengths([a]), lengths([b])
    found = replayed_change([a], b, length, free, by_rank=False)
    rows = replay_rows([found], other - length, 1)
    assert sum(row.change_ns for row in rows) == other - length
    assert [row.work.what for row in rows[-3:]] == [AMOUNT, HOSTS, REMAINDER]
    assert [row.order for row in rows] == list(range(1, len(rows) + 1))


@settings(max_examples=60, deadline=None)
@given(small_steps())
def test_a_step_against_itself_has_no_change_in_any_class(step):
    one = replayed(step)
    ((length, free),) = lengths([one])
    assert set(replayed_change([one], one, length, free, by_rank=True).parts.values()) == {0}


def side(durations: list[int], operation: list[int], signature: list[int]) -> SideKernels:
    count = len(durations)
    zeros = np.zeros(count, np.int64)
    return SideKernels(
        1, zeros, zeros, np.array(operation), np.array(signature), zeros, zeros, zeros, zeros, np.array(durations)
    )


def test_the_nth_kernel_of_a_kind_takes_the_time_of_the_nth():
    found = counterparts(side([10, 20, 30], [0, 0, 1], [5, 5, 6]), side([11, 22, 33], [0, 0, 1], [5, 5, 6]))
    assert found.per_call_ns.tolist() == found.amount_ns.tolist() == [10, 20, 30]
    assert found.matched_ns == 66


def test_where_calls_differ_in_number_their_mean_and_then_their_number_is_put_in():
    a, b = side([10, 10], [0, 0], [5, 5]), side([20, 20, 20, 20], [0, 0, 0, 0], [5, 5, 5, 5])
    found = counterparts(a, b)
    assert found.per_call_ns.tolist() == [10, 10, 10, 10]
    assert found.amount_ns.tolist() == [5, 5, 5, 5]


def test_another_algorithm_of_one_operation_takes_its_time_and_what_a_lacks_takes_none():
    found = counterparts(side([10], [0], [5]), side([40, 7], [0, 1], [9, 5]))
    assert found.per_call_ns.tolist() == [10, 7]
    assert found.amount_ns.tolist() == [10, 0]
    assert found.matched_ns == 40


def test_a_communication_that_is_matched_in_one_side_alone_keeps_its_time():
    a = side([10], [0], [5])
    b = replace(side([40], [0], [5]), meets=np.ones(1, np.int64))
    found = counterparts(a, b)
    assert found.per_call_ns.tolist() == found.amount_ns.tolist() == [40]
