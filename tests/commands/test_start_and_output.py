"""What commands print, and that they start without what they do not need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from tests.commands.jobs import home_of
from tests.nsys_file import small_export
from traceviz_dag.commands.main import app
from traceviz_dag.show.json_rows import json_rows


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


def test_where_no_encoding_is_chosen_or_it_lacks_letters_tables_are_printed_all_the_same():
    code = "from traceviz_dag.commands.common.pipes import outlive_readers as o; o(); print('2–3 █')"
    for encoding, shown in (("ascii", "2–3 █\n".encode()), ("latin-1", b"2\\u20133 \\u2588\n")):
        environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
        assert done.stdout == shown


@pytest.mark.parametrize("module", ["typer", "traceviz_dag.commands.common.lazy"])
def test_ctrl_c_while_the_program_is_imported_shows_no_traceback(tmp_path, module):
    code = f"""
import os, runpy, signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["--version"]
runpy.run_module("traceviz_dag", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


WITH_WORKERS = """
from waiting import wait
from traceviz_dag.commands import main
from traceviz_dag.system.processes import spread
main.app = lambda *_, **__: list(spread(wait, "ab", 2))
main.main()
"""


def test_sigterm_ends_a_command_and_its_workers_quietly(tmp_path):
    begun = tmp_path / "a"
    wait = f"import pathlib, time\ndef wait(name):\n    (pathlib.Path({str(tmp_path)!r}) / name).touch()\n"
    (tmp_path / "waiting.py").write_text(f"{wait}    time.sleep(600)\n")
    main = subprocess.Popen(
        [sys.executable, "-c", WITH_WORKERS],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    main.terminate()
    # Workers and the process that counts their semaphores hold the other end, too.
    assert (main.communicate(timeout=60)[1], main.returncode) == ("", 143)


OUTLIVE = "from traceviz_dag.commands.common.pipes import outlive_readers as o; o(); "


@pytest.mark.parametrize(
    ("code", "streams", "exit_code", "answer", "words"),
    [
        # A file that is opened later must not become standard output.
        ("print('2–3'); f = open('kept', 'w+'); import os; os.write(1, b'x'); assert not f.read()", ">&-", 0, "", ""),
        ("import sys; print('2–3', file=sys.stderr)", "2>&-", 0, "", ""),
        ("import sys; print('2–3', file=sys.stderr); print('so')", "2>/dev/full", 0, "so\n", ""),
        ("from traceviz_dag.commands.main import main; import sys; sys.argv[1:] = ['--version']; main()", ">/dev/full",
         2, "", "traceviz: standard output: No space left on device; free space there, or choose another place\n"),
    ],
)  # fmt: skip
def test_streams_that_are_closed_or_full_end_no_command_with_a_traceback(
    tmp_path, code, streams, exit_code, answer, words
):
    command = ["sh", "-c", f'"$0" -c "$1" {streams}', sys.executable, OUTLIVE + code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, answer, words)


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


def test_help_lists_each_command_under_a_heading_with_the_first_paragraph_of_its_own_help():
    for words in ([], ["nsys"], ["memory"], ["lake"]):
        group = get_command(app) if not words else get_command(app).commands[words[0]]
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).output
        lines = [" ".join(line.strip("│ ").split()) for line in shown.splitlines()]
        for name, command in group.commands.items():
            assert f"{name} {command.help.partition(chr(10))[0]}" in lines, (words, name)
        assert not words or words[0] != "nsys" or "─ GPUs ─" in shown


def _commands(command: Any, words: list[str]) -> Iterator[list[str]]:
    yield words
    for name in getattr(command, "commands", {}):
        yield from _commands(command.commands[name], [*words, name])


def test_help_on_80_columns_cuts_no_option_and_names_a_switch_by_what_changes_it():
    printed = {
        " ".join(words): CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"}).stdout
        for words in _commands(get_command(app), [])
    }
    assert len(printed) > 60
    cut = [line for text in printed.values() for line in text.splitlines() if re.match(r"│ *-[\w,-]*…", line)]
    assert cut == []
    assert "--dynamic-context " in printed["simulate"]
    assert "--no-dynamic-context" not in printed["simulate"]
    assert "--no-report " in printed["analyze"]
    assert not re.search(r"--report\b", printed["analyze"])


def test_what_only_reads_tables_of_a_home_imports_no_dagster_nothing_that_draws_no_pandas_and_no_duckdb():
    home = home_of("healthy")
    heavy = ("dagster", "matplotlib", "pandas", "textual", "duckdb")
    program = (
        "import sys; from traceviz_dag.commands.main import app\n"
        "try: app(sys.argv[1:], standalone_mode=False)\n"
        f"finally: print([name for name in {heavy!r} if name in sys.modules])"
    )
    for words in (["--help"], ["overlap"], ["findings"], ["iterations"], ["statement"], ["topology"], ["efficiencies"]):
        given = words if words == ["--help"] else [*words, "--home", str(home)]
        done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, check=False)
        assert done.stdout.endswith("[]\n"), (words, done.stdout[-200:], done.stderr)


