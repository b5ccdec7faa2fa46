"""The pages of causes, diff and advice: what they show as printed is printed; worked examples are computed.

TRACEVIZ_WRITE_TERMINALS=1 writes what the commands print into the page: look at what changed before it is committed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.analyze.causes.test_delay_costs import chain
from tests.analyze.test_metrics_handbook import tables_of
from traceviz_dag.analyze.causes.critical_imbalance import imbalance
from traceviz_dag.analyze.causes.delay_costs import delay_costs, delay_costs_table
from traceviz_dag.analyze.causes.efficiencies import Replayed, factor_rows
from traceviz_dag.analyze.causes.graph import graph_of
from traceviz_dag.commands.critical_path.of_records import critical_path_of_records
from traceviz_dag.commands.efficiencies import efficiencies
from traceviz_dag.commands.main import app
from traceviz_dag.commands.what_if.of_records import what_if_of_records
from traceviz_dag.pipeline.answers.wanted import Wanted

PAGE = Path(__file__).parents[2] / "docs" / "causes.md"
_PRINTED = re.compile(r"```\n((?:traceviz .*\n)+)```\n\n```text\n((?:(?!```).*\n)*)```\n")


def _output(command: str, folder: Path) -> str:
    words = [word.replace("/tmp/", f"{folder}/") for word in shlex.split(command)[1:]]
    home = [] if words[0] == "simulate" else ["--home", str(folder / "home")]
    result = CliRunner().invoke(app, [*words, *home], env={"COLUMNS": "110"})
    assert result.exit_code == 0, result.output
    return "\n".join(line.rstrip() for line in result.stdout.strip().splitlines())


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "count"),
    [(PAGE, 5), (PAGE.with_name("diff.md"), 1), (PAGE.with_name("advise.md"), 1)],
    ids=["causes", "diff", "advise"],
)
def test_what_the_page_shows_is_what_the_commands_print(page, count, tmp_path):
    text = page.read_text()
    shown = _PRINTED.findall(text)
    assert len(shown) == count
    for commands, output in shown:
        *_, printed = [_output(command, tmp_path) for command in commands.splitlines()]
        printed = re.sub(r"\n{2,}", "\n\n", printed) + "\n"
        if os.environ.get("TRACEVIZ_WRITE_TERMINALS"):
            text = text.replace(
                f"```\n{commands}```\n\n```text\n{output}```", f"```\n{commands}```\n\n```text\n{printed}```"
            )
            page.write_text(text)
            continue
        assert output == printed, f"{commands}: {__doc__}"


def test_the_worked_example_of_replay():
    (rows,) = tables_of(PAGE, "Worked example: replay")
    names = [row["node"] for row in rows]
    edges = [
        (names.index(row["node"]), names.index(other)) for row in rows for other in (row["waits for"] or "").split()
    ]
    waiting, waited_for = np.array(edges, np.int64).T
    durations = np.array([row["duration"] for row in rows], np.int64)
    graph = graph_of(len(rows), waiting, waited_for)
    ends = graph.ends(durations)
    assert ends.tolist() == [row["end"] for row in rows]
    last = np.isin(np.arange(len(rows)), waited_for, invert=True)
    free = np.where(last, ends.max(), np.iinfo(np.int64).max // 2)
    latest = graph.latest(free, durations, np.zeros(len(waiting), np.int64))
    assert latest.tolist() == [row["latest end"] for row in rows]
    assert (latest - ends).tolist() == [row["slack"] for row in rows]
    for node, step in (("a", 90), ("d", 80)):
        faster = durations - 10 * (np.array(names) == node)
        assert graph.ends(faster).max() == step


def test_the_worked_example_of_critical_imbalance():
    (nodes,) = tables_of(PAGE, "Worked example: replay")
    (rows,) = tables_of(PAGE, "Worked example: critical imbalance")
    duration = {row["node"]: row["duration"] for row in nodes}
    on_path = [row["node"] for row in nodes if row["slack"] == 0 and row["node"] in "abcdef"]
    assert len(rows) == 3
    for row, members in zip(rows, ("ad", "be", "cf"), strict=True):
        assert [row["rank 0"], row["rank 1"]] == [duration[node] for node in members]
        assert row["on the path"] == sum(duration[node] for node in members if node in on_path)
        assert imbalance(row["on the path"], [row["rank 0"], row["rank 1"]]) == (row["mean"], row["imbalance"])


def test_the_worked_example_of_efficiencies():
    ranks, factors = tables_of(PAGE, "Worked example: efficiencies")
    column = {name: np.array([row[name] for row in ranks], np.int64) for name in ranks[0]}
    step = Replayed(
        column["stage"],
        np.zeros(len(ranks), np.int64),
        column["useful"],
        column["T_i"],
        {"tp": column["with tp"], "pp": column["with pp"]},
        column["T"],
    )
    found = factor_rows(step)
    assert len(found) == len(factors) == 9
    for row, told in zip(found, factors, strict=True):
        assert (row["factor"], row["dimension"]) == (told["factor"], told["dimension"])
        assert [row[f"{name}_ns"] for name in ("ideal", "time", "lost")] == [told[n] for n in ("ideal", "time", "lost")]
        assert row["value"] == pytest.approx(told["value"], abs=5e-4)


def test_the_worked_example_of_delay_costs():
    ranks, costs = tables_of(PAGE, "Worked example: delay costs")
    step = chain([60, 50, 90], [0, 10, 0])
    assert delay_costs(step, step.times()).waited_ns.tolist() == [row["waits"] for row in reversed(ranks)]
    for row in ranks:
        kernels = step.works[row["rank"]].kernels
        first = int(np.flatnonzero(kernels.communicates)[0])
        assert (int(kernels.end_ns[0]), int(kernels.start_ns[first])) == (row["computes"], row["arrives"])
    found = delay_costs_table(step, step.times(), [0, 1, 2], 7).to_pylist()
    names = ("rank", "cause", "cost_ns", "direct_ns", "passed_on_ns")
    assert sorted(tuple(row[name] for name in names) for row in found) == sorted(
        tuple(row[name] for name in names) for row in costs
    )


def test_the_published_job_has_the_figures_of_the_page(shared_data, capsys):
    path = shared_data / "straggler_analysis" / "trace-SE.parquet"
    what_if_of_records(path, None, True, Wanted((), (), (), (), ()))
    answer = json.loads(capsys.readouterr().out)
    _, measures, _, gains, factors, causes = tables_of(PAGE, "Records of pipeline operations")
    assert len(measures) == 3
    for row in measures:
        assert answer[row["measure"]] == pytest.approx(row["value"], abs=1e-6)
    for row in gains:
        name, _, dimension = row["edit"].partition(" ")
        (one,) = (each for each in answer["rows"] if (each["edit"], each["dimension"] or "") == (name, dimension))
        assert row["gain ms"] == pytest.approx(one["gain_ns"] / 1e6, abs=5e-4)
        assert row["of the steps"] == f"{100 * one['gain_ns'] / one['step_ns']:.1f} %"
    efficiencies(records=path, json=True)
    rows = json.loads(capsys.readouterr().out)["rows"]
    values = {row["factor"]: row["value"] for row in rows if row["replica"] is row["dimension"] is None}
    for row in factors:
        assert values[row["factor"]] == pytest.approx(row["value"], abs=5e-6)
    critical_path_of_records(path, json=True)
    profile = {row["cause"]: row["path_ns"] for row in json.loads(capsys.readouterr().out)["cause"]}
    assert {row["what the paths of SE are made of"]: row["ms"] for row in causes} == pytest.approx(
        {cause: length / 1e6 for cause, length in profile.items()}, abs=5e-4
    )
