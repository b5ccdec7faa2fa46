"""The API answers what the commands print: the same rows, the same sentences, evidence that SQL gives again."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, asdict, is_dataclass, replace
from functools import partial

import numpy as np
import pytest

import traceviz_dag as tv
from benchmarks.accuracy import SMALL
from tests.commands.jobs import home_of, traces_of
from tests.damage import call, truncate
from tests.in_process import ranks_in_this_process
from tests.sets import fast
from tests.small_run import write_run
from traceviz_dag.analyze.causes.gains import named_edit
from traceviz_dag.analyze.wording import duration
from traceviz_dag.api.evidence import REPLAYED
from traceviz_dag.simulate import simulate
from traceviz_dag.simulate.settings import Edges, Faults

JOBS = ("slow_rank", "two_iterations", "missing_stage", "scattered", "one_rank")

QUESTIONS = {
    "findings": lambda step: step.findings(),
    "waits": lambda step: step.waits(),
    "overlap": lambda step: step.overlap(),
    "overlap of a rank": lambda step: step.overlap("all", rank=step.ranks[0]),
    "overlap of kernels": lambda step: step.overlap(window="kernels"),
    "critical path": lambda step: step.critical_path(),
    "what if": lambda step: step.what_if(),
    "what if asked": lambda step: step.what_if(fix_rank=step.ranks[0], no_pauses=True),
}


def last(name: str) -> tv.Iteration:
    """The last iteration of a job."""
    return tv.open(home_of(name)).iteration()


def as_json(value: object) -> object:
    """A value as a JSON text says it."""
    return json.loads(json.dumps(value, default=lambda one: asdict(one) if is_dataclass(one) else str(one)))


@pytest.mark.parametrize("name", fast(JOBS, *JOBS[:1]))
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_answer_is_what_its_command_prints(name, question):
    answer = QUESTIONS[question](last(name))
    printed = call(*shlex.split(answer.command)[1:], "--json").json
    if question.startswith("overlap"):
        wanted = [{key: row[key] for key in answer.rows[0]} for row in printed]
        assert as_json(answer.rows) == wanted
    elif question == "findings":
        assert [row.statement for row in answer.rows] == [row["statement"] for row in printed]
        assert [row.gain_ns for row in answer.rows] == [row["gain_ns"] for row in printed]
        assert answer.statement[1:] == printed[0]["statement"][1:] or "no fault found" in answer.statement.lower()
    elif question.startswith("what if"):
        gains = {(row.edit, row.rank, row.dimension, row.factor): row.gain_ns for row in answer.rows}
        keys = ("edit", "rank", "dimension", "factor")
        assert gains == {
            tuple(row[key] for key in keys): row["gain_ns"] for row in printed if row["edit"] and not row["refusal"]
        }
    else:
        assert as_json(answer.values) == printed[0]
    if question in ("waits", "critical path") and name != "one_rank":
        text = " ".join(call(*shlex.split(answer.command)[1:]).out.split())
        assert answer.statement[1:] in text


WAITS = ("ranks", "costs", "matrix", "communication", "links", "experts", "slow_ranks", "stages", "nodes")
PATH = ("cause", "rank", "stage", "category", "module", "dimension", "hosts", "critical_imbalance")
MIDDLE = {"start_ns": 0.4, "end_ns": 0.6}

PARTS = {
    "findings": lambda step: step.findings(),
    "doctor": lambda step: step.doctor(),
    "what if": lambda step: step.what_if(),
    "what if fixed": lambda step: step.what_if(
        fix_rank=[row.rank for row in step.what_if().rows if row.edit == "fix_rank"][:1]
    ),
    "overlap": lambda step: step.overlap(),
    "overlap of kernels": lambda step: step.overlap("all", window="kernels", part="means"),
    "means": lambda step: step.overlap(part="means"),
    **{f"waits {part}": partial(lambda part, step: step.waits(part), part) for part in WAITS},
    **{f"path {by}": partial(lambda by, step: step.critical_path(by), by) for by in PATH},
    "share": lambda step: step.measure("hidden_share"),
    "step_ns": lambda step: step.measure("step_ns"),
    "mfu": lambda step: step.measure("mfu"),
    "hfu": lambda step: step.measure("hfu"),
    "window": lambda step: step.overlap(**middle(step)),
    "window of a rank": lambda step: step.overlap("all", rank=step.ranks[-1], start_ns=middle(step)["start_ns"]),
    "window's means": lambda step: step.overlap(end_ns=middle(step)["end_ns"], part="means"),
    "window's measure": lambda step: step.measure("hidden_over_min", **middle(step)),
}


def middle(step: tv.Iteration) -> dict[str, int]:
    """A window that cuts kernels of the first rank."""
    kernels = step.table("kernels", ["start_ns", "duration_ns"], rank=step.ranks[0])
    first, end = kernels.aggregate("min(start_ns), max(start_ns + duration_ns)").fetchall()[0]
    return {name: round(first + part * (end - first)) for name, part in MIDDLE.items()}


@pytest.mark.parametrize("name", fast((*JOBS, "uneven_experts"), *JOBS[:1]))
@pytest.mark.parametrize("part", PARTS)
def test_the_evidence_of_an_answer_has_the_numbers_of_each_of_its_rows(name, part):
    job, step = tv.open(home_of(name)), last(name)
    answer = PARTS[part](step)
    rows = [asdict(row) if is_dataclass(row) else row for row in answer.rows]
    assert answer.row_ids
    evidence = {}
    for row in job.sql(answer.evidence_sql).to_arrow_table().to_pylist():
        evidence[tuple(row[key] for key in answer.row_ids)] = row
    assert len({tuple(row[key] for key in answer.row_ids) for row in rows}) == len(rows)
    for row in rows:
        found = evidence[tuple(row[key] for key in answer.row_ids)]
        common = [key for key in row if key in found and key not in answer.row_ids and not key.startswith("window_")]
        assert common
        for key in common:
            is_share = isinstance(row[key], float)
            assert found[key] == (pytest.approx(row[key], rel=1e-12) if is_share else row[key]), key
        assert {key for key in row if key.endswith("_ns")} <= set(found)


def test_gains_that_no_table_has_name_the_replay_and_what_it_starts_from():
    job, step = tv.open(home_of("slow_rank")), last("slow_rank")
    answer = step.what_if(fix_rank=[4, 5])
    assert "together" in {row.edit for row in answer.rows}
    assert answer.conditions[-1] == REPLAYED
    assert job.sql(answer.evidence_sql).fetchall() == [(10, answer.rows[0].step_ns)]
    assert REPLAYED not in step.what_if(fix_rank=5).conditions


def test_dimensions_are_taken_as_sentences_write_them():
    step = last("slow_rank")
    (hidden,), (faster,) = step.what_if(hide=["TP", "tp"]).rows, step.what_if(faster={"TP": 2.0}).rows
    assert (hidden, faster) == (step.what_if(hide="tp").rows[0], step.what_if(faster={"tp": 2.0}).rows[0])
    assert "hide TP communication" in call("what-if", "--hide", "TP", "--home", home_of("slow_rank")).out


def test_a_part_that_there_is_not_is_refused():
    step = last("slow_rank")
    for ask in (step.waits, step.critical_path, lambda part: step.overlap(part=part)):
        with pytest.raises(tv.UsageError, match="no part 'all'; there are "):
            ask("all")


def test_a_statement_on_a_gain_has_the_numbers_of_its_row():
    step = last("slow_rank")
    saved, added = step.what_if().rows, step.what_if(microbatches=8).rows
    assert added[0].gain_high_ns < 0 < saved[0].gain_low_ns
    for gain in (*saved, *added):
        sign = -1 if gain.gain_ns < 0 else 1
        for number in (gain.gain_ns * sign, gain.step_ns, gain.gain_low_ns * sign, gain.gain_high_ns * sign):
            assert duration(number) in gain.statement
        assert (" would add " in gain.statement, " would save " in gain.statement) == (sign < 0, sign > 0)
        assert named_edit(asdict(gain))[1:] in gain.statement


@pytest.mark.parametrize("name", ["slow_rank", "missing_stage"])
def test_edits_that_are_refused_are_in_the_answer_with_their_reasons(name):
    step = last(name)
    table = step.table("what_if").filter("refusal IS NOT NULL AND edit IS NOT NULL")
    wanted = set(table.project("edit, rank, dimension, factor, refusal").fetchall())
    answer = step.what_if()
    keys = ("edit", "rank", "dimension", "factor", "refusal")
    assert wanted
    assert {tuple(row[key] for key in keys) for row in answer.values["refused"]} == wanted
    assert answer.statements[-1].startswith(f"{len(wanted)} edits are refused; ")
    assert any(refusal in answer.statements[-1] for *_, refusal in wanted)
    printed = call(*shlex.split(answer.command)[1:], "--json").json
    assert {tuple(row[key] for key in keys) for row in printed if row["refusal"]} == wanted


def test_a_gain_that_may_be_none_and_an_edit_that_is_refused_are_not_certain():
    step = last("slow_rank")
    assert step.what_if(fix_rank=5).certain
    zero = step.what_if(fix_rank=4)
    assert zero.rows[0].gain_low_ns <= 0
    assert (zero.certain, "may save nothing" in zero.reason) == (False, True)
    refused = step.what_if(fix_rank=5, no_hidden_waits=True)
    assert (refused.certain, "no hidden waits" in refused.reason) == (False, True)


def test_a_statement_on_overlap_is_the_mean_that_its_rows_give():
    answer = last("slow_rank").overlap()
    of_all = [row for row in answer.rows if row["dimension"] == "all"]
    exposed = sum(row["exposed_ns"] for row in of_all) / len(of_all)
    shown = float(answer.statement.split(" ")[0])
    assert answer.statement.split(" ")[1] == "ms"
    assert shown == pytest.approx(exposed / 1e6, rel=0.006)


def test_a_window_outside_of_what_was_recorded_is_refused_and_of_one_rank_not_certain():
    """Without a kernel before or after it, nothing shows that a GPU idled."""
    step = last("slow_rank")
    spans = step.table("kernels").aggregate("rank, min(start_ns), max(start_ns + duration_ns)", "rank").fetchall()
    ends = sorted((end, rank) for rank, _, end in spans)
    after = ends[-1][0] + 1
    for window in ({"start_ns": 0, "end_ns": 1_000}, {"start_ns": after, "end_ns": after + 1_000}):
        with pytest.raises(tv.UsageError, match="is outside of all kernels; those of rank 0 are from"):
            step.overlap(**window)
        with pytest.raises(tv.UsageError, match="is outside of all kernels"):
            step.measure("idle_ns", rank=ends[0][1], **window)
        answer = call("overlap", traces_of("slow_rank"), "--start-ns", window["start_ns"], "--end-ns", window["end_ns"])
        assert (answer.code, "is outside of all kernels" in answer.err) == (2, True)
    (early, rank), (late, _) = ends[:2]
    window = {"start_ns": early + 1, "end_ns": late}
    for answer in (step.overlap(**window), step.measure("idle_ns", **window)):
        assert not answer.certain and answer.reason == f"the window is outside of all kernels of rank {rank}"
    assert step.overlap(start_ns=early, end_ns=late).certain


def test_what_cannot_be_said_is_said():
    missing, scattered = last("missing_stage"), last("scattered")
    assert missing.partial
    assert any("no trace of" in line for line in missing.conditions)
    assert missing.findings().partial
    answer = scattered.waits()
    assert (answer.certain, bool(answer.reason)) == (False, True)
    assert last("one_rank").waits().statement.startswith("nobody can be blamed")


@pytest.mark.long
@pytest.mark.parametrize(
    ("layout", "ranks", "code"), [({"tp": 1, "pp": 4}, "1,3", 2), ({"tp": 2, "pp": 2}, "1,3", 0)], ids=("apart", "one")
)
def test_that_nobody_can_be_blamed_among_the_ranks_that_a_capture_chose_is_not_certain(layout, ranks, code, tmp_path):
    """Stages that send each other nothing show no wait at all; one rank of each stage has no peer to wait for."""
    settings = replace(SMALL, **layout, edges=Edges(captured_ranks=ranks), faults=Faults(slow_gpu=3))
    job = tv.analyze(simulate(settings, tmp_path / "job", workers=1), home=tmp_path / "home", workers=1)
    answer = job.iteration().waits()
    assert "nobody can be blamed: no wait among peers of one stage is known" in answer.statements
    assert (answer.certain, answer.values["certain"], answer.partial) == (False, code == 0, False)
    number, kernels = answer.values["uncertain"], answer.values["communication_kernels"]
    assert answer.reason.startswith(f"{number} of {kernels} communication kernels have no certain wait")
    assert call("waits", "--home", tmp_path / "home").code == call("findings", "--home", tmp_path / "home").code == code


def test_a_place_of_a_finding_is_a_place_of_a_kernel_of_its_rank():
    step = last("slow_rank")
    finding = next(row for row in step.findings().rows if row.rule == "slow_rank")
    places = step.explain(finding.finding).values["places"]
    starts = set(step.table("kernels", ["start_ns"], rank=5).to_arrow_table()["start_ns"].to_pylist())
    assert places
    assert {place["rank"] for place in places} == {5}
    assert {place["start_ns"] for place in places} <= starts


def test_two_iterations_are_compared_as_the_command_compares_them():
    first, second = tv.open(home_of("two_iterations")).iterations
    answer = tv.diff(first, second)
    printed = call(*shlex.split(answer.command)[1:], "--json").json
    assert as_json(answer.values) == printed
    assert sum(row["change_ns"] for row in answer.rows) == printed["step"]["change_ns"]
    evidence = tv.open(home_of("two_iterations")).sql(answer.evidence_sql).to_arrow_table().to_pylist()
    numbers = (*answer.row_ids, "a_ns", "b_ns", "change_ns")
    told = [{name: row[name] for name in numbers} for row in answer.rows]
    assert sorted(evidence, key=str) == sorted(told, key=str)


def test_a_comparison_by_another_least_change_is_given_again_by_its_command():
    first, second = tv.open(home_of("two_iterations")).iterations
    answer = tv.diff(first, second, least=60)
    assert as_json(answer.values) == call(*shlex.split(answer.command)[1:], "--json").json
    assert "--least 60" in answer.command
    for least in (-1, float("nan")):
        with pytest.raises(tv.UsageError, match="name a percentage"):
            tv.diff(first, second, least=least)
    with pytest.raises(tv.UsageError, match="None is no iteration"):
        tv.diff(None, second)


def test_runs_that_differ_are_refused_with_the_reason():
    answer = tv.diff(last("slow_rank"), last("two_iterations"))
    assert (answer.certain, answer.values["compared"]) == (False, False)
    assert answer.reason in answer.statement


def test_a_table_is_a_relation_for_every_library():
    step, job = last("slow_rank"), tv.open(home_of("slow_rank"))
    kernels = step.table("kernels", ["rank", "name", "duration_ns"], rank=3)
    assert kernels.df().shape == (len(kernels), 3)
    assert kernels.pl().shape == (len(kernels), 3)
    assert kernels.to_arrow_table().column_names == ["rank", "name", "duration_ns"]
    assert kernels.aggregate("sum(duration_ns) AS ns").fetchall()[0][0] == sum(kernels.df()["duration_ns"])
    assert len(job.table("kernels", ["rank"])) == len(job.sql("SELECT rank FROM kernels"))


def test_numbers_are_taken_as_they_are_given():
    step = last("slow_rank")
    assert step.what_if(fix_rank=np.int64(5)).rows == step.what_if(fix_rank=5).rows
    assert step.what_if(fix_rank=np.array([4, 5])).rows == step.what_if(fix_rank=[4, 5]).rows
    [gain] = step.what_if(faster={"tp": 1.23456789}).rows
    assert gain.factor == 1.23456789
    assert step.what_if(faster={"tp": "2"}).rows == step.what_if(faster={"tp": 2}).rows
    for given in (True, 1.5, None, [None]):
        with pytest.raises(tv.UsageError, match="names no rank"):
            step.what_if(fix_rank=given)


def test_relations_of_a_job_are_joined_and_united():
    job = tv.open(home_of("slow_rank"))
    kernels, topology = job.table("kernels", ["rank", "kernel_id"]), job.table("topology", ["rank", "stage"])
    assert len(kernels.join(topology.set_alias("t"), "rank")) == len(kernels)
    assert job.sql("SELECT 1 AS x").union(job.sql("SELECT 2 AS x")).order("x").fetchall() == [(1,), (2,)]
    assert len(job.iteration().waits().relation().union(job.iteration().waits().relation())) > 0


def test_a_relation_of_an_answer_without_rows_is_empty():
    empty = tv.diff(last("slow_rank"), last("two_iterations"))
    assert not empty.rows
    assert len(empty.relation()) == 0


@pytest.mark.parametrize("given", [{"rank": 99}, {"dimension": "zz"}, {"window": "foo"}, {"start_ns": 3}, {"rank": 1}])
@pytest.mark.parametrize("name", ["step_ns", "mfu", "tokens_per_s"])
def test_a_measure_of_the_whole_iteration_takes_no_window_rank_or_dimension(name, given):
    with pytest.raises(tv.UsageError, match=f"{name} is of the whole iteration; leave out {next(iter(given))}"):
        last("slow_rank").measure(name, **given)


@pytest.mark.parametrize("given", [{"rank": 99}, {"dimension": "zz"}, {"window": "foo"}])
def test_a_measure_of_windows_refuses_what_is_not_there(given):
    with pytest.raises(tv.UsageError):
        last("slow_rank").measure("exposed_ns", **given)


def test_a_measure_is_a_column_with_its_definition():
    step = last("slow_rank")
    answer = step.measure("exposed_ns", dimension="tp", rank=5)
    assert [row["exposed_ns"] for row in answer.rows] == [row["exposed_ns"] for row in step.overlap("tp", rank=5).rows]
    assert "ns" in tv.measures()["exposed_ns"][1]
    for name in tv.measures():
        answer, table = step.measure(name), tv.measures()[name][0]
        assert answer.certain is any(row[name] is not None for row in answer.rows), name
        assert answer.certain or answer.reason
        if table != "overlap":
            assert answer.rows[0][name] == call("sql", answer.evidence_sql, "--home", step.home, "--json").json[0][name]
    hfu = step.measure("hfu")
    assert (hfu.certain, "sizes of its inputs" in hfu.reason) == (False, True)
    with pytest.raises(tv.UsageError, match="no measure 'speed'; there are compute_ns"):
        step.measure("speed")


def test_an_answer_shows_itself_in_a_notebook_and_texts_of_traces_are_escaped():
    answer = last("slow_rank").findings()
    assert answer.statement in answer._repr_html_()
    evil = replace(answer, statement="<script>alert(1)</script>\x1b[2J")
    assert "<script>" not in evil._repr_html_()
    assert "\x1b" not in evil._repr_html_()
    hidden = replace(answer, statement="a\u202eb\x1b\u2066c", conditions=("d\u200fe",), reason="f\x07g")
    for shown in (repr(hidden), hidden._repr_html_(), repr(last("slow_rank")), repr(answer.rows[0])):
        assert shown.isprintable()
        assert "\u200f" not in shown
    figure = last("slow_rank").figure("wait_map")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.title
    with pytest.raises(FrozenInstanceError):
        answer.statement = "another"


def test_errors_are_the_classes_of_errors_with_their_remedy(tmp_path):
    with pytest.raises(tv.BadInputError, match="nothing here"):
        tv.open(tmp_path / "nothing here")
    with pytest.raises(tv.UsageError, match="no such run or iteration; there are"):
        tv.open(home_of("slow_rank")).iteration(99)
    with pytest.raises(tv.UsageError, match="no communication of dimension 'cp'; there are all"):
        last("slow_rank").overlap("cp")
    with pytest.raises(tv.UsageError, match="no such rank was read"):
        last("slow_rank").what_if(fix_rank=77)
    with pytest.raises(tv.UsageError, match="there is no finding 999"):
        last("slow_rank").explain(999)
    with pytest.raises(tv.UsageError, match="one statement that reads"):
        tv.open(home_of("slow_rank")).sql("DROP TABLE kernels")
    with pytest.raises(AttributeError):
        tv.nothing  # noqa: B018
    assert issubclass(tv.BadInputError, tv.TracevizError)


def test_integers_of_128_bits_are_exact():
    large = 2**128 - 1
    query = f"SELECT {large}::UHUGEINT AS a, 5 AS a, [7::UHUGEINT] AS b, (-{2**127 - 1})::HUGEINT AS c, 1::HUGEINT AS d"
    found = tv.open(home_of("slow_rank")).sql(query)
    assert found.columns == ["a", "a_1", "b", "c", "d"]
    assert [str(value) for value in found.fetchall()[0]] == [str(large), "5", "['7']", f"-{2**127 - 1}", "1"]


@pytest.mark.long
def test_to_explain_what_no_rule_could_judge_is_not_certain():
    step = last("slow_rank")
    blind = [(row["rule"], row["reason"]) for row in step.doctor().rows]
    answers = [(row, step.explain(row.finding)) for row in step.findings().rows]
    assert sorted((row.rule, one.reason) for row, one in answers if not one.certain) == sorted(blind)
    assert 0 < len(blind) < len(answers)


@pytest.mark.parametrize(("name", "shapes"), [("slow_rank", "no rank"), ("with_sizes", "all ranks")])
def test_doctor_says_of_shapes_what_the_command_says(name, shapes):
    with_shapes = re.search(r"shapes (\d+)", call("doctor", traces_of(name)).out)[1]
    assert f"shapes: {shapes};" in last(name).doctor().statement
    assert (int(with_shapes) > 0) is (shapes == "all ranks")


@pytest.mark.long
def test_a_comparison_says_of_which_side_the_path_may_run_elsewhere():
    step = last("missing_stage")
    reason = step.critical_path().reason
    assert "the path may run on other ranks" in reason
    line = f"{step.run}@{step.number}: {reason}"
    assert tv.diff(step, step).conditions.count(line) == 1
    assert line in tv.diff(last("healthy"), step, anyway=True).conditions
    assert not any("may run on other ranks" in one for one in tv.diff(last("healthy"), last("healthy")).conditions)


def test_the_conditions_of_a_comparison_are_those_of_its_sides():
    step = last("missing_stage")
    answer = tv.diff(step, last("healthy"))
    assert answer.partial
    for side in (step, last("healthy")):
        for line in side.conditions:
            assert any(
                one.startswith(f"{side.run}@{side.number}: ") and one.endswith(line) for one in answer.conditions
            ) or (line in answer.conditions)


def test_a_query_without_end_is_stopped():
    endless = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(tv.UsageError, match=r"took longer than 0\.5 s and was stopped"):
        tv.open(home_of("slow_rank")).sql(endless, seconds=0.5)


@pytest.mark.parametrize("bound", [{"rows": -1}, {"offset": -1}, {"seconds": 0}, {"seconds": float("nan")}])
def test_a_bound_that_cannot_be_is_refused(bound):
    with pytest.raises(tv.UsageError, match="rows and offset of a query are 0 or more, its seconds more than 0"):
        tv.open(home_of("slow_rank")).sql("SELECT 1", **bound)


def test_a_table_that_no_trace_gave_is_named():
    with pytest.raises(tv.BadInputError, match=r"table memory_peaks for run .*nothing that was analysed here gives it"):
        last("slow_rank").table("memory_peaks")


def test_traces_are_opened_without_a_home_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with ranks_in_this_process(), tv.open(traces_of("slow_rank")) as job:
        answer = job.iteration().findings()
        assert answer.statement == last("slow_rank").findings().statement
        # The folder of the tables will be gone: the command reads the traces.
        assert answer.command.startswith(f"traceviz findings {traces_of('slow_rank')} --run slow_rank")
        assert job.command("SELECT 1").startswith("traceviz analyze /")
        assert job.home.exists()
    assert not job.home.exists()


@pytest.mark.long
def test_a_home_that_was_moved_is_read_and_not_written(tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(home_of("slow_rank"), moved)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (moved, *moved.rglob("*"))}
    step = tv.open(moved).iteration()
    rows = tv.open(moved).sql("SELECT count(*) FROM kernels").fetchall()
    assert rows == tv.open(home_of("slow_rank")).sql("SELECT count(*) FROM kernels").fetchall()
    assert step.findings().statement == last("slow_rank").findings().statement
    assert step.overlap().statement == last("slow_rank").overlap().statement
    assert step.waits().rows
    assert tv.diff(step, step).rows
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in (moved, *moved.rglob("*"))} == before


def test_traces_that_are_gone_are_conditions_of_the_answers_of_that_analysis(tmp_path):
    run, home = simulate(replace(SMALL, pp=2), tmp_path / "job", workers=1), tmp_path / "home"
    before = tv.analyze(run, home=home).iteration().conditions
    (gone,) = run.glob("iteration_*/rank_0000_*")
    gone.unlink()
    job = tv.analyze(run, home=home)
    (line,) = set(job.iteration().waits().conditions) - set(before)
    assert line.endswith("the trace of rank 0 is gone; its earlier tables are kept") and not job.failures
    assert line in call("analyze", run, "--home", home, "--no-report").err


def test_a_path_without_a_name_is_refused():
    with pytest.raises(tv.UsageError, match="name a home"):
        tv.open("")


SCRIPT = """
import sys
import traceviz_dag as tv
print("once")
job = tv.analyze(sys.argv[1], home=sys.argv[2], workers=2)
print(job.failures, job.iteration().findings().statement)
print(sorted({"dagster", "matplotlib", "typer"} & set(sys.modules)))
"""


@pytest.mark.long
def test_a_script_without_a_guard_analyses_once_and_loads_no_dagster(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    given = [sys.executable, script, traces_of("slow_rank"), tmp_path / "home"]
    ended = subprocess.run(given, capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines() == ["once", f"() {last('slow_rank').findings().statement}", "[]"], ended.stderr


def test_to_import_it_costs_nothing():
    code = "import sys, traceviz_dag; print(sorted(m for m in sys.modules if m in ('duckdb', 'pyarrow', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_analyze_is_the_function_whatever_was_imported_before():
    import traceviz_dag.analyze.intervals
    from traceviz_dag.api import job

    with pytest.raises(tv.UsageError, match="name what to analyse"):
        tv.analyze()
    assert traceviz_dag.analyze.intervals is not None
    assert job.analyze.__doc__


@pytest.mark.long
def test_questions_can_be_asked_from_several_threads():
    job = tv.open(home_of("slow_rank"))

    def ask(rank: int) -> tuple[str, int]:
        table = job.iteration().table("kernels", ["duration_ns"], rank=rank)
        return job.iteration().waits().statement, table.aggregate("sum(duration_ns)").fetchall()[0][0]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, [0, 1, 2, 3] * 8))
    assert len(set(found[:4])) == 4
    assert found == found[:4] * 8


def test_ranks_that_cannot_be_read_are_named_and_the_others_analysed(tmp_path):
    run = write_run(tmp_path / "job")
    truncate(run / "iteration_7/rank_0001_iter_7.pt.trace.json")
    nameless = run / "iteration_7/notes.json"
    nameless.write_text('{"traceEvents": [')
    with ranks_in_this_process():
        job = tv.analyze(run, home=tmp_path / "home", allow_partial=True)
        assert any("rank 1" in line for line in job.failures)
        assert any(line.startswith(str(nameless)) for line in job.failures), job.failures
        assert job.iteration().findings().partial
        for path in (run / "iteration_7").glob("*.json"):
            path.write_text("no trace")
        with pytest.raises((tv.BadInputError, tv.IncompleteError)):
            tv.analyze(run, home=tmp_path / "another")
