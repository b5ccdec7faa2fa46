"""``traceviz figures`` and ``traceviz aggregate`` on traces and on a lake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.show.home import fill_home
from tests.small_run import write_run
from traceviz_dag.commands.aggregate import aggregate
from traceviz_dag.commands.figures import figures
from traceviz_dag.errors import BadInputError, UsageError
from traceviz_dag.orchestration.instance import INSTANCE_FOLDER

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(figures)
app.command()(aggregate)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    fill_home(folder, [write_run(folder / "traces" / "job", {7: 4, 8: 4})])
    return folder


@pytest.mark.long
def test_a_small_job_is_drawn_whole(home):
    drawn = json.loads(run("figures", "--home", home, "--iteration", 7, "--json", "--formats", "svg"))
    kinds = {(each["kind"], each["number"]) for each in drawn}
    # Nothing in these traces shows which ranks hold one model: all of them are drawn together.
    # Two micro-batches have no two steady units, and two collectives solve no clock.
    assert len(drawn) == len(kinds) == 17
    kinds_across = (
        "wait_map",
        "bubble_waterfall",
        "critical_path",
        "predicted_gains",
        "efficiency_tree",
        "same_work",
    )
    across = {(kind, None) for kind in kinds_across}
    assert kinds == across | {("all_ranks", None), ("pipeline_group", 0), ("pipeline_group", 1)} | {
        (kind, rank) for kind in ("rank_timeline", "overlap_bars") for rank in range(4)
    }
    folder = home / "figures" / "job" / "7"
    assert (folder / "rank_0003" / "rank_timeline.svg").is_file()
    assert (folder / "pipeline_group_1_global.svg").is_file()
    assert all(each["title"] and Path(each["files"]["svg"]).is_file() for each in drawn)
    assert not (home / "figures" / "job" / "8").exists()


def test_what_is_asked_for_is_drawn_and_nothing_else(home):
    out = run(
        "figures", "--home", home, "--iteration", 8, "--kind", "rank_timeline,pipeline_group", "--ranks", "2",
        "--formats", "png", "--time-alignment", "individual", "-p", 1,
    )  # fmt: skip
    files = (home / "figures/job/8").rglob("*.*")
    found = {str(path.relative_to(home / "figures/job/8")) for path in files if path.parent.name != "previews"}
    assert found == {
        "rank_0002/rank_timeline.png", "pipeline_group_0_individual.png", "pipeline_group_1_individual.png",
    }  # fmt: skip
    assert "Rank 2: " in out and "Pipeline 1: " in out
    assert not (home / INSTANCE_FOLDER).exists(), "Dagster is told of nothing"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--kind", "pie"], "no figure pie"),
        (["--ranks", "2,x"], "'x' in --ranks"),
        (["--ranks", "9"], r"no tables of ranks \[9\]"),
        (["--formats", "gif"], "no figure format gif"),
    ],
)
def test_words_that_are_off_are_refused(home, words, fault):
    with pytest.raises(UsageError, match=fault):
        run("figures", "--home", home, *words)


def test_a_home_without_such_an_iteration_is_one_line(home, tmp_path):
    with pytest.raises(BadInputError, match="no such iteration"):
        run("figures", "--home", home, "--iteration", 99)
    with pytest.raises(BadInputError, match="no such iteration"):
        run("figures", "--home", tmp_path / "nothing")


def test_solved_clocks_are_offered_under_a_name_of_their_own(home):
    words = ["--home", home, "--iteration", 8, "--kind", "pipeline_group", "--formats", "svg", "-p", 1]
    out = run("figures", *words, "--time-alignment", "solved")
    assert (home / "figures/job/8/pipeline_group_0_solved.svg").is_file() and "Pipeline 1: " in out


@pytest.mark.long
def test_traces_are_analysed_first_and_nothing_is_written_beside_them(tmp_path):
    traces = write_run(tmp_path / "traces" / "job", world=2)
    before = sorted(traces.rglob("*"))
    words = ["--home", tmp_path / "home", "--kind", "pipeline_group", "--json", "-p", 1]
    (drawn,) = json.loads(run("figures", traces, *words))
    assert drawn["number"] == 0 and list(drawn["files"]) == ["png", "svg", "pdf"]
    assert sorted(traces.rglob("*")) == before


@pytest.mark.long
def test_its_own_command_lines_are_understood(tmp_path):
    base = write_run(tmp_path / "job", {7: 2, 8: 2}, world=2)
    home = tmp_path / "home"
    words = ["--base-folder", base, "--iterations", "iteration_7", "8", "--processes", 1, "--home", home]
    both = json.loads(run("aggregate", *words, "--time-alignment", "individual", "--json"))
    assert [(each["run"], each["iteration"], len(each["ranks"])) for each in both] == [("job", 7, 2), ("job", 8, 2)]
    assert (home / "traceviz/job/iteration_8/PP_group_0/pp_group_1_ranks_0_1_individual.png").is_file()
    one = json.loads(
        run("aggregate", "--input", base / "iteration_8", "--output", tmp_path / "out", "--home", home, "--json")
    )
    assert [each["folder"] for each in one] == [str(tmp_path / "out" / "iteration_8")]
    assert (tmp_path / "out/iteration_8/rank_0001_iter_8.pt.trace_kernel_analysis/Rank1_statistics.csv").is_file()


def test_folders_that_are_not_there_are_named(tmp_path):
    with pytest.raises(BadInputError, match="has no iteration 9"):
        run("aggregate", "--base-folder", tmp_path, "--iterations", "9", "--home", tmp_path / "home")
    with pytest.raises(BadInputError, match="does not exist"):
        run("aggregate", "--input", tmp_path / "nowhere", "--home", tmp_path / "home")
    with pytest.raises(UsageError, match="--base-folder"):
        run("aggregate", "--iterations", "7", "--home", tmp_path / "home")
