"""The verdict that ``analyze`` ends with, over all kinds of jobs, held against SQL."""

from __future__ import annotations

import json

import pytest

from tests.commands.jobs import JOBS, analysed_at, home_of, traces_of
from tests.commands.sentences.printed import Home
from tests.damage import call
from tests.sets import fast
from tests.small_run import write_run
from traceviz_dag.analyze.findings.losses import label, leading
from traceviz_dag.analyze.findings.verdict import LEAD_COLUMNS, Evidence, JudgedIteration, compared, verdict
from traceviz_dag.commands.common.verdict import verdict_lines
from traceviz_dag.pipeline.certainty import stored_verdict

SURE = Evidence(ranks=4, partial="", clocks=4, unknown_waits=None, uncertain=0.0, unclassified=0.0, open=0)


@pytest.mark.parametrize("job", fast(JOBS, "slow_link", "healthy", "slow_rank", "without_topology", "one_rank"))
def test_a_verdict_is_the_first_finding_fits_the_screen_and_is_sure_only_where_all_is_known(job):
    home = Home(home_of(job))
    for each in analysed_at(traces_of(job)):
        found = stored_verdict(each.lake, each.run, each.iteration, "")
        assert found is not None
        place = {"run": each.run, "iteration": each.iteration}
        faults = home.query(
            "SELECT statement FROM findings WHERE run = $run AND iteration = $iteration AND severity = 'finding' "
            "AND class = 'fault' AND rule <> 'environment' ORDER BY finding LIMIT 1",
            place,
        ).to_pylist()
        assert not faults or found.limit == faults[0]["statement"]
        saved = home.query(
            "SELECT list(gain_after_ns) AS ns FROM findings WHERE run = $run AND iteration = $iteration", place
        ).to_pylist()[0]["ns"]
        for fix in found.then:
            number = float(fix.split(": ")[1].split(" ")[0])
            assert any(ns and abs(number - ns / unit) <= 0.005 * number for ns in saved for unit in (1e3, 1e6, 1e9))
        (known,) = home.query(
            "SELECT count(*) FILTER (refusal IS NULL) = count(*) AND count(*) > 1 AS solved FROM rank_clocks "
            "WHERE run = $run AND iteration = $iteration",
            place,
        ).to_pylist()
        assert found.doubts or known["solved"]
        lines = verdict_lines(
            each.run * 9, "iteration 1 · 8 ranks", found, "", "A rank's step: …", ["Next: …", "Report: …"]
        )
        assert len(lines) <= 8 and max(map(len, lines)) <= 80 and lines[0].endswith(" · iteration 1 · 8 ranks")


def test_nothing_wrong_is_a_verdict_and_what_is_not_known_makes_it_less_sure():
    found = verdict([], SURE)
    assert found.limit.startswith("no fault found") and (found.then, found.doubts) == ((), ())
    doubtful = Evidence(
        ranks=4,
        partial="PARTIAL: rank 3",
        clocks=2,
        unknown_waits=None,
        uncertain=0.2,
        unclassified=0.1,
        open=1,
        launchless=1,
    )
    assert verdict([], doubtful).doubts == (
        *("PARTIAL: rank 3", "clocks are solved for 2 of 4 ranks"),
        "launches of some kernels are not recorded on 1 of 4 ranks",
        *("1 note may be a finding", "10 % of kernel time is unclassified"),
    )


def test_a_fault_whose_saving_is_unknown_leads_where_no_other_fault_is_known():
    row = dict.fromkeys((*LEAD_COLUMNS, "gain_low_ns", "gain_high_ns")) | {
        "step_ns": 100,
        "measured_ns": 100,
        "steps": 1,
        "value": 0.5,
    }
    note = row | {"rule": "slow_rank", "class": "fault", "severity": "note", "rank": 5, "statement": "rank 5 is slow"}
    loss = row | {"rule": "exposed_communication", "class": "opportunity", "severity": "note", "gain_ns": 0}
    loss |= {"measure": "share of the time measured", "statement": "PP communication is exposed"}
    found = verdict([loss, note], SURE)
    assert found.limit == "rank 5 is slow" and found.doubts == ("what fixing it saves is unknown",)
    assert [label(one) for one in leading([loss, note])] == ["fault, saving unknown", "loss"]
    # What can be too little to matter, or is nobody's, does not lead.
    assert verdict([loss, note | {"at_most_ns": 0}], SURE).limit == loss["statement"]
    assert verdict([loss, note | {"rank": None}], SURE).limit == loss["statement"]
    fault = note | {"rank": 3, "severity": "finding", "gain_ns": 2, "gain_low_ns": 2, "gain_high_ns": 2}
    assert verdict([loss, note, fault | {"statement": "rank 3 is slow"}], SURE).limit == "rank 3 is slow"


