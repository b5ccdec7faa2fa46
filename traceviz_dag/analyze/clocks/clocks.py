"""Every rank's clock against a common one, solved jointly over the graph of all groups.

Within one group the ends of its collectives give each member's offset, up to a constant of the group. Groups overlap
(a rank has tensor-, data- and pipeline-parallel peers), so all constants and all offsets are one least-squares problem,
solved robustly; group by group in turn would be wrong. Ranks of one host are a group of their own, of offset and drift
0. Offsets exist only inside a connected component. Drift is solved likewise from Theil-Sen slopes, where there are at
least 30 matches over at least one second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.clocks.clock_evidence import (
    FEWEST_MATCHES,
    ClockEvidence,
    MatchedEnds,
    clock_evidence,
    group_views,
    matched_ends,
)
from traceviz_dag.analyze.clocks.robust import grouped_quantile, solve_differences, theil_sen
from traceviz_dag.analyze.matching.communications import nullable, optional_integers
from traceviz_dag.analyze.matching.matches import Matches, connected
from traceviz_dag.arrays import Bool, Float64, Int64, number_groups
from traceviz_dag.read.events import MISSING
from traceviz_dag.tables import RANK_CLOCKS

DRIFT_MATCHES, DRIFT_SPAN_NS = 30, 1_000_000_000
"""Matches and time that a drift needs."""

WIDEST_RESIDUAL_NS = 100_000
"""Half the distance from p05 to p95 of a rank's residuals from which its clock is refused."""

_HOST_NS, _HOST_SLOPE = 5_000.0, 1e-7
"""How far time stamps and rates of one host's GPUs may be apart: 8 A100 of one host end within 7 µs of each other."""

PPM = 1e-6


@dataclass(frozen=True, slots=True)
class SolvedClocks:
    """Clock corrections by rank; of a rank that is not in it, nothing is known.

    Attributes:
        ranks: ascending; component: of each; offset_ns, drift_ppm, reference_ns: as in the table ``rank_clocks``.
    """

    ranks: Int64
    component: Int64
    offset_ns: Int64
    drift_ppm: Float64
    reference_ns: Int64

    def align(self, rank: Int64, instants: Int64) -> Int64:
        """Move instants of the given ranks' clocks to the common clock; ``MISSING`` where a clock is not solved."""
        if not len(self.ranks):
            return np.full(len(rank), MISSING)
        place = self._places(rank)
        known = self.ranks[place] == rank
        since = instants - self.reference_ns[place]
        drift = np.rint(self.drift_ppm[place] * PPM * since).astype(np.int64)
        return np.where(known, instants - self.offset_ns[place] - drift, MISSING)

    def together(self, rank: Int64, other: Int64) -> Bool:
        """Whether the clocks of ranks, all of them solved, can be compared with those of others."""
        if not len(self.ranks):
            return np.zeros(len(rank), dtype=bool)
        return np.asarray(self.component[self._places(rank)] == self.component[self._places(other)])

    def _places(self, rank: Int64) -> Int64:
        return np.minimum(np.searchsorted(self.ranks, rank), len(self.ranks) - 1).astype(np.int64)


def solve_clocks(
    matches: Matches, ranks: Sequence[int] | None = None, hosts: Mapping[int, int] | None = None
) -> pa.Table:
    """Solve the clocks of all ranks of an iteration.

    Args:
        ranks: all ranks of the iteration; those with a communication by default.
        hosts: rank → number of its host; none where they are not known.

    Returns:
        The table ``rank_clocks``: one row per rank, with the reason where a clock is refused.
    """
    everyone = np.array(sorted({*matches.rows.ranks, *(ranks or ())}), dtype=np.int64)
    return clocks_of_ends(matched_ends(matches, everyone), everyone, hosts or {})


def clocks_of_ends(matched: MatchedEnds, everyone: Int64, hosts: Mapping[int, int]) -> pa.Table:
    """As ``solve_clocks``, from the ends of all matches of an iteration.

    Args:
        everyone: all ranks, ascending.
    """
    evidence = clock_evidence(matched, everyone, hosts)
    instants = evidence.end_ns
    if not len(instants) and not evidence.shares_host.any():
        return _table(everyone, evidence, {}, np.zeros(len(everyone), np.int64))
    base = int(instants.min()) if len(instants) else 0
    ends = (instants - base).astype(np.float64)
    references = _references(evidence)
    middle = (ends.min() + ends.max()) / 2 if len(ends) else 0.0
    drift, known = _drifts(evidence, ends, references)
    steady = ends - drift[evidence.node] * (ends - middle)
    offset = _offsets(evidence, steady, references)
    offset += _offsets(evidence, steady - offset[evidence.node], references)
    aligned = steady - offset[evidence.node]
    measures = _residuals(evidence, aligned) | {
        "offset_ns": np.rint(offset).astype(np.int64),
        "reference_ns": np.full(len(everyone), base + round(middle)),
        "drift_ppm": np.where(known, drift / PPM, np.nan),
        "reference_rank": everyone[references[evidence.component]],
    }
    measures["early_receives"] = _early_receives(matched, everyone, measures, evidence)
    return _table(everyone, evidence, measures, np.bincount(evidence.node, minlength=len(everyone)))


