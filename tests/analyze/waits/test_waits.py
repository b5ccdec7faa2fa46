"""Who is to blame: the culprit of each injected fault, nobody in a healthy job, and parts that add up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.drawn_faults import drawn_job
from tests.analyze.across_ranks import (
    TINY,
    analysed,
    analysed_all,
    charged_collectives,
    match_rows,
    part,
    simulated,
    topology,
    truth_kernels,
)
from tests.analyze.naive_measures import EPOCH_NS, kernel
from tests.sets import fast
from traceviz_dag.analyze.across_invariants import collectives_violations
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.waits.blame import blame_matrix, late_ranks
from traceviz_dag.analyze.waits.blamed import delays_by, judged_waits
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.analyze.waits.experts import expert_load
from traceviz_dag.analyze.waits.links import link_groups, link_speeds
from traceviz_dag.analyze.waits.waits import charge_waits
from traceviz_dag.lake.across_ranks_views import rows_of_query
from traceviz_dag.pipeline.across_ranks import expert_exchanges
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Era, Faults, Graphs, Recompute, Transformer
from traceviz_dag.tables import COLLECTIVES, KERNELS
from traceviz_dag.tables.questions import WAIT_PARTS

JOB = {
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "microbatches": 4,
    "node_size": 2,
    "clock_skew_ms": 3.0,
    "clock_drift_ppm": 5.0,
    **TINY,
    "layers": 2,
}


def job(faults: Faults, **more) -> StoredIteration:
    return simulated(JobSettings(**{**JOB, **more}, faults=faults))[0]


def blamed(iteration: StoredIteration) -> list[int]:
    return [
        row["rank"]
        for row in late_ranks(charged_collectives(iteration), iteration.step_ns).to_pylist()
        if row["blamed"]
    ]


def slow_links(iteration: StoredIteration) -> list[tuple[int, str]]:
    rows = link_speeds(charged_collectives(iteration)).to_pylist()
    return [(row["rank"], row["scope"]) for row in rows if row["slow"]]


def slow_link_groups(iteration: StoredIteration) -> list[tuple[str, str, int | None]]:
    table = charged_collectives(iteration)
    rows = link_groups(table, link_speeds(table)).to_pylist()
    return [(row["ranks"], row["dimension"], row["rank"]) for row in rows]


def test_nobody_is_blamed_in_a_healthy_job():
    healthy = job(Faults())
    assert blamed(healthy) == [] and slow_links(healthy) == [] and slow_link_groups(healthy) == []
    assert collectives_violations(charged_collectives(healthy)).num_rows == 0
    load = expert_load(expert_exchanges(healthy, charged_collectives(healthy)))
    assert load.num_rows == 0, "a dense model has no experts"


@pytest.mark.parametrize(
    ("faults", "culprit", "doing"),
    [
        (Faults(slow_gpu=5), 5, "bwd_computation"),
        pytest.param(Faults(data_stall=2, data_stall_ms=20.0), 2, "host", marks=pytest.mark.long),
        pytest.param(Faults(garbage_collection=6, garbage_collection_ms=20.0), 6, "host", marks=pytest.mark.long),
    ],
)
def test_the_rank_with_the_fault_is_blamed_and_no_other(faults, culprit, doing):
    iteration = job(faults)
    assert blamed(iteration) == [culprit] and slow_links(iteration) == []
    late = late_ranks(charged_collectives(iteration), iteration.step_ns)
    (row,) = late.filter(pc.equal(late["rank"], culprit)).to_pylist()
    assert row["late_category"] == doing and row["own_ns"] > 0.6 * row["delay_ns"]
    stages = delays_by(late, {rank: iteration.topology.stage_of(rank)[0] for rank in iteration.ranks}, "stage")
    assert (stages["stage"][0].as_py(), stages["worst_rank"][0].as_py()) == (culprit // 4, culprit)


@pytest.mark.parametrize(
    ("groups", "faults", "culprit"),
    [
        ({"cp": 4, "dp": 2}, Faults(garbage_collection=3, garbage_collection_ms=20.0), 3),
        ({"tp": 2, "dp": 4, "fsdp": True}, Faults(data_stall=0, data_stall_ms=12.0), 0),
    ],
)
def test_a_delay_that_both_neighbours_in_a_ring_or_two_groups_wait_for_is_counted_once(groups, faults, culprit):
    iteration = job(faults, **{"tp": 1, "pp": 1, **groups})
    late = late_ranks(charged_collectives(iteration), iteration.step_ns)
    (row,) = late.filter(pc.equal(late["rank"], culprit)).to_pylist()
    paused = faults.garbage_collection_ms if faults.garbage_collection is not None else faults.data_stall_ms
    assert blamed(iteration) == [culprit] and row["late_category"] == "host"
    # A part of the pause passes while the GPU works off what was launched before.
    assert 0.6 <= row["own_ns"] / (paused * 1e6) <= 1.15 and row["own_ns"] <= row["delay_ns"] <= 1.2 * paused * 1e6


def test_delays_at_different_times_add_up_and_those_in_one_time_do_not():
    # When each of these communications began to be late and when rank 1 came, with what of the wait was its own.
    windows = [(0, 100, 30), (50, 110, 30), (0, 300, 80), (300, 400, 20), (150, 200, 10)]
    rows = []
    for number, (since, arrival, own) in enumerate(windows):
        shared = {"communication": number, "dimension": "dp", "stage": 0, "step": 1, "clocks": "solved"}
        wait = {"wait_aligned_ns": own, "last_rank_aligned": 1, "late_compute_ns": own, "late_since_ns": since}
        rows.append(shared | wait | {"rank": 0, "arrival_ns": 7, "late_category": "fwd_computation"})
        rows.append(shared | {"rank": 1, "arrival_ns": arrival, "wait_aligned_ns": 0, "last_rank_aligned": 1})
    zeros = dict.fromkeys(("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns"), 0)
    names = COLLECTIVES.schema.names
    table = pa.Table.from_pylist([{**dict.fromkeys(names), **zeros, **row} for row in rows], COLLECTIVES.schema)
    (row,) = [row for row in late_ranks(table, 1_000).to_pylist() if row["rank"] == 1]
    # 30 until 100, which the second one shares, 10 until 200, 40 more until 300, then 20.
    assert row["own_ns"] == row["delay_ns"] == 30 + 10 + 40 + 20
    assert row["last"] == 5


@pytest.mark.long
def test_a_synchronisation_in_each_forward_step_is_named_by_the_host_time_that_it_costs():
    iteration = job(Faults(hidden_synchronisation=3), layers=6, microbatches=6)
    late = late_ranks(charged_collectives(iteration), iteration.step_ns)
    (row,) = late.filter(pc.equal(late["rank"], 3)).to_pylist()
    assert blamed(iteration) == [3] and row["late_category"] == "host"
    assert row["own_share"] < 0.03, "small as it is"


@pytest.mark.long
@pytest.mark.parametrize("culprit", fast([None, 5], 5))
def test_delays_that_a_slow_rank_hands_on_are_not_charged_to_those_it_reaches(culprit):
    # Interleaved over four stages, gradients overlapped: the pipeline of the slow rank comes late to all its meetings.
    deep = {"tp": 1, "pp": 4, "vpp": 2, "layers": 8, "microbatches": 8, "recompute": Recompute.FULL}
    assert blamed(job(Faults(slow_gpu=culprit), **deep)) == ([] if culprit is None else [culprit])


def test_a_slow_link_is_distinguished_from_a_late_peer():
    iteration = job(Faults(slow_link=3))
    assert slow_links(iteration) == [(3, "inter_node")]
    assert blamed(iteration) == []


@pytest.mark.long
def test_links_of_two_ranks_that_meet_nobody_else_are_not_distinguished():
    # Four ranks a node: beyond its node each rank meets only its neighbour in the pipeline.
    told = links_of(job(Faults(slow_nic=3), node_size=4))
    assert told[3, "inter_node"] == (None, [7]) and told[7, "inter_node"] == (None, [3])
    assert not any(slow for slow, _ in told.values())
    # One that is slow inside its node, too, explains all that is slow of both.
    told = links_of(job(Faults(slow_link=3), node_size=4))
    assert {look for look, (slow, _) in told.items() if slow} == {(3, "intra_node"), (3, "inter_node")}
    assert told[7, "inter_node"] == (False, [])


def links_of(iteration: StoredIteration) -> dict[tuple[int, str], tuple[bool | None, list[int]]]:
    rows = link_speeds(charged_collectives(iteration)).to_pylist()
    return {(row["rank"], row["scope"]): (row["slow"], row["or_of"]) for row in rows}


@pytest.mark.long
def test_a_slow_card_that_one_dimension_uses_is_its_groups_unless_others_are_fast_elsewhere():
    """Between nodes of four, tp 2 and dp 4 use data parallelism alone; between nodes of one, a pipeline joins ranks."""
    alone = {"tp": 2, "pp": 1, "dp": 4, "node_size": 4}
    assert slow_link_groups(job(Faults(slow_nic=5), **alone)) == [("1, 3, 5, 7", "dp", None)]
    # Of the ranks of two slow groups, inside a node and out of it, one is in both.
    both = job(Faults(slow_link=5, slow_link_factor=8.0), **alone, layers=2)
    assert {(ranks, rank) for ranks, _, rank in slow_link_groups(both)} == {("5", 5)}
    assert slow_link_groups(job(Faults(), **alone)) == []
    assert slow_link_groups(job(Faults(slow_link=3))) == []


@pytest.mark.long
def test_a_slow_card_that_a_single_transfer_uses_is_its_groups():
    """Between nodes of four, pipelines of four stages: the embedding's one all-reduce is all of rank 0 that crosses."""
    crossed = {"tp": 1, "pp": 4, "dp": 2, "node_size": 4, "layers": 4}
    assert slow_link_groups(job(Faults(slow_nic=0), **crossed)) == [("0, 6", "embedding", None)]
    assert slow_link_groups(job(Faults(), **crossed)) == []


