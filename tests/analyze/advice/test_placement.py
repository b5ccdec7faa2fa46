"""Another order of ranks on nodes: what it moves, against jobs simulated in that order, and when nothing is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.drawn_faults import step_ns
from tests.sets import fast
from traceviz_dag.analyze.advice.placement import DP_FIRST, PP_FIRST, other_placement, placed
from traceviz_dag.classify.topology.types import Coordinates, Replicas, Topology
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.advice import advisor_of
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.stored_iteration import iterations_at
from traceviz_dag.simulate import JobSettings, simulate


def grid(order: str, dp: int, pp: int, *split: str) -> Topology:
    """Ranks in an order, each with its coordinates; the axes ``split`` have two places each."""
    places = [(d, p) for p in range(pp) for d in range(dp)]
    places = places if order == DP_FIRST else [(d, p) for d in range(dp) for p in range(pp)]
    plain = Coordinates(tp=0, cp=0, ep=0)
    coordinates = {
        rank: replace(plain, dp=d, pp=p, **dict.fromkeys(split, rank % 2)) for rank, (d, p) in enumerate(places)
    }
    return Topology(dp * pp, coordinates, (), (), Replicas(), ())


def halves(world: int) -> dict[int, int]:
    return {rank: rank // (world // 2) for rank in range(world)}


@pytest.mark.parametrize(("order", "other"), [(DP_FIRST, PP_FIRST), (PP_FIRST, DP_FIRST)])
def test_the_other_order_is_the_one_that_is_not_there(order, other):
    topology = grid(order, 2, 4)
    found = other_placement(topology, halves(8))
    assert found.order == other
    there = {rank: then for rank, (_, then) in found.nodes.items()}
    same = {rank: place for rank, place in topology.coordinates.items() if there[rank] == 0}
    shared = {place.dp for place in same.values()} if other == PP_FIRST else {place.pp for place in same.values()}
    assert shared == ({0} if other == PP_FIRST else {0, 1})


@pytest.mark.parametrize(
    ("topology", "nodes", "why"),
    [
        (grid(DP_FIRST, 2, 4), {}, "which node each rank"),
        (grid(DP_FIRST, 2, 4), {0: 0, 1: 1}, "which node each rank"),
        (grid(DP_FIRST, 2, 4), dict.fromkeys(range(8), 0), "run on one node"),
        (grid(DP_FIRST, 1, 8), halves(8), "several stages and replicas"),
        (grid(DP_FIRST, 8, 1), halves(8), "several stages and replicas"),
        (grid(DP_FIRST, 2, 4, "ep"), halves(8), "without context and expert"),
        (grid(DP_FIRST, 2, 4, "cp"), halves(8), "without context and expert"),
    ],
)
def test_why_there_is_no_other_order_is_said(topology, nodes, why):
    with pytest.raises(NoEvidenceError, match=why):
        other_placement(topology, nodes)
    assert why in str(placed(topology, nodes, []))


def test_ranks_in_no_order_of_megatron_are_not_moved():
    topology = grid(DP_FIRST, 2, 4)
    swapped = dict(topology.coordinates)
    swapped[1], swapped[2] = swapped[2], swapped[1]
    with pytest.raises(NoEvidenceError, match="neither of Megatron-LM's orders"):
        other_placement(replace(topology, coordinates=swapped), halves(8))


# Data-parallel groups of three on nodes of four: some cross nodes and some do not, and so do messages of stages.
BOTH = JobSettings(pp=4, dp=3, node_size=4, layers=4, microbatches=8, hidden=1024, heads=8, feed_forward=4096, seed=3)
BOTH = replace(BOTH, vocabulary=2048)
MEGATRONS = {PP_FIRST: "tp-cp-ep-pp-dp", DP_FIRST: "tp-cp-ep-dp-pp"}


def advised(settings: JobSettings, folder):
    simulate(settings, folder / "job", workers=1)
    with iterations_at(folder / "job", folder / "home") as (iteration,):
        steps = ranked_steps(iteration, iteration.table("collectives"), iteration.table("messages"))
        found = placed(iteration.topology, iteration.nodes(), [one.what_if() for one in steps])
        stored = [row["predicted_step_ns"] for row in iteration.table("advice").to_pylist() if row["rank_order"]]
        assert stored == ([] if isinstance(found, str) else [found.gains[0] - found.gains[1]]), "the table has it, too"
        items = iteration.table("advice_items").column("place").to_pylist()
        advisor, untold = advisor_of(iteration, (), None)
        drawn = {place for place, one in enumerate(advisor.advice, 1) if not one.rank_order}
        assert set(items) <= {0, *drawn}, "no pipeline is drawn for it: its items were not made"
        return found, advisor, untold


@pytest.mark.parametrize(
    "settings",
    fast([BOTH, replace(BOTH, dp=2, node_size=3), replace(BOTH, vpp=1, dp=5, node_size=8)], BOTH),
)
def test_the_step_in_the_other_order_is_within_the_bar(tmp_path, settings):
    found, advisor, untold = advised(settings, tmp_path)
    step, gain, low, high = found.gains
    assert found.order == PP_FIRST
    true = step - step_ns(replace(settings, order=MEGATRONS[found.order]))
    assert low <= true <= high and abs(gain - true) < 0.03 * step
    (row,) = (one for one in advisor.advice if one.rank_order)
    assert row.as_row()["change"] == {"rank_order": PP_FIRST} and row.predicted_ns == step - gain
    assert row.flags["megatron_lm"] == ["--use-tp-pp-dp-mapping"]
    assert not any("order of ranks" in line for line in untold)
    kept = replace(advisor, keep=frozenset({"order"}))
    assert not any(one.rank_order for one in kept.advice)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (replace(BOTH, dp=2), "would move DP communication, of which none like it ran across nodes"),
        (
            replace(BOTH, order=MEGATRONS[PP_FIRST]),
            "would move DP communication, of which none like it ran inside nodes",
        ),
        (replace(BOTH, node_size=16), "all ranks run on one node"),
    ],
)
def test_what_was_measured_at_one_place_alone_is_named_and_not_predicted(tmp_path, settings, why):
    found, advisor, untold = advised(settings, tmp_path)
    assert why in found and not any(one.rank_order for one in advisor.advice)
    assert any(line == f"order of ranks on nodes: {found}" for line in untold)
