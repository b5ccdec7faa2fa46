"""Ranks that are slow together: the GPUs of a tensor-parallel group or of a node."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.analyze.wording import duration, numbered
from traceviz_dag.spans import unspanned
from traceviz_dag.vocabulary import FindingClass

SLOW = "SELECT unnest(members) FROM group_speeds WHERE run = $run AND iteration = $iteration AND slow"
"""A query: the ranks that are slow together with others, which are no culprits alone."""

_SQL = """
SELECT kind, ranks AS group_ranks, stage, ratio AS value, more_ns
FROM group_speeds WHERE run = $run AND iteration = $iteration AND slow AND kind <> 'stage'
"""

_KINDS = {"tp": "the tensor-parallel group of", "node": "the node of"}


def _sentence(row: Row) -> str:
    who = numbered("rank", unspanned(row["group_ranks"]))
    times = f"{row['value']:.2f} times as long as on other ranks"
    return f"{_KINDS[row['kind']]} {who} computes slowly: the same kernels take at least {times}"


def _detail(row: Row) -> str:
    return f"on each of these ranks; {duration(row['more_ns'])} more per rank"


_REMEDY = (
    "Look for what these GPUs share: power cap, cooling, clocks and another job on them (nvidia-smi -q -d "
    "PERFORMANCE,CLOCK,POWER on that node). Replacing one of them will not help while the others stay slow."
)


RULE = Rule(
    name="slow_group",
    of_class=FindingClass.FAULT,
    question="Which ranks are slow together: a tensor-parallel group or a node?",
    remedy=_REMEDY,
    sql=_SQL,
    measure="times as long",
    sentence=_sentence,
    detail=_detail,
    edit=lambda row: EditKey("fix_group" if row["kind"] == "tp" else "fix_node", ranks=row["group_ranks"]),
    unable_sql="""
SELECT 'no tensor-parallel group or node has ranks outside that run the same kernels' AS reason
WHERE NOT EXISTS (FROM group_speeds WHERE run = $run AND iteration = $iteration AND kind <> 'stage')
""",
)
