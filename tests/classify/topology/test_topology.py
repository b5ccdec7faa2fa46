"""The topology united over sources: equal to Megatron's own, whole from a part, and honest where sources contradict."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from tests.classify.megatron_truth import CONFIGURATIONS, RUNS, all_headers, rank_zero_header, run_headers, sizes, truth
from traceviz_dag.classify.topology.rank_grids import ParallelSizes, compute_grids
from traceviz_dag.classify.topology.types import Coordinates, Replicas
from traceviz_dag.classify.topology.unite import (
    candidate_dimensions,
    group_dimension,
    topology_from_tables,
    topology_tables,
    unite,
)
from traceviz_dag.read.events import ProcessGroup, TraceHeader
from traceviz_dag.read.topology_file import TopologyFile, read_topology_file
from traceviz_dag.tables import PROCESS_GROUPS, TOPOLOGY
from traceviz_dag.vocabulary import Dimension, TopologySource

AXES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp")


def header(rank, world, *groups):
    listed = tuple(ProcessGroup(name, description, tuple(ranks), len(ranks)) for name, description, ranks in groups)
    return TraceHeader(rank=rank, world_size=world, process_groups=listed)


def text_file(sizes, **groups):
    tuples = {axis: tuple(map(tuple, members)) for axis, members in groups.items() if axis != "full_model"}
    return TopologyFile(Path("groups.txt"), sizes, tuples, tuple(map(tuple, groups.get("full_model", ()))))


def assert_is_truth(topology, expected):
    assert topology.world_size == expected["config"]["world"]
    assert [list(pipeline) for pipeline in topology.pipelines] == expected["groups"]["pp"]
    assert {name: [list(r) for r in getattr(topology.replicas, name)] for name in expected["replicas"]} == expected[
        "replicas"
    ]
    for rank, row in expected["per_rank"].items():
        at = topology.coordinates[int(rank)]
        assert {axis: getattr(at, axis) for axis in AXES} == {axis: row["coords"][axis] for axis in AXES}


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_headers_of_all_ranks_give_megatrons_topology(shared_data, configuration):
    expected = truth(shared_data, configuration)
    topology = unite(all_headers(expected))
    assert_is_truth(topology, expected)
    assert topology.disagreements == ()
    assert topology.sources == (TopologySource.DISTRIBUTED_INFO,)
    for kind, description in expected["group_desc"].items():
        found = {group.ranks for group in topology.groups if group.description == description}
        assert found >= set(map(tuple, expected["groups"][kind])), kind


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_header_of_one_rank_implies_the_places_of_all(shared_data, configuration):
    expected = truth(shared_data, configuration)
    topology = unite({0: rank_zero_header(expected)})
    assert_is_truth(topology, expected)
    assert topology.disagreements == ()
    by_source = {group.source for group in topology.groups}
    assert by_source == {TopologySource.DISTRIBUTED_INFO, TopologySource.COMPUTED}


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_stated_sizes_agree_with_the_headers_of_some_ranks(shared_data, configuration):
    expected = truth(shared_data, configuration)
    headers = {rank: header for rank, header in all_headers(expected).items() if rank % 3 == 1}
    topology = unite(headers, computed=compute_grids(sizes(expected["config"])))
    assert_is_truth(topology, expected)
    assert topology.disagreements == ()


@pytest.mark.parametrize("run", RUNS)
def test_headers_of_a_run_agree_with_its_text_file(shared_data, run):
    headers = run_headers(shared_data, run)
    assert sorted(headers) == [0, 1, 2, 3]
    text = read_topology_file(next((shared_data / "megatron_gpu" / run).glob("*.txt")))
    topology = unite(headers, text)
    assert topology.disagreements == ()
    assert topology.sources == (TopologySource.DISTRIBUTED_INFO, TopologySource.TEXT_FILE)
    for axis, groups in text.groups.items():
        described = [g for g in topology.groups if g.dimension == axis and "_WITH_" not in g.description]
        assert {frozenset(g.ranks) for g in described if not g.description.endswith("_GLOO")} >= set(
            map(frozenset, groups)
        )
    assert set(topology.replicas.closure) == set(text.full_model)
    assert all(group.source is TopologySource.DISTRIBUTED_INFO for group in topology.groups)


@pytest.mark.parametrize("run", RUNS)
def test_the_text_file_alone_gives_the_headers_coordinates(shared_data, run):
    by_headers = unite(run_headers(shared_data, run))
    alone = unite({}, read_topology_file(next((shared_data / "megatron_gpu" / run).glob("*.txt"))))
    assert alone.pipelines == by_headers.pipelines
    assert alone.replicas.closure == by_headers.replicas.closure
    assert alone.disagreements == ()
    for rank, at in by_headers.coordinates.items():
        known = {axis: getattr(alone.coordinates[rank], axis) for axis in AXES}
        assert all(value in (None, getattr(at, axis)) for axis, value in known.items())
        assert None not in [known[axis] for axis in ("tp", "cp", "dp", "pp")]


def test_a_rank_without_header_keeps_what_others_say_of_it(shared_data):
    expected = truth(shared_data, "w8_tp2_pp2_dp2")
    headers = {rank: header for rank, header in all_headers(expected).items() if rank not in (3, 6)}
    topology = unite(headers)
    assert_is_truth(topology, expected)
    rows = topology_tables(topology)[0].to_pylist()
    assert [row["source"] for row in rows] == ["distributed_info"] * 8


def test_groups_with_equal_ranks_stay_apart():
    topology = unite(
        {
            rank: header(rank, 2, ("1", "DATA_PARALLEL_GROUP", [0, 1]), ("2", "EXPERT_MODEL_PARALLEL_GROUP", [0, 1]))
            for rank in (0, 1)
        }
    )
    assert [(g.name, g.dimension, g.ranks) for g in topology.groups if g.name] == [
        ("1", Dimension.DP, (0, 1)),
        ("2", Dimension.EP, (0, 1)),
    ]
    assert topology.disagreements == ()


def test_contradicting_members_are_reported_and_give_no_coordinate_to_others():
    headers = {
        0: header(0, 4, ("5", "TENSOR_MODEL_PARALLEL_GROUP", [0, 1, 2])),
        1: header(1, 4, ("5", "TENSOR_MODEL_PARALLEL_GROUP", [1, 2])),
    }
    topology = unite(headers)
    assert {group.ranks for group in topology.groups} == {(0, 1, 2), (1, 2)}
    assert all(group.disagreement for group in topology.groups)
    assert any("[0, 1, 2] by ranks [0] but [1, 2] by ranks [1]" in sentence for sentence in topology.disagreements)
    assert topology.coordinates[1].tp == 0  # as its own header has it
    assert 2 not in topology.coordinates  # position 2 or 1: unknown


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({0: header(0, 4), 1: header(1, 8)}, "The world size is given as 4 by ranks [0] but 8 by ranks [1]."),
        ({7: header(7, 4)}, "Ranks [7] have traces, but the world size is 4."),
        (
            {0: TraceHeader(0, 4, process_groups=(ProcessGroup("1", "DATA_PARALLEL_GROUP", (0, 1), 3),))},
            "given as 3, but it has 2 members",
        ),
        (
            {0: header(0, 4, ("1", "DATA_PARALLEL_GROUP", [0, 1])), 1: header(1, 4, ("9", "default_pg", [0, 1, 2, 3]))},
            "Ranks [1] are members of process group 1 (DATA_PARALLEL_GROUP), but their own headers do not name it.",
        ),
        (
            {2: header(2, 4, ("1", "DATA_PARALLEL_GROUP", [0, 1]))},
            "Ranks [2] name process group 1 (DATA_PARALLEL_GROUP) without being among its members.",
        ),
        (
            {
                0: header(0, 4, ("1", "DATA_PARALLEL_GROUP", [0, 1])),
                2: header(2, 4, ("1", "CONTEXT_PARALLEL_GROUP", [2, 3])),
            },
            "The name of process group 1 (DATA_PARALLEL_GROUP) is also that of CONTEXT_PARALLEL_GROUP.",
        ),
    ],
)
def test_ranks_that_contradict_each_other_are_reported(headers, sentence):
    assert any(sentence in found for found in unite(headers).disagreements)


def test_a_contradicting_text_file_is_reported_on_the_group_and_the_headers_stand(shared_data):
    headers = run_headers(shared_data, "pp2_dp2_distopt_overlap")
    text = text_file(
        {"tp": 1, "pp": 2, "cp": 2, "world": 8},
        pp=[[0, 1], [2, 3]],
        dp=[[0, 1], [2, 3]],
        full_model=[[0, 1, 2, 3]],
    )
    topology = unite(headers, text)
    assert topology.pipelines == ((0, 2), (1, 3))
    contradicted = [group for group in topology.groups if group.disagreement]
    assert {group.description for group in contradicted} == {"PIPELINE_MODEL_PARALLEL_GROUP"}
    assert contradicted[0].disagreement == (
        "The topology text file has [0, 1] and [2, 3] where process group 23 (PIPELINE_MODEL_PARALLEL_GROUP) is [0, 2]."
    )
    assert "The world size is 8 in the topology text file but 4 elsewhere." in topology.disagreements
    assert "The topology text file states CP size 2, but the groups have 1 members." in topology.disagreements
    assert any("full-model groups [0, 1, 2, 3] are not the complete models" in s for s in topology.disagreements)


def test_contradicting_stated_sizes_are_reported_and_fill_nothing_in(shared_data):
    expected = truth(shared_data, "w8_tp2_pp2_dp2_ppfirst")
    wrong = compute_grids(ParallelSizes(world=8, tp=2, pp=2))
    topology = unite({0: rank_zero_header(expected)}, computed=wrong)
    assert_is_truth(topology, expected)
    assert any(
        sentence.startswith("The grid computed from the sizes has [0, 4]") and sentence.endswith("is [0, 2].")
        for sentence in topology.disagreements
    )


def test_stage_order_of_the_text_file_is_said_to_be_unconfirmed_where_no_grid_fits():
    topology = unite({}, text_file({"pp": 3, "world": 6}, pp=[[0, 1, 5], [2, 3, 4]]))
    assert topology.pipelines == ((0, 1, 5), (2, 3, 4))
    assert "stage order of pipeline [0, 1, 5]" in topology.disagreements[0]
    assert topology.coordinates[5] == Coordinates(pp=2)


def test_without_groups_nothing_is_known_and_nothing_fails():
    assert unite({}).groups == ()
    topology = unite({0: TraceHeader(rank=0, world_size=8), 3: TraceHeader(rank=3)})
    assert (topology.world_size, topology.coordinates, topology.groups) == (8, {}, ())
    assert (topology.pipelines, topology.replicas, topology.disagreements) == ((), Replicas(), ())
    assert group_dimension(topology, "4", None, (0, 1)) == (Dimension.UNKNOWN, (), "unknown_group")


def test_groups_without_description_get_the_one_dimension_that_their_ranks_can_serve(shared_data):
    expected = truth(shared_data, "w32_tp4_pp2_ep8_etp1")
    topology = unite(all_headers(expected, described=False), computed=compute_grids(sizes(expected["config"])))
    assert_is_truth(topology, expected)
    dimension = {group.ranks: group.dimension for group in topology.groups if group.description is None}
    assert dimension[0, 1, 2, 3] is Dimension.TP
    assert dimension[0, 4, 8, 12] is Dimension.DP
    assert dimension[0, 8] is Dimension.EDP
    assert dimension[tuple(range(8))] is Dimension.EP
    assert dimension[0, 16] is Dimension.UNKNOWN
    assert candidate_dimensions(topology, (16, 0)) == (Dimension.PP, Dimension.EMBEDDING)
    assert group_dimension(topology, None, "undefined", (0, 16)) == (
        Dimension.UNKNOWN,
        (Dimension.PP, Dimension.EMBEDDING),
        "rank_set_ambiguous",
    )
    assert group_dimension(topology, None, None, (0, 8)) == (Dimension.EDP, (Dimension.EDP,), "rank_set")
    assert group_dimension(topology, "0", None, ())[0] is Dimension.WORLD


def test_a_group_that_a_kernel_only_names_is_found_in_the_headers(shared_data):
    expected = truth(shared_data, "w8_tp2_pp2_dp2")
    topology = unite(all_headers(expected))
    group = next(g for g in topology.groups if g.description == "MODEL_PARALLEL_GROUP")
    assert group_dimension(topology, group.name, None, ()) == (
        Dimension.GRAD_NORM,
        (Dimension.GRAD_NORM,),
        "group_name",
    )
    assert group_dimension(topology, group.name, None, (0, 7))[2] == "unknown_group"
    assert group_dimension(topology, None, "EXPERT_DATA_PARALLEL_GROUP_AG", ())[0] is Dimension.EDP


def test_a_member_list_that_kineto_cut_matches_the_group_it_begins():
    grids = compute_grids(ParallelSizes(world=128, tp=2, pp=1, order="tp-dp-pp"))
    topology = unite({}, computed=grids)
    cut = grids.groups["dp"][1][:30]
    assert candidate_dimensions(topology, cut) == (Dimension.DP, Dimension.EDP)
    assert candidate_dimensions(topology, tuple(range(30))) == (Dimension.DP, Dimension.GRAD_NORM, Dimension.WORLD)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_tables_hold_the_whole_topology(shared_data, configuration):
    expected = truth(shared_data, configuration)
    headers = all_headers(expected)
    headers[1] = dataclasses.replace(headers[1], process_groups=headers[1].process_groups[1:], world_size=5)
    text = text_file({"tp": 1, "world": 64}, tp=expected["groups"]["dp"], full_model=[[0, 1]])
    for topology in (unite(headers, text), unite({0: headers[0]}), unite({}, text), unite({0: TraceHeader(0, 8)})):
        ranks, groups = topology_tables(topology)
        assert (ranks.schema, groups.schema) == (TOPOLOGY.schema, PROCESS_GROUPS.schema)
        assert topology_from_tables(ranks, groups) == topology
        assert len(ranks) == topology.world_size


def test_the_tables_say_where_a_rank_is(shared_data):
    expected = truth(shared_data, "w8_tp2_pp4_vpp2")
    ranks, _ = topology_tables(unite(all_headers(expected)))
    row = ranks.to_pylist()[5]
    assert (row["tp"], row["pp"], row["stage"], row["stages"], row["pipeline"]) == (1, 2, 2, 4, 1)
    assert (row["dense_replica"], row["expert_replica"], row["model_replica"]) == (0, 0, 0)


def test_where_a_kernels_description_contradicts_the_header_the_header_is_believed(shared_data):
    topology = unite(all_headers(truth(shared_data, "w8_tp2_pp2_dp2")))
    group = next(g for g in topology.groups if g.description == "TENSOR_MODEL_PARALLEL_GROUP")
    for description in ("DATA_PARALLEL_GROUP_WITH_CP", "EMBEDDING_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"):
        found = group_dimension(topology, group.name, description, group.ranks)
        assert found == (Dimension.TP, (Dimension.TP,), "group_name")
    twice = replace(topology, groups=(*topology.groups, replace(group, description="CONTEXT_PARALLEL_GROUP")))
    assert group_dimension(twice, group.name, "EMBEDDING_GROUP", group.ranks)[0] is Dimension.UNKNOWN
    assert group_dimension(twice, group.name, "CONTEXT_PARALLEL_GROUP", group.ranks)[0] is Dimension.CP
