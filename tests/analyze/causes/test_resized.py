"""Micro-batches of a size between two captures: exact on a line, within the bar where a host is slow."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest

from benchmarks.advise import Job, outcome
from tests.analyze.causes.test_remade_items import known
from traceviz_dag.analyze.causes.reordered import Change, Items
from traceviz_dag.analyze.causes.resized import Between, TwoSizes, resized
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import Order
from traceviz_dag.simulate import JobSettings

RATIO, TWO = Fraction(4), Fraction(2)


def sized(order: Order, size: float, fixed: int = 0) -> Items:
    """A perfect pipeline whose items take ``fixed`` and so many times as long as of size 1."""
    plain = known(order)
    items = (
        replace(rank, items=tuple(replace(one, own_ns=fixed + round(one.own_ns * size)) for one in rank.items))
        for rank in plain.ranks
    )
    return replace(plain, ranks=tuple(items))


@pytest.mark.parametrize("fixed", [0, 30])
@pytest.mark.parametrize("order", [Order(4, 1, 16), Order(1, 1, 16), Order(2, 2, 16)])
def test_items_on_a_line_are_those_of_the_size_between_from_either_side(order, fixed):
    one, four = sized(order, 1, fixed), sized(order, 4, fixed)
    expected = [item.own_ns for rank in sized(order, 2, fixed).ranks for item in rank.items]
    for mine, other, times, ratio in ((one, four, TWO, RATIO), (four, one, TWO / RATIO, 1 / RATIO)):
        found = [item.own_ns for rank in resized(mine, other, Between(times, ratio)).ranks for item in rank.items]
        assert found == expected
        least, most = (
            [item.own_ns for rank in resized(mine, other, Between(times, ratio, end)).ranks for item in rank.items]
            for end in (-1, 1)
        )
        # In proportion, nothing is open.
        assert all((low < high) == bool(fixed) for low, high in zip(least, most, strict=True))
        assert all(low <= own <= high for low, own, high in zip(least, expected, most, strict=True))


@pytest.mark.parametrize(("one", "other", "least", "most"), [(10, 40, 20, 20), (10, 10, 10, 10), (10, 24, 12, 20)])
def test_an_item_takes_no_less_for_a_larger_size_and_no_more_for_each_token(one, other, least, most):
    """Of the last, a host that is the slower one at size 1 alone makes 12, and 10 + 10 cannot be exceeded."""
    ends = [Between(TWO, RATIO, end).taken(one, other) for end in (-1, 1)]
    assert ends == [least, most]
    assert least <= Between(TWO, RATIO).taken(one, other) <= most
    assert [Between(TWO / RATIO, 1 / RATIO, end).taken(other, one) for end in (-1, 1)] == ends


def captured(items: Items, why_open: str | None = None) -> SimpleNamespace:
    step = SimpleNamespace(ranks=tuple(range(len(items.ranks))))
    return SimpleNamespace(items=items, free_items=items, step=step, step_ns=items.step_ns, why_open=why_open)


def test_at_a_size_that_was_captured_the_step_is_the_captured_one():
    one, four = captured(known(Order(4, 1, 16))), captured(sized(Order(4, 1, 4), 4))
    at_four = replace(four.items, step_ns=four.items.replayed(Order(4, 1, 4), Order(4, 1, 4)))
    row = TwoSizes(one, captured(at_four), RATIO).as_row(Change(microbatches=4), RATIO)
    assert row["predicted_step_ns"] == at_four.step_ns
    assert row["gain_low_ns"] <= row["gain_ns"] <= row["gain_high_ns"]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (known(Order(4, 2, 4)), "in other orders"),
        (known(Order(4, 1, 4), 8), "of other layers or ranks"),
        (known(Order(4, 1, 2)), "a step of 2 micro-batches shows none"),
    ],
)
def test_captures_that_differ_otherwise_are_refused(other, why):
    with pytest.raises(NoEvidenceError, match=why):
        TwoSizes(captured(known(Order(4, 1, 16))), captured(other), RATIO)


def test_captures_that_leave_open_who_waits_for_whom_are_refused():
    sides = captured(known(Order(4, 1, 16))), captured(known(Order(4, 1, 4)), "7 of 9 kernels are not matched")
    with pytest.raises(NoEvidenceError, match="7 of 9 kernels are not matched"):
        TwoSizes(*sides, RATIO)


def test_chunks_that_layers_do_not_allow_are_refused_with_any_size():
    sides = captured(known(Order(4, 1, 16), 3)), captured(known(Order(4, 1, 4), 3))
    assert TwoSizes(*sides, RATIO).as_row(Change(8, chunks=3), TWO)
    with pytest.raises(NoEvidenceError, match="3 layers of a stage cannot be split into 2"):
        TwoSizes(*sides, RATIO).as_row(Change(8, chunks=2), TWO)


SMALL = JobSettings(pp=2, layers=4, microbatches=12, hidden=1024, heads=8, feed_forward=4096, seed=3)


@pytest.mark.parametrize(
    ("settings", "within"), [(SMALL, 0.01), (replace(SMALL, hidden=256, heads=2, feed_forward=1024, sequence=512), 0.5)]
)
def test_the_step_of_a_size_between_is_predicted_from_two_simulated_captures(tmp_path, settings, within):
    """The second job's host is the slower one at the small size: its bar is wide, and says so."""
    (pair,) = outcome(Job("", settings, (Change(microbatches=6),), ratio=4), tmp_path).pairs
    assert pair.held and abs(pair.off) < within