def solved_clocks(rank_clocks: pa.Table) -> SolvedClocks:
    """The corrections of the ranks whose clock is not refused, from the table ``rank_clocks``."""
    offset = optional_integers(rank_clocks, "offset_ns")
    known = np.flatnonzero(offset != MISSING)
    rank = optional_integers(rank_clocks, "rank")[known]
    chosen = known[np.argsort(rank)]
    drift = np.asarray(rank_clocks.column("drift_ppm").fill_null(0.0).to_numpy(), dtype=np.float64)
    return SolvedClocks(
        ranks=np.sort(rank),
        component=optional_integers(rank_clocks, "component")[chosen],
        offset_ns=offset[chosen],
        drift_ppm=drift[chosen],
        reference_ns=optional_integers(rank_clocks, "reference_ns")[chosen],
    )


def scattered_ranks(rank_clocks: pa.Table) -> Int64:
    """The ranks whose matched communications do not end when the others' do, whatever their clocks."""
    low, high = (optional_integers(rank_clocks, name) for name in ("residual_p05_ns", "residual_p95_ns"))
    wide = (low != MISSING) & (high - low > 2 * WIDEST_RESIDUAL_NS)
    return optional_integers(rank_clocks, "rank")[wide]


def _references(evidence: ClockEvidence) -> Int64:
    """The node of the lowest rank of each component."""
    references = np.zeros(int(evidence.component.max(initial=-1)) + 1, dtype=np.int64)
    nodes = np.arange(len(evidence.component))[::-1]
    references[evidence.component[nodes]] = nodes
    return references


def _offsets(evidence: ClockEvidence, ends: Float64, references: Int64) -> Float64:
    views = group_views(evidence, ends)
    node, group = _with_hosts(evidence, views.node, views.group)
    more = len(node) - len(views.node)
    values = np.append(views.middle, np.zeros(more))
    weight = np.append(views.weight, np.full(more, 1 / _HOST_NS**2))
    return _solve(values, node, group, weight, references, len(evidence.ranks))


def _with_hosts(evidence: ClockEvidence, node: Int64, group: Int64) -> tuple[Int64, Int64]:
    """Nodes and groups of what is known of nodes, with a group more for each host that several share."""
    shared = np.flatnonzero(evidence.shares_host)
    first = int(group.max(initial=-1)) + 1
    return np.append(node, shared), np.append(group, first + evidence.host[shared])


def _drifts(evidence: ClockEvidence, ends: Float64, references: Int64) -> tuple[Float64, np.ndarray]:
    """Drift of each node (0 where unknown), and whether it is known."""
    none = np.zeros(len(evidence.ranks)), np.zeros(len(evidence.ranks), dtype=bool)
    sure = evidence.select(evidence.sure_entries())
    ends = ends[evidence.sure_entries()]
    if not len(sure.end_ns):
        return none
    middle = grouped_quantile(ends, sure.unit, sure.units, 0.5)[sure.unit]
    views = group_views(sure, ends)
    order = np.argsort(views.view, kind="stable")
    edges = np.append(0, np.cumsum(views.count))
    slopes, spans = np.full(len(views.count), np.nan), np.zeros(len(views.count))
    for view in np.flatnonzero(views.count >= DRIFT_MATCHES).tolist():
        entries = order[edges[view] : edges[view + 1]]
        spans[view] = np.ptp(middle[entries])
        if spans[view] >= DRIFT_SPAN_NS:
            slopes[view] = theil_sen(middle[entries], (ends - middle)[entries])
    told = np.flatnonzero(~np.isnan(slopes))
    if not len(told):
        return none
    node, group = _with_hosts(evidence, views.node[told], views.group[told])
    more = len(node) - len(told)
    first = np.full(int(group.max()) + 1, -1, dtype=np.int64)
    first[group[::-1]] = node[::-1]
    label = connected(node, first[group], len(evidence.ranks))
    weight = np.append(views.count[told] * (spans[told] / DRIFT_SPAN_NS) ** 2 * 1e14, np.full(more, 1 / _HOST_SLOPE**2))
    fixed = np.unique(label)
    fixed[np.isin(fixed, label[references])] = references[np.isin(label[references], fixed)]
    drift = _solve(np.append(slopes[told], np.zeros(more)), node, group, weight, fixed, len(evidence.ranks))
    known = np.isin(label, label[references]) & np.isin(np.arange(len(label)), node)
    return np.where(known, drift, 0.0), known


