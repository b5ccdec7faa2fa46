"""Records of pipeline operations: the path through them, what edits of them gain, and the waits that are inferred."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analyze.causes.test_slowdowns import _job, _write
from traceviz_dag.analyze.causes.gains import over_steps
from traceviz_dag.analyze.causes.records_edits import RecordsWhatIf
from traceviz_dag.analyze.causes.records_path import records_path, replayed_ends, segment_rows, slack_of, step_bounds
from traceviz_dag.analyze.causes.records_waits import with_inferred_waits
from traceviz_dag.analyze.causes.records_work import records_work
from traceviz_dag.analyze.causes.reordered import Change
from traceviz_dag.read.records.pipeline_records import read_pipeline_records


@pytest.fixture(scope="module")
def published(shared_data):
    records = read_pipeline_records(shared_data / "straggler_analysis" / "trace-SE.parquet")
    return records, with_inferred_waits(records_work(records))


def test_the_replay_with_lags_is_the_record_and_the_paths_are_the_steps(published):
    records, work = published
    recorded = records.rows["start_ns"].to_numpy() + records.rows["duration_ns"].to_numpy()
    ends = replayed_ends(work, work.own_ns)[: len(work)]
    np.testing.assert_array_equal(ends, recorded)
    path = records_path(work)
    rows = segment_rows(work, path)
    slack = slack_of(work, work.own_ns, work.lag_ns)
    for low, high in step_bounds(work):
        mine = [row for row in rows if row["step"] == work.step[low]]
        assert sum(row["duration_ns"] for row in mine) == recorded[low:high].max()
        now = 0
        for row in mine:
            assert row["start_ns"] == now and row["duration_ns"] > 0
            now += row["duration_ns"]
        assert slack[low:high].min() == 0
    assert (slack[path.operation[path.cause == 0]] <= 0).all()


def test_what_records_do_not_name_is_inferred_and_leaves_little_unexplained(published):
    """Without the inferred waits a fifth of the path is unexplained, and keeping the lags hides half of a gain."""
    records, work = published
    unexplained, gains = [], []
    for each in (records_work(records), work):
        rows = segment_rows(each, records_path(each))
        lost = sum(row["duration_ns"] for row in rows if row["cause"] == "unexplained")
        unexplained.append(lost / sum(row["duration_ns"] for row in rows))
        what_if = RecordsWhatIf(each)
        (edit,) = (edit for edit in what_if.general() if edit.name == "equal_stages")
        own = np.stack([each.own_ns, edit.apply(each.own_ns)], axis=1)
        kept, free = (what_if._lengths(own, mode).sum(axis=0) for mode in (False, True))
        gains.append((kept[0] - kept[1]) / (free[0] - free[1]))
    assert unexplained[0] > 0.2 and unexplained[1] < 0.005
    assert gains[0] < 0.6 and gains[1] == pytest.approx(1, abs=0.03)


def test_mending_the_slow_rank_gives_the_healthy_job_back(tmp_path):
    healthy = with_inferred_waits(records_work(read_pipeline_records(_write(tmp_path, _job()))))
    path = _write(tmp_path, _job(slow=(1, 1), forward=0.030, backward=0.060))
    what_if = RecordsWhatIf(with_inferred_waits(records_work(read_pipeline_records(path))))
    choices = [[what_if.fix_rank(rank)] for rank in what_if.ranks]
    rows = over_steps([row for each in what_if.predict(choices) for row in each])
    true = 2 * int(replayed_ends(healthy, healthy.own_ns).max())
    assert rows[0]["rank"] == 3
    assert rows[0]["gain_low_ns"] <= rows[0]["gain_ns"] <= rows[0]["gain_high_ns"]
    assert rows[0]["predicted_step_ns"] == pytest.approx(true, rel=0.1)
    assert all(row["gain_ns"] == 0 for row in rows[1:])


def test_the_order_of_records_is_made_anew_and_their_items_give_the_step_back(published):
    _, work = published
    what_if = RecordsWhatIf(work)
    items = next(what_if._items(work.own_ns, work.lag_ns))
    present = items.present()
    assert (present.stages, present.chunks, present.microbatches) == (2, 1, 8)
    found = items.changed(Change(microbatches=16))
    # Micro-batches of very different lengths: their mean hides a twentieth of the step, and the error bar says so.
    assert found.microbatches == (8, 16) and 0.03 < abs(found.error) < 0.06
    assert 0.75 * items.step_ns < found.later_ns < items.step_ns
