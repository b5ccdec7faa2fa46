"""A figure of another package: a few lines and an entry point, known to the command line, its help and the assets."""

from __future__ import annotations

import json

import pytest

from tests.other_packages import environment, run, shown_in, traceviz
from tests.small_run import write_run

CODE, POINTS = shown_in("figures.md")
"""The figure that the docs show, and its entry point."""

ASSET = """
import json
from assets.iteration_figures import across_ranks_figures as asset
key, = asset.keys
print(json.dumps([asset.descriptions_by_key[key], sorted(dep.to_user_string() for dep in asset.asset_deps[key])]))
"""

KINDS = "from traceviz_dag.show.registry import figure_kinds; figure_kinds()"


SOUND = """
import dataclasses
ZERO = dataclasses.replace(KERNEL_COUNTS, name="zero_counts", drawer="our_figures:draw_nothing")
def draw_nothing(source):
    return Figure(label="nothing")
"""


@pytest.fixture
def installed(tmp_path) -> dict[str, str]:
    return environment(tmp_path / "package", CODE, POINTS)


def test_it_is_drawn_and_stands_in_the_help(tmp_path, installed):
    job, home = write_run(tmp_path / "job", world=2), tmp_path / "home"
    assert "kernel_counts" in traceviz(installed, "figures", "--help").stdout
    done = traceviz(installed, "figures", job, "--home", home, "--kind", "kernel_counts", "--json")
    assert done.returncode == 0, done.stderr
    (drawn,) = json.loads(done.stdout)
    counted = traceviz(installed, "sql", "SELECT sum(kernels)::BIGINT AS n FROM traces", "--home", home, "--json")
    assert drawn["title"] == f"{json.loads(counted.stdout)[0]['n']:,} kernels on 2 ranks"
    assert drawn["files"]["png"].endswith("figures/job/7/kernel_counts.png")


def test_the_asset_of_its_scope_names_it_and_depends_on_its_tables(installed):
    said = run(installed, "-c", ASSET)
    description, tables = json.loads(said.stdout)
    assert "how many kernels each rank ran." in description, said.stderr
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
def test_a_package_whose_figure_cannot_be_loaded_is_named(tmp_path, points, fault):
    of_others = environment(tmp_path / "package", CODE, f'[project.entry-points."traceviz_dag.figures"]\n{points}')
    said = traceviz(of_others, "figures", "--home", tmp_path)
    assert said.returncode == 2 and fault in said.stderr and "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('name="kernel_counts"', 'name="../escaped"', "'../escaped' is no name"),
        ("scope=Scope.ACROSS_RANKS", 'scope="galaxy"', "'galaxy' is no Scope; take one of Scope.RANK"),
        ('tables=("traces",)', 'tables=("traice",)', "tables names traice; it may name runs, traces"),
        (
            'drawer="our_figures:draw_kernel_counts"',
            'drawer="our_figures"',
            "drawer is 'our_figures'; write it as module:function",
        ),
    ],
)
def test_a_figure_that_cannot_be_is_refused_in_one_line(tmp_path, old, new, fault):
    said = run(environment(tmp_path / "package", CODE.replace(old, new), POINTS), "-c", KINDS)
    assert f"figure kernel_counts of our-figures: {fault}" in " ".join(said.stderr.split()), said.stderr


@pytest.mark.parametrize(
    ("ending", "fault"),
    [
        ("return 1 / 0", "failed (ZeroDivisionError: division by zero)"),
        ("raise SystemExit(7)", "failed (SystemExit: 7)"),
        ("return 'a picture'", "gave a str, no matplotlib Figure"),
    ],
)
def test_a_drawer_that_fails_is_told_as_its_own_fault_and_costs_its_own_figure_only(tmp_path, ending, fault):
    job, home = write_run(tmp_path / "job", world=2), tmp_path / "home"
    twice = f"{CODE.replace('    return figure', f'    {ending}')}\n{SOUND}"
    broken = environment(tmp_path / "package", twice, f'{POINTS}\nzero_counts = "our_figures:ZERO"')
    kinds = "kernel_counts,zero_counts"
    done = traceviz(broken, "figures", job, "--home", home, "--kind", kinds, "--json")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"figure kernel_counts: our_figures:draw_kernel_counts {fault}; mend it" in done.stderr, done.stderr
    assert [figure["kind"] for figure in json.loads(done.stdout)] == ["zero_counts"]
