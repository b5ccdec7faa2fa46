"""What ``traceviz sql`` prints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from traceviz_dag.commands.sql import sql
from traceviz_dag.errors import TracevizError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.tables import OVERLAP, PROCESS_GROUPS

application = typer.Typer()
application.command()(sql)
runner = CliRunner()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    lake = open_lake(tmp_path / "home")
    group = {column.name: [None] for column in PROCESS_GROUPS.columns}
    group.update(group_name=["[red]7[/red]"], ranks=[[0, 1]], size=[2], description=["two\nlines"])
    lake.write("process_groups", PROCESS_GROUPS.from_columns(group), run="a/b", iteration=1)
    windows: dict[str, object] = {column.name: [None] * 120 for column in OVERLAP.columns}
    windows.update(compute_ns=[2**53 + 1] * 120, hidden_share=[math.nan] + [0.25] * 119, dimension=["all"] * 120)
    lake.write("overlap", OVERLAP.from_columns(windows), run="a/b", iteration=1, rank=0)
    return lake.home


def run(home: Path, *arguments: str, width: int = 100):
    return runner.invoke(application, [*arguments, "--home", str(home)], env={"COLUMNS": str(width)})


def test_json_keeps_integers_exact_lists_as_lists_and_nan_as_null(home: Path):
    result = run(home, "SELECT run, ranks, size, disagreement FROM process_groups", "--json")
    assert json.loads(result.stdout) == [{"run": "a/b", "ranks": [0, 1], "size": 2, "disagreement": None}]
    result = run(home, "SELECT compute_ns, hidden_share, 1.50::DECIMAL(5,2) AS d FROM overlap LIMIT 2", "--json")
    assert json.loads(result.stdout) == [
        {"compute_ns": 2**53 + 1, "hidden_share": None, "d": 1.5},
        {"compute_ns": 2**53 + 1, "hidden_share": 0.25, "d": 1.5},
    ]
    result = run(home, "SELECT sum(compute_ns) AS s, sum(compute_ns::HUGEINT * 10000) AS huge FROM overlap", "--json")
    assert json.loads(result.stdout) == [{"s": 120 * (2**53 + 1), "huge": 1_200_000 * (2**53 + 1)}]
    assert json.loads(run(home, "FROM overlap WHERE false", "--json").stdout) == []
    strange = "SELECT DATE '2024-02-01' AS day, INTERVAL 1 DAY AS span, MAP {'a': 1} AS m, 'x'::BLOB AS b"
    assert json.loads(run(home, strange, "--json").stdout)[0]["day"] == "2024-02-01"


def test_the_table_shows_values_as_they_are(home: Path):
    result = run(home, "SELECT group_name, description, ranks, size, disagreement FROM process_groups")
    assert result.exit_code == 0
    for text in ("[red]7[/red]", "two·lines", "[0, 1]", "NULL", "1 row"):
        assert text in result.stdout


def test_no_name_of_a_column_reaches_the_terminal_as_a_control_character(home: Path):
    query = 'SELECT 1 AS "\x1b[2Ja", ' + ", ".join(f'{at} AS "\x1b[31m{at}"' for at in range(60))
    shown = runner.invoke(application, [query, "--home", str(home)]).output
    assert "\x1b" not in shown
    assert "\\u001b[2Ja" in shown


def test_a_long_and_wide_result_is_cut_and_says_so(home: Path):
    result = run(home, "SELECT * FROM overlap", width=60)
    assert "120 rows; " in result.stdout and "100 more rows: --all" in result.stdout
    assert "more columns do not fit" in result.stdout
    assert "hidden_over_min" in result.stdout, "what does not fit is named"
    table = [line for line in result.stdout.splitlines() if line.startswith(("│", "┃"))]
    assert len(table) == 21
    assert max(map(len, table)) <= 60


@pytest.mark.parametrize(
    "query", ["SELEC 1", "SELECT * FROM kernel", "DROP VIEW kernels", "FROM read_csv('/etc/passwd')"]
)
def test_a_wrong_query_is_one_line_and_exit_code_two(home: Path, query: str):
    result = run(home, query)
    assert isinstance(result.exception, TracevizError)
    assert result.exception.exit_code == 2
    assert "\n" not in str(result.exception)
    assert result.stdout == ""


def test_the_home_comes_from_the_environment_and_must_hold_a_lake(home: Path, tmp_path: Path):
    result = runner.invoke(application, ["SELECT 1 AS one", "--json"], env={"TRACEVIZ_HOME": str(home)})
    assert json.loads(result.stdout) == [{"one": 1}]
    result = run(tmp_path / "absent", "SELECT 1")
    assert "holds no analysed traces" in str(result.exception)
    assert not (tmp_path / "absent").exists()


def test_the_help_is_for_users():
    text = runner.invoke(application, ["--help"]).stdout
    assert "Query the tables with SQL, read-only." in text
    assert "Raises" not in text
