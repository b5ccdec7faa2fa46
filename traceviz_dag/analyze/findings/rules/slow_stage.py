"""A pipeline stage that computes longer than the others: it has more layers, work of its own, or slow GPUs."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import SLOW_ALONE
from traceviz_dag.analyze.findings.rule import EditKey, Row, Rule
from traceviz_dag.analyze.stage_times import NOTABLE_EXCESS
from traceviz_dag.analyze.wording import duration, numbered, share
from traceviz_dag.spans import unspanned
from traceviz_dag.vocabulary import FindingClass

_SQL = f"""
WITH slow AS (
    SELECT stage, ranks, ratio, more_ns FROM group_speeds
    WHERE run = $run AND iteration = $iteration AND kind = 'stage' AND slow
), uneven AS (
    SELECT
        stage, stages, compute_ns, mean_ns, more_work_ns, own_work_ns, slower_ns, unsure_ns,
        compute_ns / mean_ns - 1 AS value,
        greatest(more_work_ns, own_work_ns, slower_ns) AS most_ns,
        -- What a rank that is alone in its stage takes longer for is a finding of that rank.
        {SLOW_ALONE} IS NOT NULL AS of_rank,
        -- Where no other stage has the same kernels, nothing shows whether it is slow.
        CASE WHEN ratio IS NULL THEN rank END AS alone,
        -- And what all its GPUs do is a finding of its own.
        stage IN (SELECT stage FROM slow) AS slow
    FROM stage_speeds WHERE run = $run AND iteration = $iteration AND compute_ns >= {1 + NOTABLE_EXCESS} * mean_ns
), advised AS (
    -- Of all steps together, what moving layers alone makes of them.
    SELECT layers, 1 - sum(predicted_step_ns) / sum(step_ns) AS shorter FROM advice
    WHERE run = $run AND iteration = $iteration AND layers IS NOT NULL AND chunks IS NULL AND schedule IS NULL
        AND no_recompute IS NULL
    GROUP BY layers HAVING bool_and(wins) ORDER BY shorter DESC, layers LIMIT 1
)
SELECT
    stage, alone, NULL AS group_ranks, value, NULL AS ratio, stages,
    compute_ns, mean_ns, compute_ns - mean_ns AS excess_ns,
    more_work_ns, own_work_ns, slower_ns, unsure_ns,
    CASE most_ns WHEN own_work_ns THEN 'own' WHEN more_work_ns THEN 'more' ELSE 'slower' END AS because,
    CASE WHEN most_ns > own_work_ns AND most_ns >= {NOTABLE_EXCESS} * mean_ns
        THEN 'fault' ELSE 'opportunity' END AS class,
    (compute_ns - mean_ns) * (
        SELECT count(DISTINCT coalesce(step, -1)) FROM what_if WHERE run = $run AND iteration = $iteration
    ) AS at_most_ns,
    (SELECT layers FROM advised) AS advised_layers, (SELECT shorter FROM advised) AS advised_share
FROM uneven WHERE NOT ((of_rank OR slow) AND most_ns = slower_ns)
UNION ALL
SELECT stage, NULL, slow.ranks, slow.ratio - 1, slow.ratio, stages, compute_ns, mean_ns, compute_ns - mean_ns,
    more_work_ns, own_work_ns, slower_ns, unsure_ns, 'gpus', 'fault', NULL,
    NULL, NULL
FROM slow JOIN (FROM stage_speeds WHERE run = $run AND iteration = $iteration) USING (stage)
"""

_BECAUSE = {
    "own": ("work that not all stages have is {} of that", "own_work_ns"),
    "more": ("more of the work that all stages have, such as layers, is {} of that", "more_work_ns"),
    "slower": ("its kernels take longer than the same ones of other stages, which is {} of that", "slower_ns"),
}


def _sentence(row: Row) -> str:
    if row["because"] == "gpus":
        others = f"the other stage{'s' if row['stages'] > 2 else ''}"
        times = f"{row['ratio']:.2f} times as long as on {others}"
        return f"all GPUs of stage {row['stage']} compute slowly: the same kernels take {times}"
    longer = f"{duration(row['excess_ns'])} longer than the mean stage ({share(row['value'])})"
    return f"stage {row['stage']}{', or its GPU,' if _unclear(row) else ''} computes {longer}"


def _unclear(row: Row) -> bool:
    """Whether a stage with one rank has work of its own or a slow GPU."""
    return row["because"] == "own" and row["alone"] is not None


def _detail(row: Row) -> str:
    if row["because"] == "gpus":
        who = numbered("rank", unspanned(row["group_ranks"]))
        return f"{who}; {duration(row['slower_ns'])} longer than the mean stage per step"
    if _unclear(row):
        return (
            f"per step, against {row['stages']} stages; of this one rank {row['alone']} alone was read, and no other "
            "stage runs the same kernels, so work of its own and a slow GPU cannot be distinguished"
        )
    words, part = _BECAUSE[row["because"]]
    unsure = ""
    if row["because"] == "own" and row["unsure_ns"] >= NOTABLE_EXCESS * row["mean_ns"]:
        unsure = (
            f"; some of its kernels take {duration(row['unsure_ns'])} more than those of the same names on the mean "
            "stage, and no others do, so this is more work or slower execution"
        )
    return f"per step, against {row['stages']} stages; {words.format(duration(row[part]))}{unsure}"


def _edit(row: Row) -> EditKey:
    if row["because"] == "gpus":
        return EditKey("fix_ranks", ranks=row["group_ranks"])
    return EditKey("even_layers" if row["because"] == "more" else "equal_stages")


_MOVE = (
    "Move layers to other stages (Megatron-LM: --decoder-first-pipeline-num-layers, "
    "--decoder-last-pipeline-num-layers, or --pipeline-model-parallel-layout)."
)


def _move(row: Row) -> str:
    """To move layers, and how, where advice has a better way to share them out."""
    if row.get("advised_layers") is None:
        return _MOVE
    predicted = f"the step is predicted to be {share(row['advised_share'])} shorter"
    return f"{_MOVE} With layers {row['advised_layers']} of the stages {predicted} (traceviz advise)."


_LOOK = (
    "Compare the clocks, power limit and temperature of that stage's GPUs with the others' (nvidia-smi -q -d "
    "PERFORMANCE,CLOCK): moving layers would only hide that they are slow."
)

_CAPTURE = "Capture another rank of that stage: the two show whether the GPU is slow or the stage has more to do."


RULE = Rule(
    name="slow_stage",
    of_class=FindingClass.FAULT,
    question="Does a pipeline stage compute longer than the others?",
    remedy=_MOVE,
    remedy_of=lambda row: _CAPTURE if _unclear(row) else _LOOK if row["because"] in ("slower", "gpus") else _move(row),
    sql=_SQL,
    measure="above the mean stage",
    sentence=_sentence,
    detail=_detail,
    edit=_edit,
    # Where nothing shows the layers, and they make the difference, equal stages come near.
    otherwise=lambda row: EditKey("equal_stages") if (row["because"], row["class"]) == ("more", "fault") else None,
    unable_sql="""
SELECT 'no micro-batches of two or more pipeline stages are known' AS reason
WHERE NOT EXISTS (FROM stage_speeds WHERE run = $run AND iteration = $iteration)
    AND (SELECT coalesce(max(stages), 2) FROM topology WHERE run = $run AND iteration = $iteration) > 1
""",
)
