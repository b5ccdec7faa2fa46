"""GPU memory that no rank ever takes: it could hold larger micro-batches, or save recomputation."""

from __future__ import annotations

from traceviz_dag.analyze.findings.gpu_memory import RANKS, UNPREDICTED, known, mebibytes
from traceviz_dag.analyze.findings.rule import Row, Rule
from traceviz_dag.analyze.wording import share
from traceviz_dag.vocabulary import FindingClass

LEAST_SHARE = 0.2
"""Share of a GPU's memory that stays unused on every rank; less is a sound margin."""

_SQL = f"""
WITH reserved AS (
    SELECT rank, max(reserved_bytes) AS reserved_bytes
    FROM memory_events WHERE run = $run AND iteration = $iteration AND reserved_bytes IS NOT NULL GROUP BY rank
),
gpus AS (
    SELECT rank, device_memory_bytes FROM traces
    WHERE run = $run AND iteration = $iteration AND device_memory_bytes IS NOT NULL
),
unused AS (
    SELECT rank AS fullest, reserved_bytes, device_memory_bytes, device_memory_bytes - reserved_bytes AS unused_bytes,
        1 - reserved_bytes / device_memory_bytes AS value, count(*) OVER () AS ranks
    FROM reserved JOIN gpus USING (rank)
)
SELECT *, {RANKS} AS of_ranks FROM unused
WHERE value >= {LEAST_SHARE}
    AND fullest = (SELECT arg_min(fullest, (value, fullest)) FROM unused)
"""


def _sentence(row: Row) -> str:
    return f"at least {share(row['value'])} of the GPU's memory is never reserved"


def _detail(row: Row) -> str:
    reserved = f"{mebibytes(row['reserved_bytes'])} of {mebibytes(row['device_memory_bytes'])}"
    return (
        f"as far as it was recorded; rank {row['fullest']} reserves most, {reserved}, {mebibytes(row['unused_bytes'])} "
        f"unused; {known(row['ranks'], row['of_ranks'])}; memory that CUDA and NCCL take outside PyTorch is not counted"
    )


RULE = Rule(
    name="memory_headroom",
    of_class=FindingClass.OPPORTUNITY,
    question="Is GPU memory left unused?",
    remedy="Recompute less (Megatron-LM: --recompute-granularity, --recompute-num-layers), or take larger "
    "micro-batches; traceviz memory schedule --gpu-gib says how many more fit.",
    serving="Give the cache of keys and values more memory, or serve larger batches.",
    sql=_SQL,
    measure="share of a GPU's memory",
    sentence=_sentence,
    detail=_detail,
    unable_sql="""
SELECT CASE WHEN count(reserved_bytes) = 0 THEN 'no snapshot of GPU memory with events and no trace shows how '
    || 'much is reserved (traceviz capture plan records snapshots)'
    ELSE 'the traces do not record how much memory the GPUs have' END AS reason
FROM memory_events LEFT JOIN traces USING (run, iteration, rank)
WHERE run = $run AND iteration = $iteration
HAVING count(reserved_bytes) = 0 OR count(device_memory_bytes) FILTER (reserved_bytes IS NOT NULL) = 0
""",
    partly_sql="""
SELECT 'not judged on ' || (ranks - known) || ' of ' || ranks || ' ranks, for want of what is reserved there, or of '
    || 'the memory of the GPU' AS reason
FROM (
    SELECT count(*) AS ranks, count(*) FILTER (device_memory_bytes IS NOT NULL AND rank IN (
        SELECT rank FROM memory_events
        WHERE run = $run AND iteration = $iteration AND reserved_bytes IS NOT NULL
    )) AS known
    FROM traces WHERE run = $run AND iteration = $iteration
)
WHERE known > 0 AND known < ranks
""",
    unpredicted=UNPREDICTED,
)
