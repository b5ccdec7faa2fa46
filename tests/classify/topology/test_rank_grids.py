"""The rank grids: algebra for any sizes, and what Megatron refuses."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.classify.megatron_truth import CONFIGURATIONS, sizes, truth
from traceviz_dag.classify.topology.parallel_sizes import ORDER_TOKENS, ParallelSizes
from traceviz_dag.classify.topology.rank_grids import DENSE_GROUPS, EXPERT_GROUPS, compute_grids
from traceviz_dag.errors import UsageError

ORDERS = ["-".join(order) for order in permutations(ORDER_TOKENS)]


@st.composite
def parallel_sizes(draw):
    """Sizes that Megatron accepts: both grids fill the world, and the order is one that it accepts for them."""
    small = st.integers(1, 3)
    etp, ep, pp, edp = draw(small), draw(small), draw(small), draw(small)
    per_stage = etp * ep * edp
    tp = draw(st.sampled_from([n for n in range(1, per_stage + 1) if per_stage % n == 0]))
    cp = draw(st.sampled_from([n for n in range(1, per_stage // tp + 1) if per_stage // tp % n == 0]))
    dp = per_stage // (tp * cp)
    instances = draw(st.sampled_from([n for n in (1, 2, 3) if edp % n == 0 and dp * cp % n == 0]))
    chosen = {"world": per_stage * pp, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp}
    chosen["distributed_optimizer_instances"] = instances
    try:
        return ParallelSizes(**chosen, order=draw(st.sampled_from(ORDERS)))
    except UsageError:
        return ParallelSizes(**chosen)


@settings(max_examples=80, deadline=None)
@given(parallel_sizes())
def test_groups_of_each_kind_partition_the_world(chosen):
    grids = compute_grids(chosen)
    dense, expert = chosen.dense(), chosen.expert()
    size_of = {name: [dense[token] for token in tokens] for name, tokens in DENSE_GROUPS.items()}
    size_of |= {name: [expert[token] for token in tokens] for name, tokens in EXPERT_GROUPS.items()}
    for name, groups in grids.groups.items():
        members = sorted(rank for group in groups for rank in group)
        if name not in ("embd", "pos_embd"):
            assert members == list(range(chosen.world)), name
        assert len(members) == len(set(members)), name
        if name in size_of:
            expected = 1
            for size in size_of[name]:
                expected *= size
            assert {len(group) for group in groups} == {expected}, name


@settings(max_examples=80, deadline=None)
@given(parallel_sizes())
def test_a_coordinate_is_the_position_in_the_group_of_its_name(chosen):
    grids = compute_grids(chosen)
    for axis in ("tp", "cp", "dp", "pp", "ep", "etp", "edp"):
        for group in grids.groups[axis]:
            assert [getattr(grids.coordinates[rank], axis) for rank in group] == list(range(len(group)))


@settings(max_examples=80, deadline=None)
@given(parallel_sizes())
def test_a_complete_model_is_closed_under_dense_and_expert_replicas(chosen):
    replicas = compute_grids(chosen).replicas
    model_of = {rank: number for number, model in enumerate(replicas.closure) for rank in model}
    assert sorted(model_of) == list(range(chosen.world))
    for replica in (*replicas.dense_by_dp, *replicas.expert_by_edp):
        assert len({model_of[rank] for rank in replica}) == 1
    # Smallest such partition: no complete model falls into two parts that share no replica.
    for model in replicas.closure:
        reached, frontier = set(), {model[0]}
        while frontier:
            reached |= frontier
            touching = (r for r in (*replicas.dense_by_dp, *replicas.expert_by_edp) if frontier & set(r))
            frontier = {rank for replica in touching for rank in replica} - reached
        assert reached == set(model)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_groups_coordinates_and_replicas_are_megatrons(shared_data, configuration):
    expected = truth(shared_data, configuration)
    grids = compute_grids(sizes(expected["config"]))
    assert {name: [list(group) for group in groups] for name, groups in grids.groups.items()} == expected["groups"]
    for name, replicas in expected["replicas"].items():
        assert [list(replica) for replica in getattr(grids.replicas, name)] == replicas, name
    for rank, row in expected["per_rank"].items():
        for axis, value in row["coords"].items():
            if axis != "dp_cp":
                assert getattr(grids.coordinates[int(rank)], axis) == value


def test_every_ground_truth_file_is_covered(shared_data):
    assert {path.stem for path in (shared_data / "topology").glob("*.json")} == set(CONFIGURATIONS)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"world": 10, "tp": 4}, "not divisible by tp 4"),
        ({"world": 8, "tp": 2, "ep": 3}, "not divisible by etp 2 x ep 3"),
        ({"world": 8, "tp": 0}, "not a positive number"),
        ({"world": 8, "order": "tp-xp-pp"}, "unknown token 'xp'"),
        ({"world": 8, "tp": 2, "order": "tp-dp-tp-pp"}, "more than once"),
        ({"world": 8, "cp": 2, "order": "tp-ep-dp-pp"}, "leaves out 'cp'"),
        ({"world": 8, "vpp": 2}, "needs pp > 1"),
        ({"world": 8, "dp": 3, "tp": 2}, "is not tp 2"),
        ({}, "world size or the data-parallel size"),
        ({"world": 6, "tp": 2, "distributed_optimizer_instances": 2}, "not divisible by 2 distributed-optimizer"),
        ({"world": 16, "tp": 2, "pp": 2, "ep": 2, "order": "tp-cp-ep-pp-dp"}, "dp is 4 and edp is 2"),
        ({"world": 8, "tp": 2, "pp": 2, "ep": 2, "etp": 1, "order": "tp-pp-cp-ep-dp"}, "different pipeline groups"),
    ],
)
def test_impossible_sizes_are_refused_in_one_line(arguments, fault):
    with pytest.raises(UsageError, match=fault) as caught:
        ParallelSizes.of(**arguments)
    assert "\n" not in str(caught.value)


def test_the_world_size_follows_from_the_data_parallel_size():
    assert ParallelSizes.of(dp=3, tp=2, pp=2).world == 12
