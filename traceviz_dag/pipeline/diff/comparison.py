"""Two sides compared: the change of the step by path and by replay, of operations and of findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from traceviz_dag.analyze.diff.changes import (
    PART_KEY,
    PATH_KEY,
    Amount,
    Change,
    Step,
    changes,
    mean_ns,
    narrowed,
    summed,
)
from traceviz_dag.analyze.diff.comparable import Difference, differences, refusals, unstated
from traceviz_dag.analyze.diff.findings import findings_changed
from traceviz_dag.analyze.diff.replayed import (
    ReplayedChange,
    ReplayedStep,
    ReplayRow,
    lengths,
    replay_rows,
    replayed_change,
)
from traceviz_dag.arrays import Int64
from traceviz_dag.errors import NoEvidenceError
from traceviz_dag.pipeline.causes import ranked_steps
from traceviz_dag.pipeline.diff.facts import OPERATION_SQL, facts_of
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.tables.causes import PATH_CATEGORY_SQL, PATH_HOSTS_SQL
from traceviz_dag.tables.ranks import NOT_CUT

TABLES = {"operations": ("kind", "operation"), "kernels": ("kind", "name"), "modules": ("kind", "module")}
"""Tables of all kernels, on the path or not, and what their rows are of."""

_CLASS_SQL = r"regexp_replace({}, '_\d+$', '')"
"""A module without the number of its instance: that of another layer is the same one."""

_PATH_SQL = f"""
WITH stages AS (SELECT DISTINCT rank, stage FROM path_segments),
of_hosts AS (
    SELECT step, stage, NULL AS phase, NULL AS category, NULL AS dimension, coalesce(caller, module) AS module,
        operation, 'host' AS cause, path_ns AS ns, launches AS calls
    FROM ({PATH_HOSTS_SQL}) JOIN stages USING (rank)
),
of_kernels AS (
    SELECT step, stage, phase::TEXT AS phase,
        ({PATH_CATEGORY_SQL})::TEXT AS category,
        dimension::TEXT AS dimension, path_segments.module, {OPERATION_SQL} AS operation, cause::TEXT AS cause,
        duration_ns AS ns, 1 AS calls
    FROM path_segments LEFT JOIN kernels USING (rank, kernel_id) WHERE cause <> 'host'
)
SELECT coalesce(step, -1) AS step, stage, phase, category, dimension, {_CLASS_SQL.format("module")} AS module,
    operation, cause, sum(ns)::BIGINT AS ns, sum(calls)::BIGINT AS calls
FROM (FROM of_kernels UNION ALL BY NAME FROM of_hosts) GROUP BY ALL
"""

_KERNELS_SQL = f"""
SELECT step, rank, kind::TEXT AS kind, {OPERATION_SQL} AS operation, name::TEXT AS name,
    {_CLASS_SQL.format("module")} AS module, sum(duration_ns)::BIGINT AS ns, count(*) AS calls
