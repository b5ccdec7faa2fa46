"""Communication of a dimension during which the GPU does not compute."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import MEASURE, EditKey, Places, Row, Rule
from traceviz_dag.analyze.findings.windows import over_ranks
from traceviz_dag.analyze.wording import capitals, duration, share
from traceviz_dag.vocabulary import FindingClass, TrainingFramework

LEAST_SHARE = 0.001
"""Share of the time measured from which it is reported."""

_SQL = f"""
WITH windows AS (
    SELECT * FROM overlap
    WHERE run = $run AND iteration = $iteration AND window_name IN ('step', 'kernels')
        -- Clocks are of the ranks that count; one that was read in part does not.
        AND rank IN (SELECT rank FROM rank_clocks WHERE run = $run AND iteration = $iteration)
    QUALIFY (window_name = 'step')
        = (count(*) FILTER (window_name = 'step') OVER (PARTITION BY rank, device) > 0)
),
measured AS (FROM windows WHERE dimension <> 'all'),
-- Ranks without a dimension count as well, so that dimensions add up.
every AS (
    SELECT sum(window_end_ns - window_start_ns) AS time_ns, count(DISTINCT rank) AS ranks
    FROM windows WHERE dimension = 'all'
),
matched AS (SELECT DISTINCT rank, dimension FROM collectives WHERE run = $run AND iteration = $iteration),
-- A rank without rows of its host knows no more of a communication than its group; the other members know the rest.
renamed AS (
    SELECT rank, own.dimension AS alone, together.dimension FROM
    (SELECT rank, min(dimension) AS dimension FROM (SELECT DISTINCT rank, dimension FROM measured)
        ANTI JOIN matched USING (rank, dimension) GROUP BY rank HAVING count(*) = 1) AS own
    JOIN (SELECT rank, min(dimension) AS dimension FROM matched
        ANTI JOIN measured USING (rank, dimension) GROUP BY rank HAVING count(*) = 1) AS together USING (rank)
),
-- What of the path it is explains a gain that is not the mean rank's exposed time.
path AS (FROM path_segments WHERE run = $run AND iteration = $iteration),
on_path AS (
    SELECT dimension, CAST(round(sum(ns)) AS BIGINT) AS path_ns, CAST(round(max(ns)) AS BIGINT) AS path_rank_ns,
        arg_max(rank, ns) AS path_rank, arg_max(stage, ns) AS path_stage
    FROM (
        SELECT dimension, rank, any_value(stage) AS stage,
            sum(duration_ns) / (SELECT count(DISTINCT coalesce(step, -1)) FROM path) AS ns
        FROM path WHERE cause IN ('transfer', 'unmatched') GROUP BY dimension, rank ORDER BY rank
    )
    GROUP BY dimension
)
SELECT
    coalesce(renamed.dimension, measured.dimension) AS dimension,
    sum(exposed_ns) / any_value(every.time_ns) AS value,
    CAST(round(sum(exposed_ns) / any_value(every.ranks)) AS BIGINT) AS exposed_ns,
    CAST(round(sum(communication_ns) / any_value(every.ranks)) AS BIGINT) AS communication_ns,
    any_value(every.ranks) AS ranks,
    CASE WHEN EXISTS (FROM path) THEN coalesce(any_value(path_ns), 0) END AS path_ns,
    any_value(path_rank_ns) AS path_rank_ns, any_value(path_rank) AS path_rank, any_value(path_stage) AS path_stage
FROM measured CROSS JOIN every LEFT JOIN renamed ON renamed.rank = measured.rank AND renamed.alone = measured.dimension
LEFT JOIN on_path ON on_path.dimension = coalesce(renamed.dimension, measured.dimension)
GROUP BY coalesce(renamed.dimension, measured.dimension)
HAVING sum(exposed_ns) >= {LEAST_SHARE} * any_value(every.time_ns)
"""


_PLACES = """
SELECT kernels.rank, coalesce(collectives.dimension, kernels.dimension) AS dimension, kernels.start_ns,
    kernels.duration_ns, coalesce(exposed_wait_ns + exposed_transfer_ns, kernels.duration_ns) AS weight
FROM (FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'communication') AS kernels
LEFT JOIN (FROM collectives WHERE run = $run AND iteration = $iteration) AS collectives USING (rank, kernel_id)
"""


def _sentence(row: Row) -> str:
    exposed, every = duration(row["exposed_ns"]), duration(row["communication_ns"])
    return f"{capitals(row['dimension'])} communication: {exposed} of {every} per rank is exposed, waits included"


def _detail(row: Row) -> str:
    return f"{share(row['value'])} of the time measured, {over_ranks(row['ranks'])}{_on_path(row)}"


def _on_path(row: Row) -> str:
    """How much of it the step waits for: what a gain consists of, which is not the mean rank's exposed time."""
    if row["path_ns"] is None:
        return ""
    if not row["path_ns"]:
        return "; none of it is on the critical path"
    stage = "" if row["path_stage"] is None else f" (stage {row['path_stage']})"
    most = f", {duration(row['path_rank_ns'])} of that on" if row["path_rank_ns"] < row["path_ns"] else ", on"
    return f"; {duration(row['path_ns'])} of the critical path per step{most} rank {row['path_rank']}{stage}"


