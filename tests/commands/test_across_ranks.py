"""The commands across ranks, from a path and from a lake: what they say, as what, and how they end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.analyze.across_ranks import TINY
from traceviz_dag.commands.clocks import clocks
from traceviz_dag.commands.common.summary import iteration_summary, print_summary
from traceviz_dag.commands.gate import gate
from traceviz_dag.commands.main import app as program
from traceviz_dag.commands.periods import periods
from traceviz_dag.commands.pipelines import pipelines
from traceviz_dag.commands.waits import waits
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.pipeline.across_ranks import analyse_across_ranks
from traceviz_dag.pipeline.analysis import IterationResult
from traceviz_dag.pipeline.stored_iteration import StoredIteration, iterations_at
from traceviz_dag.simulate import JobSettings, simulate
from traceviz_dag.simulate.settings import Faults

PAIRS = '[[pair]]\nname = "both stages"\nstages = [0, 1]\nthreshold = {}\n'


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    job = JobSettings(
        tp=2, pp=2, dp=2, microbatches=6, node_size=2, clock_skew_ms=3.0, faults=Faults(slow_gpu=5), **TINY
    )
    folder = tmp_path_factory.mktemp("commands") / "job"
    simulate(job, folder, workers=1)
    return folder


@pytest.fixture(scope="module")
def home(run_folder, tmp_path_factory) -> Path:
    """A home that holds the iteration's tables, those across ranks included; as of a version without synchronizations:
    that costs no answer."""
    home = tmp_path_factory.mktemp("home")
    target = open_lake(home)
    with iterations_at(run_folder, home) as (found,):
        source = found.lake
        for name in ("topology", "process_groups", "traces", "kernels", "microbatches", "overlap"):
            for part in source.partitions(name):
                table = source.table(name, part.run, part.iteration, part.rank).arrow()
                table = table.drop_columns(list(source.table(name).definition.partitioned_by))
                target.write(name, table, run=part.run, iteration=part.iteration, rank=part.rank)
        stored = StoredIteration(target, found.run, found.iteration)
        for name, table in analyse_across_ranks(stored).items():
            target.write(name, table, run=found.run, iteration=found.iteration)
    target.refresh_catalogue()
    return home


def call(command: Callable, *words: object) -> tuple[int, str]:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def answer(command: Callable, *words: object) -> list[dict]:
    code, output = call(command, *words, "--json")
    assert code == 0
    return json.loads(output)


def test_clocks_and_their_certainty(home):
    (said,) = answer(clocks, "--home", home)
    assert (said["run"], said["iteration"]) == ("job", 10)
    assert said["clocks"]["solved"] == said["clocks"]["ranks"] == 8 and said["clocks"]["refusals"] == {}
    assert [row["rank"] for row in said["ranks"]] == list(range(8)) and said["ranks"][0]["offset_ns"] == 0
    code, text = call(clocks, "--home", home)
    assert code == 0 and "clocks solved for 8 of 8 ranks; ends agree within" in text


def test_waits_name_the_slow_rank_and_the_clocks_that_they_rest_on(home):
    (said,) = answer(waits, "--home", home)
    assert [row["rank"] for row in said["ranks"] if row["blamed"]] == [5]
    assert said["stages"][0]["stage"] == 1 and said["nodes"][0]["node"] == 2
    assert {row["fault"] for row in said["matching"]} == {None}
    assert said["matrix"][0]["late_rank"] in (4, 5)
    result = CliRunner().invoke(program, ["waits", "--home", str(home), "--limit", "3"])
    text = result.output
    assert (
        result.exit_code == 0
        and "rank 5 delayed its peers by" in text
        and "for longer than who waited, ms: the first 3 of" in text
    )


def test_the_summary_of_the_main_job_names_who_is_to_blame(home, capsys):
    summary = iteration_summary(open_lake(home), IterationResult("job@10", "job", 10, aggregated=True))
    assert [row["rank"] for row in summary["blamed"]] == [5]
    print_summary(summary)
    assert "rank 5 delayed its peers by" in capsys.readouterr().out


@pytest.mark.long
def test_a_path_gives_what_the_lake_gives(home, run_folder):
    for command in (clocks, periods):
        assert answer(command, run_folder) == answer(command, "--home", home)


def test_pipelines_show_parts_that_add_up(home):
    (said,) = answer(pipelines, "--home", home)
    assert len(said["pipelines"]) == 8 and len(said["replicas"]) == 4 and len(said["stages"]) == 2
    for row in said["pipelines"]:
        parts = ("fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns")
        assert sum(row[name] for name in parts) == row["bubble_ns"] == row["span_ns"] - row["ideal_ns"]
    code, text = call(pipelines, "--home", home)
    assert code == 0 and "ranks of stage 1 differ most: rank 5" in text


def test_periods_with_percentiles_units_and_reasons(home, tmp_path):
    (tmp_path / "pairs.toml").write_text(PAIRS.format(0.3))
    (said,) = answer(periods, "--home", home, "--pairs", tmp_path / "pairs.toml", "--units")
    by_name = {(row["kind"], row["pair"], row["stage"]): row for row in said["pairs"]}
    stages, named = by_name["stages", "stages 0 and 1", 0], by_name["named", "both stages", 0]
    assert stages["score_p50"] == named["score_p50"] > 0.5 and stages["refusal"] is None
    assert stages["units"] == 4 * 4 and stages["statement"].startswith("period ")
    assert by_name["dimension", "computation + embedding", 0]["refusal"].startswith("no embedding communication")
    assert {unit["pair"] for unit in said["units"]} >= {"stages 0 and 1", "both stages"}


@pytest.mark.parametrize(("threshold", "code"), [(0.3, 0), (0.999, 1)])
def test_the_gate_ends_with_0_or_1(home, tmp_path, threshold, code):
    (tmp_path / "pairs.toml").write_text(PAIRS.format(threshold))
    ended, output = call(gate, "--home", home, "--pairs", tmp_path / "pairs.toml", "--json")
    assert ended == code
    (verdict,) = json.loads(output)
    assert verdict["passed"] is (code == 0) and verdict["threshold"] == threshold


def test_the_gate_does_not_pass_what_it_cannot_judge(home, tmp_path):
    (tmp_path / "pairs.toml").write_text('[[pair]]\nname = "far"\nstages = [7, 8]\n')
    with pytest.raises(UsageError, match="pair 'far' of job 10: the iteration has no pair of stages 7 and 8"):
        call(gate, "--home", home, "--pairs", tmp_path / "pairs.toml")


@pytest.mark.long
def test_annotations_of_the_traces_can_be_named_from_a_path(run_folder, tmp_path):
    text = '[[pair]]\nname = "steps"\nstage0 = {range = "ProfilerStep*", rank = 0}\nstage1 = {range = "none"}\n'
    (tmp_path / "pairs.toml").write_text(text)
    (said,) = answer(periods, run_folder, "--pairs", tmp_path / "pairs.toml")
    (named,) = [row for row in said["pairs"] if row["kind"] == "named"]
    assert named["refusal"] == "no range is called 'none'"


def test_what_is_not_there_is_said_in_one_line(home, tmp_path):
    with pytest.raises(UsageError, match="no such run or iteration; there are job 10"):
        call(clocks, "--home", home, "--iteration", 11)
    with pytest.raises(BadInputError, match="holds no analysed traces"):
        call(clocks, "--home", tmp_path / "empty")


def test_kernels_on_the_common_clock_are_moved_by_the_offset_of_their_rank(home):
    lake = open_lake(home)
    aligned = lake.query(
        "SELECT rank, max(abs(start_ns - aligned_start_ns - ahead)) AS wrong FROM kernels_aligned AS k "
        "JOIN (SELECT rank, offset_ns AS ahead FROM rank_clocks) AS c USING (rank) GROUP BY rank"
    )
    assert aligned.num_rows == 8 and set(aligned["wrong"].to_pylist()) == {0}


@pytest.mark.parametrize(
    ("command", "list_of", "table"),
    [
        (waits, "ranks", "late_ranks"),
        (waits, "matrix", "blame"),
        (waits, "links", "links"),
        (waits, "experts", "expert_loads"),
        (periods, "pairs", "period_percentiles"),
    ],
)
def test_what_a_command_lists_is_a_table(home, command, list_of, table):
    stored = open_lake(home).query(f"SELECT * EXCLUDE (run, iteration) FROM {table}").to_pylist()
    (said,) = answer(command, "--home", home)
    plain = {tuple(sorted((name, str(value)) for name, value in row.items())) for row in said[list_of]}
    assert plain == {tuple(sorted((name, str(value)) for name, value in row.items())) for row in stored}
    assert len(stored) == len(said[list_of]) and (stored or table == "expert_loads")
