"""Gains over the steps of an iteration."""

from __future__ import annotations

from pathlib import Path

from tests.analyze.test_metrics_handbook import tables_of
from traceviz_dag.analyze.causes.gains import over_steps

PAGE = Path(__file__).parents[3] / "docs" / "causes.md"


def test_the_bar_of_several_steps_holds_what_each_step_says_alone():
    table = next(rows for rows in tables_of(PAGE, "Edits") if "gain ms" in rows[0])
    *steps, whole = (
        {"gain_ns": r["gain ms"], "gain_low_ns": r["at least ms"], "gain_high_ns": r["at most ms"]} for r in table
    )
    common = {"edit": "fix_rank", "rank": 1, "dimension": None, "factor": None, "step_ns": 100, "predicted_step_ns": 90}
    (row,) = over_steps([{**common, **step} for step in steps])
    assert {name: row[name] for name in whole} == whole
    assert (row["steps"], row["step_ns"]) == (2, 200)
