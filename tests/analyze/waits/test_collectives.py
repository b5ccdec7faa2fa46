"""Communications matched across ranks: the published waits of a real job, the truth of Megatron runs, and odd rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.analyze.across_ranks import (
    EPOCH_NS,
    SMALL,
    TINY,
    analysed,
    charged_collectives,
    match_rows,
    matched,
    part,
    simulated,
    topology,
    truth_kernels,
)
from tests.sets import fast
from traceviz_dag.analyze.across_invariants import collectives_violations
from traceviz_dag.analyze.clocks.clocks import solve_clocks
from traceviz_dag.analyze.matching.collective_matching import FAULTS, MATCHED_BY
from traceviz_dag.analyze.matching.matches import Matches, connected
from traceviz_dag.analyze.waits.arrivals import arrivals
from traceviz_dag.analyze.waits.collectives import collectives_table
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Era
from traceviz_dag.tables import COLLECTIVES

RUNS = ("pp4_1f1b", "tp2_pp2_vpp2_full", "pp2_dp2_distopt_overlap", "pp2_ep2_moe")

DLRM_WAITS_US = {0: 5580, 1: 11125, 2: 3280, 3: 9571, 4: 6370, 5: 6041, 6: 3342, 7: 1534}
DLRM_TRANSFERS_US = 217


def faults(matches: Matches) -> list[str]:
    return [FAULTS[code].value for code in matches.fault]


def rules(matches: Matches) -> set[str]:
    return {MATCHED_BY[code].value for code in matches.matched_by}


def test_the_published_waits_of_a_real_dlrm_step(shared_data):
    table = charged_collectives(analysed(shared_data / "kineto" / "dlrm8")).to_pandas()
    assert len(table) == 64 and table.communication.nunique() == 8
    assert set(table.matched_by) == {"order_in_world"}
    assert (table.groupby("rank").wait_ns.sum() / 1e3).to_dict() == DLRM_WAITS_US
    last = table[table["rank"] == table.last_rank]
    assert last.duration_ns.sum() == DLRM_TRANSFERS_US * 1000
    assert (table.groupby("communication").last_rank.first() == 7).sum() == 5
    assert (table.wait_aligned_ns - table.wait_ns).abs().max() <= 8_500


def against_truth(matches: Matches, truth: pd.DataFrame, kernels: pd.DataFrame) -> pd.DataFrame:
    rows = pd.DataFrame(
        {
            "rank": matches.rows.rank,
            "kernel_id": matches.rows.integers("kernel_id"),
            "communication": matches.communication,
            "is_message": matches.is_message,
            "row": np.arange(len(matches.rows)),
        }
    )
    rows = rows.merge(kernels, on=["rank", "kernel_id"]).merge(truth, on=["rank", "correlation"])
    assert len(rows) == len(matches.rows)
    return rows.sort_values("row")


def assert_matched_as_in_truth(matches: Matches, rows: pd.DataFrame) -> None:
    assert set(faults(matches)) == {"none"}
    collective = rows[~rows.is_message]
    assert collective.groupby("communication").match.nunique().max() == 1
    assert collective.groupby("match").communication.nunique().max() == 1
    names = rows.set_index("row").match.map(lambda text: frozenset(text.split("|")))
    messages = matches.messages
    assert all(names[a] & names[b] for a, b in zip(messages.sender.tolist(), messages.receiver.tolist(), strict=True))
    ends = np.concatenate((messages.sender, messages.receiver))
    carried = np.bincount(ends, minlength=len(matches.rows))
    assert all(carried[row] == len(names[row]) for row in rows[rows.is_message].row)


@pytest.mark.parametrize("run", fast(RUNS, *RUNS[::2]))
def test_matches_waits_and_transfers_of_megatron_runs_are_those_of_the_truth(shared_data, run):
    iteration = analysed(shared_data / "megatron_gpu" / run)
    matches = matched(iteration)
    kernels = pd.concat(
        [iteration.kernels(rank, ("rank", "kernel_id", "correlation")).to_pandas() for rank in iteration.ranks]
    )
    rows = against_truth(matches, truth_kernels(shared_data / "megatron_gpu" / run / "truth"), kernels)
    assert_matched_as_in_truth(matches, rows)
    table = charged_collectives(iteration).to_pandas()
    assert (table.wait_ns.to_numpy() == rows.wait_ns.to_numpy()).all()
    assert (table.transfer_ns.to_numpy() == rows.transfer_ns.to_numpy()).all()
    assert collectives_violations(charged_collectives(iteration)).num_rows == 0


JOBS = {
    "plain": JobSettings(tp=2, pp=4, microbatches=4, **TINY),
    "interleaved": JobSettings(pp=4, vpp=2, microbatches=4, **SMALL),
    "overlapped": JobSettings(pp=4, vpp=2, microbatches=4, overlap_p2p=True, **SMALL),
    "overlapped, peers not recorded": JobSettings(
        pp=4, vpp=2, microbatches=4, overlap_p2p=True, era=Era.TORCH_2_4, **SMALL
    ),
    "context parallel": JobSettings(cp=4, dp=2, microbatches=2, **TINY),
    "context parallel, no sequence numbers": JobSettings(cp=4, dp=2, microbatches=2, era=Era.TORCH_2_3, **TINY),
    "experts": JobSettings(tp=2, pp=2, ep=2, dp=2, microbatches=4, **TINY),
    "combined": JobSettings(pp=2, vpp=2, ep=2, dp=2, microbatches=4, overlap_expert=True, **TINY),
    "combined, overlapped": JobSettings(
        pp=2, vpp=2, ep=2, dp=2, microbatches=4, overlap_expert=True, overlap_p2p=True, **TINY
    ),
}


@pytest.mark.parametrize("job", fast(JOBS, "plain", "overlapped, peers not recorded", "combined, overlapped"))
def test_every_communication_of_a_simulated_job_is_matched_with_its_true_peers_and_waits_as_long(job):
    iteration, truth = simulated(JOBS[job])
    matches = matched(iteration)
    kernels = pd.concat(
        [iteration.kernels(rank, ("rank", "kernel_id", "correlation")).to_pandas() for rank in iteration.ranks]
    )
    rows = against_truth(matches, truth_kernels(truth), kernels)
    assert_matched_as_in_truth(matches, rows)
    found = arrivals(matches, matches.rows.start_ns)
    assert (found.wait_ns == rows.wait_ns.to_numpy()).all(), "clocks without skew give waits to the nanosecond"
    assert (found.transfer_ns(matches) == rows.transfer_ns.to_numpy()).all()


def test_sequence_numbers_match_what_one_rank_has_not_recorded():
    rows = [part(0, 0, 50, sequence=4), part(0, 60, 90, sequence=5), part(1, 65, 90, sequence=5)]
    matches = match_rows(rows, topology({"1": (0, 1)}))
    assert matches.communication[1] == matches.communication[2] != matches.communication[0]
    assert faults(matches) == ["members_missing", "none", "none"]
    assert (matches.members.tolist(), matches.found.tolist()) == ([2, 2, 2], [1, 2, 2])


def test_a_rank_without_a_trace_is_counted_as_a_missing_member():
    matches = match_rows([part(0, 0, 50), part(1, 10, 50)], topology({"1": (0, 1, 2)}))
    assert faults(matches) == ["members_missing"] * 2 and matches.found.tolist() == [2, 2]
    table = collectives_table(matches, solve_clocks(matches)).to_pylist()
    assert [row["wait_ns"] for row in table] == [10, 0] and {row["fault"] for row in table} == {"members_missing"}
    assert {row["last_transfer_ns"] for row in table} == {row["bus_gb_per_s"] for row in table} == {None}


def test_a_file_that_breaks_off_is_placed_where_it_fits_and_nowhere_if_there_are_two_places():
    operations = ("allreduce", "broadcast", "reduce", "allreduce")
    whole = [part(rank, 10 * at, 10 * at + 5, collective=name) for rank in (0, 1) for at, name in enumerate(operations)]
    broken = [part(2, 10 * at, 10 * at + 5, collective=name) for at, name in enumerate(operations[1:3])]
    matches = match_rows(whole + broken, topology({"1": (0, 1, 2)}))
    assert matches.communication[8:].tolist() == matches.communication[1:3].tolist()
    assert faults(matches)[:4] == ["members_missing", "none", "none", "members_missing"]
    ambiguous = [part(2, 0, 5)]
    matches = match_rows(whole + ambiguous, topology({"1": (0, 1, 2)}))
    assert faults(matches)[8:] == ["order_differs"] and matches.communication[8] == -1
    assert set(faults(matches)[:8]) == {"members_missing"}


@pytest.mark.parametrize(("before", "after"), [(("reduce",), ()), ((), ("reduce",))])
def test_one_more_communication_at_the_edge_of_a_file_costs_no_other_one_its_match(before, after):
    operations = ("allreduce", "broadcast", "broadcast", "allreduce")
    usual = [(10 * at, name) for at, name in enumerate(operations)]
    odd = [(-10, name) for name in before] + usual + [(40, name) for name in after]
    lists = {0: usual, 1: usual, 2: odd}
    rows = [
        part(rank, 100 + start, 105 + start, collective=name) for rank, mine in lists.items() for start, name in mine
    ]
    matches = match_rows(rows, topology({"1": (0, 1, 2)}))
    met = {}
    for row, number, found in zip(rows, matches.communication.tolist(), matches.found.tolist(), strict=True):
        met.setdefault((number, found), []).append(row["start_ns"])
    assert sorted(map(len, met.values())) == [1, 3, 3, 3, 3]
    assert all(len(set(starts)) == 1 and found == len(starts) for (_, found), starts in met.items())


def test_one_more_communication_amid_like_ones_is_not_taken_for_one_at_the_edge():
    lists = {0: range(0, 50, 10), 1: range(0, 50, 10), 2: [0, 10, 15, 20, 30, 40]}
    rows = [
        part(rank, start, start + 3, collective="broadcast" if start == 40 else "allreduce")
        for rank, starts in lists.items()
        for start in starts
    ]
    matches = match_rows(rows, topology({"1": (0, 1, 2)}))
    assert faults(matches)[10:] == ["none", "none", "order_differs", "none", "none", "none"]
    assert matches.communication[[10, 11, 13, 14, 15]].tolist() == matches.communication[:5].tolist()


LOST = {
    "at the front": {1: [0]},
    "at the end": {1: [39]},
    "in the middle": {1: [20]},
    "a few before the end": {1: [35]},
    "two": {1: [12, 25]},
    "two in a row": {1: [12, 13]},
    "of two ranks": {1: [10], 2: [28]},
    "of three ranks": {0: [5], 1: [30], 2: [18]},
    "of all ranks": {0: [5], 1: [30], 2: [18], 3: [12]},
    "of all ranks, each the one after": {0: [9], 1: [10], 2: [11], 3: [12]},
    "of three ranks, each the one before": {0: [31], 1: [30], 2: [29]},
    "at both ends": {0: [0], 1: [39], 2: [0], 3: [39]},
}


@pytest.mark.parametrize("duration", [20_000, 500_000])
@pytest.mark.parametrize("where", LOST)
def test_a_row_that_a_file_lost_costs_no_other_its_match_and_makes_no_false_pair(where, duration):
    random = np.random.default_rng(7)
    begins = np.cumsum(random.integers(30_000, 400_000, 40)).tolist()
    rows, true = [], []
    for rank in range(4):
        for number, begin in enumerate(begins):
            if number in LOST[where].get(rank, ()):
                continue
            end = begin + 20_000 + int(random.integers(0, 3_000)) + 90_000_000 * rank
            # Not all alike, so that a list of others fits in one way only.
            rows.append(part(rank, end - duration, end, collective="broadcast" if number == 3 else "allreduce"))
            true.append(number)
    matches = match_rows(rows, topology({"1": (0, 1, 2, 3)}))
    pairs = pd.DataFrame({"communication": matches.communication, "true": true, "rank": matches.rows.rank})
    matched = pairs[pairs.communication >= 0]
    assert matched.groupby("communication").true.nunique().max() == 1
    lost = {number for numbers in LOST[where].values() for number in numbers}
    found = matched.groupby("true")["rank"].nunique()
    assert set(found[found == 4].index) >= set(range(40)) - lost


def test_where_a_row_was_lost_among_similar_layers_is_not_known_if_ends_fit_twice():
    lost = {0: (), 1: (), 2: (0, 6), 3: (6,)}
    rows = [
        part(rank, 100_000 * at, 100_000 * at + 3_000)
        for rank, numbers in lost.items()
        for at in range(12)
        if at not in numbers
    ]
    matches = match_rows(rows, topology({"1": (0, 1, 2, 3)}))
    third, last = matches.communication[24:34].tolist(), matches.communication[34:].tolist()
    assert set(third) == {-1} and last == [at for at in matches.communication[:12].tolist() if at != last[0] + 6]


def test_members_that_run_different_operations_at_the_same_place_are_not_one_communication():
    rows = [part(0, 0, 5, sequence=1), part(1, 0, 5, sequence=1, collective="broadcast")]
    assert faults(match_rows(rows, topology({"1": (0, 1)}))) == ["operations_differ"] * 2


def test_a_communication_whose_group_nothing_shows_is_kept_and_says_so():
    known = topology({"1": (0, 1)})
    matches = match_rows([part(0, 0, 5, None, dimension="unknown"), part(1, 0, 5)], known)
    assert faults(matches) == ["no_group", "members_missing"]
    table = collectives_table(matches, solve_clocks(matches))
    assert table.schema == COLLECTIVES.schema and table.num_rows == 2
    assert [row["wait_ns"] for row in table.to_pylist()] == [None, None]


def test_the_launch_decides_the_order_where_streams_differ():
    rows = [
        part(0, 0, 9, collective="allreduce", launch_start_ns=EPOCH_NS - 20),
        part(0, 1, 9, collective="broadcast", launch_start_ns=EPOCH_NS - 10),
        part(1, 2, 9, collective="broadcast", launch_start_ns=EPOCH_NS - 10),
        part(1, 5, 9, collective="allreduce", launch_start_ns=EPOCH_NS - 20),
    ]
    matches = match_rows(rows, topology({"1": (0, 1)}))
    assert matches.communication[0] == matches.communication[3] and matches.communication[1] == matches.communication[2]
    assert rules(matches) == {"order"}


def test_a_group_of_one_waits_for_nobody():
    matches = match_rows([part(0, 0, 5, "9")], topology({"9": (0,)}))
    (row,) = collectives_table(matches, solve_clocks(matches)).to_pylist()
    assert (row["wait_ns"], row["transfer_ns"], row["last_rank"], row["fault"]) == (0, 5, 0, None)


def test_bandwidth_is_of_the_transfer_and_not_of_the_wait():
    facts = {"dtype": "BFloat16", "in_elements": 500, "out_elements": 500}
    rows = [part(0, 0, 200, **facts), part(1, 100, 200, **facts)]
    matches = match_rows(rows, topology({"1": (0, 1)}))
    for row in collectives_table(matches, solve_clocks(matches)).to_pylist():
        assert (row["bytes"], row["last_transfer_ns"]) == (1000, 100)
        assert row["algorithm_gb_per_s"] == 10.0 and row["bus_gb_per_s"] == pytest.approx(10.0 * 2 * 1 / 2)


def test_nodes_are_distinguished_from_the_devices():
    rows = [part(rank, 0, 5, "1" if rank < 2 else "2", device=f"gpu:{rank % 2}") for rank in range(4)]
    rows += [part(rank, 10, 15, "3", device=f"gpu:{rank % 2}") for rank in range(4)]
    matches = match_rows(rows, topology({"1": (0, 1), "2": (2, 3), "3": (0, 1, 2, 3)}))
    scopes = [row["scope"] for row in collectives_table(matches, solve_clocks(matches)).to_pylist()]
    assert scopes == ["intra_node"] * 4 + ["inter_node"] * 4
    alone = match_rows([part(rank, 0, 5, device="gpu:0") for rank in (0, 1)], topology({"1": (0, 1)}))
    assert collectives_table(alone, solve_clocks(alone))["scope"].null_count == 2


def test_connected_components():
    ends, others = np.array([5, 1, 2, 7]), np.array([4, 2, 3, 7])
    assert connected(ends, others, 9).tolist() == [0, 1, 1, 1, 4, 4, 6, 7, 8]
    chain = np.arange(999)
    assert not connected(chain[::-1] + 1, chain[::-1], 1000).any()


def numbered_lists(shift: int, counted_over_groups: bool) -> list[dict]:
    """Five sums on two ranks; rank 1 counts other groups too, or was recorded ``shift`` sums later."""
    at = np.cumsum([0, 100, 250, 90, 300, 170, 410, 60])
    rows = [part(0, begin, begin + 50, sequence=number) for number, begin in enumerate(at[:5].tolist())]
    first = 0 if counted_over_groups else shift
    times = at[first : first + 5].tolist()
    return [*rows, *(part(1, begin, begin + 50, sequence=shift + number) for number, begin in enumerate(times))]


@pytest.mark.parametrize("shift", [1, 2])
def test_sequence_numbers_that_run_over_groups_give_way_to_order(shift):
    matches = match_rows(numbered_lists(shift, counted_over_groups=True), topology({"1": (0, 1)}))
    assert rules(matches) == {"order"}
    assert matches.communication[:5].tolist() == matches.communication[5:].tolist()


@pytest.mark.parametrize("counted_over_groups", [True, False])
def test_a_group_with_one_collective_is_trusted_as_the_others_are(counted_over_groups):
    single = [part(0, 5_000, 5_050, "2", sequence=9), part(1, 5_000, 5_050, "2", sequence=11)]
    rows = [*numbered_lists(2, counted_over_groups=counted_over_groups), *single]
    matches = match_rows(rows, topology({"1": (0, 1), "2": (0, 1)}))
    faults = {FAULTS[code].value for code in matches.fault[10:]}
    assert faults == ({"none"} if counted_over_groups else {"members_missing"})


@pytest.mark.parametrize("shift", [1, 2])
def test_a_rank_that_was_recorded_later_is_still_matched_by_its_sequence_numbers(shift):
    matches = match_rows(numbered_lists(shift, counted_over_groups=False), topology({"1": (0, 1)}))
    assert rules(matches) == {"sequence"}
    assert matches.communication[shift:5].tolist() == matches.communication[5 : 10 - shift].tolist()
