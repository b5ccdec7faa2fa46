"""What must hold in the tables across ranks whatever the traces; each breach is a row with its reason.

As in ``analyze.invariants``: a row that breaks two rules appears twice, under the rules' names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.invariants import INVARIANT
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.read.events import MISSING

ACROSS_INVARIANTS = {
    "wait_plus_transfer_is_duration": "wait + transfer = duration, on recorded and on solved clocks",
    "wait_within_duration": "0 <= wait <= duration by every measure, and a communication's last rank waits 0",
    "unknown_wait_has_a_reason": "a wait that is NULL, and what rests on it, has its reason in fault or a refusal",
    "parts_are_the_duration": "hidden and exposed wait and transfer add up to the duration",
    "late_parts_are_the_wait": "the late parts add up to the wait by the measure that the row names",
    "bubble_parts_add_up": "fill/drain + imbalance + jitter + stall = bubble = T - T0",
    "idle_parts_add_up": "warm-up, steady and cool-down idle add up to idle = T - busy, none below 0",
    "derived_hidden_is_the_rest": "derived_hidden = stage0 + stage1 - period",
}
"""Every rule by name, as a statement: five on collectives, two on pipelines, one on periods."""

_LAST_RANKS = {
    "wait": "last_rank",
    "wait_aligned": "last_rank_aligned",
    "wait_by_duration": "last_rank_by_duration",
}
_REASONS = ("recorded_refusal", "aligned_refusal")
_LATE = ("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns")
_PARTS = ("hidden_wait_ns", "exposed_wait_ns", "hidden_transfer_ns", "exposed_transfer_ns")
_BUBBLE = ("fill_drain_ns", "imbalance_ns", "jitter_ns", "stall_ns")
_IDLE = ("warmup_idle_ns", "steady_idle_ns", "cooldown_idle_ns")


def collectives_violations(collectives: pa.Table) -> pa.Table:
    """Return the rows of a table ``collectives`` that break a rule, under ``invariant``."""
    duration, rank = optional_integers(collectives, "duration_ns"), optional_integers(collectives, "rank")
    waits = {name: optional_integers(collectives, f"{name}_ns") for name in _LAST_RANKS}
    told = {name: wait != MISSING for name, wait in waits.items()}
    last = {name: optional_integers(collectives, column) for name, column in _LAST_RANKS.items()}
    wrong = [
        told[name] & ((wait < 0) | (wait > duration) | ((last[name] == rank) & (wait != 0)))
        for name, wait in waits.items()
    ]
    uneven = [
        told[f"wait{clock}"]
        & (duration != waits[f"wait{clock}"] + optional_integers(collectives, f"transfer{clock}_ns"))
        for clock in ("", "_aligned")
    ]
    judged = np.where(told["wait_aligned"], waits["wait_aligned"], waits["wait_by_duration"])
    fault, reasons = _is_null(collectives, "fault"), [_is_null(collectives, name) for name in _REASONS]
    silent = [fault & reason & ~told[name] for name, reason in zip(("wait", "wait_aligned"), reasons, strict=True)]
    charged = optional_integers(collectives, "hidden_wait_ns") != MISSING
    unfounded = charged & ((judged == MISSING) | _is_null(collectives, "clocks"))
    return _rows_of(
        collectives,
        {
            "wait_plus_transfer_is_duration": np.any(uneven, axis=0),
            "wait_within_duration": np.any(wrong, axis=0),
            "unknown_wait_has_a_reason": np.any(silent, axis=0) | unfounded,
            "parts_are_the_duration": charged & (_sum(collectives, _PARTS) != duration),
            "late_parts_are_the_wait": charged & (_sum(collectives, _LATE) != judged),
        },
    )


def pipelines_violations(pipelines: pa.Table) -> pa.Table:
    """Return the rows of a table ``pipelines`` that break a rule, under ``invariant``."""
    span, bubble = optional_integers(pipelines, "span_ns"), optional_integers(pipelines, "bubble_ns")
    told = bubble != MISSING
    idle = optional_integers(pipelines, "idle_ns")
    wrong_bubble = (_sum(pipelines, _BUBBLE) != bubble) | (bubble != span - optional_integers(pipelines, "ideal_ns"))
    below = np.any([optional_integers(pipelines, name) < 0 for name in _IDLE], axis=0)
    wrong_idle = (_sum(pipelines, _IDLE) != idle) | (idle != span - optional_integers(pipelines, "busy_ns")) | below
    return _rows_of(pipelines, {"bubble_parts_add_up": told & wrong_bubble, "idle_parts_add_up": wrong_idle})


def periods_violations(periods: pa.Table) -> pa.Table:
    """Return the rows of a table ``periods`` that break a rule, under ``invariant``."""
    hidden, period = optional_integers(periods, "derived_hidden_ns"), optional_integers(periods, "period_ns")
    rest = _sum(periods, ("stage0_ns", "stage1_ns")) - period
    return _rows_of(periods, {"derived_hidden_is_the_rest": (period != MISSING) & (hidden != rest)})


def _is_null(table: pa.Table, column: str) -> npt.NDArray[np.bool_]:
    return np.asarray(table.column(column).is_null().to_numpy(), dtype=bool)


def _sum(table: pa.Table, columns: tuple[str, ...]) -> npt.NDArray[np.int64]:
    return np.sum([optional_integers(table, name) for name in columns], axis=0, dtype=np.int64)


def _rows_of(table: pa.Table, breaches: Mapping[str, npt.NDArray[np.bool_]]) -> pa.Table:
    parts = []
    for name, broken in breaches.items():
        rows = table.filter(pa.array(broken))
        parts.append(rows.add_column(0, INVARIANT, pa.array([name] * rows.num_rows, type=pa.string())))
    return pa.concat_tables(parts)
