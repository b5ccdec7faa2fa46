"""Figures and Perfetto traces are made by themselves, once, when the iteration is whole, and anew when it changes."""

from __future__ import annotations

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest
from matplotlib.figure import Figure

from tests.assets.loop import FIGURE_ASSETS, Loop, of_figures, of_iterations, of_ranks, of_topology
from tests.small_run import rank_file, write_run
from traceviz_dag.definitions import defs
from traceviz_dag.pipeline import figures
from traceviz_dag.pipeline.figures import figures_folder
from traceviz_dag.tables import LATE_RANKS

QUICK = '[figures]\nformats = ["png"]\n'


@pytest.fixture(scope="module", autouse=True)
def _blank():
    """Figures with nothing on them: here it counts which are drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "draw", lambda *_: Figure(figsize=(1, 1)))
        yield


def _names(home, iteration=7):
    folder = figures_folder(home, "job", iteration)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.png") if path.parent.name != "previews"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    run = write_run(folder / "runs/job", world=2)
    loop = Loop(folder / "home", run.parent, QUICK, pictures=True)
    loop.settle()
    loop.automate()
    return loop


# First: the tests that follow change what is there.
@pytest.mark.long
def test_pictures_that_automation_drew_count_as_made_from_the_tables_that_are_there(drawn):
    assert not _stale(drawn.instance)


@pytest.mark.long
def test_a_new_iteration_has_its_pictures_and_its_perfetto_trace(drawn):
    ranks = (0, 1)
    assert drawn.news() == of_topology("job@7") | of_ranks("job@7", *ranks) | of_iterations("job@7") | of_figures(
        "job@7", *ranks
    )
    assert not drawn.failures
    assert {"rank_0000/rank_timeline.png", "rank_0001/overlap_bars.png", "pipeline_group_0_global.png"} <= _names(
        drawn.home
    )
    assert list((drawn.home / "perfetto").rglob("*.pftrace*"))
    drawn.automate()
    assert not drawn.news(), "nothing is drawn twice"


@pytest.mark.long
def test_of_a_changed_rank_only_its_own_figures_and_those_of_the_iteration_are_drawn_anew(drawn):
    drawn.news()
    rank_file(1, 2, scale=3).write(drawn.root / "job/iteration_7/rank_0001_iter_7.pt.trace.json")
    drawn.settle()
    drawn.compute()
    drawn.automate()
    assert {each for each in drawn.news() if each[0] in FIGURE_ASSETS} == of_figures("job@7", 1)


@pytest.mark.long
def test_a_rank_whose_delay_of_others_is_another_is_drawn_anew_and_no_other_rank(drawn):
    lake, place = drawn.traceviz.lake(), {"run": "job", "iteration": 7}
    late = lake.table("late_ranks", **place).arrow([column.name for column in LATE_RANKS.columns])
    rows = [row | {"own_ns": row["own_ns"] + (row["rank"] == 1)} for row in late.to_pylist()]
    lake.write("late_ranks", pa.Table.from_pylist(rows, LATE_RANKS.schema), **place)
    changed = dg.AssetMaterialization("late_ranks", partition="job@7", tags={"dagster/data_version": "another"})
    drawn.instance.report_runless_asset_event(changed)
    drawn.news()
    drawn.automate(by_hand=True)
    # The other rank is not. Of the iteration all is, since this table speaks for all that were made with it.
    assert drawn.news() == of_figures("job@7", 1)


@pytest.mark.long
def test_the_figures_of_ranks_of_a_large_job_are_limited(tmp_path):
    run = write_run(tmp_path / "runs/job")
    limited = f"{QUICK}most_ranks = 2\n"
    loop = Loop(tmp_path / "home", run.parent, f'{limited}ranks = "none"\n', pictures=True)
    loop.settle()
    loop.compute()
    loop.automate()
    assert not _ranks_drawn(loop.home), "and automation has come to an end without them"
    settings = loop.home / "traceviz.toml"
    settings.write_text(settings.read_text().replace('ranks = "none"', 'ranks = "outliers"'))
    loop.draw_ranks("job@7", 0, 1, 2, 3)
    assert 1 <= len(_ranks_drawn(loop.home)) <= 3
    assert not loop.failures


def _ranks_drawn(home):
    return {name.split("/")[0] for name in _names(home) if name.startswith("rank_")}


def _stale(instance):
    """Dagster's own reasons to call a partition unsynced, as the user interface shows them."""
    names = ("kernels", "overlap", "rank_figures", "pipeline_figures", "replica_figures", "across_ranks_figures")
    resolver = CachingStaleStatusResolver(instance, defs().resolve_asset_graph(), LoadingContextForTest(instance))
    found = {name: instance.get_materialized_partitions(dg.AssetKey(name)) for name in names}
    assert all(found.values())
    return [
        (name, partition, cause.reason, cause.dependency)
        for name, partitions in found.items()
        for partition in partitions
        for cause in resolver.get_stale_causes(dg.AssetKey(name), partition)
    ]
