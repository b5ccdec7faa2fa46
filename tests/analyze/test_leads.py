"""Edits are told in the order of the findings, and what they gain together as a sum is: last."""

from __future__ import annotations

from traceviz_dag.analyze.findings.verdict import Lead


def test_fixes_of_the_findings_come_first_also_another_fix_of_a_findings_rank_and_the_sum_last():
    lead = Lead("", {}, (), (("fix_gpu", 3, None, None), ("hide", None, None, "tp")))
    rows = [
        {"edit": edit, "rank": rank, "ranks": None, "dimension": dimension}
        for edit, rank, dimension in (
            ("together", None, None),
            ("hide", None, "dp"),
            ("hide", None, "tp"),
            ("fix_rank", 3, None),
            ("fix_gpu", 5, None),
            ("fix_gpu", 3, None),
        )
    ]
    told = [(row["edit"], row["rank"], row["dimension"]) for row in lead.fixes_first(rows)]
    assert told[:3] == [("fix_gpu", 3, None), ("fix_rank", 3, None), ("hide", None, "tp")]
    assert told[3:] == [("hide", None, "dp"), ("fix_gpu", 5, None), ("together", None, None)]
