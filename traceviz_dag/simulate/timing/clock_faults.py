"""Faults that act for a part of the time: by how much what starts at a moment takes longer."""

from __future__ import annotations

from traceviz_dag.simulate.settings import Faults


def work_factor(faults: Faults, rank: int, since_ns: int) -> float:
    """By how much a rank's kernel takes longer that starts so long after its host began the step."""
    throttled = faults.throttle == rank and faults.throttle_from_ms * 1e6 <= since_ns < faults.throttle_to_ms * 1e6
    return faults.throttle_factor if throttled else 1.0


def transfer_factor(faults: Faults, now_ns: int) -> float:
    """By how much a transfer takes longer that begins at a moment of the true clock: bursts come at even distances."""
    if not faults.bursts:
        return 1.0
    period = faults.bursts_every_ms * 1e6
    return faults.bursts_factor if now_ns % period < faults.bursts * period else 1.0
