"""The query of gains sums edits over the steps as the commands do, also where an edit is refused in some steps."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from traceviz_dag.analyze.causes.gains import over_steps
from traceviz_dag.tables.questions import GAIN_IDS, GAINS_SQL

_NUMBERS = ("step_ns", "predicted_step_ns", "gain_ns", "gain_low_ns", "gain_high_ns")


def _row(edit: str, rank: int | None, numbers: tuple[int | None, ...], refusal: str | None = None) -> dict[str, object]:
    ids = {"edit": edit, "rank": rank, "ranks": None, "dimension": None, "factor": None}
    return {"run": "a", "iteration": 7, **ids, **dict(zip(_NUMBERS, numbers, strict=True)), "refusal": refusal}


def test_steps_in_which_an_edit_is_refused_are_in_none_of_its_sums():
    what_if = pa.Table.from_pylist(
        [
            _row("fix_rank", 3, (100, 80, 20, 15, 22)),
            _row("fix_rank", 3, (110, None, None, None, None), "its clock is not solved"),
            _row("equal_stages", None, (100, 94, 6, 5, 7)),
            _row("equal_stages", None, (110, 100, 10, 8, 13)),
            _row("no_jitter", None, (100, None, None, None, None), "nothing shows micro-batches"),
        ]
    )
    rows = duckdb.connect().execute(GAINS_SQL, {"run": "a", "iteration": 7}).to_arrow_table().to_pylist()
    kept = over_steps([row for row in what_if.to_pylist() if row["refusal"] is None])
    names = (*GAIN_IDS, "steps", *_NUMBERS)
    assert [[row[name] for name in names] for row in rows[:2]] == [[row[name] for name in names] for row in kept]
    assert [(row["edit"], row["steps"], row["refusal"]) for row in rows] == [
        ("fix_rank", 1, "its clock is not solved"),
        ("equal_stages", 2, None),
        ("no_jitter", 0, "nothing shows micro-batches"),
    ]
