"""What the step time of an iteration consists of, along its critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traceviz_dag.analyze import wording
from traceviz_dag.analyze.wording import milliseconds
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.answers.iterations import place, place_of_all
from traceviz_dag.tables.causes import PATH_OF_KERNELS

if TYPE_CHECKING:
    import pyarrow as pa

    from traceviz_dag.pipeline.stored_iteration import StoredIteration


_EDGES_SQL = """
SELECT kind, edge_evidence, count(*) AS edges, count(*) - count(waited_for_kernel_id) AS waited_for_unknown
FROM (SELECT *, row_number() OVER () AS place FROM path_edges) GROUP BY ALL ORDER BY edges DESC, min(place)
"""


def path_answer(iteration: StoredIteration) -> dict[str, Any]:
    """The critical path of an iteration's steps by cause, rank, stage and category, and how sure it is."""
    from traceviz_dag.analyze.causes.path_legs import path_legs
    from traceviz_dag.lake.across_ranks_views import PROFILED_BY

    segments = iteration.table("path_segments")
    steps = iteration.table("what_if").to_pylist()
    refusals = sorted({row["refusal"] for row in steps if row["refusal"] is not None and row["edit"] is None})
    known = segments.num_rows > 0
    items, matched = iteration.table("path_items", ["critical"]), _matched(iteration)
    reasons = [*refusals, *([] if known else ["no training step is known"]), *_open(iteration, matched)]
    return {
        **place(iteration),
        "certain": not reasons,
        "reason": next(iter(reasons), None),
        "steps": len(set(segments["step"].to_pylist())),
        "step_ns": sum(segments["duration_ns"].to_pylist()) if known else None,
        "items": items.num_rows,
        "critical_items": sum(items["critical"].to_pylist()),
        "edges": _edges(iteration),
        **matched,
        **_profiles(segments, PROFILED_BY),
        "hosts": _hosts(iteration, segments),
        "critical_imbalance": _imbalance(iteration),
        "legs": path_legs(segments),
    }


def path_statement(answer: dict[str, Any]) -> str:
    """How long the step is, and which rank has most of the path."""
    length = milliseconds(answer["step_ns"])
    if answer["steps"] == 1:
        return f"step {length} ms to its last kernel; {_runs_on(answer, 'its')}"
    return f"{answer['steps']} steps, {length} ms together, each to its last kernel; {_runs_on(answer, 'their')}"


def steady_path_answer(iterations: Sequence[StoredIteration]) -> dict[str, Any]:
    """The critical path of the steady periods of iterations of one run."""
    from traceviz_dag.analyze.causes.path_legs import path_legs
    from traceviz_dag.lake.across_ranks_views import PROFILED_BY
    from traceviz_dag.pipeline.causes import steady_steps

    where = place_of_all(iterations)
    try:
        steps = steady_steps(iterations)
    except NoEvidenceError as error:
        told: dict[str, Any] = {"certain": False, "reason": str(error), "steps": None, "period_ns": None, "legs": []}
        return {**where, **told, **{name: [] for name in PROFILED_BY}}
    segments = steps.path_segments()
    reason = next((each for one in iterations for each in path_doubts(one)), None)
    return {
        **where,
        "certain": reason is None,
        "reason": reason,
        "steps": len(steps.ranked),
        "period_ns": steps.steady.period_ns,
        **_profiles(segments, PROFILED_BY),
        "legs": path_legs(segments),
    }


def steady_path_statement(answer: dict[str, Any]) -> str:
    """How long the steady periods are, and which rank has most of their path."""
    if answer["period_ns"] is None:
        return "no steady period"
    periods = answer["steps"] - 1
    count = "steady period" if periods == 1 else f"{periods} steady periods, each"
    return f"{count} {milliseconds(answer['period_ns'])} ms; {_runs_on(answer, 'its' if periods == 1 else 'their')}"


