"""``traceviz perfetto`` as a user meets it: export, SQL with our tables joined in, a prompt, two readers compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.end_to_end.conftest import traceviz
from tests.show.home import fill_home
from tests.small_run import write_run
from traceviz_dag.commands.main import app
from traceviz_dag.errors import UsageError
from traceviz_dag.read.perfetto.engines import Engine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("traces") / "job", {7: 4})


@pytest.fixture(scope="module")
def home(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    fill_home(home, [run])
    return home


def rows(*arguments: str | Path) -> list[dict[str, object]]:
    return json.loads(traceviz("perfetto", "query", *arguments, "--json").stdout)


@pytest.mark.long
def test_an_export_is_queried_with_its_categories(home: Path, tmp_path: Path, trace_processor: Engine) -> None:
    out = tmp_path / "one.pftrace"
    (written,) = json.loads(
        traceviz("perfetto", "export", "--home", home, "--pipeline", "1", "--out", out, "--json").stdout
    )
    assert written["path"] == str(out)
    assert written["ranks"] == [1, 3]
    found = rows(
        out,
        "SELECT rank, category, count(*) AS n FROM traceviz_kernels GROUP BY 1, 2 ORDER BY 1, 2",
    )
    expected = json.loads(
        traceviz(
            *(
                "sql",
                "SELECT rank, category, count(*) AS n FROM kernels WHERE rank IN (1, 3) GROUP BY ALL ORDER BY ALL",
            ),
            *("--home", home, "--json"),
        ).stdout
    )
    assert found == expected
    steps = rows(out, "SELECT name FROM traceviz_microbatches ORDER BY 1")
    assert [row["name"] for row in steps] == sorted(["forward 0", "forward 1", "backward 0", "backward 1"] * 2)


def test_no_answer_is_written_over_a_trace(run: Path, home: Path) -> None:
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    before = trace.read_bytes()
    for words in (
        ["perfetto", "export", "--home", home, "--out", trace],
        ["report", "--home", home, "--out", trace],
        ["classify", trace, "--output", trace],
    ):
        refused = CliRunner().invoke(app, list(map(str, words))).exception
        assert isinstance(refused, UsageError) and "would write over" in str(refused)
    assert trace.read_bytes() == before


def test_a_kineto_trace_is_queried_with_its_categories(run: Path, tmp_path: Path, trace_processor: Engine) -> None:
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    found = rows(
        trace,
        "SELECT k.category, count(*) AS kernels, sum(s.dur) AS time_ns FROM traceviz_kernels k "
        "JOIN slice s ON s.id = k.slice_id GROUP BY 1",
    )
    answer = json.loads(traceviz("classify", trace, "--json").stdout)
    by_category: dict[str, list[int]] = {}
    for row in answer["categories"]:
        total = by_category.setdefault(row["category"], [0, 0])
        total[0] += row["kernels"]
        total[1] += row["time_ns"]
    assert {row["category"]: [row["kernels"], row["time_ns"]] for row in found} == by_category
    (span,) = rows(
        trace, "SELECT count(*) AS n FROM traceviz_microbatches WHERE dimension = 'all' AND phase = 'forward'"
    )
    assert span == {"n": 2}


@pytest.mark.long
def test_the_prompt_goes_on_after_a_mistake(run: Path, trace_processor: Engine) -> None:
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    command = [sys.executable, "-m", "traceviz_dag.commands.main", "perfetto", "query", str(trace)]
    lines = "SELECT nonsense;\nSELECT 6 *\n7 AS answer\n\n"
    result = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, timeout=120)
    assert "no such column: nonsense" in result.stderr
    assert "answer" in result.stdout
    assert "42" in result.stdout


@pytest.mark.long
def test_both_readers_classify_alike(run: Path, trace_processor: Engine) -> None:
    trace = run / "iteration_7/rank_0001_iter_7.pt.trace.json"
    compared = json.loads(traceviz("perfetto", "compare", trace, "--json").stdout)
    assert compared["unexplained"] == compared["dropped"] == 0
    own, other = (
        json.loads(traceviz("classify", trace, "--engine", engine, "--json").stdout)["categories"]
        for engine in ("own", "perfetto")
    )
    assert own == other
    assert "no reader" in traceviz("classify", trace, "--engine", "third", code=2).stderr


def test_one_wrong_word_is_one_line(home: Path, run: Path, trace_processor: Engine) -> None:
    export = ("perfetto", "export", "--home", home)
    for arguments, words in (
        ((*export, "--pipeline", "9"), "no pipeline 9; known are 0, 1"),
        ((*export, "--pipeline", "0", "--replica", "0"), "exclude each other"),
        (("perfetto", "query", run / "absent.json", "SELECT 1"), "no such file"),
        (("perfetto", "query", run / "iteration_7/rank_0001_iter_7.pt.trace.json", "SELECT FROM"), "syntax error"),
        (("perfetto", "query", run, "SELECT 1"), "a folder"),
        (("perfetto", "open", run / "absent.json", "--no-browser"), "no such file"),
    ):
        fault = traceviz(*arguments, code=2).stderr
        assert words in fault
        assert "Traceback" not in fault
