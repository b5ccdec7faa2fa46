"""``traceviz iterations``: the trend of each run, its changes and the verdicts, from tables written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from traceviz_dag.commands.iterations import bar, iterations
from traceviz_dag.errors import IncompleteError, UsageError
from traceviz_dag.lake.lake import Lake, open_lake
from traceviz_dag.tables import ITERATIONS, NIGHTS, RUNS

STEPS = {"job": {9: 2_000_000, 10: 1_000_000, 11: 1_100_000}, "other": {1: 5_000_000}}


def row_of(table, **known):
    """A row with the known values; of the others, numbers are 1 and words are empty."""
    empty = {field.name: None for field in table.schema}
    return table.from_columns({name: [value] for name, value in (empty | known).items()})


@pytest.fixture
def lake(tmp_path) -> Lake:
    lake = open_lake(tmp_path / "home")
    for run, steps in STEPS.items():
        for iteration, step_ns in steps.items():
            row = row_of(ITERATIONS, ranks=4, partial=iteration == 9, step_ns=step_ns, exposed_ns=step_ns // 10)
            lake.write("iterations", row, run=run, iteration=iteration)
    lake.refresh_catalogue()
    return lake


def invoked(home: Path, *words: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(iterations)
    return CliRunner().invoke(app, ["--home", str(home), *words])


def call(home: Path, *words: str) -> str:
    result = invoked(home, *words)
    if result.exception is not None:
        raise result.exception
    return result.output


def answer_of_partial(home: Path, *words: str) -> str:
    """What is printed of iterations of which one was not read completely, before the command ends with 2."""
    result = invoked(home, *words)
    assert isinstance(result.exception, IncompleteError) and "partial result for job 9;" in str(result.exception)
    return result.stdout


def judge(lake: Lake) -> None:
    words = {"series": "job", "worse": ["step"], "moved": "exposed_tp", "statement": "job@11: step 10 % longer"}
    lake.write("nights", row_of(NIGHTS, accepted=False, figures_digest="", **words), run="job", iteration=11)
    lake.refresh_catalogue()


def test_changes_are_against_the_iteration_before_of_the_same_run(lake):
    rows = json.loads(answer_of_partial(lake.home, "--json"))
    assert [(row["run"], row["iteration"], row["change_ns"]) for row in rows] == [
        ("job", 9, None),
        ("job", 10, -1_000_000),
        ("job", 11, 100_000),
        ("other", 1, None),
    ]
    assert [row["change_share"] for row in rows] == [None, -0.5, pytest.approx(0.1), None]
    assert all(row["accepted"] is None for row in rows), "no night was judged"


@pytest.mark.parametrize("table", ["iterations", "runs", "nights"])
def test_a_deleted_table_is_named_after_what_is_left(lake, table):
    lake.write("runs", row_of(RUNS), run="job", iteration=11)
    judge(lake)
    lake.path(table, run="job", iteration=11).unlink()
    ended = invoked(lake.home, "--json")
    assert isinstance(ended.exception, IncompleteError)
    assert str(ended.exception).startswith(f"table {table}: the rows of run job, iteration 11 are missing")
    assert ("job", 10) in {(row["run"], row["iteration"]) for row in json.loads(ended.stdout)}
    assert invoked(lake.home, "--run", "other").exit_code == 0, "it is of another run"


def test_one_run_and_its_last_iterations_keep_their_changes(lake):
    rows = json.loads(call(lake.home, "--run", "job", "--last", "1", "--json"))
    assert [(row["iteration"], row["change_ns"]) for row in rows] == [(11, 100_000)]


def test_the_table_shows_the_verdict_and_why(lake):
    judge(lake)
    text = answer_of_partial(lake.home, "--run", "job")
    assert "worse: exposed tp" in text and "job@11: step 10 % longer" in text
    assert "+10.0%" in text and "-50.0%" in text and "4 (partial)" in text and "other" not in text


def test_an_unknown_run_and_an_empty_home_are_one_line(lake, tmp_path):
    with pytest.raises(UsageError, match="there are job, other"):
        call(lake.home, "--run", "jbo")
    with pytest.raises(UsageError, match="run traceviz analyze"):
        call(tmp_path / "empty")


def test_bars_are_as_long_as_their_share_to_an_eighth_of_a_character():
    assert bar(12, 12) == "█" * 12
    assert bar(1, 96) == "▏" and bar(9, 96) == "█▏"
    assert bar(0, 12) == "" and bar(0, 0) == ""
