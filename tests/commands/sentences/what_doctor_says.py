"""Doctor's answers against what analysis then gives: a yes is whole, a no is nothing."""

from __future__ import annotations

from traceviz_dag.pipeline.captures.answers import (
    BANDWIDTH,
    BUBBLE,
    DIMENSION,
    HIDDEN,
    MICROBATCH,
    MODULE,
    PHASE,
    PLACE,
    SIZES,
    WAITS,
    Answer,
)
from traceviz_dag.pipeline.stored_iteration import StoredIteration

_SHARES = {
    PHASE: "SELECT sum(duration_ns) FILTER (phase <> 'unknown') / sum(duration_ns) AS share FROM kernels",
    MICROBATCH: "SELECT sum(duration_ns) FILTER (microbatch IS NOT NULL) / sum(duration_ns) AS share FROM kernels "
    "WHERE kind = 'computation' AND phase IN ('forward', 'backward', 'recompute')",
    MODULE: "SELECT sum(duration_ns) FILTER (module IS NOT NULL) / sum(duration_ns) AS share FROM kernels",
    DIMENSION: "SELECT sum(duration_ns) FILTER (dimension <> 'unknown') / sum(duration_ns) AS share FROM kernels "
    "WHERE kind = 'communication'",
    HIDDEN: "SELECT CAST(sum(communication_ns) > 0 AS INTEGER) AS share FROM overlap WHERE dimension = 'all'",
    PLACE: "SELECT count(stage) / count(*) AS share FROM traces LEFT JOIN topology USING (run, iteration, rank)",
    BUBBLE: "SELECT count(bubble_ns) / nullif(count(*), 0) AS share FROM pipelines",
    BANDWIDTH: "SELECT count(bus_gb_per_s) / nullif(count(*), 0) AS share FROM collectives",
}
"""Question → how much of it the tables of the job's home answer; NULL or 0 is nothing."""

_WAITS = """
    SELECT
        -- Where a member is missing a wait is a lower bound, and tells nobody to blame.
        (SELECT count(*) FILTER (wait_ns > 0 AND fault IS NULL) FROM collectives) AS waiting,
        (SELECT count(*) FILTER (fault IS NULL) / count(*) FROM collectives) AS matched,
        (SELECT count(*) FROM rank_clocks WHERE refusal IS NOT NULL) AS refused
"""

_NEARLY = {"yes": 0.97, "in part": 0.0, "no": 0.0}
_MOST = {"yes": 1.0, "in part": 1.0, "no": 0.03}


def hold(iteration: StoredIteration, answer: Answer) -> None:
    """Fail where an answer is not what the iteration's tables give; sizes of tensors are in no table yet."""
    if answer.question == SIZES:
        return
    if answer.question == WAITS:
        (row,) = iteration.lake.query(_WAITS).to_pylist()
        if answer.answer == "yes":
            assert row["matched"] >= 0.97 and not row["refused"], (answer, row)
        elif answer.answer == "no":
            assert not row["waiting"], (answer, row)
        return
    (row,) = iteration.lake.query(_SHARES[answer.question]).to_pylist()
    share = row["share"] or 0
    # The sizes of messages that are matched in part give some bandwidths, never all.
    least = 0.5 if answer.question == BANDWIDTH and answer.answer == "yes" else _NEARLY[answer.answer]
    assert least <= share <= _MOST[answer.answer], (answer, share)
