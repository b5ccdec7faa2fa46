"""Experts that take more tokens than those of their peers."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.analyze.wording import counted
from traceviz_dag.vocabulary import FindingClass

UNEVEN = 1.1
"""Load from which experts count as unevenly loaded; 1 is even, and a healthy router keeps within 1.07."""

_SQL = f"""
SELECT
    arg_max(rank, (load, -rank)) AS rank,
    max(load) AS value,
    count(*) AS ranks,
    max(exchanges) AS exchanges
FROM expert_loads WHERE run = $run AND iteration = $iteration AND load >= {UNEVEN} HAVING count(*) > 0
"""


def _sentence(row: Row) -> str:
    return f"the experts of rank {row['rank']} take {row['value']:.2f} times as many tokens as the mean of their peers"


def _detail(row: Row) -> str:
    return f"{counted(row['ranks'], 'rank takes', 'ranks take')} {UNEVEN} times the mean or more"


RULE = Rule(
    name="expert_load",
    of_class=FindingClass.FAULT,
    question="Do some experts take more tokens than others?",
    remedy="Look at the load-balancing loss (Megatron-LM: --moe-aux-loss-coeff, --moe-router-load-balancing-type), and "
    "at a capacity factor (Megatron-LM: --moe-expert-capacity-factor) if a few experts stay crowded.",
    sql=_SQL,
    measure="times the mean load",
    sentence=_sentence,
    detail=_detail,
    edit=lambda _: EditKey("balanced_experts"),
    unable_sql="""
SELECT CASE WHEN max(ep) IS NULL THEN 'it is not known whether experts are spread over ranks'
    ELSE 'no sizes of exchanges between experts are known (capture with shapes)' END AS reason
FROM topology WHERE run = $run AND iteration = $iteration
HAVING coalesce(max(ep), 1) > 0 AND NOT EXISTS (FROM expert_loads WHERE run = $run AND iteration = $iteration)
""",
)