def test_further_faults_come_before_what_only_hides_them():
    row = dict.fromkeys((*LEAD_COLUMNS, "gain_low_ns", "gain_high_ns")) | {
        **{"step_ns": 100_000_000, "measured_ns": 100_000_000, "steps": 1, "value": 0.5},
        **{"severity": "finding", "statement": "rank 1 has slow links", "gain_ns": 50_000_000},
    }
    rows = [
        row | {"rule": "slow_link", "class": "fault", "edit": "fix_link", "rank": 1},
        row | {"rule": "slow_rank", "class": "fault", "edit": "fix_rank", "rank": 2, "gain_after_ns": 2_000_000},
        *(
            row | {"rule": "exposed_communication", "class": "opportunity", "edit": "hide"} | gain
            for gain in (
                {"dimension": "dp", "gain_after_ns": 20_000_000},
                {"dimension": "tp", "gain_after_ns": 9_000_000},
            )
        ),
    ]
    assert verdict(rows, SURE).then == ("fix rank 2: 2.00 ms (2.0 %)", "hide DP communication: 20.0 ms (20 %)")


def test_the_slowest_iteration_that_differs_is_named_beside_the_last():
    calm = verdict([], SURE)
    assert compared([JudgedIteration(5, 100, calm)]) == ("", "")
    assert compared([JudgedIteration(4, 104, calm), JudgedIteration(5, 100, calm)]) == ("the same in both", "")
    steps = {3: 150_000_000, 4: 120_000_000, 5: 100_000_000}
    words, line = compared([JudgedIteration(number, ns, calm) for number, ns in steps.items()])
    assert words == "2 of 3 differ" and line.startswith("Iteration 3: step 150 ms. No fault found")


def test_analyze_ends_with_it_and_writes_the_report_unless_it_is_asked_not_to(tmp_path):
    run, home = write_run(tmp_path / "job", {7: 2}, world=2), tmp_path / "home"
    answer = call("analyze", run, "--home", home, "--report")
    (report,) = (home / "reports").rglob("*.html")
    lines = answer.out.strip().splitlines()
    assert len(lines) <= 8 and lines[-1] == f"Report: {report}" and lines[-2].startswith("Next: traceviz findings ")
    assert lines[1].rstrip(".") in report.read_text()
    before = report.stat().st_mtime_ns
    call("analyze", run, "--home", home, "--report")
    assert report.stat().st_mtime_ns == before
    call("analyze", run, "--home", home, "--report", "--force")
    assert report.stat().st_mtime_ns > before
    report.unlink()
    assert "Report: " not in call("analyze", run, "--home", home, "--no-report").out and not report.exists()
    assert call("analyze", run, "--home", home, "--json").json[0]["verdict"]["limit"]


@pytest.mark.long
def test_every_view_says_the_verdict_first_and_shows_the_rank_at_fault_before_the_one_that_delays_most(tmp_path):
    job, home = tmp_path / "job", tmp_path / "home"
    shape = ("--pp", "2", "--dp", "4", "--layers", "4", "--microbatches", "4", "--node-size", "2")
    call(
        "simulate",
        job,
        *shape,
        "--slow-gpu",
        "6",
        "--slow-link",
        "1",
        "--seed",
        "11",
        "--iterations",
        "1",
    )
    call("analyze", job, "--home", home)
    (found,) = Home(home).query("FROM findings WHERE finding = 0", {}).to_pylist()
    assert (found["rule"], found["rank"]) == ("slow_link", 1)
    for command in ("waits", "critical-path", "what-if", "pipelines"):
        title, verdict_line = call(command, "--home", home).out.splitlines()[1:3]
        assert title.startswith("job · iteration 10 · ")
        assert verdict_line.startswith(f"  Verdict: {found['statement']}."), command
    answer = call("waits", "--home", home, "--json")
    (late,) = json.loads(answer.out)
    assert [row["rank"] for row in late["ranks"] if row["blamed"]] == [6], "the delays blame another rank"
    rows = call("waits", "--home", home).out.split("Late ranks, ")[1].split("─ \n")[1].splitlines()
    assert [int(row.split()[0]) for row in rows[:2]] == [1, 6]
    kinds = ("--kind", "wait_map,predicted_gains,rank_timeline,pipeline_group", "--ranks", "1,6", "-p", "1")
    drawn = json.loads(call("figures", "--home", home, *kinds, "--formats", "svg", "--json").out)
    titles = {(one["kind"], one["number"]): one["title"] for one in drawn}
    for kind in (("wait_map", None), ("predicted_gains", None), ("rank_timeline", 1)):
        assert titles[kind] == found["statement"], kind
    assert titles["pipeline_group", 1] == f"Pipeline 1: {found['statement']}"
    assert titles["rank_timeline", 6].startswith("Rank 6 ")
