"""What communication costs the computation beside it, and so what overlap really saves.

Communication takes processors and memory bandwidth, so the same operation takes longer beside it. The same operation is
one row of table ``operations`` whose input sizes are recorded, by one kernel: its kernels are compared with each other,
those that communication covers against those that it does not touch. A call that launches a kernel more than once may
give each other work, such as casts of an activation and of a weight: they are distinguished by their order. What a
dimension's overlap saves is its hidden communication less the extra time of the computation beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.intervals import measure_within, union
from traceviz_dag.analyze.kernel_intervals import codes, holds, integers
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.medians import medians
from traceviz_dag.analyze.wording import percent
from traceviz_dag.arrays import NONE, Bool, Float64, Int64, number_groups
from traceviz_dag.tables import CONTENTION, OVERLAP_SAVINGS
from traceviz_dag.vocabulary import ALL_DIMENSIONS, CPU_DEVICE, Kind, Savings

BESIDE = 0.9
"""Share of a kernel that communication covers at least where it counts as beside it, and none where it is alone."""

LEAST_KERNELS = 3
"""So many of each are compared at least."""

LEAST_JUDGED = 0.8
"""Share of the computation beside communication whose slow-down must be known for a saving to be given."""

_ERRORS = 2.0
"""Standard errors on either side of a saving."""

_OF_A_MEDIAN, _OF_A_DEVIATION = 1.2533, 1.4826
"""Standard error of a median to that of a mean, and standard deviation to the median absolute one, of normal noise."""

NO_SIZES = "the sizes of the inputs are not recorded"
NEVER_ALONE = f"it runs alone fewer than {LEAST_KERNELS} times"
NEVER_BESIDE = f"it runs beside communication fewer than {LEAST_KERNELS} times"

_READ = (
    *("operation_id", "name", "kind", "device", "dimension", "step", "start_ns", "duration_ns"),
    *("grid_x", "grid_y", "grid_z"),
)


class _Beside(NamedTuple):
    """The computation kernels of a device, and how much of each communication covers, by dimension."""

    rows: Int64
    covered: Int64
    dimensions: list[str]
    by_dimension: list[Int64]


def contention_tables(
    kernels: pa.Table, operations: pa.Table, overlap: pa.Table, calls: Int64
) -> tuple[pa.Table, pa.Table]:
    """The tables ``contention`` and ``overlap_savings`` of a rank.

    Args:
        kernels, operations, overlap: the rank's tables.
        calls: of each kernel the call that launched it, NONE where that is not known.
    """
    columns = kernels.select(_READ)
    computes, communicates = (holds(columns, "kind", one.value) for one in (Kind.COMPUTATION, Kind.COMMUNICATION))
    start, duration = integers(columns, "start_ns"), integers(columns, "duration_ns")
    dimension, dimensions = codes(columns, "dimension")
    contention, savings = [], []
    for name in (each for each in codes(columns, "device")[1] if each != CPU_DEVICE):
        here = holds(columns, "device", name)
        messages = np.flatnonzero(here & communicates)
        if not len(messages):
            continue
        beside = _beside(np.flatnonzero(here & computes), messages, (start, duration), dimension, dimensions)
        groups = _groups(columns, operations, beside, (start, duration), calls)
        contention += [{**row, "device": name} for row in groups.rows()]
        mine = overlap.filter(pa.array(holds(overlap, "device", name)))
        savings += list(_savings(mine, columns, beside, groups))
    return (
        pa.Table.from_pylist(contention, CONTENTION.schema),
        pa.Table.from_pylist(savings, OVERLAP_SAVINGS.schema),
    )


def _beside(
    rows: Int64, messages: Int64, time: tuple[Int64, Int64], dimension: np.ndarray, dimensions: list[str]
) -> _Beside:
    start, duration = time
    begin, end = start[rows], start[rows] + duration[rows]

    def within(chosen: Int64) -> Int64:
        return measure_within(union(start[chosen], start[chosen] + duration[chosen]), begin, end)

    used = np.unique(dimension[messages]).tolist()
    names = [dimensions[code] for code in used if code >= 0]
    by_dimension = [within(messages[dimension[messages] == code]) for code in used if code >= 0]
    return _Beside(rows, within(messages), names, by_dimension)


class _Groups(NamedTuple):
    """The same operations, and their kernels.

    Attributes:
        group: of each computation kernel. first: a kernel of each group, in the table.
        operation_id, name: of each group; reason: why its slow-down is not known.
        alone, beside: how many kernels; medians and deviations, ns.
        extra_ns: of each kernel, beyond the median of those alone; 0 where nothing covers it, or that is not known.
    """

    operation_id: Int64
    names: list[str]
    reason: list[str | None]
    alone: Int64
    alone_ns: Float64
    alone_deviation: Float64
    beside: Int64
    beside_ns: Float64
    beside_deviation: Float64
    group: Int64
    judged: Bool
    extra_ns: Float64

    def rows(self) -> Iterator[dict[str, object]]:
        """Rows of table ``contention``: operations with sizes of which some kernel runs beside communication."""
        extra = np.bincount(self.group, weights=self.extra_ns, minlength=len(self.names))
        for number in np.flatnonzero(self.beside > 0).tolist():
            reason = self.reason[number]
            if reason == NO_SIZES:
                continue
            alone, beside = float(self.alone_ns[number]), float(self.beside_ns[number])
            yield {
                **{"operation_id": int(self.operation_id[number]), "kernel": self.names[number]},
                **{"alone": int(self.alone[number]), "beside": int(self.beside[number])},
                "alone_ns": None if np.isnan(alone) else round(alone),
                "beside_ns": None if np.isnan(beside) else round(beside),
                "slowdown": beside / alone if reason is None and alone else None,
                "extra_ns": round(extra[number]) if reason is None else None,
                "reason": reason,
            }


def _groups(
    columns: pa.Table, operations: pa.Table, beside: _Beside, time: tuple[Int64, Int64], calls: Int64
) -> _Groups:
    start, duration = time
    rows = beside.rows
    operation = optional_integers(columns, "operation_id")[rows]
    code, names = codes(columns, "name")
    grids = [optional_integers(columns, f"grid_{axis}")[rows] for axis in "xyz"]
    same = (operation, code[rows].astype(np.int64), *grids)
    first, group = number_groups(*same, *_order_in_call(same, calls[rows], start[rows]))
    count = len(first)
    took = duration[rows]
    alone = beside.covered == 0
    whole = (beside.covered >= BESIDE * took) & ~alone
    shapes = np.asarray(operations["shapes"].is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    forward = np.asarray(operations["forward_shapes"].is_valid().to_numpy(zero_copy_only=False), dtype=bool)
    sized = np.append(shapes | forward, False)[operation[first]]
    counts = [np.bincount(group[chosen], minlength=count) for chosen in (alone, whole)]
    middle_ns = [medians(group[chosen], took[chosen], count) for chosen in (alone, whole)]
    deviations = [
        medians(group[chosen], np.abs(took[chosen] - middle[group[chosen]]), count) * _OF_A_DEVIATION
        for chosen, middle in zip((alone, whole), middle_ns, strict=True)
    ]
    reason = [
        NO_SIZES
        if not known
        else NEVER_ALONE
        if single < LEAST_KERNELS
        else NEVER_BESIDE
        if covered < LEAST_KERNELS
        else None
        for known, single, covered in zip(sized.tolist(), *(each.tolist() for each in counts), strict=True)
    ]
    judged = sized & (counts[0] >= LEAST_KERNELS)
    # What is covered in part is slowed in part: its extra time counts, but not in the medians.
    extra = np.where(~alone & judged[group], took - middle_ns[0][group], 0.0)
    return _Groups(
        operation[first],
        [names[number] for number in code[rows][first].tolist()],
        reason,
        *(counts[0], middle_ns[0], deviations[0]),
        *(counts[1], middle_ns[1], deviations[1]),
        *(group, judged, extra),
    )


def _order_in_call(same: Sequence[Int64], calls: Int64, start: Int64) -> tuple[Int64, Int64]:
    """Of each kernel which one it is of the same kernels of its call, by start, and how many there are."""
    own = np.where(calls == NONE, NONE - 1 - np.arange(len(calls)), calls)
    first, which = number_groups(*same, own)
    order = np.lexsort((start, which))
    counts = np.bincount(which, minlength=len(first))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order)) - (np.cumsum(counts) - counts)[which[order]]
    return place, counts[which].astype(np.int64)


def _savings(overlap: pa.Table, columns: pa.Table, beside: _Beside, groups: _Groups) -> Iterator[dict[str, object]]:
    """Rows of table ``overlap_savings`` of a device: of each window and dimension that hides something."""
    step = optional_integers(columns, "step")[beside.rows]
    wanted = ("device", "window_name", "step", "dimension", "hidden_ns")
    for row in overlap.select(wanted).to_pylist():
        of_all = row["dimension"] == ALL_DIMENSIONS
        if not row["hidden_ns"] or not (of_all or row["dimension"] in beside.dimensions):
            continue
        inside = step == row["step"] if row["step"] is not None else np.ones(len(step), dtype=bool)
        share = np.ones(len(step))
        covered = beside.covered
        if not of_all:
            covered = beside.by_dimension[beside.dimensions.index(row["dimension"])]
            # Where several dimensions communicate beside a kernel, each slows it by its part of the time.
            every = np.maximum(np.sum(beside.by_dimension, axis=0), 1)
            share = covered / every
        chosen = inside & (covered > 0)
        judged = chosen & groups.judged[groups.group]
        known = float(covered[judged].sum() / max(covered[chosen].sum(), 1))
        if known < LEAST_JUDGED:
            unjudged = chosen & ~judged
            weight = np.bincount(groups.group[unjudged], weights=covered[unjudged], minlength=len(groups.names))
            reason = f"for {percent(1 - known)} of the computation beside it, {groups.reason[int(weight.argmax())]}"
            yield row | {"judged_share": known, "reason": reason}
            continue
        yield row | {"judged_share": known, **_saving(row["hidden_ns"], groups, judged, share)}


def _saving(hidden_ns: int, groups: _Groups, judged: Bool, share: Float64) -> dict[str, object]:
    """The measures of a row whose extra time is known."""
    extra = float((groups.extra_ns * share)[judged].sum())
    # Noise of single kernels adds up in squares; that of a median is the same for all kernels of its group.
    weight = np.bincount(groups.group[judged], weights=share[judged], minlength=len(groups.names))
    squares = np.bincount(groups.group[judged], weights=share[judged] ** 2, minlength=len(groups.names))
    single = np.fmax(np.nan_to_num(groups.beside_deviation), np.nan_to_num(groups.alone_deviation)) ** 2 * squares
    median = (_OF_A_MEDIAN * np.nan_to_num(groups.alone_deviation) * weight) ** 2 / np.maximum(groups.alone, 1)
    error = _ERRORS * float(np.sqrt((single + median).sum()))
    net = hidden_ns - extra
    verdict = Savings.SAVES if net - error > 0 else Savings.COSTS if net + error < 0 else Savings.UNSURE
    return {
        **{"extra_ns": round(extra), "net_ns": round(net)},
        **{"net_low_ns": round(net - error), "net_high_ns": round(net + error), "verdict": verdict.value},
    }