_REMEDIES = {
    "dp": "Overlap it with computation (Megatron-LM: --overlap-grad-reduce and --overlap-param-gather).",
    "edp": "Overlap it with computation (Megatron-LM: --overlap-grad-reduce and --overlap-param-gather).",
    "tp": "Overlap it with matrix products (Megatron-LM: --tp-comm-overlap with --sequence-parallel).",
    "cp": "Use an exchange of keys and values that overlaps with attention (Megatron-LM: --cp-comm-type p2p).",
    "ep": "Overlap it with another micro-batch (Megatron-LM: --overlap-moe-expert-parallel-comm).",
    "pp": "Run more micro-batches, or chunks with their messages overlapped (Megatron-LM: "
    "--num-layers-per-virtual-pipeline-stage).",
    "embedding": "Do not tie the weights of embedding and output layer (Megatron-LM: "
    "--untie-embeddings-and-output-weights).",
}

_ELSEWHERE = {
    TrainingFramework.MEGATRON_FSDP: "Gather and reduce more at once and earlier, in buffers that stay (Megatron-LM: "
    "--suggested-communication-unit-size, --fsdp-double-buffer, --use-nccl-ub); shard over fewer GPUs (Megatron-LM: "
    "--num-distributed-optimizer-instances), or keep parameters whole (Megatron-LM: --data-parallel-sharding-strategy "
    "optim_grads).",
    TrainingFramework.DDP: "Send gradients beside the backward pass in buckets of another size (bucket_cap_mb), and "
    "only in the last of several micro-batches (no_sync).",
    TrainingFramework.FSDP: "Shard each layer for itself, gather the next one earlier (FSDP 1: forward_prefetch, "
    "backward_prefetch; FSDP 2: set_modules_to_forward_prefetch), or shard over fewer GPUs (hybrid sharding).",
    TrainingFramework.ZERO: "Overlap it with computation (DeepSpeed: overlap_comm, stage3_prefetch_bucket_size), or "
    "shard less (a lower stage, or zero_hpz_partition_size).",
}
"""Of data parallelism, what to do where it is not Megatron's DDP."""

_FORWARD = {
    TrainingFramework.MEGATRON_FSDP: "Gather more at once and earlier, in buffers that stay (Megatron-LM: "
    "--suggested-communication-unit-size, --fsdp-double-buffer, --use-nccl-ub), or shard over fewer GPUs (Megatron-LM: "
    "--num-distributed-optimizer-instances).",
    TrainingFramework.DDP: "Do not send buffers in each forward pass (broadcast_buffers=False), or evaluate the module "
    "that is wrapped.",
    TrainingFramework.FSDP: "Shard each layer for itself, gather the next one earlier (FSDP 1: forward_prefetch; "
    "FSDP 2: set_modules_to_forward_prefetch), or shard over fewer GPUs (hybrid sharding).",
    TrainingFramework.ZERO: "Gather the next layer earlier (DeepSpeed: stage3_prefetch_bucket_size), or shard over "
    "fewer GPUs (zero_hpz_partition_size).",
}
"""Of data parallelism, what to do where no gradients are sent."""

_LATE = "This will not remove waits for late ranks; fix those first."

_REMEDY = f"Overlap it with computation, or communicate less often. {_LATE}"


def _elsewhere(row: Row, framework: TrainingFramework) -> str | None:
    sharded = ("dp", "edp") if framework is TrainingFramework.MEGATRON_FSDP else ("dp",)
    return f"{_ELSEWHERE[framework]} {_LATE}" if row["dimension"] in sharded and framework in _ELSEWHERE else None


def _forward(row: Row, framework: TrainingFramework | None) -> str | None:
    if row["dimension"] not in ("dp", "edp", "embedding"):
        return None
    found = _FORWARD.get(framework) if framework is not None and row["dimension"] == "dp" else None
    return _REMEDY if found is None else f"{found} {_LATE}"


RULE = Rule(
    name="exposed_communication",
    of_class=FindingClass.OPPORTUNITY,
    question="Which dimension's communication is not hidden behind computation?",
    remedy=_REMEDY,
    serving="Run fewer and larger communications, or split the model over fewer GPUs; overlap them where that can be.",
    remedy_of=lambda row: f"{_REMEDIES[row['dimension']]} {_LATE}" if row["dimension"] in _REMEDIES else _REMEDY,
    forward=_forward,
    elsewhere=_elsewhere,
    sql=_SQL,
    measure=MEASURE,
    sentence=_sentence,
    detail=_detail,
    edit=lambda row: EditKey("hide", dimension=row["dimension"]),
    places=Places(_PLACES, ("dimension",)),
    unable_sql="""
SELECT 'no kernels were measured' AS reason
WHERE NOT EXISTS (FROM overlap WHERE run = $run AND iteration = $iteration)
""",
)
