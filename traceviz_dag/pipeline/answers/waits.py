"""Who waited for whom in an iteration, and for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from traceviz_dag.analyze.clocks.clock_summary import clock_facts
from traceviz_dag.analyze.wording import numbered
from traceviz_dag.pipeline.answers.iterations import (
    blame_statements,
    cut_statements,
    first_lines,
    place,
    slow_statements,
    table_rows,
)
from traceviz_dag.tables.questions import COSTS, WAIT_PARTS

if TYPE_CHECKING:
    from traceviz_dag.pipeline.stored_iteration import StoredIteration


def waits_answer(iteration: StoredIteration) -> dict[str, Any]:
    """Late ranks, slow links, uneven experts and first causes of an iteration's waits, and how certain they are."""
    from traceviz_dag.analyze.waits.blamed import delays_by, judged_waits, wait_basis
    from traceviz_dag.lake.summaries import cut_steps

    collectives = iteration.table("collectives")
    step_ns = iteration.step_ns
    late = iteration.table("late_ranks")
    answer: dict[str, Any] = {
        **place(iteration),
        "clocks": clock_facts(iteration.table("rank_clocks")),
        "matching": _matching(collectives),
        "waits": wait_basis(collectives),
        **_certainty(iteration, collectives),
        "step_ns": step_ns,
        "cut_steps": cut_steps(iteration.files),
        "slow_ranks": table_rows(iteration, "rank_speeds"),
        "ranks": table_rows(iteration, "late_ranks"),
        "stages": delays_by(late, _stages(iteration), "stage").to_pylist(),
        "links": table_rows(iteration, "links"),
        "experts": table_rows(iteration, "expert_loads"),
        "communication": WAIT_PARTS.of(judged_waits(collectives)),
        "matrix": table_rows(iteration, "blame"),
        "costs": _first_causes(iteration.table("delay_costs"), iteration.table("what_if")),
    }
    nodes = iteration.nodes()
    return answer | {"nodes": delays_by(late, nodes, "node").to_pylist()}


def waits_statements(answer: dict[str, Any], first: int | None) -> list[str]:
    """What the tables show, a line each; what speaks of the rank that leads the findings comes first."""
    from traceviz_dag.analyze.waits.blamed import nobody_blamed

    nobody = nobody_blamed(answer["ranks"], answer["step_ns"], answer["uncertain"], answer["communication_kernels"])
    lines = [*cut_statements(answer["cut_steps"]), *_basis(answer["waits"])]
    links = _links(answer["links"])
    if links and first in {row["rank"] for row in answer["links"] if row["slow"] or row["or_of"]}:
        lines, links = lines + links, []
    lines += blame_statements(answer["ranks"]) or [nobody]
    lines += slow_statements(answer["slow_ranks"])
    lines += links
    uneven = [row for row in answer["experts"] if row["load"] >= 1.2]
    if uneven:
        worst = uneven[0]
        lines.append(f"experts of rank {worst['rank']} take {worst['load']:.2f} times the mean of their peers")
    faults = [row for row in answer["matching"] if row["fault"] is not None]
    if faults:
        total = sum(row["kernels"] for row in faults)
        kinds = ", ".join(sorted({row["fault"].replace("_", " ") for row in faults}))
        lines.append(f"{total} communication kernels are not matched, or not wholly: {kinds} (--json has the counts)")
    return lines


def _certainty(iteration: StoredIteration, collectives: pa.Table) -> dict[str, Any]:
    """How many communication kernels have no certain wait, and in a sentence what follows from that.

    Ranks that the capture was not to record leave an answer certain: it is of those that were.
    """
    from traceviz_dag.analyze.waits.unknown_waits import uncertain_waits, unknown_waits
    from traceviz_dag.vocabulary import Fault

    uncertain, kernels = uncertain_waits(collectives), collectives.num_rows
    reason = (
        f"{uncertain} of {kernels} communication kernels have no certain wait; whom they waited for is not known"
        if uncertain
        else None
    )
    unknown = unknown_waits(collectives)
    if unknown is not None:
        reason = unknown.reason
    left_out = 0
    if iteration.completeness.chosen and not iteration.completeness.missing:
        beyond = pa.array([Fault.MEMBERS_MISSING.value, Fault.PEER_MISSING.value])
        left_out = pc.sum(pc.is_in(collectives["fault"].cast(pa.string()), beyond)).as_py() or 0
    certain = uncertain == left_out and (unknown is None or unknown.unread)
    return {
        "communication_kernels": kernels,
        "uncertain": uncertain,
        "certain": certain,
        "reason": None if certain else reason,
    }


def _matching(collectives: pa.Table) -> list[dict[str, Any]]:
    """How many communications each rule matched, and what is wrong with the others."""
    plain = pa.table({name: collectives[name].cast(pa.string()) for name in ("dimension", "matched_by", "fault")})
    counted = plain.group_by(["dimension", "matched_by", "fault"]).aggregate([([], "count_all")])
    rows = counted.rename_columns(["dimension", "matched_by", "fault", "kernels"]).to_pylist()
    return sorted(rows, key=lambda row: -row["kernels"])


def _first_causes(delay_costs: pa.Table, what_if: pa.Table) -> list[dict[str, Any]]:
    """What ``DELAY_COSTS_SQL`` gives, without starting DuckDB for it."""
    saved: Counter[tuple[int, str]] = Counter()
    for row in what_if.select(["rank", "edit", "refusal", "gain_ns"]).to_pylist():
        if row["edit"] in ("fix_rank", "fix_link") and row["refusal"] is None:
            saved[row["rank"], row["edit"]] += row["gain_ns"]
    # Of two gains of a rank the larger comes last.
    gains = {rank: gain_ns for (rank, _), gain_ns in reversed(saved.most_common())}
    costs = COSTS.of(delay_costs)
    every = sum(row["cost_ns"] for row in costs) or None
    return [{**row, "cost_share": every and row["cost_ns"] / every, "gain_ns": gains.get(row["rank"])} for row in costs]


def _stages(iteration: StoredIteration) -> Mapping[int, int | None]:
    return {rank: iteration.topology.stage_of(rank)[0] for rank in iteration.ranks}


def _basis(kernels: Mapping[str, int]) -> list[str]:
    """What the waits rest on, where that is not solved clocks alone."""
    lines = []
    if kernels["durations"]:
        lines.append(
            f"waits of {kernels['durations']} communication kernels come from durations, which need no clock: members "
            "end together, so the last to arrive has the shortest kernel"
        )
    if kernels["untold"]:
        lines.append(
            f"no wait is known for {kernels['untold']} matched communication kernels: neither solved clocks nor "
            "durations show it (table collectives, aligned_refusal)"
        )
    return lines


def _links(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whose links are slow; of ranks that only meet each other, that nothing shows whose."""
    slow = [
        f"rank {row['rank']} has slow links{_scope(row)}: its transfers take {row['best_ratio']:.1f} times the usual"
        for row in rows
        if row["slow"]
    ]
    unknown = [
        f"{numbered('rank', [row['rank'], *row['or_of']])} meet over slow links{_scope(row)}, and whose are slow "
        f"is unknown: their transfers take {row['best_ratio']:.1f} times the usual"
        for row in rows
        if row["or_of"] and row["rank"] < min(row["or_of"])
    ]
    return [*first_lines(slow, "have slow links"), *first_lines(unknown, "meet others over slow links")]


def _scope(row: Mapping[str, Any]) -> str:
    return {"intra_node": " inside its node", "inter_node": " to other nodes"}.get(row["scope"] or "", "")
