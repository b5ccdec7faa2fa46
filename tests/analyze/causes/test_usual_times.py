"""What kernels usually take: counterparts on other ranks, of kernels that have another name there."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.accuracy import SMALL
from benchmarks.what_if import what_if_of
from traceviz_dag.analyze.causes.edits import AllTimes
from traceviz_dag.analyze.causes.usual_times import own_work
from traceviz_dag.analyze.causes.what_if import WhatIf
from traceviz_dag.simulate.settings import Faults, Transformer


def own_ns(what_if: WhatIf, place: int, times: AllTimes) -> int:
    """What a rank's own work takes."""
    return int(times[place].duration_ns[own_work(what_if.step.works[place])].sum())


def test_another_algorithm_has_counterparts_on_its_stage_where_kernels_do_other_work_on_another_stage(tmp_path):
    """One kernel computes the gradients of the output layer's weights and those of the layers', and no sizes show."""
    healthy = replace(SMALL, pp=2, dp=2, microbatches=2, transformer=Transformer.LOCAL)
    slow = what_if_of(replace(healthy, faults=Faults(other_algorithm=2)), tmp_path / "slow")
    usual = what_if_of(healthy, tmp_path / "usual")
    assert slow.edits.instances.on_stage is not None
    now, then = own_ns(slow, 2, slow.times), own_ns(usual, 2, usual.times)
    assert now > 1.05 * then
    assert abs(own_ns(slow, 2, slow.edits.fix_rank(slow.times, 2)) - then) < 0.1 * (now - then)
