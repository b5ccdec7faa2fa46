"""What rules say of tables that are written by hand."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import pytest

from tests.commands.jobs import analysed_at, traces_of
from traceviz_dag.analyze.findings.findings import Iteration, Judged, findings_table
from traceviz_dag.analyze.findings.rule import Rule, evidence_sql
from traceviz_dag.analyze.findings.rules.environment import COMPARED
from traceviz_dag.analyze.findings.rules.registry import RULES, rule_named
from traceviz_dag.lake.catalogue import tables_named_in
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.lake.queries import AGGREGATED_TABLES
from traceviz_dag.vocabulary import StepKind, TrainingFramework

RUN = "night's $iteration of $run"
GAP = {"device": "gpu:0", "window_name": "step", "doing": "get_batch", "caller": None, "synchronization_id": None}
GAP |= {"host_work": "data_loading", "synchronization_caller": "hooks.py(1): log", "of_framework": False}


def asked(
    rule: Rule,
    starved_ns: dict[int, int],
    callers: tuple[str, ...] = (),
    *,
    later_ns: dict[int, int] | None = None,
    in_part: int | None = None,
    stages: str = "0",
) -> list[dict[str, Any]]:
    """The rows of a rule where each rank has a gap, with the query that is shown for each.

    Args:
        later_ns: of ranks, how long they starve in another gap, in which nothing shows what the host did.
        in_part: a rank that was read in part. stages: the stage of each rank, in SQL.
    """
    home = duckdb.connect()
    gaps = [{"run": RUN, "iteration": 7, "rank": rank, "starved_ns": ns, **GAP} for rank, ns in starved_ns.items()]
    for gap, caller in zip(gaps, callers, strict=False):
        gap["synchronization_caller"] = caller
    plain = {**GAP, "doing": None, "host_work": None, "synchronization_caller": None, "of_framework": None}
    gaps += [
        {"run": RUN, "iteration": 7, "rank": rank, "starved_ns": ns, **plain} for rank, ns in (later_ns or {}).items()
    ]
    windows = "window_name, 'all' AS dimension, device, 0 AS window_start_ns, 1_000_000 AS window_end_ns"
    home.execute("CREATE TABLE gpu_gaps AS SELECT unnest($rows, recursive := true)", {"rows": gaps})
    home.execute(f"CREATE TABLE overlap AS SELECT DISTINCT run, iteration, rank, {windows} FROM gpu_gaps")
    status = "CASE WHEN rank = $rank THEN 'partial' ELSE 'read' END AS status"
    home.execute(
        f"CREATE TABLE traces AS SELECT DISTINCT run, iteration, rank, {status} FROM gpu_gaps", {"rank": in_part}
    )
    home.execute(f"CREATE TABLE topology AS SELECT DISTINCT run, iteration, rank, {stages} AS stage FROM gpu_gaps")
    names = ("rank", "stage", "operation")
    rows = home.sql(rule.sql, params={"run": RUN, "iteration": 7}).to_arrow_table().to_pylist()
    for row in rows:
        (same,) = home.sql(evidence_sql(rule, RUN, 7, row)).to_arrow_table().to_pylist()
        assert {name: same[name] for name in names} == {name: row[name] for name in names}
    return rows


def test_no_rule_reads_what_is_made_beside_findings_so_that_a_damaged_file_of_it_is_made_anew():
    queries = "\n".join(sql for rule in RULES for sql in (rule.sql, rule.unable_sql, rule.partly_sql) if sql)
    named = {table.name for table in tables_named_in(queries)}
    assert {"topology", "overlap", "what_if"} < named
    assert not named & {*AGGREGATED_TABLES, "findings"}


def test_a_rank_that_stalls_is_named_even_beside_one_other():
    rule = rule_named("data_stall")
    for starved_ns in ({0: 60_000, 1: 300}, {0: 60_000, 1: 300, 2: 500, 3: 400}):
        assert [(row["rank"], row["starved_ns"]) for row in asked(rule, starved_ns)] == [(0, 60_000)]
    (both,) = asked(rule, {0: 60_000, 1: 50_000})
    assert (both["rank"], both["ranks"], both["starved_ns"]) == (None, 2, 55_000)


def test_a_rank_alone_in_its_stage_is_held_against_others_that_load_as_well():
    """The first and the last stage load data, those between them none; that names nobody."""
    rule = rule_named("data_stall")
    (together,) = asked(rule, {0: 2_900, 1: 0, 2: 0, 3: 7_000}, stages="rank")
    assert (together["rank"], together["ranks"], together["starved_ns"]) == (None, 2, 4_950)
    assert rule.sentence(together) == (
        "the GPUs of 2 ranks waited for computation for 4.95 µs each on average while their hosts loaded data"
    )
    stalled, others = asked(rule, {0: 9_000, 1: 0, 2: 0, 3: 60_000}, stages="rank")
    assert (stalled["rank"], others["ranks"], others["starved_ns"]) == (3, 1, 9_000)
    assert rule.sentence(others) == "the GPU of one rank waited for computation for 9.00 µs while its host loaded data"
    (collects,) = asked(rule, {0: 0, 1: 60_000, 2: 0, 3: 0}, stages="rank")
    assert collects["rank"] == 1


def test_what_ranks_share_counts_ranks_that_were_read_whole_and_saves_nothing_of_those_named_apart():
    rule = rule_named("data_stall")
    (row,) = asked(rule, {0: 3_000, 1: 3_000, 2: 3_000}, in_part=2)
    assert (row["ranks"], rule.edit(row).edit) == (2, "no_pauses")
    named, others = asked(rule, {0: 60_000, 1: 3_000, 2: 3_000, 3: 3_000})
    assert (named["rank"], rule.edit(named).rank, others["ranks"], rule.edit(others)) == (0, 0, 3, None)


def test_a_host_that_pauses_without_a_name_for_it_is_named_against_the_others_alone(monkeypatch):
    monkeypatch.setitem(GAP, "host_work", None)
    rule = rule_named("host_pause")
    (row,) = asked(rule, {0: 6_000_000, 1: 300, 2: 1_100_000})
    assert (row["rank"], row["starved_ns"], row["gaps"]) == (0, 6_000_000, 1)
    assert "waited for computation for 6.00 ms" in rule.sentence(row) and "mostly in get_batch" in rule.detail(row)
    assert "nothing recorded shows what it did" in rule.detail({**row, "operation": None})
    # All hosts pause, or for less than a pause, or there is nobody to compare with.
    for starved_ns in ({0: 6_000_000, 1: 5_000_000, 2: 5_000_000}, {0: 900_000, 1: 300}, {0: 6_000_000}):
        assert asked(rule, starved_ns) == []
    # Rows may be missing that would show what it did.
    assert asked(rule, {0: 6_000_000, 1: 300}, in_part=0) == []


def test_a_line_of_code_that_waits_is_one_row_whoever_runs_it(monkeypatch):
    monkeypatch.setitem(GAP, "host_work", "synchronisation")
    rule = rule_named("hidden_sync")
    (alone,) = asked(rule, {3: 2_000})
    assert rule.sentence(alone).startswith("rank 3 waits for its GPU in hooks.py(1): log, which leaves the GPU without")
    (row,) = asked(rule, {0: 2_000, 1: 4_000})
    assert (row["rank"], row["ranks"], row["waits"], row["value"]) == (None, 2, 2, 0.003)
    assert rule.sentence(row) == (
        "2 ranks wait for their GPUs in hooks.py(1): log, which leaves these without computation for 6.00 µs in all"
    )
    assert rule.detail(row).startswith("after 2 waits; 0.3 %")


def test_findings_that_one_edit_mends_say_so(monkeypatch):
    monkeypatch.setitem(GAP, "host_work", "synchronisation")
    rule = rule_named("hidden_sync")
    # The second line waits long enough to be judged with the first; the third is not what the gain is of.
    rows = asked(rule, {3: 20_000, 4: 12_000, 5: 300}, ("line 0", "line 1", "line 2"))
    assert {row["operation"]: row["at_most_ns"] for row in rows} == {"line 0": 32_300, "line 1": 32_300, "line 2": 300}
    (row,) = asked(rule, {3: 2_000})
    gain = {"gain_ns": 1_900, "gain_low_ns": 1_900, "gain_high_ns": 1_900, "predicted_step_ns": 98_100}
    gain |= dict.fromkeys(("rank", "dimension", "factor", "refusal")) | {"edit": "no_hidden_waits", "step": 1}
    here = Iteration("a", 7, [gain | {"step_ns": 100_000}], 100_000, 1, "none")
    said = [
        findings_table(here, [Judged(rule, [row | {"operation": f"line {number}"} for number in range(lines)])])
        for lines in (1, 2, 3)
    ]
    told = [{text.as_py().partition(" to 1.90 µs")[2] for text in each["detail"]} for each in said]
    ends = ["", "; this also fixes 1 other finding of hidden_sync", "; this also fixes 2 other findings of hidden_sync"]
    assert told == [{end} for end in ends]


def test_a_host_that_has_waited_may_let_its_gpu_starve_later_than_right_behind_the_wait(monkeypatch):
    monkeypatch.setitem(GAP, "host_work", "synchronisation")
    rule = rule_named("hidden_sync")
    (row,) = asked(rule, {3: 125}, later_ns={3: 1_350, 2: 5_000})
    assert (row["rank"], row["starved_ns"], row["at_most_ns"]) == (3, 125, 1_475)
    # A line of code that costs least of several is not what one edit of them all gains.
    rows = asked(rule, {3: 125, 4: 40}, ("line 0", "line 1"), later_ns={3: 1_350, 4: 900})
    assert {row["operation"]: row["at_most_ns"] for row in rows} == {"line 0": 1_475, "line 1": 40}


def test_a_tail_is_of_the_class_of_what_the_hosts_of_its_stage_did_in_the_long_units():
    rule, here = rule_named("tail"), {"run": RUN, "iteration": 7}
    home = duckdb.connect()
    pair = {"kind": "stages", "pair": "stages 0 and 1", "stage": 0, "step": 3}
    percentiles = {"units": 12, "period_p50_ns": 10_000, "period_p99_ns": 19_000}
    # Of three units of rank 2 the second is long: for 6,000 of 9,000 ns its host freed memory; rank 3 is of no unit.
    units = [{**here, **pair, "rank": 2, "start_ns": at, "period_ns": ns} for at, ns in ((0, 10_000), (10_000, 19_000))]
    gap = {"host_work": "allocation", "of_framework": None}
    gaps = [(2, 9_000, 5_000), (2, 12_000, 6_000), (2, 29_000, 9_000), (3, 12_000, 9_000)]
    rows = [{**here, **gap, "rank": rank, "start_ns": at, "starved_ns": ns} for rank, at, ns in gaps]
    for name, table in (
        ("period_percentiles", [{**here, **pair, **percentiles}]),
        ("periods", units),
        ("gpu_gaps", rows),
    ):
        home.execute(f"CREATE TABLE {name} AS SELECT unnest($rows, recursive := true)", {"rows": table})
    (row,) = home.sql(rule.sql, params=here).to_arrow_table().to_pylist()
    assert (row["work"], row["work_ns"], row["long_units"], row["beyond_ns"]) == ("allocation", 6_000, 1, 9_000)
    assert "for 6.00 µs of that GPUs waited for computation while hosts allocated or freed GPU memory" in rule.detail(
        row
    )
    home.execute("UPDATE gpu_gaps SET starved_ns = starved_ns / 2")
    (row,) = home.sql(rule.sql, params=here).to_arrow_table().to_pylist()
    assert row["work"] is None and "no single activity of the hosts" in rule.detail(row)
    # A gate on tails must not pass for want of units.
    assert home.sql(rule.unable_sql, params=here).fetchall() == []
    home.execute("UPDATE period_percentiles SET units = 7")
    assert len(home.sql(rule.unable_sql, params=here).fetchall()) == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_rule_judges_what_has_no_evidence(rule, tmp_path):
    """Else a gate on it would pass for want of traces; table findings then says why, with no remedy."""
    lake = open_lake(tmp_path)
    (row,) = lake.query_iteration(rule.unable_sql, run=RUN, iteration=7).to_pylist()
    assert row["reason"]
    assert lake.query_iteration(rule.partly_sql or "SELECT 1 WHERE false", run=RUN, iteration=7).num_rows == 0


def test_a_late_rank_is_fixed_where_its_lateness_comes_from():
    rule = rule_named("slow_rank")
    kinds = ("host", "idle", "memory", "fwd_computation", "bwd_communication", "unclassified", None)
    late = [rule.what_to_do({"against": "late", "late_category": kind}) for kind in kinds]
    of_gpu = rule.what_to_do({"against": "peers", "late_category": None})
    assert len({*late, of_gpu}) == 7 and late[-1] == late[-2]
    assert "clocks" in of_gpu and not any("PERFORMANCE,CLOCK" in remedy for remedy in late)
    stage = rule_named("slow_stage")
    assert "clocks" in stage.what_to_do({"because": "slower"}) and "layers" in stage.what_to_do({"because": "more"})


def test_communication_is_fixed_in_the_way_of_its_dimension():
    rule = rule_named("exposed_communication")
    words = [rule.what_to_do({"dimension": name}) for name in ("dp", "tp", "pp", "control")]
    assert "--overlap-grad-reduce" in words[0] and "--tp-comm-overlap" in words[1] and len(set(words)) == 4


@pytest.mark.parametrize("dimension", ["dp", "edp"])
def test_megatron_fsdp_always_overlaps_and_has_flags_of_its_own(dimension):
    rule = rule_named("exposed_communication")
    words = rule.what_to_do({"dimension": dimension}, framework=TrainingFramework.MEGATRON_FSDP)
    assert "--suggested-communication-unit-size" in words and "--overlap-" not in words
    of_layers = rule.what_to_do({"dimension": "tp"}, framework=TrainingFramework.MEGATRON_FSDP)
    assert "--tp-comm-overlap" in of_layers


def test_options_of_megatron_are_advised_where_megatron_trains_and_nowhere_else():
    row = {"dimension": "dp", "because": "more", "launches_ns": 1, "against": "peers", "late_category": None}
    for rule in RULES:
        if rule.name in ("copies", "idle"):
            continue
        here = rule.what_to_do(row, framework=TrainingFramework.MEGATRON)
        for other in (None, TrainingFramework.DDP, TrainingFramework.FSDP, TrainingFramework.ZERO):
            told = rule.what_to_do(row, framework=other)
            assert "Megatron" not in told and not re.search(r"--(?!gpu-gib)[a-z]", told), told
            assert told == here or "Megatron" in here
    exposed = rule_named("exposed_communication")
    told = {exposed.what_to_do(row, framework=each) for each in (None, *TrainingFramework)}
    assert len(told) == 6 and all("fix those first" in each for each in told)


@pytest.mark.parametrize("dimension", ["dp", "edp", "embedding", "tp"])
@pytest.mark.parametrize("framework", [None, *TrainingFramework])
def test_without_a_backward_pass_nothing_is_advised_on_gradients(dimension, framework):
    rule, row = rule_named("exposed_communication"), {"dimension": dimension}
    told = rule.what_to_do(row, StepKind.FORWARD_ONLY, framework)
    assert not re.search(r"grad|backward|no_sync|untie|overlap_comm|param-gather", told), told
    assert dimension != "tp" or told == rule.what_to_do(row, StepKind.TRAINING, framework)


def test_a_rank_in_another_environment_is_named_and_what_no_rank_states_is_not_compared():
    rule, here = rule_named("environment"), {"run": RUN, "iteration": 7}
    home = duckdb.connect()
    alike = {**dict.fromkeys(COMPARED), "status": "read", "device_name": "H100", "has_stacks": True}
    rows = [{**here, **alike, "rank": rank, "driver_version": "CUDA 12.8"} for rank in range(4)]
    rows[2] |= {"driver_version": "CUDA 12.4"}
    for row in rows[:3]:
        row["settings"] = '{"NCCL_ALGO": "Ring", "tp_comm_overlap": "True"}'
    rows[1]["settings"] = '{"NCCL_ALGO": "Tree", "bf16": "True"}'
    rows[3]["settings"] = None
    rows[3] |= {"device_name": None}
    home.execute("CREATE TABLE traces AS SELECT unnest($rows, recursive := true)", {"rows": rows})
    found = home.sql(rule.sql, params=here).to_arrow_table().to_pylist()
    said = {each["operation"]: rule.sentence(each) for each in found}
    row = next(each for each in found if each["operation"] == "driver_version")
    assert said["NCCL_ALGO"] == "ranks differ in the setting NCCL_ALGO: Ring on 2 ranks, Tree on rank 1"
    # Rank 1 keeps settings, so that what it does not keep is another; rank 3 keeps none, and is not compared.
    missing = "ranks differ in the setting tp_comm_overlap: True on 2 ranks, none kept on rank 1"
    assert said["tp_comm_overlap"] == missing
    assert said["bf16"] == "ranks differ in the setting bf16: none kept on 2 ranks, True on rank 1"
    assert len(found) == 4
    assert (row["rank"], row["operation"], row["value"]) == (2, "driver_version", 0.25)
    what = "version that the driver serves (driver_version)"
    assert rule.sentence(row) == f"ranks differ in the {what}: CUDA 12.8 on 3 ranks, CUDA 12.4 on rank 2"
    # What some ranks do not state is not compared on them, and what one rank alone states not at all: both are said.
    assert home.sql(rule.unable_sql, params=here).fetchall() == []
    what = "model of the GPU (3 of 4 ranks do), settings of the job (3 of 4 ranks do)"
    said = f"some ranks do not state what others do: {what}"
    assert home.sql(rule.partly_sql or "", params=here).fetchall() == [(said,)]
    home.execute("UPDATE traces SET driver_version = NULL, settings = NULL")
    home.execute("UPDATE traces SET device_name = NULL WHERE rank > 0")
    (reason,) = home.sql(rule.unable_sql, params=here).fetchall()[0]
    assert reason == "no two ranks state anything of their GPUs, software or settings"
    assert home.sql(rule.partly_sql or "", params=here).fetchall() == []


def test_where_a_model_is_served_no_option_of_training_is_advised_and_nothing_is_called_a_step(monkeypatch):
    monkeypatch.setitem(GAP, "host_work", "synchronisation")
    rows = {"exposed_communication": {"dimension": "tp"}, "idle": {"launches_ns": 1}, "launch_bound": {}}
    for name in (*rows, "memory_headroom"):
        told = rule_named(name).what_to_do(rows.get(name, {}), StepKind.INFERENCE)
        assert not re.search(r"--(?!enforce-eager)|micro-batch|optimizer|[Rr]ecompute", told), told
    (row,) = asked(rule_named("hidden_sync"), {3: 2_000})
    gain = {"gain_ns": 1_900, "gain_low_ns": 1_900, "gain_high_ns": 1_900, "predicted_step_ns": 98_100}
    gain |= dict.fromkeys(("rank", "dimension", "factor", "refusal")) | {"edit": "no_hidden_waits", "step": 1}
    gain["step_ns"] = 101_000
    for kind, words in ((StepKind.INFERENCE, "of the 100 µs recorded"), (None, "of the 100 µs step")):
        here = Iteration("a", 7, [gain], 100_000, 1, "none", kind)
        (found,) = findings_table(here, [Judged(rule_named("hidden_sync"), [row])]).to_pylist()
        assert words in found["statement"]
        # The replay's step is a little longer than what the host measured: one is reported, with shares of it.
        assert found["step_ns"] == 100_000 and "(1.9 %)" in found["statement"]


def test_work_is_not_said_to_be_off_a_path_of_communication_that_may_wait_for_it():
    home, rule = duckdb.connect(), rule_named("not_on_period")
    of = f"SELECT '{RUN.replace(chr(39), chr(39) * 2)}' AS run, 7 AS iteration, 0 AS rank"
    home.execute(f"""
        CREATE TABLE kernels AS {of}, 'fwd_computation' AS category, 1_000_000 AS duration_ns, 'computation' AS kind,
            'start' AS step_evidence;
        CREATE TABLE collectives AS {of}, 2 AS kernel_id, 'members_missing' AS fault;
        CREATE TABLE path_segments AS {of}, 'dp_communication' AS category, * FROM (VALUES
            (1, 'transfer', 900_000), (2, 'transfer', 40_000), (3, 'unmatched', 0)
        ) AS segment(kernel_id, cause, duration_ns)
    """)
    told = {}
    for unmatched_ns in (0, 30_000, 800_000):
        home.execute(f"UPDATE path_segments SET duration_ns = {unmatched_ns} WHERE kernel_id = 3")
        rows = home.sql(rule.sql, params={"run": RUN, "iteration": 7}).to_arrow_table().to_pylist()
        told[unmatched_ns] = [f"{rule.sentence(row)}; {rule.detail(row)}" for row in rows]
    assert "but only 0 ns of the critical path; beside 70.0 µs of communication whose" in told[30_000][0]
    assert len(told[0]) == 1 and told[800_000] == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.gaps is not None], ids=lambda rule: rule.name)
def test_a_rule_that_needs_gaps_finds_nothing_where_no_gap_is_its_own(rule):
    (iteration,) = analysed_at(traces_of("slow_rank"))
    own = f"SELECT count(*) AS gaps FROM gpu_gaps WHERE run = $run AND iteration = $iteration AND {rule.gaps}"
    place = {"run": iteration.run, "iteration": iteration.iteration}
    (gaps,) = iteration.lake.query_iteration(own, **place)["gaps"].to_pylist()
    assert gaps or not iteration.lake.query_iteration(rule.sql, **place).num_rows