@pytest.mark.parametrize("faults", [Faults(), Faults(slow_nic=1)], ids=["healthy", "slow_nic"])
@pytest.mark.long
def test_a_rank_whose_neighbours_are_near_and_far_is_not_congested(faults):
    """Older PyTorch has one group for all messages of a pipeline; stage 1 sends to stage 2 over the network."""
    long = {"hidden": 4096, "sequence": 4096, "layers": 4}
    crossed = job(faults, tp=1, pp=4, dp=1, node_size=2, era=Era.TORCH_2_4, stacks=False, **long)
    found = crossed.findings()
    assert [row for row in found if row["rule"] == "congestion" and row["severity"] != "not_looked_at"] == []


@pytest.mark.parametrize(
    ("faults", "more", "slow_in"),
    [
        (Faults(slow_memory=1, slow_memory_factor=1.6), {"stacks": False, "hidden": 4096}, "memory"),
        pytest.param(
            *(Faults(other_algorithm=1, other_algorithm_factor=1.4), {"persistent": True, "hidden": 4096}, "algorithm"),
            marks=pytest.mark.long,
        ),
        (Faults(tiny_kernels=1, tiny_kernels_count=200), {"transformer": Transformer.LOCAL, "stacks": False}, "extra"),
    ],
    ids=["so slow that all together is", "of kernels whose name it shares with others", "more of what all run"],
)
def test_what_is_slow_of_a_rank_is_named_by_its_kind(faults, more, slow_in):
    rows = job(faults, tp=1, pp=1, dp=4, **more).table("rank_speeds").to_pylist()
    assert {row["rank"]: row["slow_in"] for row in rows if row["slow_in"]} == {1: slow_in}