def test_what_a_small_command_makes_is_not_searched_for_garbage():
    program = (
        "import gc, sys, traceviz_dag.commands\n"
        "searched = []; gc.callbacks.append(lambda *one: searched.append(one))\n"
        "from traceviz_dag.commands.main import main\n"
        "try: main()\n"
        "finally: print(len(searched), file=sys.stderr)"
    )
    words = [sys.executable, "-c", program, "overlap", "--home", str(home_of("healthy"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == "0\n"  # Nor does DuckDB list there what Python's end leaves of it.


def test_the_end_of_the_program_runs_what_it_registered_and_frees_nothing_object_by_object():
    program = (
        "import atexit, sys; from traceviz_dag.commands import main as program\n"
        "class Freed:\n    def __del__(self): print('freed', file=sys.stderr)\n"
        "kept, run = Freed(), program._run\n"
        "program._run = lambda *given: [run(*given), atexit.register(print, 'ended')][0]\n"
        "program.main()"
    )
    for words, code in ((["--version"], 0), (["no command"], 2)):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.splitlines()[-1:]) == (code, ["ended"])
        assert "freed" not in done.stderr


def test_paragraphs_of_help_break_at_the_width_of_the_terminal_alone():
    for words, text in ((["analyze"], "If you name some ranks"), (["nsys", "gaps"], "innermost NVTX range open")):
        wide = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"}).output
        assert any(text in line for line in wide.splitlines())


@pytest.mark.long
def test_a_profile_that_was_read_before_is_shown_without_drivers_and_without_pandas(tmp_path):
    heavy = ("pandas", "duckdb", "adbc_driver_manager", "dagster", "starlette", "uvicorn")
    heavy = (*heavy, "pyarrow.compute", "traceviz_dag.tables", "importlib.metadata")
    export, home = small_export().write(tmp_path / "small.sqlite"), tmp_path / "home"
    for command in ("overlap", "tree"):  # the second one reads the ranges too
        CliRunner().invoke(app, ["nsys", command, str(export), "--home", str(home)], catch_exceptions=False)
    program = (
        "import sys; from traceviz_dag.commands.main import app; app(sys.argv[1:], standalone_mode=False);"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    commands = (
        ["overlap"],
        ["tree"],
        ["tree", "--in-order"],
        ["nccl"],
        ["gaps"],
        ["iterations"],
        ["summary"],
        ["info"],
    )
    for command, *options in commands:
        arguments = [sys.executable, "-c", program, "nsys", command, str(export), "--home", str(home), *options]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True)
        assert done.stdout.endswith("[]\n"), (command, done.stdout[-200:])


@pytest.mark.parametrize("kilobytes", [700_000, 1_200_000])
def test_too_little_memory_is_a_line(tmp_path, kilobytes):
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "sql", "SELECT 1", "--home", str(tmp_path)]
    limited = ["bash", "-c", f'ulimit -v {kilobytes}; exec "$@"', "bash", *command]
    ended = subprocess.run(limited, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    line = f"the limit of the address space (ulimit -v) is {kilobytes:,} KB, and this program needs 1,400,000; raise it"
    assert ended.stderr == f"traceviz: {line}\n"
