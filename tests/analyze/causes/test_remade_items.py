"""Items that no step ran: other chunks, layers and less recomputation, against pipelines built that way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.advise import Job, outcome
from benchmarks.what_if import what_if_of
from tests.analyze.causes.test_reordered import BACKWARD, FORWARD, TAIL, perfect
from tests.sets import fast
from traceviz_dag.analyze.causes.measured_items import Item
from traceviz_dag.analyze.causes.reordered import COMBINED, Change, Items
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.schedules import Order
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Faults, Graphs, Recompute


def known(order: Order, layers: int = 4) -> Items:
    """A perfect pipeline whose stages have as many layers."""
    return replace(perfect(order), layers=(layers,) * order.stages, unknown=None)


def step_ns(items: Items, change: Change) -> int:
    return items.step_ns + items.changed(change).later_ns


@pytest.mark.parametrize(("present", "chunks"), [(1, 2), (1, 4), (2, 4), (4, 2), (4, 1)])
def test_a_perfect_pipeline_takes_what_theory_says_with_any_number_of_chunks(present, chunks):
    ideal = (FORWARD + BACKWARD) * 8 + 3 * (FORWARD + BACKWARD) // chunks + TAIL
    assert step_ns(known(Order(4, present, 8)), Change(chunks=chunks)) == ideal


def test_each_chunk_gathers_its_parameters_in_its_first_item_and_the_embedding_its_own_in_the_first_chunk():
    one = replace(perfect(Order(4, 1, 8), first_more=50), layers=(4,) * 4, unknown=None)
    two = perfect(Order(4, 2, 8), first_more=50)
    assert one.timed(Change(chunks=2)) == two.timed(Change())
    first, *others = one.ranks
    longer = tuple(replace(each, own_ns=each.own_ns + 30 * (each.parts == {(0, 0, 0)})) for each in first.items)
    found = replace(one, ranks=(replace(first, items=longer), *others)).timed(Change(chunks=2))
    taken = {(each.stage, *each.parts): each.end_ns - each.start_ns for each in found}
    assert taken[0, (0, 0, 0)] == FORWARD // 2 + 80 and taken[0, (0, 1, 0)] == FORWARD // 2 + 50
    assert taken[1, (0, 0, 0)] == FORWARD // 2 + 50


def _items(items: Items, stage: int, **more: float) -> Items:
    """The pipeline with other items on a stage."""
    mine = items.ranks[stage]
    changed: list[Item] = [replace(item, **more) for item in mine.items]
    return replace(items, ranks=(*items.ranks[:stage], replace(mine, items=tuple(changed)), *items.ranks[stage + 1 :]))


def test_a_stage_takes_in_proportion_to_its_layers_and_the_optimizer_its_layers_more():
    items = known(Order(2, 1, 8))
    slower = (FORWARD + BACKWARD) * 8 * 6 // 4
    assert step_ns(items, Change(layers=(6, 2))) == slower + TAIL
    of_now = [rank.slack_ns for rank in items.ranks]
    with_tail = replace(items, slack=lambda more: [each - 30 * max(more) for each in of_now])
    assert step_ns(with_tail, Change(layers=(6, 2))) == slower + TAIL + 60


def test_what_layers_do_not_run_stays_in_its_stage_and_its_chunk():
    """Half of the last stage's items is the output layer: with half the layers it takes three quarters."""
    items = _items(known(Order(2, 1, 8)), 1, rest=0.5)
    moved = step_ns(items, Change(layers=(2, 6)))
    assert moved == round((FORWARD + BACKWARD) * 8 * 1.25 + (FORWARD + BACKWARD) / 2) + TAIL
    # The last chunk of the last stage takes three quarters of its items, which no other chunk waits for in vain.
    assert step_ns(items, Change(chunks=2)) > step_ns(known(Order(2, 1, 8)), Change(chunks=2))


def test_what_passes_before_the_first_kernel_passes_in_every_chunk():
    order = Order(2, 1, 8)
    plain = known(order)
    led = replace(
        plain, ranks=tuple(replace(r, items=tuple(replace(i, lead_ns=20) for i in r.items)) for r in plain.ranks)
    )
    assert step_ns(led, Change(chunks=2)) > step_ns(plain, Change(chunks=2)) + 8 * 20