@pytest.mark.long
def test_a_slow_stage_is_known_though_its_pass_is_one_cuda_graph_that_shows_no_micro_batches():
    whole = job(Faults(slow_stage=1), tp=1, pp=2, dp=2, hidden=4096, cuda_graphs=Graphs.ITERATION)
    rows = whole.table("group_speeds").to_pylist()
    assert [(row["stage"], round(row["ratio"], 2)) for row in rows if row["slow"]] == [
        (1, pytest.approx(1.35, abs=0.02))
    ]
    healthy = job(Faults(), tp=1, pp=2, dp=2, hidden=4096, cuda_graphs=Graphs.ITERATION)
    assert not any(row["slow"] for row in healthy.table("group_speeds").to_pylist())


@pytest.mark.long
def test_sequences_of_varying_length_are_no_fault_of_a_rank_that_comes_late_out_of_messages():
    """Rank 1 has 1.14 times the work of its peer in the first of two stages, where messages keep others waiting."""
    iteration, _ = simulated(drawn_job(12090).settings)
    found = [row for row in iteration.findings() if row["rule"] == "slow_rank" and row["severity"] == "finding"]
    assert found and {row["class"] for row in found} == {"opportunity"}


@pytest.mark.long
def test_uneven_experts_show_in_the_load_and_as_late_ranks():
    moe = {"tp": 1, "ep": 2, "dp": 4, "layers": 2}
    even, uneven = (job(Faults(expert_imbalance=share), **moe) for share in (0.0, 0.75))
    loads = []
    for iteration in (even, uneven):
        table = expert_load(expert_exchanges(iteration, charged_collectives(iteration)))
        loads.append(dict(zip(table["rank"].to_pylist(), table["load"].to_pylist(), strict=True)))
    assert max(loads[0].values()) < 1.1
    assert all(loads[1][rank] == pytest.approx(1.5 + 0.25, abs=0.1) for rank in (0, 2, 4, 6))
    assert blamed(even) == [] and blamed(uneven) == [0, 2, 4, 6]


