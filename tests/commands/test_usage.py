"""Calls whose words are off: one line that says what is wrong and where help is, exit code 2."""

import pytest

from traceviz_dag.commands.main import _run


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["anlyze", "x"], "No such command 'anlyze'. Did you mean 'analyze'? (see traceviz --help)"),
        (["analyze"], "Missing argument 'paths' (see traceviz analyze --help)"),
        (["nsys", "summary", "x", "--gpu"], "Option '--gpu' requires an argument"),
    ],
)
def test_words_that_are_off_are_one_line(capsys, words, line):
    assert _run(words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"traceviz: {line}\n")


def test_a_group_without_a_command_prints_its_help_and_no_fault(capsys):
    assert _run(["nsys"]) == 2
    printed = capsys.readouterr()
    assert "summary" in printed.out and printed.err == ""