def _solve(values: Float64, node: Int64, group: Int64, weight: Float64, fixed: Int64, nodes: int) -> Float64:
    """``solve_differences`` over the nodes that occur; a node that does not is 0."""
    _, dense = number_groups(group)
    result = np.zeros(nodes)
    used, small = np.unique(node, return_inverse=True)
    place = np.searchsorted(used, fixed[np.isin(fixed, used)])
    result[used] = solve_differences(values, small, dense, weight, place)
    return result


def _residuals(evidence: ClockEvidence, aligned: Float64) -> dict[str, np.ndarray]:
    chosen = evidence.best_entries()
    node = evidence.node[chosen]
    residual = (aligned - grouped_quantile(aligned, evidence.unit, evidence.units, 0.5)[evidence.unit])[chosen]
    nodes = len(evidence.ranks)
    low, high = (grouped_quantile(residual, node, nodes, share) for share in (0.05, 0.95))
    first, last = np.full(nodes, np.inf), np.full(nodes, -np.inf)
    np.minimum.at(first, evidence.node, aligned)
    np.maximum.at(last, evidence.node, aligned)
    return {"residual_p05_ns": low, "residual_p95_ns": high, "span_ns": np.where(last > first, last - first, 0)}


def _early_receives(
    matched: MatchedEnds, ranks: Int64, measures: dict[str, np.ndarray], evidence: ClockEvidence
) -> Int64:
    """How many of each rank's receives end before their send starts: clocks or matches must then be wrong."""
    drift = np.nan_to_num(measures["drift_ppm"])
    clocks = SolvedClocks(ranks, evidence.component, measures["offset_ns"], drift, measures["reference_ns"])
    node, other = matched.receiver, matched.sender
    starts, ends = clocks.align(ranks[other], matched.sent_ns), clocks.align(ranks[node], matched.received_ns)
    comparable = evidence.component[node] == evidence.component[other]
    return np.bincount(node[comparable & (ends < starts)], minlength=len(ranks)).astype(np.int64)


def _table(ranks: Int64, evidence: ClockEvidence, measures: dict[str, np.ndarray], matches: Int64) -> pa.Table:
    sizes = np.bincount(evidence.component, minlength=1)
    nothing = np.full(len(ranks), np.nan)
    low, high = measures.get("residual_p05_ns", nothing), measures.get("residual_p95_ns", nothing)
    refusals = [
        _refusal(int(sizes[component]), int(count), (above - below) / 2)
        for component, count, below, above in zip(evidence.component, matches, low, high, strict=True)
    ]
    # What shows the clock of one of a host's ranks shows that of all, and of the reference's host there is no doubt.
    shown = {host for host, refusal in zip(evidence.host.tolist(), refusals, strict=True) if refusal is None}
    shown |= set(evidence.host[_references(evidence)].tolist())
    refusals = [
        None if shares and host in shown else refusal
        for shares, host, refusal in zip(evidence.shares_host, evidence.host.tolist(), refusals, strict=True)
    ]
    refused = np.array([refusal is not None for refusal in refusals], dtype=bool)
    columns: dict[str, object] = {
        "rank": ranks,
        "component": evidence.component,
        "matches": matches,
        "refusal": refusals,
    }
    for name in ("reference_rank", "offset_ns", "reference_ns", "early_receives"):
        values = measures.get(name, np.full(len(ranks), MISSING))
        columns[name] = nullable(np.where(refused, MISSING, values) if name != "early_receives" else values)
    for name in ("residual_p05_ns", "residual_p95_ns", "span_ns"):
        values = measures.get(name, nothing)
        columns[name] = nullable(np.where(np.isnan(values), MISSING, np.nan_to_num(np.rint(values))).astype(np.int64))
    drift = measures.get("drift_ppm", nothing)
    columns["drift_ppm"] = pa.array(drift, mask=np.isnan(drift) | refused)
    return RANK_CLOCKS.from_columns(columns)


def _refusal(component_size: int, matches: int, half_width: float) -> str | None:
    if component_size < 2:
        return f"fewer than {FEWEST_MATCHES} matched communications show its clock against another rank's"
    if matches < FEWEST_MATCHES:
        return f"only {matches} matched communications; {FEWEST_MATCHES} are needed"
    if not half_width <= WIDEST_RESIDUAL_NS:
        return f"ends of its matched communications scatter by {half_width / 1e3:.0f} us around the others'"
    return None
