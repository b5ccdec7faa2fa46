"""Tables for files and pipes are letter for letter those that rich makes."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from typer.testing import CliRunner

from traceviz_dag.commands.common import output

_TEXTS = st.text("ab –…·▁█[]{}/\\$1", max_size=12) | st.text(max_size=4)
_CELLS = st.none() | st.integers() | st.sampled_from(["1.5", "-0.250", "7%"]) | _TEXTS


@settings(max_examples=150, deadline=None)
@given(data=st.data(), columns=st.integers(1, 5), rows=st.integers(0, 6), width=st.integers(20, 90))
def test_a_plain_table_is_that_of_rich(data, columns, rows, width):
    names = data.draw(st.lists(st.text("abc d", min_size=1, max_size=9), min_size=columns, max_size=columns))
    cells = data.draw(st.lists(st.lists(_CELLS, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    title = data.draw(st.text("ab [c]", max_size=30))
    printed = {}
    for way in ("plain", "rich"):
        environment = {"COLUMNS": str(width), **({"TTY_INTERACTIVE": "0"} if way == "rich" else {})}
        result = CliRunner().invoke(_app(title, names, cells), env=environment, catch_exceptions=False)
        printed[way] = result.stdout
    assert printed["plain"] == printed["rich"]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), columns=st.integers(1, 4), rows=st.integers(0, 4))
def test_markdown_shows_each_text_as_it_is(data, columns, rows):
    texts = st.text("ab \\_*`<>|[]&~#!-1", min_size=1, max_size=9).map(lambda text: " ".join(text.split()) or "x")
    names = data.draw(st.lists(texts, min_size=columns, max_size=columns))
    cells = data.draw(st.lists(st.lists(texts, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    app = _app("kernels of <b>", names, cells)
    result = CliRunner().invoke(app, env={output.MARKDOWN: "1"}, catch_exceptions=False)
    tokens = MarkdownIt().enable(["table", "strikethrough"]).parse(result.stdout)
    shown = ["".join(part.content for part in token.children) for token in tokens if token.type == "inline"]
    assert {part.type for token in tokens for part in token.children or ()} <= {"text", "text_special"}
    assert shown == ["kernels of <b>", *names, *(cell for row in cells for cell in row)]


def test_markdown_keeps_the_indentation_of_trees():
    result = CliRunner().invoke(_app("t", ["range"], [["step"], ["  layer"]]), env={output.MARKDOWN: "1"})
    assert result.stdout.endswith("| step |\n| \u00a0\u00a0layer |\n\n")


def _app(title, names, cells):
    import typer

    made = typer.Typer()
    made.command()(lambda: output.print_table(title, names, cells))
    return made


def test_a_command_into_a_pipe_does_without_rich():
    program = (
        "import sys; from traceviz_dag.commands.common.output import print_table\n"
        "print_table('t', ['a'], [[1]])\nsys.exit('rich.table' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0
