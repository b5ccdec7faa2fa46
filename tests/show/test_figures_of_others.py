"""A figure of another package: a few lines and an entry point, known to the command line, its help and the assets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.jobs import analysed_at
from tests.damage import call
from tests.made_once import made_once
from tests.other_packages import environment, installed, shown_in, traceviz
from tests.small_run import write_run
from traceviz_dag.errors import UsageError
from traceviz_dag.show.registry import figure_kinds

CODE, POINTS = shown_in("figures.md")
"""The figure that the docs show, and its entry point."""

ASSET = """
from assets.iteration_figures import across_ranks_figures as asset
key, = asset.keys
told = [asset.descriptions_by_key[key], sorted(dep.to_user_string() for dep in asset.asset_deps[key])]
"""

SOUND = """
import dataclasses
ZERO = dataclasses.replace(KERNEL_COUNTS, name="zero_counts", drawer="our_figures:draw_nothing")
def draw_nothing(source):
    return Figure(label="nothing")
"""


@pytest.fixture
def home(tmp_path) -> Path:
    traces = made_once("small_run", lambda folder: write_run(folder / "job", world=2) and None)
    (stored,) = analysed_at(traces / "job")
    return shutil.copytree(stored.lake.home, tmp_path / "home")


@pytest.mark.long
def test_it_is_drawn_and_is_in_the_help_and_at_the_asset_of_its_scope(tmp_path, home):
    package = environment(tmp_path / "package", CODE, POINTS)
    draw = ["figures", "--home", home, "--kind", "kernel_counts", "--json"]
    counted = ["sql", "SELECT sum(kernels)::BIGINT AS n FROM traces", "--home", home, "--json"]
    (shown, done, kernels), (description, tables) = traceviz(package, ["figures", "--help"], draw, counted, look=ASSET)
    assert "kernel_counts" in shown.out
    assert done.code == 0, done.err
    (drawn,) = done.json
    assert drawn["title"] == f"{kernels.json[0]['n']:,} kernels on 2 ranks"
    assert drawn["files"]["png"].endswith("figures/job/7/kernel_counts.png")
    assert "how many kernels each rank ran." in description
    assert {"collectives", "periods", "pipelines", "rank_clocks", "traces"} <= set(tables)
    assert "nights" not in tables


@pytest.mark.parametrize(
    ("points", "fault"),
    [
        ('lost = "nowhere:KIND"', "figure lost of our-figures: cannot be loaded (ModuleNotFoundError"),
        ('odd = "our_figures:Figure"', "our_figures:Figure is no FigureKind"),
        ('a = "our_figures:KERNEL_COUNTS"\nb = "our_figures:KERNEL_COUNTS"', "named 'kernel_counts' already"),
    ],
)
def test_a_package_whose_figure_cannot_be_loaded_is_named(tmp_path, home, points, fault):
    table = f'[project.entry-points."traceviz_dag.figures"]\n{points}'
    with installed(tmp_path / "package", CODE, table):
        said = call("figures", "--home", home)
    assert said.code == 2 and fault in said.err and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('name="kernel_counts"', 'name="../escaped"', "'../escaped' is no name"),
        ("scope=Scope.ACROSS_RANKS", 'scope="galaxy"', "'galaxy' is no Scope; take one of Scope.RANK"),
        ('tables=("traces",)', 'tables=("traice",)', "tables names traice; it may name topology, process_groups"),
        (
            'drawer="our_figures:draw_kernel_counts"',
            'drawer="our_figures"',
            "drawer is 'our_figures'; write it as module:function",
        ),
    ],
)
def test_a_figure_that_cannot_be_is_refused_in_one_line(tmp_path, old, new, fault):
    with installed(tmp_path / "package", CODE.replace(old, new), POINTS), pytest.raises(UsageError) as refused:
        figure_kinds()
    assert str(refused.value).startswith(f"figure kernel_counts of our-figures: {fault}")


@pytest.mark.parametrize(
    ("ending", "fault"),
    [
        ("return 1 / 0", "failed (ZeroDivisionError: division by zero)"),
        pytest.param("raise SystemExit(7)", "failed (SystemExit: 7)", marks=pytest.mark.long),
        pytest.param("return 'a picture'", "gave a str, no matplotlib Figure", marks=pytest.mark.long),
    ],
)
def test_a_drawer_that_fails_is_reported_as_its_own_fault_and_costs_its_own_figure_only(tmp_path, home, ending, fault):
    twice = f"{CODE.replace('    return figure', f'    {ending}')}\n{SOUND}"
    with installed(tmp_path / "package", twice, f'{POINTS}\nzero_counts = "our_figures:ZERO"'):
        kinds = ("--kind", "kernel_counts,zero_counts", "--formats", "svg")
        done = call("figures", "--home", home, *kinds, "--processes", "1", "--json")
    assert done.code == 2 and "Traceback" not in done.err
    assert f"figure kernel_counts: our_figures:draw_kernel_counts {fault}; fix it" in done.err, done.err
    assert [figure["kind"] for figure in done.json] == ["zero_counts"]