def test_exposed_and_hidden_time_of_a_simulated_job_is_that_of_the_truth():
    iteration, truth = simulated(JobSettings(tp=2, pp=2, dp=2, microbatches=4, **TINY))
    table = charged_collectives(iteration).to_pandas()
    true = truth_kernels(truth)
    keys = [iteration.kernels(rank, ("rank", "kernel_id", "correlation")).to_pandas() for rank in iteration.ranks]
    for frame in keys:
        joined = table.merge(frame, on=["rank", "kernel_id"]).merge(true, on=["rank", "correlation"])
        assert (joined.exposed_wait_ns + joined.exposed_transfer_ns - joined.exposed_ns).abs().max() <= 1


def test_a_real_job_s_last_rank_was_waited_for_because_its_host_had_not_launched(shared_data):
    iteration = analysed(shared_data / "kineto" / "dlrm8")
    collectives = charged_collectives(iteration)
    assert collectives_violations(collectives).num_rows == 0
    late = sorted(late_ranks(collectives, iteration.step_ns).to_pylist(), key=lambda row: -row["own_ns"])
    assert (late[0]["rank"], late[0]["late_category"], late[0]["last"]) == (7, "host", 5)
    assert not any(row["blamed"] for row in late if row["rank"] == 2), "a straggler list that names rank 2 is wrong"
    matrix = blame_matrix(collectives).to_pylist()
    assert (matrix[0]["rank"], matrix[0]["late_rank"]) == (1, 7)
    assert sum(row["wait_ns"] for row in matrix) == sum(collectives["wait_aligned_ns"].to_pylist())


def rank_kernels(rows: list[dict]) -> pa.Table:
    names = ("start_ns", "duration_ns", "device", "kind", "dimension", "category", "step", "beside_ns")
    fields = [KERNELS.schema.field(name) for name in names]
    return pa.Table.from_arrays(
        [pa.array([row.get(field.name) for row in rows], field.type) for field in fields], names
    )


def charged(parts: list[dict], beside: dict[int, list[dict]]) -> list[dict]:
    """Charge the waits of hand-made parts; the parts themselves are communication kernels of their ranks."""
    matches = match_rows(parts, topology({"1": (0, 1)}, world=2))
    clocks = solve_clocks(matches)
    mine = {
        rank: rank_kernels(
            [{**row, "category": "fwd_communication"} for row in parts if row["rank"] == rank] + beside.get(rank, [])
        )
        for rank in (0, 1)
    }
    table = charge_waits(collectives_table(matches, clocks), matches, clocks, mine.__getitem__)
    assert table.schema == COLLECTIVES.schema
    assert collectives_violations(table).num_rows == 0
    return table.to_pylist()


def computing(start: int, duration: int) -> dict:
    return kernel(EPOCH_NS + start, duration, "computation", category="fwd_computation")


def late_parts(row: dict) -> dict[str, int]:
    names = ("compute", "communication", "memory", "host", "idle")
    return {name: row[f"late_{name}_ns"] for name in names if row[f"late_{name}_ns"]}


def test_at_a_first_meeting_the_late_rank_is_seen_while_the_other_waits():
    parts = [part(0, 100, 300), part(1, 260, 300, launch_start_ns=EPOCH_NS + 230)]
    rows = charged(parts, {1: [computing(90, 60)]})
    assert rows[0]["wait_ns"] == 160
    # [100, 260): computes until 150, then nothing is launched until 230, then the launch takes its time.
    assert late_parts(rows[0]) == {"compute": 50, "host": 80, "idle": 30}
    assert rows[0]["late_category"] == "host" and late_parts(rows[1]) == {}


def test_work_that_only_comes_later_was_handed_on():
    # Both compute for 50 since the step began; rank 1 does so after it was held up in another communication.
    held_up = part(1, 10, 170, "other", dimension="pp")
    parts = [part(0, 60, 300), part(1, 220, 300)]
    beside = {0: [{**computing(10, 50), "step": 7}], 1: [{**computing(170, 50), "step": 7}, held_up]}
    rows = charged(parts, beside)
    assert rows[0]["wait_ns"] == 160
    assert late_parts(rows[0]) == {"communication": 160}


