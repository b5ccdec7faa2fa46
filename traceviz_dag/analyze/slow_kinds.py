"""Why the same work takes longer on a rank: what its classes of work, times, links and host show together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from traceviz_dag.analyze.slow_ranks import ATTENTION, MEMORY_BOUND, PRODUCTS
from traceviz_dag.analyze.slow_times import SlowTime, slow_time
from traceviz_dag.analyze.slow_words import SLOWER
from traceviz_dag.analyze.wording import counted, duration, numbered
from traceviz_dag.tables import CLASS_SPEEDS, RANK_SPEEDS
from traceviz_dag.vocabulary import SlowKind

TRANSFERS = "transfers"

_LEAST_RATIO = 1.004
"""How much longer a rank takes in all for a part of its time to be looked for, and of how many ranks at most."""

_MOST_RANKS, _MOST_PEERS = 8, 3

_OF_ONE = 0.5
"""How much of the excess of the slower class the other one has at most where one of core clock and memory is slow."""

_KINDS = {
    **{"memory": SlowKind.MEMORY, "arithmetic": SlowKind.CORE_CLOCK, "kernel": SlowKind.KERNEL},
    **{"algorithm": SlowKind.ALGORITHM, "extra": SlowKind.EXTRA_WORK, "part": SlowKind.THROTTLING},
}
_CLASS_WORDS = {PRODUCTS: "products", ATTENTION: "attention kernels", MEMORY_BOUND: "memory-bound kernels"}


def name_kinds(
    speeds: pa.Table,
    classes: pa.Table,
    links: Sequence[Mapping[str, Any]],
    late: Sequence[Mapping[str, Any]],
    kernels: Callable[[int], pa.Table],
) -> tuple[pa.Table, pa.Table]:
    """Name the kind of every rank that is slow, and put its links beside its classes of work.

    Args:
        speeds, classes: tables of ``slow_ranks.speeds``. links, late: rows of tables ``links`` and ``late_ranks``.
        kernels: rank → ``slow_times.KERNEL_COLUMNS``; it is asked for few ranks.

    Returns:
        The tables ``rank_speeds`` and ``class_speeds``.
    """
    rows = speeds.to_pylist()
    ratios: dict[int, dict[str, float]] = {}
    for row in classes.to_pylist():
        ratios.setdefault(row["rank"], {})[row["work_class"]] = row["ratio"]
    parts = _slow_parts(rows, kernels)
    slow_links = {row["rank"]: row for row in links if row["slow"]}
    hosts = {row["rank"]: row for row in late if row["blamed"] and row["late_category"] == "host"}
    for row in rows:
        part = parts.get(row["rank"])
        if part is not None and row["slow_in"] is None:
            row.update(slow_in="part", slow_ratio=part.ratio, slow_more_ns=part.own_ns - part.usual_ns)
        row.update(_kind(row, ratios.get(row["rank"], {}), part))
        if row["slow_in"] is None:
            row.update(_of_others(slow_links.get(row["rank"]), hosts.get(row["rank"])))
    stages = {row["rank"]: row["stage"] for row in rows}
    transfers = [
        {"rank": row["rank"], "stage": stages[row["rank"]], "work_class": TRANSFERS}
        | {"items": row["dimensions"], "ratio": row["best_ratio"]}
        for row in _worst_links(links)
        if row["rank"] in stages
    ]
    more = pa.Table.from_pylist(transfers, CLASS_SPEEDS.schema)
    return pa.Table.from_pylist(rows, RANK_SPEEDS.schema), pa.concat_tables([classes, more])


def _slow_parts(rows: Sequence[Mapping[str, Any]], kernels: Callable[[int], pa.Table]) -> dict[int, SlowTime]:
    """The ranks that are slow for a part of a step, of those that may be: whose work is that of their peers."""
    maybe = [
        row
        for row in rows
        if row["ratio"] is not None
        and row["ratio"] >= _LEAST_RATIO
        and row["slow_in"] in (None, "all", "arithmetic")
        and row["work_by"] is not None
        and row["work"] < 1 + SLOWER
    ]
    maybe = sorted(maybe, key=lambda row: (-row["ratio"], row["rank"]))[:_MOST_RANKS]
    of_stage: dict[int | None, list[int]] = {}
    for row in sorted(rows, key=lambda row: (row["ratio"] or 1.0, row["rank"])):
        of_stage.setdefault(row["stage"], []).append(row["rank"])
    kept: dict[int, pa.Table] = {}

    def once(rank: int) -> pa.Table:
        if rank not in kept:
            kept[rank] = kernels(rank)
        return kept[rank]

    found = {}
    for row in maybe:
        # The fastest are those that nothing slows.
        peers = [rank for rank in of_stage[row["stage"]] if rank != row["rank"]][:_MOST_PEERS]
        part = slow_time(once, row["rank"], peers) if peers else None
        if part is not None:
            found[row["rank"]] = part
    return found


def _kind(row: Mapping[str, Any], ratios: Mapping[str, float], part: SlowTime | None) -> dict[str, Any]:
    """The kind of a rank whose computation is slow, with its evidence; None of both where it is not."""
    nothing: dict[str, Any] = dict.fromkeys(("kind", "kind_evidence", "slow_from_ns", "slow_to_ns"))
    if row["slow_in"] is None:
        return nothing
    if part is not None:
        step = "" if part.step is None else f" of step {part.step}"
        return {
            "kind": SlowKind.THROTTLING.value,
            "kind_evidence": f"from {duration(part.from_ns)} to {duration(part.to_ns)}{step} all kernels take "
            f"{part.ratio:.2f} times as long as on its peers, else {part.outside:.2f} times",
            **{"slow_from_ns": part.from_ns, "slow_to_ns": part.to_ns},
        }
    told = [f"{words} take {ratios[name]:.2f}" for name, words in _CLASS_WORDS.items() if name in ratios]
    evidence = f"{', '.join(told)} times as long as on its peers" if told else None
    if row["slow_in"] != "all":
        kind = _KINDS[row["slow_in"]]
        if row["kernel"] is not None:
            evidence = _of_kernel(kind, row)
        return nothing | {"kind": kind.value, "kind_evidence": evidence}
    if row["slow_steps"]:
        words = f"in {numbered('step', row['slow_steps'])} alone {row['slow_ratio']:.2f} times as long as on its peers"
        return nothing | {"kind": SlowKind.THROTTLING.value, "kind_evidence": words}
    if PRODUCTS not in ratios or MEMORY_BOUND not in ratios:
        return nothing
    excess, of_memory = ratios[PRODUCTS] - 1, ratios[MEMORY_BOUND] - 1
    kind = SlowKind.GPU
    if of_memory <= _OF_ONE * excess:
        kind = SlowKind.CORE_CLOCK
    elif excess <= _OF_ONE * of_memory:
        kind = SlowKind.MEMORY
    return nothing | {"kind": kind.value, "kind_evidence": evidence}


def _of_kernel(kind: SlowKind, row: Mapping[str, Any]) -> str:
    if kind is SlowKind.KERNEL:
        return f"{row['kernel']} takes {row['slow_ratio']:.2f} times as long"
    if kind is SlowKind.ALGORITHM:
        return f"it runs {row['kernel']} where its peers run other kernels"
    return f"it runs {row['kernel']}, which its peers do not run as often"


def _of_others(link: Mapping[str, Any] | None, host: Mapping[str, Any] | None) -> dict[str, Any]:
    """The kind of a rank that computes as its peers do, and whose links or host are slow."""
    if link is not None:
        dimensions = counted(link["dimensions"], "dimension", "dimensions")
        words = f"its transfers take {link['best_ratio']:.2f} times the usual or longer in {dimensions}"
        return {"kind": SlowKind.LINK.value, "kind_evidence": words}
    if host is not None:
        words = f"its peers wait {duration(host['own_ns'])} for launches of its host"
        return {"kind": SlowKind.HOST.value, "kind_evidence": words}
    return {}


def _worst_links(links: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of each rank the links, inside its node or out of it, that are slowest."""
    worst: dict[int, Mapping[str, Any]] = {}
    for row in links:
        if (
            row["best_ratio"] is not None
            and row["best_ratio"] > worst.get(row["rank"], {"best_ratio": 0})["best_ratio"]
        ):
            worst[row["rank"]] = row
    return [worst[rank] for rank in sorted(worst)]
