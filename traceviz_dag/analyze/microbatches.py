"""Each micro-batch's forward and backward step on a rank: its span, and what computation and communication fill it.

A kernel belongs to a micro-batch where its column ``microbatch`` is set and its phase is forward, backward or
recompute. Communication that a micro-batch's code merely launches (an overlapped gradient reduce-scatter) has no
``microbatch``, only ``launching_microbatch``, and does not count here; neither does pipeline communication between two
steps. All measures are of the micro-batch's own kernels inside its own span: hidden is its own communication under its
own computation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traceviz_dag.analyze.intervals import lay_end_to_end
from traceviz_dag.analyze.kernel_intervals import KernelIntervals, codes, kernel_intervals
from traceviz_dag.analyze.matching.communications import nullable, optional_integers
from traceviz_dag.analyze.window_measures import measure_windows
from traceviz_dag.arrays import Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import MICROBATCHES
from traceviz_dag.vocabulary import ALL_DIMENSIONS, Phase

PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.RECOMPUTE.value)
"""The phases of the table's rows; the code of a phase is its position."""

FORWARD, BACKWARD, RECOMPUTE = range(len(PHASES))


@dataclass(frozen=True, slots=True)
class HostSteps:
    """Forward and backward steps as the host ran them, one entry per step of a micro-batch; the call stacks show them.

    An integer that is not known is ``read.events.MISSING``.

    Attributes:
        phase: ``FORWARD`` or ``BACKWARD``; a recompute is part of its backward step.
        chunk: model chunk, from 0.
        microbatch: micro-batch index within its chunk, from 0.
        step: number of the ProfilerStep.
        host_start_ns: start of the step on the host, ns.
        host_end_ns: end of the step on the host, ns.
        order: position among the rank's forward and backward steps as the host ran them.
    """

    phase: npt.NDArray[np.int8]
    chunk: Int64
    microbatch: Int64
    step: Int64
    host_start_ns: Int64
    host_end_ns: Int64
    order: Int64

    def __len__(self) -> int:
        return len(self.phase)


@dataclass(frozen=True, slots=True)
class _Members:
    """Kernels in row groups; one of phase recompute is there twice, in its backward step and as the recompute alone.

    Attributes:
        time_and_kind: one entry a membership.
        group: number of its row group.
        device, step, chunk, microbatch, phase, stage: one entry per group.
    """

    time_and_kind: KernelIntervals
    group: npt.NDArray[np.intp]
    device: Int64
    step: Int64
    chunk: Int64
    microbatch: Int64
    phase: Int64
    stage: Int64
    device_names: list[str]


@dataclass(frozen=True, slots=True)
class _HostFacts:
    """What the host says of each row group, ``MISSING`` where it says nothing."""

    order: Int64
    start_ns: Int64
    end_ns: Int64


def microbatches_table(kernels: pa.Table, host_steps: HostSteps | None = None) -> pa.Table:
    """Measure every micro-batch of one rank.

    ``backward`` includes the recompute; ``recompute`` shows that part alone, inside the same backward step.
    ``order_in_rank`` counts the steps that have kernels, from 0 in each ProfilerStep: by the host's order where
    ``host_steps`` gives it for all of them, else by host start where that is known for all, else by first kernel.
    Sources are not mixed inside a ProfilerStep, because kernels start later than their host step by a varying delay.

    Args:
        kernels: the table ``kernels`` of one rank; needs start_ns, duration_ns, device, kind, dimension, phase, step,
            stage, chunk and microbatch.
        host_steps: the steps on the host; None without call stacks. A step that is there twice counts from its
            first start to its last end.

    Returns:
        The table ``microbatches``: a row per device × step × chunk × micro-batch × phase × dimension; ``all`` and
        each dimension that its communication has.

    Raises:
        ValueError: a kernel without a start, a duration, a device or a known kind.
    """
    members = _members(kernels)
    groups = len(members.phase)
    if not groups:
        return MICROBATCHES.schema.empty_table()
    starts = np.full(groups, np.iinfo(np.int64).max)
    ends = np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(starts, members.group, members.time_and_kind.time.starts)
    np.maximum.at(ends, members.group, members.time_and_kind.time.ends)
    host = _host_facts(members, host_steps)
    return _rows(
        members,
        {
            "device": members.device,
            "step": members.step,
            "stage": members.stage,
            "chunk": members.chunk,
            "microbatch": members.microbatch,
            "phase": members.phase,
            "order_in_rank": _order_in_rank(members, host, starts),
            "host_start_ns": host.start_ns,
            "host_end_ns": host.end_ns,
            "span_start_ns": starts,
            "span_end_ns": ends,
            "kernels": np.bincount(members.group, minlength=groups),
        },
    )


