"""What the iterations of a side ran on, what they ran, and how they were recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence

from traceviz_dag.analyze.diff.comparable import SETTING, Facts, Inputs
from traceviz_dag.analyze.findings.rules.environment import COMPARED
from traceviz_dag.pipeline.stored_iteration import StoredIteration
from traceviz_dag.spans import spanned

_OF_TRACES = ("step_kind", "framework", *(name for name in COMPARED if name != "world_size"))
"""Columns of table ``traces`` that are facts as they are; the size of the job is the topology's."""

_TRACES_SQL = f"""
SELECT {", ".join(f"CAST({name} AS TEXT) AS {name}" for name in _OF_TRACES)}, split_part(format, '_', 1) AS recorder,
    settings
FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
"""

_AXES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp")
_LAYOUT_SQL = f"""
SELECT {", ".join(f"max({axis}) + 1 AS {axis}" for axis in _AXES)} FROM topology
WHERE run = $run AND iteration = $iteration
"""

_WORK_SQL = """
SELECT max(microbatches) AS microbatches, (
    SELECT max(layer) + 1 FROM kernels WHERE run = $run AND iteration = $iteration
) AS layers
FROM (
    SELECT count(DISTINCT (chunk, microbatch)) AS microbatches FROM microbatches
    WHERE run = $run AND iteration = $iteration GROUP BY rank, step
)
"""

OPERATION_SQL = """
CASE WHEN kind = 'communication' THEN coalesce(collective, operator, name) ELSE coalesce(operator, name) END
""".strip()
"""What a kernel is a call of: the collective, else the CPU operator around its launch, else its own name."""

_INPUTS_SQL = f"""
SELECT {OPERATION_SQL} AS operation, kind, CASE WHEN kind = 'computation' THEN input_sizes END AS sizes,
    CASE WHEN kind = 'communication' THEN dtype END AS type, sum(duration_ns)::BIGINT AS ns
FROM kernels WHERE run = $run AND iteration = $iteration GROUP BY ALL
"""


def facts_of(iterations: Sequence[StoredIteration]) -> tuple[Facts, Inputs]:
    """What the ranks of a side's iterations state together."""
    said: dict[str, set[str]] = {}
    times: dict[str, int] = {}
    computed: dict[tuple[str, str], int] = {}
    messages: dict[str, set[str]] = {}
    for one in iterations:
        asked = [_TRACES_SQL, _LAYOUT_SQL, _WORK_SQL, _INPUTS_SQL]
        answers = one.lake.query_iteration_each(asked, run=one.run, iteration=one.iteration)
        traces, layout, work, inputs = (rows.to_pylist() for rows in answers)
        for row in traces:
            settings = json.loads(row.pop("settings") or "{}")
            named = row | {f"{SETTING}{name}": str(value) for name, value in settings.items()}
            for name, value in named.items():
                if value is not None:
                    said.setdefault(name, set()).add(value)
        sizes = {f"{axis} {row[axis]}" for row in layout for axis in _AXES if row[axis] is not None}
        said["layout"] = said.get("layout", set()) | sizes
        known = {"ranks": spanned(set(one.ranks)) or "none", "world_size": str(one.topology.world_size or "")}
        known |= {name: str(value) for row in work for name, value in row.items() if value is not None}
        for name, value in known.items():
            if value:
                said.setdefault(name, set()).add(value)
        for row in inputs:
            if row["kind"] == "computation":
                times[row["operation"]] = times.get(row["operation"], 0) + row["ns"]
            if row["sizes"] is not None:
                key = row["operation"], row["sizes"]
                computed[key] = computed.get(key, 0) + row["ns"]
            if row["type"] is not None:
                messages.setdefault(row["operation"], set()).add(row["type"])
    types = {name: frozenset(each) for name, each in messages.items()}
    return {name: frozenset(each) for name, each in said.items()}, Inputs(times, computed, types)