FROM kernels WHERE run = $run AND iteration = $iteration AND {NOT_CUT} GROUP BY ALL
"""

_OPERATION_COLUMNS = ("kernel_id", "kind", "collective", "operator", "name")
_NO_STEP = -1


@dataclass(frozen=True)
class Comparison:
    """Two sides compared.

    Attributes:
        differences: in what they differ beside their times. unstated: what one side alone states, in words.
        steps: of each side. step: the change of the mean step; None where the sides were not compared.
        parts, path: rows by ``PART_KEY`` and by ``PATH_KEY``.
        replay: in the order of putting in; empty where ``no_replay`` says why not.
        matched: share of B's kernel time that has a counterpart in A.
        tables: each of ``TABLES`` → rows; empty where a side has no step.
        findings: as ``findings_changed`` gives them; None where not all have them.
        no_path: why there is no path; None where there is one.
        refused: whether the sides were not compared for their differences.
    """

    differences: Sequence[Difference]
    unstated: Sequence[str]
    steps: tuple[int, int] = (0, 0)
    step: Change | None = None
    parts: Sequence[Change] = ()
    path: Sequence[Change] = ()
    replay: Sequence[ReplayRow] = ()
    no_path: str | None = None
    no_replay: str | None = None
    matched: float = 0.0
    tables: Mapping[str, Sequence[Change]] = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] | None = None
    refused: bool = False


def compare(a: Sequence[StoredIteration], b: Sequence[StoredIteration], *, anyway: bool = False) -> Comparison:
    """Compare the training steps of two sides.

    Args:
        a, b: iterations of one run each. anyway: although something speaks against it.
    """
    (facts_a, inputs_a), (facts_b, inputs_b) = facts_of(a), facts_of(b)
    found = differences(facts_a, facts_b, (inputs_a, inputs_b))
    alone = unstated(facts_a, facts_b)
    if refusals(found) and not anyway:
        return Comparison(found, alone, refused=True)
    by_rank = not any(one.fact in ("world_size", "layout", "ranks") for one in found)
    paths, why = [], None
    try:
        paths = [[step for each in side for step in _path_steps(each)] for side in (a, b)]
    except NoEvidenceError as error:
        why = str(error)
    kernels = [[step for each in side for step in _kernel_steps(each)] for side in (a, b)]
    counts = len(kernels[0]), len(kernels[1])
    tables = {
        name: changes(*([narrowed(step, _WHOLE_KEY, key) for step in side] for side in kernels))
        for name, key in TABLES.items()
        if all(counts)
    }
    findings = [[each.findings() for each in side] if _have_findings(side) else None for side in (a, b)]
    told = findings_changed(findings[0], findings[1]) if findings[0] is not None and findings[1] is not None else None
    if why is not None:
        return Comparison(found, alone, counts, no_path=why, no_replay=why, tables=tables, findings=told)
    (step,) = changes(*([{(): Amount(sum(part.ns for part in one.values()), 1)} for one in side] for side in paths))
    counts = len(paths[0]), len(paths[1])
    path = changes(*paths)
    parts = changes(*([narrowed(one, PATH_KEY, PART_KEY) for one in side] for side in paths))
    try:
        replayed = list(_replayed(a, b, counts, by_rank=by_rank))
    except NoEvidenceError as error:
        return Comparison(found, alone, counts, step, parts, path, no_replay=str(error), tables=tables, findings=told)
    matched = sum(one.matched_ns for one in replayed) / max(sum(one.kernels_ns for one in replayed), 1)
    rows = replay_rows(replayed, step.change_ns, least_steps=min(counts))
    return Comparison(found, alone, counts, step, parts, path, rows, None, None, matched, tables, told)


def _have_findings(side: Sequence[StoredIteration]) -> bool:
    return all(each.has_findings or each.inputs is not None for each in side)


def _path_steps(iteration: StoredIteration) -> list[Step]:
    """The critical path of each step, as amounts by ``PATH_KEY``.

    Raises:
        NoEvidenceError: a step has none.
    """
    refused = [row["refusal"] for row in iteration.table("what_if").to_pylist() if row["edit"] is None]
    segments = iteration.table("path_segments")
    if reasons := [*(reason for reason in refused if reason is not None), *([] if segments.num_rows else ["no path"])]:
        raise NoEvidenceError(f"{iteration.run} {iteration.iteration}: {reasons[0]}")
    rows = iteration.ask(_PATH_SQL, **iteration.of_path(segments)).to_pylist()
    return _by_step(rows, PATH_KEY)


def _by_step(rows: Sequence[Mapping[str, Any]], key: Sequence[str]) -> list[Step]:
    numbers = sorted({row["step"] for row in rows})
    of_step: dict[int, list[Mapping[str, Any]]] = {number: [] for number in numbers}
    for row in rows:
        of_step[row["step"]].append(row)
    return [
        summed((tuple(row[name] for name in key), row["ns"], row["calls"]) for row in of_step[number])
        for number in numbers
    ]


_WHOLE_KEY = ("kind", "operation", "name", "module")


def _kernel_steps(iteration: StoredIteration) -> list[Step]:
    """All kernels of each step of the ranks that count; of one step, also those without its number."""
    rows = iteration.lake.query_iteration(_KERNELS_SQL, run=iteration.run, iteration=iteration.iteration).to_pylist()
    rows = [row for row in rows if row["rank"] in iteration.ranks]
    numbers = {row["step"] for row in rows} - {None}
    only = next(iter(numbers)) if len(numbers) == 1 else _NO_STEP
    rows = [row | {"step": only if row["step"] is None else row["step"]} for row in rows]
    return _by_step([row for row in rows if not numbers or row["step"] != _NO_STEP], _WHOLE_KEY)


def _replayed(
    a: Sequence[StoredIteration], b: Sequence[StoredIteration], counts: tuple[int, int], *, by_rank: bool
) -> Iterator[ReplayedChange]:
    """Each step of B with A's durations: those of its counterpart where both have as many steps, else A's means."""
    numbers: dict[str, int] = {}
    if counts[0] == counts[1]:
        for one, other in zip(_replayable(a, numbers), _replayable(b, numbers), strict=True):
            ((length, free),) = lengths([one])
            yield replayed_change([one], other, length, free, by_rank=by_rank)
        return
    every = list(_replayable(a, numbers))
    whole, free = (mean_ns(sum(each), len(every)) for each in zip(*lengths(every), strict=True))
    for other in _replayable(b, numbers):
        yield replayed_change(every, other, whole, free, by_rank=by_rank)


def _replayable(side: Sequence[StoredIteration], numbers: dict[str, int]) -> Iterator[ReplayedStep]:
    """The steps of a side; an operation's number is the same on both sides.

    Raises:
        NoEvidenceError: a step cannot be replayed.
    """
    for each in side:
        for ranked in ranked_steps(each, each.table("collectives"), each.table("messages")):
            step = ranked.step
            named = [
                _operations(each.kernels(rank, _OPERATION_COLUMNS), work.kernels.kernel_id, numbers)
                for rank, work in zip(step.ranks, step.works, strict=True)
            ]
            yield ReplayedStep(step, ranked.stages, named)


def _operations(table: pa.Table, kernel_id: Int64, numbers: dict[str, int]) -> Int64:
    """The number of each kernel's operation."""
    number_of = {}
    for row in table.group_by(list(_OPERATION_COLUMNS[1:])).aggregate([("kernel_id", "list")]).to_pylist():
        first = row["collective"] if row["kind"] == "communication" else None
        number = numbers.setdefault(first or row["operator"] or row["name"], len(numbers))
        number_of.update(dict.fromkeys(row["kernel_id_list"], number))
    return np.array([number_of[one] for one in kernel_id.tolist()], np.int64)
