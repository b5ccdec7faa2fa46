"""Robust statistics on arrays: medians and quantiles by group, Theil-Sen slopes, least squares without outliers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceviz_dag.arrays import Float64

Numbers = npt.NDArray[np.integer]

_HUBER = 1.345
_MOST_PASSES, _CLOSE = 20, 1e-6
"""A solution ends after so many, or when no value moves by more than this share of the largest."""
_MOST_SLOPES = 20_000
NORMAL_SPREAD = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


def grouped_quantile(values: Float64, group: Numbers, groups: int, share: float) -> Float64:
    """The quantile of each group, interpolated between neighbours; NaN for a group without values.

    Args:
        group: number of each value's group; groups: how many there are; share: 0.5 for the median.
    """
    order = np.lexsort((values, group))
    ordered = np.append(values[order], 0.0)
    counts = np.bincount(group, minlength=groups)
    first = np.cumsum(counts) - counts
    at = first + share * np.maximum(counts - 1, 0)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, np.maximum(first + counts - 1, 0))
    part = at - low
    return np.where(counts > 0, ordered[low] * (1 - part) + ordered[high] * part, np.nan)


def spread(values: Float64) -> float:
    """Standard deviation that single outliers do not move, estimated from the median absolute deviation."""
    return NORMAL_SPREAD * float(np.median(np.abs(values - np.median(values))))


def grouped_spread(values: Float64, group: Numbers, groups: int) -> Float64:
    """Standard deviation of each group, estimated from its median absolute deviation."""
    middle = grouped_quantile(values, group, groups, 0.5)
    return NORMAL_SPREAD * grouped_quantile(np.abs(values - middle[group]), group, groups, 0.5)


def theil_sen(times: Float64, values: Float64) -> float:
    """The median slope over all pairs of points (of evenly chosen points where there are very many)."""
    order = np.argsort(times, kind="stable")
    most = int(np.sqrt(2 * _MOST_SLOPES))
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).astype(np.int64)]
    times, values = times[order], values[order]
    first, second = np.triu_indices(len(times), 1)
    apart = times[second] > times[first]
    first, second = first[apart], second[apart]
    return float(np.median((values[second] - values[first]) / (times[second] - times[first])))


def solve_differences(values: Float64, node: Numbers, group: Numbers, weight: Float64, fixed: Numbers) -> Float64:
    """Solve value = x[node] + b[group] for x by Huber-weighted least squares.

    Args:
        values: what each group says of each of its nodes, up to a constant of the group.
        weight: 1 / variance of each value.
        fixed: nodes whose x is 0: exactly one of each connected component of nodes and groups.

    Returns:
        x per node.
    """
    nodes, groups = int(node.max()) + 1, int(group.max()) + 1
    first, second = _pairs_within(group)
    cell = node[first] * nodes + node[second]
    x: Float64 = np.zeros(nodes)
    robust: Float64 = np.ones(len(values))
    for _ in range(_MOST_PASSES):
        w = weight * robust
        total = np.bincount(group, weights=w, minlength=groups)
        # The constants b are eliminated: b = sum of w * (value - x) / sum of w, group by group.
        mean = np.bincount(group, weights=w * values, minlength=groups) / total
        within = np.bincount(cell, weights=w[first] * w[second] / total[group[first]], minlength=nodes * nodes)
        system = np.diag(np.bincount(node, weights=w, minlength=nodes)) - within.reshape(nodes, nodes)
        right = np.bincount(node, weights=w * (values - mean[group]), minlength=nodes)
        system[fixed, :], right[fixed] = 0, 0
        system[fixed, fixed] = 1
        solution = np.asarray(np.linalg.solve(system, right), dtype=np.float64)
        moved = float(np.abs(solution - x).max(initial=0))
        x = solution
        constant = np.bincount(group, weights=w * (values - x[node]), minlength=groups) / total
        distance = np.abs(values - x[node] - constant[group]) * np.sqrt(weight)
        former, robust = robust, np.asarray(_HUBER / np.maximum(distance, _HUBER), dtype=np.float64)
        # The same weights would give the same solution.
        if moved <= _CLOSE * float(np.abs(x).max(initial=0)) or np.array_equal(robust, former):
            break
    return x


def _pairs_within(group: Numbers) -> tuple[Numbers, Numbers]:
    """All ordered pairs of entries of the same group, each with itself included."""
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    partners = counts[group[order]]
    first = np.repeat(np.arange(len(order)), partners)
    place = np.arange(len(first)) - np.repeat(np.cumsum(partners) - partners, partners)
    return order[first], order[starts[group[order]][first] + place]