def test_since_they_parted_the_late_rank_is_late_for_what_it_did_more_of():
    parts = [part(0, 0, 100), part(1, 0, 100), part(0, 150, 290), part(1, 260, 290)]
    rows = charged(parts, {0: [computing(100, 40)], 1: [computing(100, 140)]})
    assert rows[2]["wait_ns"] == 110
    assert late_parts(rows[2]) == {"compute": 100, "idle": 10}


def test_waits_and_transfers_are_hidden_where_the_rank_computes():
    rows = charged([part(0, 100, 300), part(1, 200, 300)], {0: [computing(150, 80)]})
    first = rows[0]
    assert (first["hidden_wait_ns"], first["exposed_wait_ns"]) == (50, 50)
    assert (first["hidden_transfer_ns"], first["exposed_transfer_ns"]) == (30, 70)


_any_part = st.builds(
    lambda rank, start, length, group, name, dimension, sequence, step: part(
        rank, start, start + length, group, collective=name, dimension=dimension, sequence=sequence, step=step
    ),
    st.integers(0, 3),
    st.integers(0, 60),
    st.integers(0, 40),
    st.sampled_from(["1", "2", "3", None]),
    st.sampled_from(["allreduce", "broadcast", "send", "recv", "all_to_allv", None]),
    st.sampled_from(["tp", "cp", "pp", "dp", "unknown"]),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([7, None]),
)


MEASURES = {"wait_ns": "recorded_refusal", "wait_aligned_ns": "aligned_refusal", "wait_by_duration_ns": None}
"""Each measure of a wait, and the column that says why it is NULL."""


@given(
    st.lists(_any_part, max_size=16),
    st.dictionaries(st.integers(0, 3), st.integers(-100, 100), max_size=4),
    st.booleans(),
)
@settings(max_examples=75, deadline=None)
def test_whatever_the_rows_and_clocks_a_wait_is_within_its_kernel_or_has_a_reason(parts, clocks_ahead, named):
    parts = [{**row, "start_ns": row["start_ns"] + clocks_ahead.get(row["rank"], 0)} for row in parts]
    groups = {"1": (0, 1), "2": (0, 1, 2, 3), "3": ()}
    known = topology(groups if named else {}, pipelines=((0, 1), (2, 3)), world=4)
    matches = match_rows(parts, known)
    clocks = solve_clocks(matches, ranks=range(4))
    own = {rank: rank_kernels([row for row in parts if row["rank"] == rank]) for rank in range(4)}
    table = charge_waits(collectives_table(matches, clocks), matches, clocks, own.__getitem__)
    assert table.num_rows == len(parts) and clocks.num_rows == 4
    assert collectives_violations(table).num_rows == 0
    for row in table.to_pylist():
        for wait, reason in MEASURES.items():
            assert row[wait] is None or 0 <= row[wait] <= row["duration_ns"]
            if reason is not None:
                assert (row[wait] is None) <= (row["fault"] is not None or row[reason] is not None)
                assert (row[reason] is not None) <= (row[wait] is None)
        assert (row["late_compute_ns"] is None) == (row["clocks"] is None)
        assert row["fault"] is not None or row["members_found"] == (row["members"] or row["members_found"])
    late_ranks(table, 100)
    for function in (blame_matrix, link_speeds):
        function(table)
    rows_of_query(WAIT_PARTS.sql, "job", 7, collectives=table)


@pytest.mark.long
@pytest.mark.parametrize("folder", ["hta", "tracelens"])
def test_real_traces_of_few_ranks_of_larger_jobs_are_kept_row_by_row(shared_data, folder):
    for iteration in analysed_all(shared_data / "kineto" / folder):
        table = charged_collectives(iteration)
        communications = sum(
            pc.sum(pc.equal(iteration.kernels(rank, ("kind",))["kind"].cast(pa.string()), "communication")).as_py() or 0
            for rank in iteration.ranks
        )
        assert table.num_rows == communications
        assert collectives_violations(table).num_rows == 0
        assert late_ranks(table, iteration.step_ns).num_rows == len(set(table["rank"].to_pylist()))


def test_waits_and_transfers_add_up_over_dimensions():
    table = charged_collectives(job(Faults(slow_gpu=5)))
    split = rows_of_query(WAIT_PARTS.sql, "job", 7, collectives=table)
    names = ("hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns")
    total = sum(np.sum(split[name].to_numpy()) for name in names)
    assert total == sum(table["duration_ns"].to_pylist())
    assert set(split["dimension"].to_pylist()) >= {"tp", "dp", "pp"}
    assert WAIT_PARTS.of(judged_waits(table)) == split.to_pylist()
