"""Every statement of a finding is held against its own query, over all kinds of jobs."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.commands.jobs import JOBS, analysed_at, home_of, traces_of
from tests.commands.sentences.printed import Home
from tests.sets import fast
from traceviz_dag.analyze.findings.rules.expert_load import UNEVEN
from traceviz_dag.commands.findings import open_questions
from traceviz_dag.commands.main import app
from traceviz_dag.errors import BadInputError, NoEvidenceError, UsageError

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?%?")

CULPRITS = {
    "slow_link": ("slow_link", {"rank": 3}),
    "bursts": ("congestion", {"rank": None}),
    "slow_rank": ("slow_rank", {"rank": 5, "stage": 1}),
    "alone_in_stage": ("slow_rank", {"rank": 1, "stage": 1}),
    "dp_only": ("graph_break", {"rank": 1}),
    "bad_split": ("slow_stage", {"stage": 0}),
    "uneven_experts": ("expert_load", None),
}
"""Jobs with a fault, and what names it."""


def rows_of(job: str) -> list[dict[str, Any]]:
    return [row for each in analysed_at(traces_of(job)) for row in each.table("findings").to_pylist()]


def renderings(row: dict[str, Any]) -> set[str]:
    """Every way in which a sentence may write the values of a row."""
    said = set()
    for value in row.values():
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, list):
            said |= {str(each) for each in value}
        elif isinstance(value, int | float):
            said |= {f"{value:,}", str(value), f"{value:.2f}", f"{value:.1%}"}
            said |= {three_digits(value), *percents(value)} | {f"{value / (1 << 20):,.2f}", f"{value / 1e6:,.3f}"}
    return said


def three_digits(ns: float) -> str:
    """A duration without its unit, by Python's own three significant digits."""
    if ns == 0:
        return "0"
    unit = 10 ** min(3 * int(math.log10(abs(ns)) // 3), 9)
    return f"{ns / unit:#.3g}".rstrip(".") if unit > 1 else f"{ns:.0f}"


def percents(share: float) -> set[str]:
    return {f"{share:.0%}", f"{share:.1%}"}


MOST_JOBS = fast(
    JOBS, *(job for job in JOBS if job not in ("bursts", "two_iterations", "clock_ahead", "split_pipelines"))
)


@pytest.mark.parametrize("job", MOST_JOBS)
def test_every_number_of_a_statement_is_in_the_row_that_its_query_yields(job):
    home = Home(home_of(job))
    for row in rows_of(job):
        if row["severity"] == "not_looked_at":
            assert row["statement"] and row["gain_ns"] is None and row["evidence_sql"] is None
            continue
        found = home.query(row["evidence_sql"], {}).to_pylist()
        assert len(found) == 1, row["evidence_sql"]
        said = renderings(found[0]) | {str(UNEVEN)}
        what, _, gain = re.sub(r"; (fixing|hiding) it would ", "\0", row["statement"]).partition("\0")
        detail, _, about = re.sub(r"(?:; |^)(replay|no gain)", r"\0\1", row["detail"]).partition("\0")
        text = f"{what}; {detail}".replace(" %", "%")
        for name in (str(value) for value in found[0].values() if isinstance(value, str)):
            text = text.replace(name, "")
        numbers = {number.rstrip(",") for number in _NUMBER.findall(text)}
        assert numbers <= said, (text, numbers - said, found)
        if not gain:
            assert row["refusal"] and row["severity"] == "note" and about == f"no gain is predicted: {row['refusal']}"
            continue
        assert row["refusal"] is None
        saved, step = row["gain_ns"], row["step_ns"]
        assert gain.startswith("add " if saved < 0 else "save "), gain
        told = set(_NUMBER.findall(gain.replace(" %", "%")))
        if saved:
            assert three_digits(abs(saved)) in told and told & percents(abs(saved) / step), (gain, saved, step)
        later = re.search(r", (?:and save )?([\d.]+) \S+ once those before it are fixed$", gain)
        other = row["gain_after_ns"] is not None and abs(row["gain_after_ns"] - saved) > min(
            0.05 * abs(saved), 0.01 * step
        )
        assert (later is not None) == other, (gain, row["gain_after_ns"])
        assert later is None or later[1] == three_digits(max(row["gain_after_ns"], 0))
        bar = {three_digits(row[name]) for name in ("gain_low_ns", "gain_high_ns")}
        numbers = set(_NUMBER.findall(about.replace(" %", "%")))
        assert bar <= numbers, (about, bar)
        width = (row["gain_high_ns"] - row["gain_low_ns"]) / step
        wide = re.search(r"an error bar of (\S+ %) of the step", about)
        assert (wide is not None) == (width > 0.2) and (not wide or wide[1].replace(" ", "") in percents(width)), about
        apart = row["measured_ns"] is not None and abs(1 - row["measured_ns"] / step) >= 0.02
        assert (" to the last kernel" in about) == apart, about


@pytest.mark.parametrize("job", MOST_JOBS)
def test_gains_are_those_of_the_predictions_and_findings_are_worth_it(job):
    for each in analysed_at(traces_of(job)):
        told = [row for row in each.table("what_if").to_pylist() if row["refusal"] is None]
        gains = {}
        for row in told:
            key = (row["edit"], row["rank"], row["dimension"])
            gains[key] = gains.get(key, 0) + row["gain_ns"]
        rows = each.table("findings").to_pylist()
        for row in rows:
            if row["gain_ns"] is not None:
                assert row["gain_ns"] in {gain for (edit, *_), gain in gains.items() if edit == row["edit"]}
            if row["severity"] == "finding":
                alone = row["gain_ns"] >= 0.01 * row["step_ns"] and row["gain_low_ns"] > 0
                assert alone or row["gain_after_ns"] >= 0.01 * row["step_ns"]
        places = ("environment", "finding", "note", "not_looked_at")
        told_first = [row["rule"] == "environment" and row["severity"] != "not_looked_at" for row in rows]
        order = [0 if first else places.index(row["severity"]) for row, first in zip(rows, told_first, strict=True)]
        assert order == sorted(order) and [row["finding"] for row in rows] == list(range(len(rows)))
        last = [row["gain_after_ns"] for row in rows if row["severity"] == "finding" and row["class"] != "fault"]
        assert None not in last
        faults = [row["gain_ns"] for row in rows if row["severity"] == "finding" and row["class"] == "fault"]
        assert faults == sorted(faults, reverse=True)


@pytest.mark.parametrize("job", CULPRITS)
def test_a_fault_is_found_with_its_culprit_and_nobody_else_is_named(job):
    """The smallest jobs are bound by launches besides, which is nobody's fault."""
    rule, culprit = CULPRITS[job]
    faults = [row for row in rows_of(job) if row["class"] == "fault" and row["rule"] != "launch_bound"]
    assert faults[0]["rule"] == rule
    assert culprit is None or {name: faults[0][name] for name in culprit} == culprit
    named = {row["rank"] for row in faults if row["severity"] == "finding" and row["rank"] is not None}
    assert culprit is None or named <= {culprit.get("rank")}


@pytest.mark.parametrize(
    ("job", "rule", "code"),
    [
        *(("slow_link", "slow_link", 1), ("slow_link", "finding", 1), ("slow_link", "slow_rank", 0)),
        *(("healthy", "environment", 0), ("blind_rank", "environment", 1)),
        # A gate must not pass for want of evidence: of anything that is compared, of call stacks on one of four ranks,
        # of stages. An opportunity is a finding, too.
        *(("dp_only", "slow_link", 2), ("dp_only", "memory_leak", 2), ("blind_rank", "gc_pause", 2)),
        *(("without_topology", "slow_stage", 2), ("without_topology", "expert_load", 2)),
        *(("without_stacks", "slow_stage", 1), ("blind_rank", "finding", 1)),
    ],
)
def test_an_exit_code_shows_whether_there_is_a_finding_of_a_rule(job, rule, code):
    asked = CliRunner().invoke(app, ["findings", "--home", str(home_of(job)), "--fail-on", rule])
    assert isinstance(asked.exception, NoEvidenceError) if code == 2 else asked.exit_code == code
    if code == 2:
        assert str(asked.exception).startswith("--fail-on cannot be answered: ") and "\n" not in str(asked.exception)


@pytest.mark.parametrize(("at_most_ns", "told"), [(None, 1), (900_000, 1), (700_000, 0)])
def test_a_gate_does_not_pass_where_a_gain_is_refused_that_may_be_worth_a_finding(at_most_ns, told):
    row = {"rule": "slow_stage", "severity": "note", "gain_ns": None, "at_most_ns": at_most_ns, "step_ns": 100_000_000}
    assert len(open_questions([row | {"statement": "…", "refusal": "…"}], ["finding"])) == told


def test_each_row_says_what_to_do_once_and_the_environment_what_is_alike_and_what_unknown():
    home = ["findings", "--home", str(home_of("blind_rank"))]
    rows = json.loads(CliRunner().invoke(app, [*home, "--json"]).stdout)
    assert all((row["remedy"] is None) == (row["severity"] == "not_looked_at") for row in rows)
    text = CliRunner().invoke(app, home).stdout
    shown = {row["remedy"] for row in rows if row["remedy"] and f"{row['rule']}: {row['statement']}" in text}
    assert len(shown) >= 2 and all(text.count(f"→ {remedy}\n") == 1 for remedy in shown)
    stated = Home(home_of("blind_rank")).query("SELECT count(nccl_version) AS n, count(settings) AS s FROM traces", {})
    assert stated.to_pylist() == [{"n": 4, "s": 4}]
    assert "version of NCCL" in rows[0]["environment"]["alike"]
    assert rows[0]["environment"]["unknown"] == ["release of the driver"]
    assert re.search(
        r"All ranks state the same .*version of NCCL.* settings of the job; unknown, .* of the driver\n", text
    )
    assert isinstance(CliRunner().invoke(app, [*home, "--fail-on", "slow"]).exception, UsageError)


def test_a_log_shows_how_much_longer_profiled_steps_take_than_others(tmp_path):
    home = home_of("healthy")
    (row,) = Home(home).query("SELECT measured_ns AS ns, steps AS n FROM findings LIMIT 1", {}).to_pylist()
    step_ms = row["ns"] / row["n"] / 1e6
    line = " iteration {:8d}/     500 | consumed samples: 8 | elapsed time per iteration (ms): {:.3f} | lr: 1.0 |"
    # The first is slow; 9 to 11 are the profiled one and its neighbours; 12 was logged twice, around a restart.
    times = {**dict.fromkeys(range(2, 30), step_ms / 1.05), 1: 9e5, **dict.fromkeys((9, 10, 11), 9e4)}
    lines = [line.format(12, 1e5), *(line.format(number, ms) for number, ms in sorted(times.items())), "iteration 3"]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines))
    said = CliRunner().invoke(app, ["findings", "--home", str(home), "--log", str(log)])
    usual = f"({step_ms / 1.05:,.3f} ms, the median of 25 lines of the log); perturbed: rely on shares, not on times"
    assert f"  profiled steps take 5.0 % longer on the host than others {usual}\n" in said.stdout
    # Another run before it went further, and was killed in the middle of a line; a carriage return ends lines, too.
    slow = [line.format(number, 7e4) for number in range(1, 90)]
    log.write_text("\r".join([*slow, line.format(90, 7e4)[:40] + lines[1], *lines[2:]]))
    assert usual in CliRunner().invoke(app, ["findings", "--home", str(home), "--log", str(log)]).stdout
    log.write_text("\n".join(lines[:5]))
    few = CliRunner().invoke(app, ["findings", "--home", str(home), "--log", str(log)])
    assert isinstance(few.exception, NoEvidenceError)
    log.write_text("loss 3.2")
    assert isinstance(CliRunner().invoke(app, ["findings", "--log", str(log)]).exception, BadInputError)
