"""Other orders of work: known lengths of perfect pipelines, what an item keeps, and orders that cannot be made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceviz_dag.analyze.causes.measured_items import Item, MeasuredRank
from traceviz_dag.analyze.causes.reordered import COMBINED, Change, Items
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import Backward, Combined, Forward, Order

FORWARD, BACKWARD, TAIL = 100, 200, 7


def perfect(order: Order, first_more: int = 0) -> Items:
    """A pipeline whose items all take as long, whose messages take no time, and whose ranks end together."""
    ranks = []
    for stage in range(order.stages):
        items, now = [], 0
        for action in order.actions(stage):
            steps = (action.forward, action.backward) if isinstance(action, Combined) else (action,)
            parts = [each for each in steps if isinstance(each, Forward | Backward)]
            if not parts:
                continue
            own = sum(BACKWARD if isinstance(part, Backward) else FORWARD for part in parts) // order.chunks
            own += first_more * (parts[0].microbatch == 0 and isinstance(parts[0], Forward))
            key = frozenset((isinstance(part, Backward), part.chunk, part.microbatch) for part in parts)
            items.append(Item(key, now, now + own, own))
            now += own
        ranks.append(MeasuredRank(tuple(items), 0, 0, 0, 0))
    shape = Items(tuple(ranks), (tuple(range(order.stages)),), 0)
    # The step is what the order takes, and what follows the last item.
    late = shape.replayed(order, order)
    ends = [replace(rank, slack_ns=late + TAIL) for rank in ranks]
    return Items(tuple(ends), shape.pipelines, _length(order, first_more))


def _length(order: Order, first_more: int = 0) -> int:
    ideal = (FORWARD + BACKWARD) * order.microbatches
    return ideal + (order.stages - 1) * (FORWARD + BACKWARD) // order.chunks + first_more + TAIL


@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (4, 1), (4, 2), (2, 4)])
def test_a_perfect_pipeline_takes_what_theory_says_with_any_number_of_micro_batches(stages, chunks):
    present = Order(stages, chunks, 8)
    items = perfect(present)
    for count in (*([1, 2] if chunks == 1 else []), 4, 8, 16, 64):
        found = items.changed(Change(microbatches=count))
        longer = _length(replace(present, microbatches=count)) - _length(present)
        assert found.later_ns == found.least_ns == found.most_ns == longer
        assert found.microbatches == (8, count) and abs(found.error * items.step_ns) < _length(present)


def test_an_interleaved_job_loses_what_its_chunks_won_and_overlap_changes_no_perfect_pipeline():
    present = Order(4, 2, 8)
    items = perfect(present)
    assert items.changed(Change(schedule="1f1b")).later_ns == _length(Order(4, 1, 8)) - _length(present)
    assert items.changed(Change(schedule="interleaved")).later_ns == 0
    both = items.changed(Change(16, "1f1b"))
    assert both.later_ns == _length(Order(4, 1, 16)) - _length(present) and both.microbatches == (8, 16)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_zero_bubble_fills_as_much_of_fill_and_drain_as_gradients_of_weights_take(share):
    """ZB-H1 leaves (stages - 1) (forward + gradient of inputs - gradient of weights)."""
    present = Order(4, 1, 8)
    plain = perfect(present)
    told = [
        replace(rank, items=tuple(replace(i, weights=share * (i.own_ns == BACKWARD)) for i in rank.items))
        for rank in plain.ranks
    ]
    items = replace(plain, ranks=tuple(told), whole=None)
    weights = int(BACKWARD * share)
    assert items.changed(Change(schedule="zero-bubble")).later_ns == -3 * 2 * weights
    with pytest.raises(NoEvidenceError, match="measured whole"):
        plain.changed(Change(schedule="zero-bubble"))


def with_experts(items: Items, forward: float, backward: float, alone: float = 0.0) -> Items:
    """The pipeline whose steps wait for experts by these shares, and by another are outside layers with experts."""
    shares = {FORWARD: forward, BACKWARD: backward}
    ranks = [
        replace(rank, items=tuple(replace(i, experts=shares[i.own_ns], alone=alone) for i in rank.items))
        for rank in items.ranks
    ]
    return replace(items, ranks=tuple(ranks), joined=None)


@pytest.mark.parametrize(
    ("shares", "pair", "least"),
    [
        ((0.2, 0.1), 260, 260),  # 80 beside 20, and 180 beside 20
        ((0.6, 0.6), 200, 180),  # 40 beside 120, and 80 beside 60; all communication 180
        ((0.6, 0.6, 0.1), 210, 180),  # 10 and 20 beside nothing, 30 beside 120, 60 beside 60
    ],
)
def test_of_a_combined_pair_experts_communicate_beside_the_others_computation(shares, pair, least):
    items = with_experts(perfect(Order(1, 1, 8)), *shares)
    found = items.changed(Change(schedule=COMBINED))
    whole = FORWARD + BACKWARD
    # The first forward and the last backward step run alone. What follows communication may run beside, too.
    assert found.later_ns == 7 * (pair - whole)
    assert (found.least_ns, found.most_ns) == (7 * (least - whole) - round(0.02 * items.step_ns), 0)


def test_combined_steps_of_a_pipeline_are_as_long_as_both_and_end_as_their_order_has_it():
    items = replace(perfect(Order(2, 2, 8)), joined=None)
    combined = perfect(Order(2, 2, 8, combined=True, overlapped=True))
    assert items.changed(Change(schedule=COMBINED)).later_ns == combined.step_ns - items.step_ns


def test_what_another_chunks_exchange_held_up_stays_with_the_chunks():
    """Gradients of the last chunk are reduced while others run backward: not so if there is one chunk."""
    present = Order(2, 2, 8)
    plain = perfect(present)
    first, second = plain.ranks
    items = [
        replace(item, own_ns=item.own_ns + 40, beside=True) if item.parts == {(True, 0, 5)} else item
        for item in first.items
    ]
    held = replace(plain, ranks=(replace(first, items=tuple(items)), second))
    order = Order(2, 1, 8)
    assert held.replayed(order, present) == plain.replayed(order, present)
    assert held.replayed(present, present) == plain.replayed(present, present) + 40
    assert held.replayed(Order(2, 2, 16), present) == plain.replayed(Order(2, 2, 16), present) + 40


def test_what_the_first_micro_batch_takes_more_is_paid_once():
    present = Order(1, 1, 4)
    items = perfect(present, first_more=50)
    assert items.changed(Change(microbatches=40)).later_ns == 36 * (FORWARD + BACKWARD)


@pytest.mark.parametrize(
    ("present", "change", "why"),
    [
        (Order(4, 2, 8), Change(microbatches=6), "a multiple of 4 micro-batches"),
        (Order(4, 1, 8), Change(schedule="interleaved"), "several model chunks in a stage, and the job has one"),
        (Order(1, 1, 8), Change(schedule="1f1b"), "a single pipeline stage has no other schedule"),
        (Order(2, 2, 8, combined=True), Change(schedule="1f1b"), "run into each other"),
        (Order(1, 1, 8), Change(schedule=COMBINED), "nothing shows communication of experts"),
        (Order(4, 1, 8), Change(schedule=COMBINED), "several model chunks in a stage, and the job has one"),
        (Order(1, 1, 8), Change(schedule=COMBINED, chunks=2), "a single pipeline stage has no other schedule"),
        (Order(2, 2, 4, combined=True), Change(microbatches=8), "pairs forward and backward steps that no rank ran"),
    ],
)
def test_an_order_that_cannot_be_made_is_refused_with_the_reason(present, change, why):
    with pytest.raises(NoEvidenceError, match=why):
        perfect(present).changed(change)


def test_micro_batches_in_an_unknown_order_are_refused():
    items = perfect(Order(2, 1, 4))
    swapped = [replace(rank, items=rank.items[::-1]) for rank in items.ranks]
    with pytest.raises(NoEvidenceError, match="the order of no schedule that is known"):
        replace(items, ranks=tuple(swapped)).changed(Change(microbatches=8))
