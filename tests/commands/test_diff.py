"""``traceviz diff``: every number printed is that of the tables, exit codes, JSON, figure, Markdown."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of, traces_of
from tests.commands.sentences.of_diff import DIFF, DIFF_TABLES, WithReplay
from tests.commands.sentences.printed import Home, Reader
from tests.in_process import ranks_in_this_process
from tests.made_once import made_once
from tests.pipeline.diff.jobs import traces
from traceviz_dag.commands.main import app
from traceviz_dag.errors import IncompleteError, NoEvidenceError, UsageError
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.diff.comparison import compare
from traceviz_dag.pipeline.diff.sides import side_at
from traceviz_dag.pipeline.discovery import inputs_below


@pytest.fixture(scope="module")
def home() -> Path:
    """A home with three runs."""

    def make(folder: Path) -> None:
        with ranks_in_this_process():
            analyse(
                AnalysisSettings(folder), inputs_below([traces(name) for name in ("plain", "slow_gpu", "more_layers")])
            )

    return made_once("diff_home", make)


def call(*words: object):
    # Wide enough for whole names of kernels, so that each row is one line.
    return CliRunner().invoke(app, ["diff", *map(str, words)], env={"COLUMNS": "800"})


def code(result) -> int:
    return getattr(result.exception, "exit_code", result.exit_code)


@cache
def whole(home: Path, a: str, b: str):
    """What the command answers with every row."""
    return call(a, b, "--home", home, "--all")


@cache
def compared(home: Path, a: str, b: str) -> WithReplay:
    with side_at(a, home).opened() as one, side_at(b, home).opened() as other:
        return WithReplay(Home(home), compare(one, other, anyway=True))


def reader(home: Path, a: str, b: str) -> Reader:
    return Reader(compared(home, a, b), DIFF, DIFF_TABLES)


@pytest.mark.parametrize(
    "pair", [pytest.param(("plain", "slow_gpu"), marks=pytest.mark.long), ("more_layers", "plain")]
)
def test_every_number_is_that_of_the_tables(pair, home):
    result = whole(home, *pair)
    assert code(result) == (1 if pair[1] == "slow_gpu" else 0)
    reading = reader(home, *pair)
    reading.check(re.sub(r"\n  Differs: (most layers of a model chunk|setting num_layers): .*", "", result.stdout))
    assert len(reading.read) >= 10


@pytest.mark.parametrize(
    ("true", "false"),
    [
        (r"step is longer: \+(\d)", r"step is longer: +1\1"),
        (r"is longer", "is shorter"),
        (r"part is \w+ computation of stage 1", "part is memory operations"),
        (r"(\n +\d+ +backward computation of stage 1 +)\+(\d)", r"\1+1\2"),
        (r"(\n +backward computation +1 +)(\d)", r"\g<1>1\2"),
        (r"(\n +_LayerNormLinearBackward +computation +)(\d)", r"\g<1>1\2"),
        (r"1 to (\d+)", r"1 to 9\1"),
        (r"\n +came +", "\n stayed   "),
    ],
)
def test_a_number_that_is_not_so_does_not_pass(true, false, home):
    output = whole(home, "plain", "slow_gpu").stdout
    wrong = re.sub(true, false, output, count=1)
    assert wrong != output
    with pytest.raises(AssertionError):
        reader(home, "plain", "slow_gpu").check(wrong)


def test_the_json_adds_up_and_the_exit_code_says_what_became_of_the_step(home):
    result = call("plain", "slow_gpu", "--home", home, "--json")
    answer = json.loads(result.stdout)
    assert (code(result), answer["outcome"], answer["compared"], answer["reason"]) == (1, "longer", True, None)
    change = answer["step"]["change_ns"]
    for name in ("parts", "path", "replay"):
        assert sum(row["change_ns"] for row in answer[name]) == change > 0, name
    assert len({sum(row["change_ns"] for row in answer[name]) for name in ("operations", "kernels", "modules")}) == 1
    assert [row["order"] for row in answer["replay"]] == list(range(1, len(answer["replay"]) + 1))
    assert answer["path"][0]["stage"] == 1 and answer["matched_share"] == 1
    back = call("slow_gpu", "plain", "--home", home, "--json")
    assert (code(back), json.loads(back.stdout)["step"]["change_ns"]) == (0, -change)
    same = call("plain", f"{home}/plain@10", "--home", home)
    assert code(same) == 0 and "No change: both steps take" in same.stdout
    assert "By path" not in same.stdout and "By replay" not in same.stdout
    share = 100 * change / answer["step"]["a_ns"]
    little = call("plain", "slow_gpu", "--home", home, "--least", f"{share + 0.1:.2f}")
    assert code(little) == 0 and "No change: +" in little.stdout


def test_what_differs_in_its_recording_ends_with_2_and_says_how_to_go_on():
    words = (f"{home_of('healthy')}/healthy", f"{home_of('without_stacks')}/without_stacks")
    result = call(*words)
    assert isinstance(result.exception, NoEvidenceError) and "--anyway compares them" in str(result.exception)
    assert "Not comparable: recording of call stacks: true in A, false in B" in result.stdout
    assert "By path" not in result.stdout
    answer = json.loads(call(*words, "--json").stdout)
    assert (answer["compared"], answer["step"], answer["path"], answer["outcome"]) == (False, None, [], None)
    assert [one["fact"] for one in answer["differences"] if one["refused"]] == ["has_stacks"]
    result = call(*words, "--anyway")
    assert code(result) in (0, 1) and "By path" in result.stdout and "Not comparable" in result.stdout


def test_a_side_without_all_its_ranks_ends_with_2():
    side = f"{home_of('missing_stage')}/missing_stage"
    result = call(side, side)
    assert isinstance(result.exception, IncompleteError) and "PARTIAL" in result.stdout


def test_a_side_of_which_no_rank_is_whole_is_not_compared(home, tmp_path):
    with ranks_in_this_process():
        analyse(AnalysisSettings(tmp_path), inputs_below([traces("cut")]))
    words = (f"{home}/plain", f"{tmp_path}/cut")
    for sides in (words, words[::-1]):
        result = call(*sides)
        assert isinstance(result.exception, IncompleteError) and "PARTIAL" in result.stdout
        a, b = ("0-1", "none") if sides == words else ("none", "0-1")
        assert f"Not comparable: ranks that were read: {a} in A, {b} in B" in result.stdout
        anyway = call(*sides, "--anyway")
        assert isinstance(anyway.exception, IncompleteError) and "The steps are not compared: cut 10" in anyway.stdout
        answer = json.loads(call(*sides, "--anyway", "--json").stdout)
        assert answer["step"] is None and not answer["kernels"] and answer["reason"].startswith("cut 10")


@pytest.mark.long
def test_traces_that_nobody_analysed_are_compared_and_a_trace_is_no_place_for_the_figure(tmp_path):
    folder = traces_of("without_clocks")
    with ranks_in_this_process():
        result = call(folder, folder, "--home", tmp_path / "home")
    assert "No change" in result.stdout
    result = call(folder, folder, "--figure", folder / "a.png")
    assert isinstance(result.exception, UsageError) and "would write over" in str(result.exception)
    result = call(folder, folder, "--figure", tmp_path / "a.gif")
    assert isinstance(result.exception, UsageError) and ".svg" in str(result.exception)


def test_the_figure_and_the_markdown_have_the_verdict(home, tmp_path):
    result = call("plain", "slow_gpu", "--home", home, "--figure", tmp_path / "change.svg")
    headline = re.search(r"B's step is longer: .*?;", result.stdout)[0].rstrip(";").split("(")[0]
    drawn = (tmp_path / "change.svg").read_text()
    assert code(result) == 1 and "change1/change of the step" in drawn and "backward computation of stage 1" in drawn
    result = CliRunner().invoke(app, ["diff", "plain", "slow_gpu", "--home", str(home)], env={"TRACEVIZ_MARKDOWN": "1"})
    assert headline in result.stdout and "### By replay, +" in result.stdout and "| put in | what |" in result.stdout
