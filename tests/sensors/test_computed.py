"""What a command computed becomes known to Dagster: all of it, once, with checks and lineage, and nothing half done."""

from __future__ import annotations

import shutil

import dagster as dg
import pytest

from assets.resources import TracevizHome
from sensors.computed import report_once
from tests.assets.loop import no_findings
from tests.small_run import rank_file, two_ranks_analysed
from traceviz_dag.lake.under_way import under_way
from traceviz_dag.pipeline.analysis import AnalysisSettings, analyse
from traceviz_dag.pipeline.discovery import inputs_below
from traceviz_dag.pipeline.staleness import ITERATION_TABLES


@pytest.fixture(scope="module", autouse=True)
def _findings_left_empty():
    """All rules take as long as all other tables, and nothing here asks what they say."""
    with no_findings():
        yield


@pytest.fixture(scope="module")
def analysed(tmp_path_factory, _findings_left_empty):
    return two_ranks_analysed(tmp_path_factory.mktemp("computed"))


def names_since(instance: dg.DagsterInstance, count: int) -> list[tuple[str, str | None]]:
    """Asset and partition of the materializations after so many."""
    records = instance.get_event_records(dg.EventRecordsFilter(dg.DagsterEventType.ASSET_MATERIALIZATION))
    events = [record.asset_materialization for record in reversed(records)]
    return [(event.asset_key.to_user_string(), event.partition) for event in events[count:] if event is not None]


def test_all_of_an_analysis_is_reported_once_in_order_and_a_changed_rank_alone_afterwards(analysed):
    run, home = analysed
    traceviz = TracevizHome(home=str(home))
    with dg.instance_for_test() as instance:
        with under_way(home, "job@7"):
            waits = report_once(instance, traceviz, None).cursor
            assert names_since(instance, 0) == [], "a command is at work on it"
        first = report_once(instance, traceviz, waits)
        told = names_since(instance, 0)
        assert len(told) == len(set(told)) and {(name, "job@7") for name in ITERATION_TABLES} <= set(told)
        assert (
            told.index(("topology", "job@7"))
            < told.index(("kernels", "job@7|0001"))
            < told.index(("findings", "job@7"))
        )
        assert instance.get_dynamic_partitions("iteration") == ["job@7"]
        checks = instance.get_event_records(dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION))
        assert {
            (check.check_name, check.passed)
            for record in checks
            if (check := record.event_log_entry.asset_check_evaluation) is not None
        } >= {("invariants", True), ("coverage", True), ("complete_ranks", True), ("sources_agree", True)}
        report_once(instance, traceviz, None)
        assert names_since(instance, len(told)) == []

        rank_file(1, 2, scale=2).write(run / "iteration_7/rank_0001_iter_7.pt.trace.json")
        analyse(AnalysisSettings(home, workers=1), inputs_below([run], home=home))
        report_once(instance, traceviz, first.cursor)
        news = {partition for name, partition in names_since(instance, len(told)) if name == "kernels"}
        assert news == {"job@7|0001"}


@pytest.mark.long
def test_a_tick_that_runs_out_of_time_goes_on_where_it_was(analysed):
    _, home = analysed
    traceviz = TracevizHome(home=str(home))
    with dg.instance_for_test() as instance:
        cut = report_once(instance, traceviz, None, seconds=0)
        assert len(names_since(instance, 0)) < 10
        report_once(instance, traceviz, cut.cursor)
        told = names_since(instance, 0)
        assert len(told) == len(set(told)) and ("findings", "job@7") in told


@pytest.mark.long
def test_an_iteration_that_cannot_be_reported_is_named_and_costs_no_other(analysed, tmp_path):
    run, home = analysed
    home = shutil.copytree(home, tmp_path / "home")
    shutil.copytree(run / "iteration_7", run / "iteration_8")
    analyse(AnalysisSettings(home, workers=1), inputs_below([run / "iteration_8"], home=home))
    shutil.rmtree(run / "iteration_8")
    for name in ("iterations/run=job/iteration=7", "kernels/run=job/iteration=7/rank=1"):
        part = home / "lake" / name / "part.parquet"
        whole = part.read_bytes()
        part.write_bytes(b"damaged")
        with dg.instance_for_test() as instance:
            said = report_once(instance, TracevizHome(home=str(home)), None)
            assert "job@7 is not reported whole" in said.skip_reason.skip_message
            assert ("findings", "job@8") in names_since(instance, 0)
            part.write_bytes(whole)
            report_once(instance, TracevizHome(home=str(home)), said.cursor)
            assert ("findings", "job@7") in names_since(instance, 0), "once it is well again"


def test_a_table_across_ranks_that_somebody_deleted_is_named(analysed, tmp_path):
    home = shutil.copytree(analysed[1], tmp_path / "home")
    (home / "lake/blame/run=job/iteration=7/part.parquet").unlink()
    with dg.instance_for_test() as instance:
        said = report_once(instance, TracevizHome(home=str(home)), None).skip_reason.skip_message
        assert "job@7 is not reported whole" in said and "table blame, run job, iteration 7: somebody deleted" in said
        assert ("kernels", "job@7|0001") in names_since(instance, 0), "what comes before it is told"


def test_a_table_of_a_rank_that_somebody_deleted_is_named_and_neither_told_nor_passed(analysed, tmp_path):
    home = shutil.copytree(analysed[1], tmp_path / "home")
    (home / "lake/overlap/run=job/iteration=7/rank=1/part.parquet").unlink()
    with dg.instance_for_test() as instance:
        said = report_once(instance, TracevizHome(home=str(home)), None).skip_reason.skip_message
        assert "job@7 is not reported whole" in said and "somebody deleted the file" in said
        assert not [told for told in names_since(instance, 0) if told[0] in ("overlap", "kernels")]
        checks = instance.get_event_records(dg.EventRecordsFilter(dg.DagsterEventType.ASSET_CHECK_EVALUATION))
        about = [record.event_log_entry.asset_check_evaluation for record in checks]
        assert not [check for check in about if check is not None and check.check_name == "coverage"]