def _runs_on(answer: dict[str, Any], whose: str) -> str:
    ranks: Sequence[dict[str, Any]] = answer["rank"]
    first = ranks[0]
    others = f", on {len(ranks)} ranks in all" if len(ranks) > 1 else " and on no other"
    return (
        f"{whose} critical path runs on rank {first['rank']} for {milliseconds(first['path_ns'])} ms "
        f"({wording.percent(first['share'])}){others}"
    )


def path_doubts(iteration: StoredIteration) -> list[str]:
    """Why the critical path of an iteration may run on other ranks than it is said to."""
    return _open(iteration, _matched(iteration))


def _open(iteration: StoredIteration, matched: dict[str, Any]) -> list[str]:
    """Why the path may run elsewhere."""
    from traceviz_dag.analyze.findings.verdict import NOTABLE

    count = sum(row["kernels"] for row in matched["unmatched"])
    if len(iteration.ranks) < 2 or not count >= NOTABLE * matched["communication_kernels"] > 0:
        return []
    of = f"{count} of {matched['communication_kernels']} communication kernels"
    return [f"{of} are not matched with all their members, so the path may run on other ranks"]


def _profiles(segments: pa.Table, profiled_by: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of the view ``path_profiles``, summed over the steps; of each profile the longest first."""
    rows = segments.select([*profiled_by, "duration_ns"]).to_pylist()
    for row in rows:
        row["category"] = row["category"] or "unclassified" if row["cause"] in PATH_OF_KERNELS else row["cause"]
    profiles: dict[str, list[dict[str, Any]]] = {}
    for by in profiled_by:
        lengths: Counter[Any] = Counter()
        for row in rows:
            lengths[row[by]] += row["duration_ns"]
        mine = sorted(lengths.items(), key=lambda part: (-part[1], str(part[0])))
        profiles[by] = [{by: name, "path_ns": length, "share": length / lengths.total()} for name, length in mine]
    return profiles


def _hosts(iteration: StoredIteration, segments: pa.Table) -> list[dict[str, Any]]:
    """What hosts do where the path runs on them, over steps and ranks; the longest first."""
    from traceviz_dag.tables.questions import HOSTS_OF_PATH_SQL

    causes = zip(segments["rank"].to_pylist(), segments["cause"].to_pylist(), strict=True)
    ranks = {rank for rank, cause in causes if cause == "host"}
    if not ranks:
        return []
    rows = iteration.ask(HOSTS_OF_PATH_SQL, **iteration.of_path(segments, ranks))
    return rows.select(["operation", "place", "path_ns", "launches"]).to_pylist()


def _imbalance(iteration: StoredIteration) -> list[dict[str, Any]]:
    """The rows of the table ``critical_imbalance``, summed over the steps; the largest first."""
    from traceviz_dag.tables.questions import IMBALANCE_SQL

    rows = iteration.ask(IMBALANCE_SQL, critical_imbalance=iteration.table("critical_imbalance"))
    return rows.drop_columns(["ranks"]).to_pylist()


def _edges(iteration: StoredIteration) -> list[dict[str, Any]]:
    """How many waits are known by which evidence; of the unknown ones, which end is.

    ``waited_for_unknown`` counts the waits of kernels of which nothing shows what they are for; the other unknown rows
    are communications of which nothing shows what waited for them.
    """
    edges = iteration.table("path_edges", ["kind", "edge_evidence", "waited_for_kernel_id"])
    return iteration.ask(_EDGES_SQL, path_edges=edges).to_pylist()


def _matched(iteration: StoredIteration) -> dict[str, Any]:
    """How many kernels communicate, and which of them are not matched with all their members, by fault."""
    from traceviz_dag.tables.questions import UNMATCHED_SQL

    collectives = iteration.table("collectives", ["fault"])
    rows = iteration.ask(UNMATCHED_SQL, collectives=collectives).select(["fault", "kernels"]).to_pylist()
    return {
        "communication_kernels": collectives.num_rows,
        "unmatched": [row for row in rows if row["fault"] is not None],
    }
