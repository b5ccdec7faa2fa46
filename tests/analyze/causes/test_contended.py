"""A slow rank makes others wait, and what computes beside their waits is slow, too: bars hold what goes with both."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.what_if import what_if_of
from tests.sets import fast
from traceviz_dag.simulate import JobSettings
from traceviz_dag.simulate.settings import Faults

JOB = JobSettings(dp=4, layers=4, microbatches=4, iterations=1)
JOBS = {
    "slow GPU": replace(JOB, contention=1.3).with_faults(slow_gpu=3, slow_gpu_factor=1.3),
    "throttled": replace(JOB, contention=1.3).with_faults(
        throttle=3, throttle_from_ms=10.0, throttle_to_ms=60.0, throttle_factor=1.5
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", fast(JOBS, "slow GPU"))
def test_the_bar_of_a_slow_rank_holds_what_its_peers_gain_beside_their_waits(tmp_path, name):
    job = JOBS[name]
    slow = what_if_of(job, tmp_path / "slow")
    lost = slow.step_ns - what_if_of(replace(job, faults=Faults()), tmp_path / "usual").step_ns
    found = slow.predict(slow.fix_rank(3))
    assert found.gain_low_ns <= lost <= found.gain_high_ns
    assert slow.edits.without_waits is not None


def test_where_communication_slows_nothing_no_bar_is_wider(tmp_path):
    slow = what_if_of(JOB.with_faults(slow_gpu=3), tmp_path / "slow")
    assert slow.edits.without_waits is None and slow.fix_rank(3).most is None
