"""A rank whose links are slow: what it transfers takes longer than like transfers of others, waits left out."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.vocabulary import FindingClass

_SQL = """
SELECT rank, best_ratio AS value, worst_ratio, dimensions, scope, or_of
FROM links WHERE run = $run AND iteration = $iteration AND coalesce(slow, true)
    AND rank = coalesce(list_min(list_append(or_of, CAST(rank AS INTEGER))), rank)
"""


def _sentence(row: Row) -> str:
    scope = {"intra_node": " inside its node", "inter_node": " between nodes"}.get(row["scope"], "")
    also = "".join(f", or of rank {rank}," for rank in row["or_of"])
    times = f"{row['value']:.2f} to {row['worst_ratio']:.2f} times as long as those of other ranks"
    return (
        f"the links of rank {row['rank']}{also}{scope} are slow: in each of {row['dimensions']} dimensions its "
        f"transfers take {times}, waits left out"
    )


RULE = Rule(
    name="slow_link",
    of_class=FindingClass.FAULT,
    question="Do a rank's transfers take longer than like transfers of others?",
    remedy="Test that rank's links alone (nvidia-smi nvlink -e, ibdiagnet, nccl-tests between it and a neighbour), and "
    "look for a network card that runs at a lower rate or is shared.",
    sql=_SQL,
    measure="times as long",
    sentence=_sentence,
    key=("scope",),
    edit=lambda row: EditKey("fix_link", rank=row["rank"]),
    unable_sql="""
SELECT 'no transfers could be compared: fewer than two dimensions with two groups each' AS reason
WHERE (SELECT coalesce(max(dimensions), 0) FROM links WHERE run = $run AND iteration = $iteration) < 2
""",
)
