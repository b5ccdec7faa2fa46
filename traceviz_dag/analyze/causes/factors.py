"""Factors of parallel efficiency as rows, which a table stores and commands and figures show: summed, ranked, named.

What they are, and how they are measured: ``efficiencies``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from traceviz_dag.analyze.wording import capitals
from traceviz_dag.vocabulary import Dimension


class Factor(StrEnum):
    """What a share of the step is lost by."""

    PARALLEL_EFFICIENCY = "parallel_efficiency"
    """All of them together."""
    LOAD_BALANCE = "load_balance"
    """Some ranks compute longer than others."""
    BETWEEN_STAGES = "between_stages"
    """Some stages compute longer than others."""
    WITHIN_STAGES = "within_stages"
    """Some ranks compute longer than the others of their stage."""
    SERIALISATION = "serialisation"
    """Ranks wait for each other's work: fill and drain of pipelines, and orders that do not fit."""
    TRANSFER = "transfer"
    """Communications take time once all have arrived."""
    HOST = "host"
    """Hosts launch late, wait or begin late; and what the graph does not explain."""


PARENTS = {
    Factor.LOAD_BALANCE: Factor.PARALLEL_EFFICIENCY,
    Factor.BETWEEN_STAGES: Factor.LOAD_BALANCE,
    Factor.WITHIN_STAGES: Factor.LOAD_BALANCE,
    Factor.SERIALISATION: Factor.PARALLEL_EFFICIENCY,
    Factor.TRANSFER: Factor.PARALLEL_EFFICIENCY,
    Factor.HOST: Factor.PARALLEL_EFFICIENCY,
}
"""The factor that each is a part of; transfers of a dimension are a part of ``TRANSFER``."""

DIMENSIONS = tuple(dimension.value for dimension in Dimension)
"""The order in which transfers are restored."""

_NO_STAGES = "the pipeline stages of the ranks are not known"


def over_steps(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The factors over all steps of an iteration, whose times are the sums over the steps.

    Args:
        rows: of table ``efficiencies``; those that are refused do not count.

    Returns:
        Rows of table ``efficiencies`` without its step, with ``steps``: how many there are.
    """
    of_replica: dict[int | None, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["lost_ns"] is not None:
            of_replica.setdefault(row["replica"], []).append(row)
    result = []
    for replica, mine in of_replica.items():
        whole = [row for row in mine if row["factor"] == Factor.PARALLEL_EFFICIENCY]
        losses: dict[tuple[Factor, str | None], int] = {}
        for row in mine:
            key = Factor(row["factor"]), row["dimension"] if row["parent"] == Factor.TRANSFER else None
            losses[key] = losses.get(key, 0) + row["lost_ns"]
        tree = factor_tree(sum(row["ideal_ns"] for row in whole), losses)
        result += [{"replica": replica, "ranks": whole[0]["ranks"], "steps": len(whole), **row} for row in tree]
    return result


def factor_tree(useful_ns: int, losses: Mapping[tuple[Factor, str | None], int]) -> list[dict[str, Any]]:
    """The factors as rows, in the order in which each begins where the one before ends; parts after what they are of.

    Args:
        losses: of load balance, serialisation, each dimension's transfers and hosts; and of the parts of load balance
            where these are known.
    """
    moved = {dimension: lost for (factor, dimension), lost in losses.items() if factor == Factor.TRANSFER and dimension}
    begin = useful_ns
    first = losses[Factor.LOAD_BALANCE, None]
    whole = first + losses[Factor.SERIALISATION, None] + sum(moved.values()) + losses[Factor.HOST, None]
    rows = [
        factor_row(Factor.PARALLEL_EFFICIENCY, None, begin, whole),
        factor_row(Factor.LOAD_BALANCE, None, begin, first),
    ]
    split = (Factor.BETWEEN_STAGES, Factor.WITHIN_STAGES)
    if all((part, None) in losses for part in split):
        for part in split:
            rows.append(factor_row(part, None, begin, losses[part, None]))
            begin += losses[part, None]
    else:
        rows += [factor_row(part, None, None, None, _NO_STAGES) for part in split]
        begin += first
    rows.append(factor_row(Factor.SERIALISATION, None, begin, losses[Factor.SERIALISATION, None]))
    begin += losses[Factor.SERIALISATION, None]
    rows.append(factor_row(Factor.TRANSFER, None, begin, sum(moved.values())))
    for dimension in sorted(moved, key=_restored):
        rows.append(factor_row(Factor.TRANSFER, dimension, begin, moved[dimension]))
        begin += moved[dimension]
    return [*rows, factor_row(Factor.HOST, None, begin, losses[Factor.HOST, None])]


def _restored(dimension: str) -> int:
    return DIMENSIONS.index(dimension) if dimension in DIMENSIONS else len(DIMENSIONS)


def factor_row(
    factor: Factor, dimension: str | None, ideal_ns: int | None, lost_ns: int | None, reason: str | None = None
) -> dict[str, Any]:
    """A factor as a row of table ``efficiencies``, or why it is not known."""
    time_ns = None if ideal_ns is None or lost_ns is None else ideal_ns + lost_ns
    parent = PARENTS.get(factor)
    return {
        "factor": factor.value,
        "dimension": dimension,
        "parent": Factor.TRANSFER.value if dimension else parent and parent.value,
        "value": ideal_ns / time_ns if ideal_ns is not None and time_ns else None,
        "ideal_ns": ideal_ns,
        "time_ns": time_ns,
        "lost_ns": lost_ns,
        "reason": reason,
    }


def worst_first(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, bool, Mapping[str, Any]]]:
    """The factors of one set of ranks as a tree: what each is made of below it, what loses most first.

    Returns:
        Per row its depth from 0, and whether it is the last part of what it is a part of.
    """

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, bool, Mapping[str, Any]]]:
        parts = sorted((row for row in rows if row["parent"] == parent), key=lambda row: -(row["lost_ns"] or 0))
        for place, row in enumerate(parts):
            yield depth, place == len(parts) - 1, row
            if row["dimension"] is None:
                yield from below(row["factor"], depth + 1)

    return below(None, 0)


def with_branches(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The same as lines of text: the lines that lead to each factor, and its row."""
    result, above_is_last = [], False
    for depth, last, row in worst_first(rows):
        lead = "" if depth < 2 else "  " if above_is_last else "│ "
        result.append((lead + ("" if not depth else "└─ " if last else "├─ "), row))
        if depth == 1:
            above_is_last = last
    return result


def worst_factor(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of the factors of one set of ranks, that of the first level which loses most."""
    return next(row for depth, _, row in worst_first(rows) if depth == 1)


def named_factor(row: Mapping[str, Any]) -> str:
    """A factor in words."""
    return capitals(row["dimension"]) if row["dimension"] else str(row["factor"]).replace("_", " ")


MEANINGS = {
    Factor.LOAD_BALANCE: "some ranks compute longer than others",
    Factor.SERIALISATION: "ranks wait for the work of others, as in fill and drain of a pipeline, or copies run alone",
    Factor.TRANSFER: "communications take time once all have arrived, and nothing hides it",
    Factor.HOST: "hosts launch late or begin late, or nothing explains a gap",
}
"""What a factor of the first level loses time by."""
