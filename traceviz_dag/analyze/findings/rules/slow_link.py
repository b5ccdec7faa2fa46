"""A rank whose links are slow: what it transfers takes longer than like transfers of others, waits left out."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.analyze.wording import capitals, counted, numbered
from traceviz_dag.spans import spanned, unspanned
from traceviz_dag.vocabulary import FindingClass

MANY_UNMATCHED = 0.1
"""Share of communication kernels that are not matched, from which it is said that their links are not judged."""

_SQL = """
SELECT rank, NULL AS group_ranks, NULL AS dimension, best_ratio AS value, worst_ratio, dimensions, scope, or_of,
    NULL AS of_ranks, NULL AS transfers
FROM links WHERE run = $run AND iteration = $iteration AND coalesce(slow, true)
    AND rank = coalesce(list_min(list_append(or_of, CAST(rank AS INTEGER))), rank)
UNION ALL
SELECT rank, CASE WHEN rank IS NULL THEN ranks END, dimension, ratio, ratio, 1, scope, NULL, of_ranks, transfers
FROM link_groups WHERE run = $run AND iteration = $iteration
"""


def _sentence(row: Row) -> str:
    scope = {"intra_node": " inside its node", "inter_node": " between nodes"}.get(row["scope"], "")
    times = f"{row['value']:.2f} times as long"
    if row["of_ranks"] is None:
        also = "".join(f" or of rank {rank}" for rank in row["or_of"])
        return f"the links of rank {row['rank']}{also}{scope} are slow: transfers take at least {times} as on others"
    group = f"the {capitals(row['dimension'])} group" if row["dimension"] else "a group"
    takes = f"transfers of {group} take {times} as in similar groups"
    if row["rank"] is not None:
        return f"the links of rank {row['rank']}{scope} are slow: {takes}"
    return f"a link of {numbered('rank', unspanned(row['group_ranks']))}{scope} is slow: {takes}"


def _detail(row: Row) -> str:
    if row["of_ranks"] is None:
        times = f"{row['value']:.2f} to {row['worst_ratio']:.2f} times"
        return f"{times} in {counted(row['dimensions'], 'dimension', 'dimensions')}, waits excluded"
    judged = f"{counted(row['transfers'], 'transfer', 'transfers')} of each rank, waits excluded"
    if row["rank"] is not None:
        return f"{judged}; the other ranks of the group are fast elsewhere"
    return f"{judged}; which of these ranks has the slow link is not known"


def _edit(row: Row) -> EditKey:
    """Where several may have the slow links, those of all of them are fixed: of the healthy ones nothing changes."""
    if row["rank"] is None:
        return EditKey("fix_links", ranks=row["group_ranks"])
    if row["or_of"]:
        return EditKey("fix_links", ranks=spanned([row["rank"], *row["or_of"]]))
    return EditKey("fix_link", rank=row["rank"])


RULE = Rule(
    name="slow_link",
    of_class=FindingClass.FAULT,
    question="Do a rank's transfers take longer than like transfers of others?",
    remedy="Test that rank's links alone (nvidia-smi nvlink -e, ibdiagnet, nccl-tests between it and a neighbour), and "
    "look for a network card that runs at a lower rate or is shared.",
    sql=_SQL,
    measure="times as long",
    sentence=_sentence,
    detail=_detail,
    key=("scope",),
    edit=_edit,
    unable_sql="""
SELECT 'no transfers could be compared: ' || CASE
        WHEN count(*) > 0 AND count(scope) = 0 THEN 'nothing shows which ranks share a node'
        ELSE 'no dimension has two groups'
    END AS reason
FROM collectives WHERE run = $run AND iteration = $iteration AND fault IS NULL
HAVING NOT EXISTS (FROM links WHERE run = $run AND iteration = $iteration)
""",
    partly_sql=f"""
SELECT 'not judged on ' || count(*) FILTER (fault IS NOT NULL) || ' of ' || count(*)
    || ' communication kernels, which are not matched with all their members' AS reason
FROM collectives WHERE run = $run AND iteration = $iteration
HAVING count(*) FILTER (fault IS NOT NULL) >= {MANY_UNMATCHED} * count(*) AND count(*) > 0
""",
)
