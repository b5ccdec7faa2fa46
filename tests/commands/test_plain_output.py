"""What goes to pipes is what rich would print; commands start without what they do not need."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich import box
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from tests.nsys_file import small_export
from traceviz_dag.commands.main import app
from traceviz_dag.commands.plain_table import plain_table
from traceviz_dag.show.json_rows import json_rows

cells = st.one_of(
    st.text("ab :…–[]é 漢\n_", max_size=9),
    st.sampled_from(["aten::add", "a :heart: b", "  indented", "1,234.5", "–", "[bold]x", "x" * 120]),
)


@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=5)))
@settings(max_examples=100, deadline=None)
def test_a_plain_table_is_what_rich_prints(rows):
    headers, *rest = rows
    right = [index % 2 == 1 for index in range(len(headers))]
    plain = plain_table(headers, right, rest, 100)
    if plain is None:
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for column, of_right in zip(headers, right, strict=True):
        table.add_column(column, justify="right" if of_right else "left", overflow="fold")
    for row in rest:
        table.add_row(*row)
    shown = StringIO()
    Console(file=shown, width=100).print(table)
    assert plain == shown.getvalue()


@pytest.mark.parametrize("cell", ["[bold]x", "two\nlines", "漢", "a :heart: b", "x" * 120])
def test_what_is_more_than_letters_in_columns_is_left_to_rich(cell):
    assert plain_table(["name"], [False], [[cell]], 100) is None
    assert plain_table(["name"], [False], [["aten::add – 1"]], 100) is not None


@given(
    st.lists(
        st.tuples(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), st.one_of(st.none(), st.text())), max_size=9
    )
)
@settings(max_examples=100, deadline=None)
def test_json_of_rows_is_that_of_the_objects(rows):
    table = pa.table({'a"b': pa.array([row[0] for row in rows], pa.int64()), "é": pa.array([row[1] for row in rows])})
    table = table.set_column(1, "é", table["é"].cast(pa.string()))
    assert b"[" + b"".join(json_rows(table)) + b"]" == msgspec.json.encode(table.to_pylist())


def test_help_lists_all_subcommands_and_a_wrong_word_gets_a_suggestion():
    shown = CliRunner().invoke(app, ["--help"]).output
    nsys = CliRunner().invoke(app, ["nsys", "--help"]).output
    for word in ("analyze", "batch", "capture", "nsys", "perfetto", "doctor"):
        assert word in shown
    for word in ("info", "export-csv", "export-json", "diff", "viewer", "download"):
        assert word in nsys
    wrong = CliRunner().invoke(app, ["nsys", "overlpa"])
    assert wrong.exit_code == 2
    assert "Did you mean 'overlap'" in wrong.output


def test_a_profile_that_was_read_before_is_shown_without_drivers_and_without_pandas(tmp_path):
    export, home = small_export().write(tmp_path / "small.sqlite"), tmp_path / "home"
    CliRunner().invoke(app, ["nsys", "overlap", str(export), "--home", str(home)], catch_exceptions=False)
    program = (
        "import sys; from traceviz_dag.commands.main import app; app(sys.argv[1:], standalone_mode=False);"
        "print([name for name in ('pandas', 'duckdb', 'adbc_driver_manager', 'dagster') if name in sys.modules])"
    )
    for command in ("overlap", "tree", "nccl", "gaps", "iterations", "summary", "info"):
        arguments = [sys.executable, "-c", program, "nsys", command, str(export), "--home", str(home)]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stdout.endswith("[]\n"), (command, done.stdout[-200:])
