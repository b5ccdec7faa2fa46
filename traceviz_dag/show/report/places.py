"""Where findings show on the timeline: the places in time that hold most of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from traceviz_dag.analyze.findings.rule import places_sql
from traceviz_dag.analyze.findings.rules.registry import rule_if_known
from traceviz_dag.vocabulary import Severity


class Asked(Protocol):
    """Answers queries about one iteration."""

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query, with ``$run`` and ``$iteration`` bound."""


MOST_PLACES = 32
"""Places of a finding that the timeline marks, the weightiest."""


def places_of(
    source: Asked,
    finding: Mapping[str, Any],
    findings: Sequence[Mapping[str, Any]],
    ranks: Sequence[Mapping[str, Any]],
) -> list[tuple[int, int, int]]:
    """The places of a finding, the weightiest first: rank, start from the rank's first kernel, and length, ns.

    Args:
        findings: rows of table ``findings``. ranks: as the timeline's document has them.
    """
    rule = rule_if_known(finding["rule"])
    if rule is None or finding["severity"] == Severity.NOT_LOOKED_AT:
        return []
    sql = places_sql(rule, finding, findings, MOST_PLACES)
    if sql is None:
        return []
    first_ns = {row["rank"]: int(row["first_ns"]) for row in ranks}
    return [
        (row["rank"], row["start_ns"] - first_ns[row["rank"]], row["duration_ns"])
        for row in source.ask(sql).to_pylist()
        if row["rank"] in first_ns
    ]
