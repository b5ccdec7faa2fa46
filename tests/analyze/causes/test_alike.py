"""Jitter, slow ranks and slow stages are three things: what makes one of them go leaves the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.what_if import what_if_of
from tests.sets import fast
from traceviz_dag.analyze.causes.alike import PassTimes, scale_of
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.simulate import JobSettings

EDITS = {
    "no_jitter": PassTimes.without_jitter,
    "equal_ranks": PassTimes.alike_ranks,
    "equal_stages": PassTimes.alike_stages,
}


def passes(own: np.ndarray) -> PassTimes:
    """Passes of a job: stage x rank of it x micro-batch, all forward."""
    stage, peer, _ = (each.ravel() for each in np.indices(own.shape))
    nothing = np.zeros(own.size, np.int64)
    return PassTimes(nothing, stage * own.shape[1] + peer, stage, nothing, nothing, own.ravel())


@given(
    base=st.lists(st.integers(10**6, 10**8), min_size=2, max_size=4),
    slow=st.floats(1.0, 2.0),
    jitter=st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3),
)
def test_each_edit_takes_its_own_difference_alone(base, slow, jitter):
    """Stages of three ranks, the last of the first stage slow, and micro-batches that differ alike on all."""
    ranks = np.array([[1, 1, slow], *[[1, 1, 1]] * (len(base) - 1)])
    own = np.rint(np.array(base)[:, None, None] * ranks[:, :, None] * np.array(jitter)).astype(np.int64)
    now = passes(own)
    then = {name: (now.own_ns * scale_of(edit(now))).reshape(own.shape) for name, edit in EDITS.items()}
    assert np.ptp(then["no_jitter"], axis=2).max() <= 2
    assert then["no_jitter"].mean(axis=2) == pytest.approx(own.mean(axis=2), abs=2)
    assert np.ptp(then["equal_ranks"], axis=1).max() <= 1e-5 * own.max()
    assert then["equal_ranks"][:, 0] == pytest.approx(own[:, 0], rel=1e-5)
    typical = np.median(then["equal_stages"], axis=1)
    assert np.ptp(typical, axis=0).max() <= 1e-5 * own.max()
    assert then["equal_stages"][0, 2] / then["equal_stages"][0, 0] == pytest.approx(own[0, 2] / own[0, 0], rel=1e-5)


def test_nothing_is_evened_out_where_there_is_nothing_to_compare():
    with pytest.raises(NoEvidenceError, match="no micro-batches"):
        passes(np.empty((0, 0, 0), np.int64))
    with pytest.raises(NoEvidenceError, match="no pipeline stage has two ranks"):
        passes(np.full((2, 1, 3), 5)).alike_ranks()


@pytest.mark.long
@pytest.mark.parametrize("stages", fast([1, 2], 1))
def test_a_slow_gpu_is_neither_jitter_nor_a_slow_stage(tmp_path, stages):
    job = JobSettings(pp=stages, dp=4, layers=4, microbatches=4, iterations=1)
    slow = what_if_of(job.with_faults(slow_gpu=1), tmp_path / "slow")
    lost = slow.step_ns - what_if_of(job, tmp_path / "usual").step_ns
    named = {edit.name: edit for edit in slow.general()}
    gains = {name: slow.predict(named[name]).gain_ns for name in ("no_jitter", "equal_ranks")}
    assert gains["equal_ranks"] == pytest.approx(lost, rel=0.25)
    assert abs(gains["no_jitter"]) < 0.02 * lost
