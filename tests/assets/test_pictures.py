"""Figures and Perfetto traces are made by themselves, once, when the iteration is whole, and anew when it changes."""

from __future__ import annotations

import pytest

from tests.assets.loop import Loop, of_figures, of_iterations, of_ranks, of_topology
from tests.small_run import rank_file, write_run
from traceviz_dag.pipeline.figures import figures_folder

QUICK = '[figures]\nformats = ["png"]\n'


def _names(home, iteration=7):
    folder = figures_folder(home, "job", iteration)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.png") if path.parent.name != "previews"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    run = write_run(folder / "runs/job")
    loop = Loop(folder / "home", run.parent, QUICK, pictures=True)
    loop.settle()
    loop.automate()
    return loop


def test_a_new_iteration_has_its_pictures_and_its_perfetto_trace(drawn):
    ranks = (0, 1, 2, 3)
    assert drawn.news() == of_topology("job@7") | of_ranks("job@7", *ranks) | of_iterations("job@7") | of_figures(
        "job@7", *ranks
    )
    assert not drawn.failures
    assert {"rank_0000/rank_timeline.png", "rank_0003/overlap_bars.png", "pipeline_group_0_global.png"} <= _names(
        drawn.home
    )
    assert list((drawn.home / "perfetto").rglob("*.pftrace*"))
    drawn.automate()
    assert not drawn.news(), "nothing is drawn twice"


def test_of_a_changed_rank_only_its_own_figures_and_those_of_the_iteration_are_drawn_anew(drawn):
    rank_file(2, 4, scale=3).write(drawn.root / "job/iteration_7/rank_0002_iter_7.pt.trace.json")
    drawn.settle()
    drawn.automate()
    figures = {(asset, partition) for asset, partition in drawn.news() if "figures" in asset or "perfetto" in asset}
    assert figures == of_figures("job@7", 2)


@pytest.mark.parametrize(("policy", "ranks"), [("outliers", 3), ("none", 0)])
def test_the_figures_of_ranks_of_a_large_job_are_limited(tmp_path, policy, ranks):
    run = write_run(tmp_path / "runs/job")
    settings = f'{QUICK}ranks = "{policy}"\nmost_ranks = 2\n'
    loop = Loop(tmp_path / "home", run.parent, settings, pictures=True)
    loop.settle()
    loop.automate()
    found = {name.split("/")[0] for name in _names(loop.home) if name.startswith("rank_")}
    assert len(found) <= ranks and bool(found) == bool(ranks)
    assert not loop.failures
