"""What commands print on terminals of 60, 80 and 140 columns, held against files in ``terminals/``.

TRACEVIZ_WRITE_TERMINALS=1 writes these files anew: look at what changed before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.commands.jobs import home_of, traces_of
from tests.commands.sentences.test_nsys import export
from tests.pipeline.diff.jobs import changed
from tests.pipeline.nights.made import FAST, home_of_other_ranks, series_home
from tests.sets import fast
from traceviz_dag.commands.main import app
from traceviz_dag.errors import IncompleteError

SHOWN = Path(__file__).parent / "terminals"
WIDTHS = (60, 80, 140)
OF_A_HOME = (
    *(
        "advise",
        "clocks",
        "critical-path",
        "efficiencies",
        "iterations",
        "kernels",
        "overlap",
        "periods",
        "pipelines",
        "statement",
        "utilization",
        "waits",
        "what-if",
    ),
)
VERDICTS = (
    *("healthy", "slow_rank", "bad_split", "alone_in_stage", "two_iterations", "one_rank", "slow_link"),
    *("uneven_experts", "missing_stage", "dp_only", "bursts", "without_stacks"),
)
"""Jobs whose verdicts are read as a user does."""

OF_A_PROFILE = ("gaps", "info", "iterations", "nccl", "overlap", "search all_reduce", "summary", "tree")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("profiles")


def held(name: str, width: int, *words: object) -> None:
    """Compare what a command prints with its file; every line fits."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": str(width)})
    assert result.exit_code in (0, 2) or isinstance(result.exception, IncompleteError), result.output
    text = "".join(f"{line.rstrip()}\n" for line in result.stdout.splitlines())
    text = re.sub(r"/\S*?traceviz_\w+/(?:traces_\w+/)?(\S+)", r"…/\1", text)
    text = re.sub(r"home_[0-9a-f]{16}", "home", text)
    path = SHOWN / f"{name}_{width}.txt"
    if os.environ.get("TRACEVIZ_WRITE_TERMINALS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path.name}: look at the difference; {__doc__}"
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", OF_A_HOME)
def test_tables_of_a_job(command, width):
    held(command, width, command, "--home", home_of("slow_rank"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", OF_A_PROFILE)
def test_tables_of_a_profile(command, width, profiles):
    name, *words = command.split()
    held(f"nsys_{name}", width, "nsys", name, export("b"), *words, "--home", profiles)


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_two_runs(width):
    held("diff", width, "diff", *(changed(name)[0].lake.home for name in ("slow_gpu", "plain")), "--limit", 5)


@pytest.mark.parametrize("width", fast(WIDTHS, WIDTHS[0]))
def test_tables_of_traces(width):
    traces = traces_of("slow_rank")
    held("topology", width, "topology", traces)
    held("doctor", width, "doctor", traces, "--home", home_of("slow_rank"))
    held("accuracy", width, "accuracy", traces, "--home", home_of("slow_rank"))
    held("findings", width, "findings", "--home", home_of("slow_rank"))
    held("lake_status", width, "lake", "status", "--at-least", 4, "--home", home_of("slow_rank"))


@pytest.mark.parametrize("width", WIDTHS)
def test_tables_of_nights(width):
    held("iterations_nights", width, "iterations", "--run", "rise", "--home", series_home(*FAST))


def test_tables_of_baselines():
    held("baseline_list", 80, "baseline", "list", "--home", home_of_other_ranks())


@pytest.mark.parametrize("job", fast(VERDICTS, "slow_rank", "healthy", "one_rank", "slow_link"))
def test_verdicts(job):
    held(f"verdict_{job}", 80, "analyze", traces_of(job), "--home", home_of(job), "--no-report")


def test_what_a_plan_answers_fits_the_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(app, ["capture", "plan"], env={"COLUMNS": "80"}).stdout
    answers = text.partition("\n# Our plugin")[0].splitlines()
    assert sum(line.startswith("- ") for line in answers) > 3
    assert not [line for line in answers if len(line) > 80]