def test_a_step_without_recomputation_lacks_what_was_recomputed():
    items = known(Order(2, 1, 8))
    for stage in (0, 1):
        mine = items.ranks[stage]
        again = tuple(replace(one, again=0.5 * any(back for back, _, _ in one.parts)) for one in mine.items)
        items = replace(items, ranks=(*items.ranks[:stage], replace(mine, items=again), *items.ranks[stage + 1 :]))
    assert step_ns(items, Change(no_recompute=(0, 1))) == (FORWARD + BACKWARD // 2) * 9 + TAIL
    assert step_ns(items, Change(no_recompute=(1,))) > step_ns(items, Change(no_recompute=(0, 1)))


@pytest.mark.parametrize(
    ("items", "change", "why"),
    [
        (perfect(Order(2, 1, 8)), Change(chunks=2), "nothing shows the layers"),
        (known(Order(2, 1, 8), 3), Change(chunks=2), "3 layers of a stage cannot be split into 2"),
        (known(Order(2, 1, 8)), Change(layers=(4, 3)), "must share the layers that they have now: 4, 4"),
        (known(Order(2, 1, 8)), Change(layers=(8, 0)), "must share the layers"),
        (known(Order(2, 1, 8)), Change(no_recompute=(0, 1)), "not every such stage recomputes"),
        (known(Order(2, 1, 8)), Change(chunks=2, schedule="1f1b"), "1f1b runs one model chunk"),
        (known(Order(2, 1, 6)), Change(chunks=2, microbatches=7), "a multiple of 2 micro-batches"),
        (known(Order(2, 2, 4, combined=True)), Change(layers=(6, 2)), "run into each other"),
        (known(Order(1, 1, 4)), Change(chunks=2), "a single pipeline stage has no other schedule"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(items, change, why):
    with pytest.raises(NoEvidenceError, match=why):
        items.changed(change)


def test_the_step_of_a_simulated_job_with_other_chunks_and_layers_is_predicted(tmp_path):
    job = JobSettings(seed=5, pp=2, layers=8, microbatches=4, hidden=2048, heads=16, feed_forward=8192)
    found = outcome(Job("pp2", job, (Change(chunks=2), Change(layers=(5, 3)), Change(8, chunks=4))), tmp_path)
    assert all(abs(pair.off) < 0.02 and pair.held for pair in found.pairs)
    assert all(found.orders)


@pytest.mark.parametrize(
    ("job", "layers"),
    [
        # The norm of gradients joins the stages: the middle one's optimizer gets longer and ends the step.
        (JobSettings(seed=117, pp=3, layers=6, microbatches=6, sequence=2048), (1, 3, 2)),
        # Both of two stages have a vocabulary, whose optimizer does not move with layers.
        (JobSettings(seed=121, pp=2, layers=8, microbatches=5, sequence=2048, hidden=2048), (6, 2)),
    ],
)
def test_the_optimizer_of_other_layers_is_that_of_the_stage_that_ends_last(job, layers, tmp_path):
    (pair,) = outcome(Job("layers", job, (Change(layers=layers),)), tmp_path).pairs
    assert abs(pair.off) < 0.007 and pair.held


def test_messages_of_chunks_from_the_last_to_the_first_stage_cross_nodes_where_others_do(tmp_path):
    job = JobSettings(seed=34, pp=4, layers=8, microbatches=8, hidden=2048, heads=16, feed_forward=8192, node_size=2)
    (pair,) = outcome(Job("nodes", job, (Change(chunks=2),)), tmp_path).pairs
    assert abs(pair.off) < 0.01 and pair.held


EXPERTS = JobSettings(seed=24, ep=2, dp=2, layers=2, microbatches=4, hidden=2048, heads=16, feed_forward=8192)


@pytest.mark.parametrize(
    ("job", "change"),
    fast(
        [
            (EXPERTS, Change(schedule=COMBINED)),
            (replace(EXPERTS, pp=2, layers=4), Change(schedule=COMBINED, chunks=2)),
            (replace(EXPERTS, pp=2, layers=4, vpp=2, overlap_p2p=True), Change(schedule=COMBINED)),
        ],
        (EXPERTS, Change(schedule=COMBINED)),
    ),
)
def test_the_step_of_a_simulated_job_with_combined_steps_is_predicted(job, change, tmp_path):
    (pair,) = (found := outcome(Job("experts", job, (change,)), tmp_path)).pairs
    assert abs(pair.off) < 0.015 and pair.held and pair.true_ns < 0.97 * found.step_ns


@pytest.mark.long
def test_the_bar_of_combined_steps_holds_what_follows_communication_and_runs_beside_too(tmp_path):
    job = replace(EXPERTS, seed=5, ep=4, dp=4, layers=4, microbatches=8, faults=Faults(slow_gpu=1))
    (pair,) = outcome(Job("slow", job, (Change(schedule=COMBINED),)), tmp_path).pairs
    assert pair.true_ns < 0.98 * pair.predicted_ns and pair.held


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (replace(EXPERTS, hidden=512, heads=4, feed_forward=2048), "GPUs wait for their hosts"),
        (replace(EXPERTS, hybrid_pattern="ME"), "does not combine steps of hybrid models"),
        pytest.param(replace(EXPERTS, mtp_layers=2), "depths of multi-token prediction", marks=pytest.mark.long),
        (replace(EXPERTS, recompute=Recompute.FULL), "experts' communication is recomputed"),
        (replace(EXPERTS, ep=1), "nothing shows communication of experts"),
    ],
)
def test_combined_steps_are_refused_where_nothing_shows_what_they_take(job, why, tmp_path):
    what_if = what_if_of(job, tmp_path / "job")
    with pytest.raises(NoEvidenceError, match=why):
        what_if.predict(what_if.reorder(Change(schedule=COMBINED)))


@pytest.mark.parametrize("recompute", fast([Recompute.FULL, Recompute.SELECTIVE], Recompute.FULL))
def test_the_step_of_a_simulated_job_without_recomputation_is_predicted(recompute, tmp_path):
    job = JobSettings(seed=21, pp=2, layers=4, microbatches=4, hidden=2048, heads=16, feed_forward=8192)
    changes = Change(no_recompute=(1,)), Change(no_recompute=(0, 1))
    found = outcome(Job("pp2", replace(job, recompute=recompute), changes), tmp_path)
    assert all(abs(pair.off) < 0.01 and pair.held for pair in found.pairs)
    assert {pair.change.no_recompute: pair.true_ns < 0.98 * found.step_ns for pair in found.pairs}[0, 1]


APART = {
    "chunks": {"vpp": 2, "layers": 12},
    "replicas": {"dp": 2},
    "experts": {"pp": 2, "ep": 2, "dp": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("name", fast([*APART], "replicas"))
def test_the_step_of_a_simulated_job_with_zero_bubble_is_predicted(name, tmp_path):
    plain = JobSettings(seed=22, pp=3, layers=6, microbatches=6, hidden=2048, heads=16, feed_forward=8192)
    job = replace(plain, overlap_grad_reduce=False, **APART[name])
    (pair,) = outcome(Job("apart", job, (Change(schedule="zero-bubble"),)), tmp_path).pairs
    assert abs(pair.off) < 0.01 and pair.held and pair.true_ns < 0.98 * what_if_of(job, tmp_path / "now").step_ns


@pytest.mark.parametrize(
    ("more", "why"),
    [
        pytest.param({"tp": 2}, "communication runs beside gradients of weights", marks=pytest.mark.long),
        ({"dp": 2}, "communication runs beside gradients of weights"),
        ({"persistent": True}, "names of matrix products do not tell"),
        pytest.param({"cuda_graphs": Graphs.LAYER}, "CUDA graphs run backward steps whole", marks=pytest.mark.long),
    ],
)
def test_where_gradients_of_weights_are_not_told_or_hide_something_zero_bubble_is_refused(more, why, tmp_path):
    job = JobSettings(seed=22, pp=2, layers=2, microbatches=2, hidden=1024, heads=8, feed_forward=4096)
    found = what_if_of(replace(job, **more), tmp_path / "job")
    with pytest.raises(NoEvidenceError, match=why):
        found.predict(found.reorder(Change(schedule="zero-bubble")))


HOST_BOUND = JobSettings(seed=7, pp=3, layers=12, microbatches=3, hidden=512, heads=8, feed_forward=2048, sequence=1024)


@pytest.mark.parametrize("overlapped", [False, True])
def test_whether_exchanges_overlap_is_seen_and_not_guessed_from_the_length_of_the_step(overlapped, tmp_path):
    # Of hosts that launch too slowly, neither replay comes near the step.
    found = what_if_of(replace(HOST_BOUND, vpp=4, overlap_p2p=overlapped), tmp_path / "job")
    assert found.items.now.overlapped is overlapped


def test_the_pipeline_drawn_of_a_change_is_the_one_that_predicts_its_step():
    items = known(Order(4, 2, 8))
    halved = tuple(
        replace(rank, items=tuple(replace(one, own_ns=one.own_ns // 2) for one in rank.items)) for rank in items.ranks
    )
    ahead = replace(items, ranks=halved)
    for change, own in ((Change(schedule="interleaved-overlapped"), ahead), (Change(schedule="interleaved"), items)):
        later = items.changed(change, lambda: ahead).later_ns
        drawn = items.timed(change, lambda: ahead)
        assert drawn == own.timed(change)
        assert max(one.end_ns for one in drawn) == items.step_ns + later - TAIL
