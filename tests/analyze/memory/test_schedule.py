"""Activations in flight against the orders that Megatron-core's schedules run, and when nothing may be joined."""

from __future__ import annotations

import pytest

from traceviz_dag.analyze.memory.schedule import (
    Activation,
    Interval,
    Model,
    Span,
    alignment,
    expected_in_flight,
    longest_sequence,
    stage_memory,
)
from traceviz_dag.schedules import Backward, Forward, Order

MS = 1_000_000


@pytest.mark.parametrize(("stages", "chunks", "microbatches"), [(1, 1, 4), (4, 1, 8), (4, 1, 2), (2, 2, 4), (4, 3, 8)])
def test_what_is_in_flight_is_what_the_order_of_the_schedule_keeps(stages, chunks, microbatches):
    for stage in range(stages):
        kept: set[tuple[int, int]] = set()
        most, now = 0, 0
        spans, live, activations = [], {}, []
        for action in Order(stages, chunks, microbatches).actions(stage):
            if not isinstance(action, Forward | Backward):
                continue
            key = (action.chunk, action.microbatch)
            forward = isinstance(action, Forward)
            spans.append(Span("forward" if forward else "backward", *key, now, now + MS))
            if forward:
                kept.add(key)
                live[key] = now + 5
            else:
                kept.remove(key)
                start = live.pop(key)
                activations += [Activation(600, start, now + MS - 7), Activation(400, start + 1, now + 9)]
            most = max(most, len(kept))
            now += 2 * MS
        found = stage_memory(spans, activations, spans[0].start_ns + 3, stage, stages, 2)
        assert found.in_flight == found.expected_in_flight == most
        assert most == expected_in_flight(stage, stages, chunks, microbatches)
        assert (found.chunk_bytes, found.layer_bytes) == (1000, 500)
        assert found.in_flight_bytes in (1000 * most, 1000 * most - 400)
        assert (found.peak_phase, found.peak_chunk, found.peak_microbatch) == ("forward", 0, 0)


def test_activations_that_are_never_freed_stay_in_flight():
    spans = [Span("forward", 0, number, number * 10, number * 10 + 5) for number in range(3)]
    found = stage_memory(spans, [Activation(8, number * 10 + 1, None) for number in range(3)], 99, 3, 4, None)
    assert (found.in_flight, found.expected_in_flight, found.in_flight_bytes, found.peak_phase) == (3, 1, 24, None)


def test_clocks_are_compared_by_the_steps_of_the_optimizer_and_refused_where_weak():
    steps = [Interval(0, 10), Interval(1000, 1100)]
    assert alignment(steps, Interval(1020, 1090), 100).residue_ns == 20
    assert alignment(steps, Interval(1020, 1090), 100).refusal is None
    # Half of the shortest step apart: a block could be of the neighbour.
    assert "clocks may be" in (alignment(steps, Interval(1160, 1190), 100).refusal or "")
    assert "no launch" in (alignment(steps, None, 100).refusal or "")
    assert "no step of the optimizer" in (alignment([], Interval(0, 1), 100).refusal or "")
    assert "no call stacks" in (alignment(steps, Interval(1020, 1090), None).refusal or "")


def test_the_formula_of_a_known_model():
    """GPT-3 175B of the paper: s 2048, b 1, h 12288, a 96, t 8."""
    unit = 2048 * 12288
    assert Model(2048, 12288, 96, 1, 8, stored_scores=True).layer_bytes == unit * (34 + 5 * 96 * 2048 // 12288) // 8
    assert Model(2048, 12288, 96, 1, 8).layer_bytes == 34 * unit // 8
    assert Model(2048, 12288, 96, 1, 8, recompute=True).layer_bytes == 2 * unit // 8


@pytest.mark.parametrize("scores", [False, True])
def test_the_longest_sequence_fills_the_headroom_and_one_token_more_does_not_fit(scores):
    model, in_flight, headroom = Model(2048, 4096, 32, stored_scores=scores), 10_000_000, 3_456_789
    quadratic = 5 * 32 / 4096 if scores else 0

    def held(sequence: int) -> float:
        return in_flight * sequence * (34 + quadratic * sequence) / (2048 * (34 + quadratic * 2048))

    found = longest_sequence(model, in_flight, headroom)
    assert held(found) <= in_flight + headroom < held(found + 1) + 1
    assert longest_sequence(model, 0, 5) is None
