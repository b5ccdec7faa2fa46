"""The schedule of a simulated job."""

from __future__ import annotations

from traceviz_dag.schedules import Action, Order
from traceviz_dag.simulate.settings import JobSettings


def schedule_of(settings: JobSettings, stage: int) -> tuple[Action, ...]:
    """The actions of one pipeline stage in one training step, in host order."""
    how = settings.overlap_expert, settings.overlap_p2p, settings.zero_bubble
    return Order(settings.pp, settings.vpp, settings.microbatches, *how).actions(stage)