def _members(kernels: pa.Table) -> _Members:
    """Find each micro-batch's own kernels and number the row groups by device, step, chunk, micro-batch and phase."""
    phase_code, phase_names = codes(kernels, "phase")
    # Code -1, a NULL, picks the last entry.
    places = [PHASES.index(name) if name in PHASES else -1 for name in phase_names]
    phase = np.array([*places, -1], dtype=np.int64)[phase_code]
    microbatch = optional_integers(kernels, "microbatch")
    own = np.flatnonzero((microbatch != MISSING) & (phase >= 0))
    recomputed = own[phase[own] == RECOMPUTE]
    rows = np.concatenate((own, recomputed))
    row_phase = np.concatenate((np.minimum(phase[own], BACKWARD), phase[recomputed]))

    device, device_names = codes(kernels, "device")
    if (device[own] < 0).any():
        raise ValueError(f"{int((device[own] < 0).sum())} kernels of micro-batches have no device")
    step, chunk = optional_integers(kernels, "step"), optional_integers(kernels, "chunk")
    first, group = number_groups(device[rows], step[rows], chunk[rows], microbatch[rows], row_phase)
    row_of_group = rows[first]
    return _Members(
        time_and_kind=kernel_intervals(kernels).take(rows),
        group=group,
        device=device[row_of_group].astype(np.int64),
        step=step[row_of_group],
        chunk=chunk[row_of_group],
        microbatch=microbatch[row_of_group],
        phase=row_phase[first],
        stage=optional_integers(kernels, "stage")[row_of_group],
        device_names=device_names,
    )


def _host_facts(members: _Members, host: HostSteps | None) -> _HostFacts:
    """Look each row group up among the host's steps; a recompute is found in its backward step."""
    groups = len(members.phase)
    nothing = np.full(groups, MISSING, dtype=np.int64)
    if host is None or not len(host):
        return _HostFacts(nothing, nothing, nothing)
    keys = [
        np.concatenate((of_group, of_host.astype(np.int64)))
        for of_group, of_host in (
            (members.step, host.step),
            (members.chunk, host.chunk),
            (members.microbatch, host.microbatch),
            (np.minimum(members.phase, BACKWARD), host.phase),
        )
    ]
    distinct, number = number_groups(*keys)
    of_group, of_host = number[:groups], number[groups:]
    return _HostFacts(
        order=_extreme(host.order, of_host, len(distinct), np.minimum)[of_group],
        start_ns=_extreme(host.host_start_ns, of_host, len(distinct), np.minimum)[of_group],
        end_ns=_extreme(host.host_end_ns, of_host, len(distinct), np.maximum)[of_group],
    )


def _extreme(values: Int64, number: npt.NDArray[np.intp], groups: int, pick: np.ufunc) -> Int64:
    """Return the least or greatest known value of each group, ``MISSING`` where none is known."""
    known = values != MISSING
    worst = np.iinfo(np.int64).max if pick is np.minimum else np.iinfo(np.int64).min
    result = np.full(groups, worst, dtype=np.int64)
    pick.at(result, number[known], values[known])
    return np.where(result == worst, MISSING, result)


def _order_in_rank(members: _Members, host: _HostFacts, first_kernel: Int64) -> Int64:
    """Number the forward and backward steps inside each ProfilerStep, from 0; each row group gets its step's number."""
    unit_phase = np.minimum(members.phase, BACKWARD)
    unit_of, unit = number_groups(members.step, members.chunk, members.microbatch, unit_phase)
    steps, step = number_groups(members.step[unit_of])
    instant = _extreme(first_kernel, unit, len(unit_of), np.minimum)
    for better in (host.start_ns[unit_of], host.order[unit_of]):
        known_for_all = np.bincount(step, weights=better == MISSING, minlength=len(steps)) == 0
        instant = np.where(known_for_all[step], better, instant)
    by_instant = np.lexsort((instant, step))
    position = np.empty(len(unit_of), dtype=np.int64)
    position[by_instant] = np.arange(len(unit_of))
    first_position = np.searchsorted(step[by_instant], np.arange(len(steps)))
    return (position - first_position[step])[unit]


def _rows(members: _Members, of_group: dict[str, npt.NDArray[np.int64]]) -> pa.Table:
    """Measure all groups on one axis and lay the rows out: group by group, in each ``all`` and then the dimensions."""
    axis = lay_end_to_end(of_group["span_start_ns"], of_group["span_end_ns"])
    kernels = members.time_and_kind
    placed = KernelIntervals(axis.place(kernels.time, members.group), kernels.kind, kernels.dimension)
    measured = measure_windows(placed, axis.segment_starts, axis.segment_ends)
    names = list(measured)
    present = np.stack([_has_dimension(members, name) for name in names], axis=1)
    group, dimension = np.nonzero(present)
    columns: dict[str, object] = {
        name: np.stack([each.columns()[name] for each in measured.values()], axis=1)[present]
        for name in measured[ALL_DIMENSIONS].columns()
    }
    columns |= {name: nullable(values[group]) for name, values in of_group.items()}
    columns["device"] = pa.array(members.device_names).take(pa.array(of_group["device"][group]))
    columns["phase"] = pa.array(PHASES).take(pa.array(of_group["phase"][group]))
    columns["dimension"] = pa.array(names).take(pa.array(dimension))
    return MICROBATCHES.from_columns(columns)


def _has_dimension(members: _Members, dimension: str) -> npt.NDArray[np.bool_]:
    """Say of each row group whether a communication of the dimension is in it; every group has ``all``."""
    groups = len(members.phase)
    if dimension == ALL_DIMENSIONS:
        return np.ones(groups, dtype=bool)
    rows = members.time_and_kind.communicates(dimension)
    return np.bincount(members.group[rows], minlength=groups) > 0
