"""What the exchanges of a pipeline carry, known from the order of the steps alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analyze.schedules import interleaved, one_forward_one_backward
from traceviz_dag.analyze.matching.message_schedule import ANY, RECEIVES, SENDS, RankSchedule, carried_messages

Exchange = tuple[int, int]
"""(steps launched before, kind)."""


def carried(order, stages: int, stage: int, chunks: int, exchanges: list[Exchange], **more) -> list[set[str]]:
    """What each exchange carries, as > for sends and < for receives, with the step."""
    schedule = RankSchedule(
        virtual=np.array([chunk * stages + stage for _, chunk, _ in order]),
        direction=np.array([0 if kind == "F" else 1 for kind, *_ in order]),
        last=stages * chunks - 1,
        gaps=np.array([gap for gap, _ in exchanges]),
        kinds=np.array([kind for _, kind in exchanges]),
        **more,
    )
    result = carried_messages(schedule)
    assert result.unassigned == 0
    found: list[set[str]] = [set() for _ in exchanges]
    for exchange, step, sends in zip(result.exchange, result.step, result.sends, strict=True):
        kind, chunk, index = order[step]
        found[exchange].add(f"{'>' if sends else '<'}{kind}{chunk}{index}")
    return found


def test_plain_1f1b_of_a_middle_stage():
    # recv F, send F | recv F, send F | recv F in warm-up, then exchanges that go both ways, then the cool-down.
    order = one_forward_one_backward(4, 1, 4)
    assert [f"{kind}{index}" for kind, _, index in order] == ["F0", "F1", "F2", "B0", "F3", "B1", "B2", "B3"]
    single = [(0, ANY), (1, ANY), (1, ANY), (2, ANY), (2, ANY)]
    both = [(3, ANY), (4, ANY), (5, ANY), (6, ANY), (6, ANY), (7, ANY), (7, ANY), (8, ANY)]
    assert carried(order, 4, 1, 1, single + both) == [
        *({"<F00"}, {">F00"}, {"<F01"}, {">F01"}, {"<F02"}),
        *({">F02", "<B00"}, {">B00", "<F03"}, {">F03", "<B01"}),
        *({">B01"}, {"<B02"}, {">B02"}, {"<B03"}, {">B03"}),
    ]


def test_the_last_stage_sends_no_activation_and_gets_no_gradient():
    order = one_forward_one_backward(2, 1, 3)
    exchanges = [(0, ANY), (2, ANY), (4, ANY), (6, ANY)]
    assert carried(order, 2, 1, 1, exchanges) == [{"<F00"}, {">B00", "<F01"}, {">B01", "<F02"}, {">B02"}]


@pytest.mark.parametrize("stage", range(4))
def test_interleaved_batches_carry_every_message_exactly_once(stage):
    order = interleaved(4, stage, 8, 2)
    warmup = sum(1 for kind, *_ in order[: [kind for kind, *_ in order].index("B") - 1])
    gaps = [0, *range(1, warmup + 1), *range(warmup + 2, len(order) - warmup + 1, 2)]
    gaps += range(len(order) - warmup + 1, len(order) + 1)
    found = carried(order, 4, stage, 2, [(gap, ANY) for gap in gaps])
    messages = [message for exchange in found for message in exchange]
    assert len(messages) == len(set(messages))
    steady = found[warmup + 1]
    assert len([message for message in steady if message[0] == ">"]) <= 2


def test_overlapped_single_messages_are_posted_ahead_of_the_step_of_their_direction():
    # Stage 1 of 3, two chunks: after a forward step its output is sent and the next forward's input posted; likewise
    # after a backward step; the first gradient is posted with the last exchange of the warm-up.
    order = [("F", 0, 0), ("F", 0, 1), ("F", 0, 2), ("B", 1, 0), ("F", 1, 0), ("B", 1, 1), ("B", 0, 0)]
    exchanges = [
        (0, ANY),
        *((1, SENDS), (1, RECEIVES), (2, SENDS), (2, RECEIVES), (2, RECEIVES)),
        *((3, SENDS), (3, RECEIVES), (4, SENDS), (4, RECEIVES)),
        *((5, SENDS), (6, SENDS), (6, RECEIVES), (7, SENDS)),
    ]
    assert carried(order, 3, 1, 2, exchanges) == [
        {"<F00"},
        *({">F00"}, {"<F01"}, {">F01"}, {"<F02"}, {"<B10"}),
        *({">F02"}, {"<F10"}, {">B10"}, {"<B11"}),
        *({">F10"}, {">B11"}, {"<B00"}, {">B00"}),
    ]


def test_a_batch_of_gloo_sends_to_the_stage_before_first():
    order = [("F", 0, 0), ("F", 0, 1), ("B", 0, 0), ("B", 0, 1)]
    exchanges = [
        (0, RECEIVES),
        (1, SENDS),
        (1, RECEIVES),
        (1, RECEIVES),
        (3, SENDS),
        (3, SENDS),
        (3, RECEIVES),
        (4, SENDS),
    ]
    gloo = carried(order, 3, 1, 1, exchanges, previous_first=True)
    assert (gloo[4], gloo[5]) == ({">B00"}, {">F01"})
    nccl = carried(order, 3, 1, 1, exchanges)
    assert (nccl[4], nccl[5]) == ({">F01"}, {">B00"})


def test_an_exchange_that_the_profiler_lost_leaves_its_messages_unassigned():
    order = one_forward_one_backward(2, 0, 2)
    schedule = RankSchedule(np.zeros(4, dtype=np.int64), np.array([0, 0, 1, 1]), 1, np.array([1]), np.array([ANY]))
    assert [kind for kind, *_ in order] == ["F", "F", "B", "B"]
    assert carried_messages(schedule).unassigned == 4 - len(carried_messages(schedule).step)
