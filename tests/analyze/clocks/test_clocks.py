"""Clocks solved over all groups at once: exact where the evidence is, refused where it is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analyze.across_ranks import (
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
from traceviz_dag.analyze.clocks.clock_summary import residual_range
from traceviz_dag.analyze.clocks.clocks import solve_clocks, solved_clocks
from traceviz_dag.analyze.matching.communications import Communications
from traceviz_dag.analyze.matching.matches import Matches
from traceviz_dag.analyze.waits.arrivals import judge_arrivals
from traceviz_dag.simulate import JobSettings

US, MS, SECOND = 1_000, 1_000_000, 1_000_000_000
TOLERANCE_NS = 10 * US

TP_DP = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}


def shifted(matches: Matches, shift: dict[int, int]) -> Matches:
    """The same matches with every clock of a rank set forward."""
    rows = matches.rows
    by = np.array([shift.get(rank, 0) for rank in rows.rank.tolist()], dtype=np.int64)
    moved = Communications(
        rows.table, rows.rank, rows.start_ns + by, rows.end_ns + by, rows.launch_ns + by, rows.operation, rows.step
    )
    fields = {name: getattr(matches, name) for name in matches.__slots__}
    return Matches(**{**fields, "rows": moved})


def job_rows(
    groups: dict[str, tuple[int, ...]],
    offsets: dict[int, int],
    matches: int = 20,
    every: int = 10 * MS,
    noise: int = 300,
    drift_ppm: dict[int, float] | None = None,
    seed: int = 0,
) -> list[dict]:
    """Collectives that end together but for a little noise, on clocks that are off and drift."""
    random = np.random.default_rng(seed)
    rows = []
    for at in range(matches):
        for place, (name, ranks) in enumerate(groups.items()):
            true_end = at * every + place * every // 10 + MS
            for rank in ranks:
                end = true_end + int(random.integers(0, noise + 1)) + offsets.get(rank, 0)
                end += round((drift_ppm or {}).get(rank, 0.0) * 1e-6 * true_end)
                rows.append(part(rank, end - int(random.integers(50, 400)) * US, end, name, sequence=at))
    return rows


def job(groups: dict[str, tuple[int, ...]], offsets: dict[int, int], **more) -> Matches:
    """The matches of ``job_rows``."""
    return match_rows(job_rows(groups, offsets, **more), topology(groups))


def offsets_of(rank_clocks: pa.Table) -> dict[int, int | None]:
    return {row["rank"]: row["offset_ns"] for row in rank_clocks.to_pylist()}


def assert_offsets(rank_clocks: pa.Table, true: dict[int, int]) -> None:
    found = offsets_of(rank_clocks)
    base = true[min(true)]
    for rank, offset in true.items():
        assert found[rank] is not None, rank
        assert abs(found[rank] - (offset - base)) <= TOLERANCE_NS, (rank, found[rank], offset - base)


def test_the_four_groups_that_group_by_group_medians_get_wrong():
    true = {0: -750 * US, 1: 4250 * US, 2: 250 * US, 3: -3750 * US}
    assert_offsets(solve_clocks(job(TP_DP, true)), true)


@given(st.lists(st.integers(-5_000, 5_000), min_size=8, max_size=8), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_any_offsets_come_back_over_a_grid_of_groups(milli, seed):
    groups = {f"tp{i}": (2 * i, 2 * i + 1) for i in range(4)} | {f"dp{i}": (i, i + 4) for i in range(4)}
    groups |= {"world": tuple(range(8))}
    true = {rank: value * US for rank, value in enumerate(milli)}
    assert_offsets(solve_clocks(job(groups, true, seed=seed)), true)


def test_one_group_of_wild_ends_does_not_spoil_the_others():
    true = {0: 0, 1: 3 * MS, 2: -2 * MS, 3: 1 * MS}
    random = np.random.default_rng(1)
    wild = [
        part(rank, at * 9 * MS, at * 9 * MS + int(random.integers(1, 8)) * MS, "wild", sequence=at)
        for at in range(20)
        for rank in (0, 3)
    ]
    matches = match_rows(job_rows(TP_DP, true) + wild, topology({**TP_DP, "wild": (0, 3)}))
    found = offsets_of(solve_clocks(matches))
    assert abs(found[1] - 3 * MS) <= TOLERANCE_NS and abs(found[2] + 2 * MS) <= TOLERANCE_NS


def test_drift_is_found_from_thirty_matches_over_a_second_and_not_before():
    true = {0: 0, 1: 2 * MS, 2: -1 * MS, 3: 4 * MS}
    drift = {1: 20.0, 2: -15.0, 3: 8.0}
    clocks = solve_clocks(job(TP_DP, true, matches=60, every=50 * MS, drift_ppm=drift))
    rows = {row["rank"]: row for row in clocks.to_pylist()}
    for rank, ppm in drift.items():
        assert rows[rank]["drift_ppm"] == pytest.approx(ppm, abs=0.5)
    assert rows[0]["drift_ppm"] == pytest.approx(0, abs=1e-9)
    aligned = judge_arrivals(job(TP_DP, true, matches=60, every=50 * MS, drift_ppm=drift), clocks)
    assert aligned.solved.all()
    for few in (job(TP_DP, true, matches=29, every=50 * MS), job(TP_DP, true, matches=60, every=10 * MS)):
        assert solve_clocks(few)["drift_ppm"].null_count == 4


def test_offset_and_drift_together_bring_ends_back_to_within_ten_microseconds_at_any_time():
    true, drift = {0: 0, 1: 5 * MS, 2: -5 * MS, 3: 2 * MS}, {0: -1.0, 1: 5.0, 2: -5.0, 3: 3.0}
    matches = job(TP_DP, true, matches=100, every=50 * MS, drift_ppm=drift)
    clocks = solved_clocks(solve_clocks(matches))
    ends = clocks.align(matches.rows.rank, matches.rows.end_ns)
    spread = pd.Series(ends).groupby(matches.communication).agg(lambda values: values.max() - values.min())
    assert spread.max() <= TOLERANCE_NS


def test_ranks_that_nothing_joins_are_components_of_their_own_and_are_not_compared():
    matches = job({"a": (0, 1), "b": (2, 3)}, {1: MS, 3: -MS})
    clocks = solve_clocks(matches)
    rows = clocks.to_pylist()
    assert [row["component"] for row in rows] == [0, 0, 1, 1]
    assert [row["reference_rank"] for row in rows] == [0, 0, 2, 2]
    both = match_rows(
        [part(rank, at * MS, at * MS + 100 * US, "a", sequence=at) for at in range(9) for rank in (0, 1)]
        + [part(rank, at * MS, at * MS + 100 * US, "b", sequence=at) for at in range(9) for rank in (2, 3)]
        + [part(rank, 50 * MS, 51 * MS, "c", sequence=0) for rank in (1, 2)],
        topology({"a": (0, 1), "b": (2, 3), "c": (1, 2)}),
    )
    judged = judge_arrivals(both, solve_clocks(both))
    one_match = both.communication == both.communication[-1]
    assert not judged.solved[one_match].any() and judged.solved[~one_match].all()


def test_weak_evidence_is_refused_with_the_reason():
    rows = [part(rank, 0, 100, "a", sequence=0) for rank in (0, 1)]
    two = solve_clocks(match_rows(rows, topology({"a": (0, 1)})), ranks=(0, 1, 2)).to_pylist()
    reason = "fewer than 3 matched communications show its clock against another rank's"
    assert {row["refusal"] for row in two} == {reason}
    random = np.random.default_rng(3)
    scattered = [
        part(rank, at * 20 * MS, at * 20 * MS + int(random.integers(1, 9_000)) * US, "a", sequence=at)
        for at in range(40)
        for rank in (0, 1)
    ]
    wild = solve_clocks(match_rows(scattered, topology({"a": (0, 1)}))).to_pylist()
    assert all("scatter" in row["refusal"] and row["offset_ns"] is None for row in wild)


def test_a_broadcast_says_nothing_about_clocks_because_its_root_may_end_early():
    rows = [
        part(rank, at * MS, at * MS + 50 * US, "a", sequence=at, collective="broadcast")
        for at in range(9)
        for rank in (0, 1)
    ]
    clocks = solve_clocks(match_rows(rows, topology({"a": (0, 1)})))
    assert all(row["refusal"] for row in clocks.to_pylist())


def test_shifted_ranks_of_a_real_job_come_back_and_their_waits_stay(shared_data):
    matches = matched(analysed(shared_data / "kineto" / "dlrm8"))
    before = solve_clocks(matches)
    waits = judge_arrivals(matches, before).aligned.arrivals.wait_ns
    random = np.random.default_rng(7)
    for shift in ({3: 5 * MS}, {rank: int(random.integers(-5 * MS, 5 * MS)) for rank in range(8)}):
        moved = shifted(matches, shift)
        after = solve_clocks(moved)
        assert {row["refusal"] for row in after.to_pylist()} == {None}
        base = shift.get(0, 0)
        for rank, offset in offsets_of(after).items():
            gained = offset - offsets_of(before)[rank]
            assert abs(gained - (shift.get(rank, 0) - base)) <= TOLERANCE_NS
        assert np.abs(judge_arrivals(moved, after).aligned.arrivals.wait_ns - waits).max() <= TOLERANCE_NS


@given(st.dictionaries(st.integers(0, 3), st.integers(-SECOND, SECOND), max_size=4), st.integers(0, 20))
@settings(max_examples=40, deadline=None)
def test_no_aligned_wait_depends_on_how_the_clocks_were_set(shift, seed):
    matches = job(TP_DP, {}, seed=seed)
    waits = judge_arrivals(matches, solve_clocks(matches)).aligned.arrivals.wait_ns
    moved = shifted(matches, shift)
    again = judge_arrivals(moved, solve_clocks(moved)).aligned.arrivals.wait_ns
    assert np.abs(again - waits).max() <= US


def test_clocks_of_a_simulated_tp_pp_dp_ep_job_come_back():
    job_settings = JobSettings(
        tp=2, pp=2, ep=2, dp=2, microbatches=4, node_size=2, clock_skew_ms=5.0, clock_drift_ppm=5.0, **TINY
    )
    iteration, truth = simulated(job_settings)
    clocks = solve_clocks(matched(iteration), iteration.ranks).to_pandas().set_index("rank")
    true = pd.read_parquet(truth / "clocks.parquet").set_index("rank")
    assert clocks.refusal.isna().all() and clocks.component.nunique() == 1
    error = (clocks.offset_ns - clocks.offset_ns[0]) - (true.offset_ns - true.offset_ns[0])
    assert true.offset_ns.abs().max() > MS and error.abs().max() <= TOLERANCE_NS
    assert (clocks.early_receives == 0).all()
    table = charged_collectives(iteration).to_pandas()
    assert (table.clocks == "solved").all()
    keys = pd.concat(
        [iteration.kernels(rank, ("rank", "kernel_id", "correlation")).to_pandas() for rank in iteration.ranks]
    )
    both = table.merge(keys, on=["rank", "kernel_id"]).merge(truth_kernels(truth), on=["rank", "correlation"])
    assert len(both) == len(table)
    assert (both.wait_aligned_ns - both.wait_ns_y).abs().max() <= TOLERANCE_NS
    assert (both.transfer_aligned_ns - both.transfer_ns_y).abs().max() <= TOLERANCE_NS


def test_gloo_on_a_cpu_does_not_end_together_and_is_refused(shared_data):
    rows = solve_clocks(matched(analysed(shared_data / "megatron_cpu" / "tp2_pp2_vpp2_full"))).to_pylist()
    assert all("scatter" in row["refusal"] for row in rows)


def ring(lost: bool, collectives: int) -> list[dict]:
    """Two ranks that exchange 20 times, every 2 ms; each may have lost one kernel at another end of its list."""
    exchanges = [
        part(rank, at * 2 * MS, at * 2 * MS + 100 * US, "ring", collective="sendrecv", dimension="cp")
        for at in range(20)
        for rank in (0, 1)
        if not lost or at != 19 * rank
    ]
    return exchanges + [
        part(rank, (50 + at) * MS, (50 + at) * MS + 100 * US, "all", sequence=at)
        for at in range(collectives)
        for rank in (0, 1)
    ]


def test_a_ring_paired_by_order_alone_shows_no_clock():
    for lost in (False, True):
        rows = match_rows(ring(lost, 0), topology({"ring": (0, 1)}))
        assert set(rows.found) == {2}
        assert all(row["refusal"] is not None for row in solve_clocks(rows).to_pylist())


def test_a_ring_whose_order_solved_clocks_contradict_has_no_wait():
    groups = topology({"ring": (0, 1), "all": (0, 1)})
    whole, shifted = (match_rows(ring(lost, 5), groups) for lost in (False, True))
    assert judge_arrivals(whole, solve_clocks(whole)).solved.all()
    judged = judge_arrivals(shifted, solve_clocks(shifted))
    assert not judged.solved[shifted.is_message].any() and judged.solved[~shifted.is_message].all()


def test_the_end_of_a_range_that_rounds_to_nothing_has_no_sign():
    assert residual_range(-1_200, 10) == "-1.2 to 0.0 µs (p05 to p95)"
    assert residual_range(-10, 1_200) == "0.0 to +1.2 µs (p05 to p95)"
    assert residual_range(0, 10_000) == "0.0 to +10.0 µs (p05 to p95)"
