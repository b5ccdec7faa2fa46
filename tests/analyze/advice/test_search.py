"""Advice: what is tried, what is left out, what comes first, and that nothing is advised to a job that is best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.analyze.causes.test_remade_items import _items, known
from tests.analyze.causes.test_reordered import BACKWARD, with_experts
from traceviz_dag.analyze.advice.flags import flags
from traceviz_dag.analyze.advice.memory import NO_SNAPSHOTS, StageUse, fits, in_flight
from traceviz_dag.analyze.advice.search import Advisor, not_predictable
from traceviz_dag.analyze.causes.reordered import COMBINED, Change, Items
from traceviz_dag.analyze.memory.schedule import expected_in_flight
from traceviz_dag.schedules import Order


class Replayed:
    """Predictions of items alone."""

    def __init__(self, items: Items) -> None:
        self.items = items

    def gains(self, change: Change) -> tuple[int, int, int, int]:
        gain = -self.items.changed(change).later_ns
        return self.items.step_ns, gain, gain - 5, gain + 5


def advisor(items: Items, *keep: str, uses: dict[int, StageUse] | None = None) -> Advisor:
    return Advisor(items, Replayed(items), uses or {}, frozenset(keep))


def test_the_shortest_step_comes_first_and_only_orders_that_can_be_are_tried():
    found = advisor(known(Order(4, 1, 8))).advice
    assert found[0].change.chunks == 4 and found[0].wins and found[0].same_batch
    same = [one for one in found if one.same_batch]
    assert [one.predicted_ns for one in same] == sorted(one.predicted_ns for one in same)
    assert {one.change.chunks for one in found} <= {None, 2, 4}, "4 layers have no third"
    assert all(sum(one.change.layers) == 16 for one in found if one.change.layers)
    assert all(one.flags["megatron_lm"] and one.flags["megatron_bridge"] for one in found)
    assert len({(one.change.order(Order(4, 1, 8)), one.change.layers) for one in found}) == len(found)


def test_micro_batches_that_are_no_multiple_of_the_stages_allow_no_chunks():
    found = advisor(known(Order(4, 1, 6))).advice
    assert all(one.change.chunks is None for one in found if one.same_batch)
    assert all(one.microbatches[1] == 12 for one in found if one.change.chunks)


def test_two_stages_interleave_only_with_overlap():
    found = advisor(known(Order(2, 1, 4))).advice
    assert {one.change.schedule for one in found if one.change.chunks} == {"interleaved-overlapped"}


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ("vpp", lambda change: change.chunks is None),
        ("layers", lambda change: change.layers is None),
        ("microbatches", lambda change: change.microbatches is None),
        ("schedule", lambda change: change.schedule is None and change.chunks is None),
    ],
)
def test_what_is_kept_stays(keep, left):
    items = known(Order(4, 1, 8))
    assert all(left(one.change) for one in advisor(items, keep).advice)
    assert not all(left(one.change) for one in advisor(items).advice)


def test_a_job_that_is_best_wins_nothing():
    items = known(Order(4, 4, 8))
    assert not any(one.wins for one in advisor(items).advice if one.change.schedule is None)
    assert not any(one.wins for one in advisor(known(Order(1, 1, 8))).advice)


def test_more_micro_batches_are_faster_for_each_and_no_gain_of_the_batch():
    (one,) = (one for one in advisor(known(Order(4, 1, 8)), "vpp", "layers", "schedule").advice)
    assert one.change == Change(microbatches=16) and one.speed > 1.1 and not one.wins
    assert one.flags["megatron_lm"] == ["--global-batch-size 2 times as large"]


def test_the_stage_that_has_most_to_do_gives_layers_away():
    items = known(Order(4, 1, 8))
    last = items.ranks[3]
    slow = tuple(replace(one, own_ns=one.own_ns * 2, rest=0.5) for one in last.items)
    items = replace(items, ranks=(*items.ranks[:3], replace(last, items=slow)))
    first = advisor(items, "vpp", "microbatches").advice[0]
    assert first.change.layers is not None and first.change.layers[3] < 4 and first.wins


def test_a_change_that_lacks_memory_comes_last_and_is_no_win():
    items = known(Order(4, 1, 8))
    uses = {stage: StageUse(70, 40, 80) for stage in range(4)}
    found = advisor(items, uses=uses).advice
    assert found[0].fits is not False
    lacking = [one.fits is False for one in found]
    assert any(lacking) and lacking == sorted(lacking)
    assert not any(one.wins for one in found if one.fits is False)
    # Two chunks keep 5.5 micro-batches on the first stage instead of 4.
    two = next(one for one in found if one.change == Change(chunks=2))
    assert two.in_flight[0] == 5.5 and two.fits is False and "stage 0 would need 106%" in two.why


@pytest.mark.parametrize(("chunks", "count"), [(1, 8), (1, 2), (2, 8), (4, 16)])
def test_micro_batches_in_flight_are_those_of_the_schedule(chunks, count):
    order = Order(4, chunks, count)
    for stage, held in enumerate(in_flight(order)):
        assert held * chunks == expected_in_flight(stage, 4, chunks, count)


def test_whether_it_fits_is_unknown_without_snapshots_gpu_or_what_recomputation_saves():
    now = Order(2, 1, 4)
    layers = (4, 4), (4, 4)
    assert fits(Change(), now, now, layers, {}) == (None, NO_SNAPSHOTS)
    use = StageUse(70, 40, 80)
    assert fits(Change(), now, now, layers, {0: use})[0] is None
    assert fits(Change(), now, now, layers, {0: use, 1: StageUse(70, 40, None)})[0] is None
    assert fits(Change(no_recompute=(0, 1)), now, now, layers, {0: use, 1: use})[0] is None
    # Two chunks need 80 with recomputation on the first stage and 90 on the last, and more than that without.
    small, off, two = StageUse(70, 40, 85), Change(no_recompute=(0, 1)), Order(2, 2, 4)
    room, why = fits(off, now, two, layers, {0: small, 1: small})
    assert room is False and why is not None and "stage 1 would need 106%" in why
    assert fits(Change(), now, now, layers, {0: use, 1: use}) == (True, None)
    # A quarter more layers need 50 and 30 to 37.5: it depends on what of the 30 grows.
    more = (4, 4), (5, 3)
    assert fits(Change(layers=(5, 3)), now, now, more, {0: use, 1: use})[0] is None
    assert fits(Change(layers=(5, 3)), now, now, more, {0: StageUse(70, 40, 79), 1: use})[0] is False


def test_counters_tell_what_fits_and_what_does_not_only_if_too_much_is_reserved_now():
    """Of 70 that are reserved 40 rose in micro-batches: activations, or less than that."""
    now, two, less = Order(2, 1, 4), Order(2, 2, 4), Order(2, 1, 1)
    layers = (4, 4), (4, 4)

    def asked(order: Order, gpu: int) -> tuple[bool | None, str | None]:
        return fits(Change(), now, order, layers, {stage: StageUse(70, 40, gpu, counted=True) for stage in (0, 1)})

    # Two chunks keep 2.5 micro-batches on the first stage instead of 2, and 1.5 instead of 1 on the last: 60 of 40.
    assert asked(two, 90) == (True, None)
    room, why = asked(two, 80)
    assert room is None and why is not None and "stage 1 would need 112%" in why
    # What is reserved now is too much on the last stage, which keeps no fewer; on the first one nothing shows it.
    assert asked(less, 70) == (True, None) and asked(less, 69)[0] is False
    roomy = {0: StageUse(70, 40, 69, counted=True), 1: StageUse(70, 40, 70, counted=True)}
    assert fits(Change(), now, less, layers, roomy)[0] is None


def test_what_counters_saw_rise_may_grow_with_the_layers():
    """Of 70 that are reserved 40 rose: gradients, which grow with the layers, or activations, of which fewer stay."""
    now, less, layers = Order(2, 1, 4), Order(2, 1, 1), ((4, 4), (6, 2))

    def asked(gpu: int) -> bool | None:
        uses = {0: StageUse(70, 40, gpu, counted=True), 1: StageUse(7, 4, gpu, counted=True)}
        return fits(Change(layers=(6, 2)), now, less, layers, uses)[0]

    assert asked(105) is True and asked(104) is None


def test_zero_bubble_is_tried_where_backward_steps_are_told_apart_and_named_where_not():
    whole = known(Order(4, 1, 8))
    apart = replace(
        whole,
        ranks=tuple(
            replace(rank, items=tuple(replace(one, weights=0.5 * (one.own_ns == BACKWARD)) for one in rank.items))
            for rank in whole.ranks
        ),
        whole=None,
    )
    found = advisor(apart, "vpp", "layers", "microbatches")
    (one,) = found.advice
    assert one.change == Change(schedule="zero-bubble") and one.wins
    assert one.in_flight == (4, 4, 4, 4), "of the last stage, too: the products that come last need them"
    assert one.flags["megatron_lm"][0].startswith("no flag: ") and "ZB-H1" in one.assumptions[0]
    assert not any("zero-bubble" in line for line in not_predictable(found, ()))
    assert not advisor(apart, "schedule", "layers", "microbatches").advice
    assert any("zero-bubble" in line and "measured whole" in line for line in not_predictable(advisor(whole), ()))
    assert all(one.change.schedule != "zero-bubble" for one in advisor(whole).advice)


def test_combined_steps_are_tried_where_experts_communicate_and_named_where_not():
    told = with_experts(known(Order(1, 1, 8)), 0.2, 0.2)
    (one,) = advisor(told, "microbatches").advice
    assert one.change == Change(schedule=COMBINED) and one.wins and one.in_flight == (2,)
    assert one.flags["megatron_lm"][:2] == ["--overlap-moe-expert-parallel-comm", "without --moe-shared-expert-overlap"]
    assert "comm_overlap.overlap_moe_expert_parallel_comm=True" in one.flags["megatron_bridge"]
    assert not any("combined" in line for line in not_predictable(advisor(told), ["ep"]))
    assert not advisor(told, "microbatches", "schedule").advice
    # A single micro-batch has no pair.
    assert [one.change.microbatches for one in advisor(with_experts(known(Order(1, 1, 1)), 0.2, 0.2)).advice] == [2, 2]
    # A pipeline needs several chunks, and exchanges beside computation.
    found = advisor(with_experts(known(Order(4, 1, 8)), 0.2, 0.2), "layers", "microbatches").advice
    combined = [one for one in found if one.change.schedule == COMBINED]
    assert {one.change.chunks for one in combined} == {2, 4}
    assert all("--num-virtual-stages-per-pipeline-rank" in one.flags["megatron_lm"][0] for one in combined)
    assert any("nothing shows" in line for line in not_predictable(advisor(known(Order(1, 1, 8))), ["ep"]))


def test_recomputation_is_left_out_in_all_stages_the_last_one_or_the_last_half():
    items = known(Order(4, 1, 8))
    for stage in range(4):
        items = _items(items, stage, again=0.25)
    found = advisor(items, "vpp", "layers", "microbatches", "schedule").advice
    # Each gains where it is; all stages run at the pace of the slowest one.
    assert [one.change.no_recompute for one in found] == [(0, 1, 2, 3), (2, 3), (3,)]
    assert all(one.fits is None for one in found)
    assert found[0].flags["megatron_lm"] == ["without --recompute-granularity and --recompute-activations"]
    assert found[2].flags["megatron_bridge"] == ["recompute_granularity=None on ranks of stage 3"]
    assert not advisor(items, "vpp", "layers", "microbatches", "schedule", "recompute").advice
    both = [one.change for one in advisor(items).advice if one.change.no_recompute not in (None, (0, 1, 2, 3))]
    assert both and all(change == Change(no_recompute=change.no_recompute) for change in both)


EVEN, ENDS, MIXED = (4, 4, 4, 4), (3, 5, 5, 3), (4, 6, 4, 2)
LAYOUT = "--pipeline-model-parallel-layout 'Ett|ttt|tt|t|tt|ttt|tt|tL'"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"


def test_flags_name_the_first_and_the_last_stage_or_a_layout():
    now, two = Order(4, 1, 8), Order(4, 2, 8)
    ends = flags(Change(layers=ENDS), now, now, EVEN)
    assert ends["megatron_lm"] == ["--decoder-first-pipeline-num-layers 3", "--decoder-last-pipeline-num-layers 3"]
    layout = flags(Change(layers=MIXED, chunks=2), now, two, EVEN)
    assert LAYOUT in layout["megatron_lm"] and "--no-overlap-p2p-communication" in layout["megatron_lm"]
    merged = flags(Change(chunks=1), two, now, ())
    assert "virtual_pipeline_model_parallel_size=None" in merged["megatron_bridge"]


def test_flags_are_together_what_megatron_lm_takes():
    # Of chunks and layouts it takes one, and beside a layout no layers of the first and the last stage.
    for was, then, before, chunks in product((EVEN, ENDS, MIXED), (None, EVEN, ENDS, MIXED), (1, 2), (1, 2)):
        if then == was or (then is None and before == chunks):
            continue
        change = Change(layers=then, chunks=chunks if chunks != before else None)
        lines = flags(change, Order(4, before, 8), Order(4, chunks, 8), was)["megatron_lm"]
        given = [line.split()[0] for line in lines if line.startswith("--")]
        gone = [word for line in lines if line.startswith("without ") for word in line.split() if word.startswith("--")]
        layout, layers = "--pipeline-model-parallel-layout" in given, then or was
        assert layout == (layers == MIXED), lines
        assert (VIRTUAL in given) == (chunks > 1 and not layout), lines
        assert not {*given} & {*gone}, lines
        if layout:
            assert len(next(line for line in lines if "layout" in line).split("|")) == 4 * chunks
            assert before == 1 or VIRTUAL in gone, lines
            assert then is None or was == EVEN or "--decoder-first-pipeline-num-layers" in gone, lines
        elif was != EVEN:
            assert "--pipeline-model-parallel-layout" in gone, "what set the layers until now goes"


def test_exchanges_that_do_not_overlap_are_batched_in_bridge_as_in_megatron_lm():
    now, two = Order(4, 2, 8, overlapped=True), Order(4, 2, 8)
    apart = flags(Change(schedule="interleaved"), now, two, EVEN)["megatron_bridge"]
    assert apart[:2] == ["comm_overlap.overlap_p2p_comm=False", "comm_overlap.batch_p2p_comm=True"]


@pytest.mark.parametrize(("change", "order"), [("1f1b", Order(4, 1, 8)), ("interleaved", Order(4, 2, 8))])
def test_exchanges_that_overlap_no_longer_do_not_in_warmup_and_flush(change, order):
    """ModelParallelConfig refuses overlap_p2p_comm_warmup_flush without overlap_p2p_comm, or with batch_p2p_comm."""
    found = flags(Change(schedule=change), Order(4, 2, 8, overlapped=True), order, EVEN)
    assert "without --overlap-p2p-communication-warmup-flush" in found["megatron_lm"]
    assert ("--no-overlap-p2p-communication" in found["megatron_lm"]) == (order.chunks > 1)
    assert found["megatron_bridge"][-3:] == [
        "comm_overlap.overlap_p2p_comm=False",
        "comm_overlap.batch_p2p_comm=True",
        "overlap_p2p_comm_warmup_flush=False",
    ]
    plain = flags(Change(schedule="1f1b"), Order(4, 2, 8), Order(4, 1, 8), EVEN)
    assert not any("flush" in line or "p2p" in line for each in plain.values() for line in each)


def test_a_job_that_overlaps_its_exchanges_is_not_told_to_wait_for_them():
    found = advisor(replace(known(Order(4, 2, 8, overlapped=True)), overlapped=True))
    orders = [one.change.order(found.items.now) for one in found.advice]
    assert orders and all(order.overlapped or order.chunks == 1 for order in orders)
    assert any("without overlap" in line for line in not_predictable(found, ()))
    assert not any("without overlap" in line for line in not_predictable(advisor(known(Order(4, 2, 8))), ()))


def test_what_one_capture_cannot_tell_is_named():
    items = known(Order(4, 1, 8))
    lines = not_predictable(advisor(items), ("ep", "pp"))
    assert any("tensor, context and expert" in line for line in lines) and any("combined" in line for line in lines)
    unknown = not_predictable(advisor(replace(items, unknown="no stacks")), ())
    assert unknown[-1] == "more chunks and other layers: no stacks"
