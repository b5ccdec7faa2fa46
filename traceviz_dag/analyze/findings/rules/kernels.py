"""One kernel that takes most of the time, and matrix products that do not use tensor cores."""

from __future__ import annotations

from traceviz_dag.analyze.findings.rule import Places, Row, Rule
from traceviz_dag.analyze.findings.windows import LEAST_SHARE, OPERATIONS, UNMEASURED, WINDOWS, over_ranks
from traceviz_dag.analyze.wording import counted, duration, share
from traceviz_dag.vocabulary import FindingClass

HOT_SHARE = 0.3
"""Share of the time measured from which one kernel is reported."""

_MOST_OF_A_NAME = 80

# Names of products on the FP32 or FP64 units: no kernel of cuBLAS or CUTLASS on tensor cores has one of them.
WITHOUT_TENSOR_CORES = r"(?i)(^|[^a-z])(s|d)gemm|ffma|_simt_|gemv|gemmk1|cutlass_\d+_simt"
MATRIX_PRODUCT = r"(?i)gemm|gemv|nvjet|cutlass.*(conv|fprop|dgrad|wgrad)|xmma|matmul|s(16816|1688|884)"

_MEASURED = f"SELECT sum(window_ns) AS window_ns, count(DISTINCT rank) AS ranks FROM {WINDOWS}"

_HOT_SQL = f"""
WITH measured AS ({_MEASURED})
SELECT
    name AS operation,
    any_value(ranks) AS ranks,
    count(*) AS kernels,
    CAST(round(sum(inside_ns) / any_value(ranks)) AS BIGINT) AS time_ns,
    CAST(quantile_disc(duration_ns, 0.5) AS BIGINT) AS median_ns,
    sum(inside_ns) / any_value(measured.window_ns) AS value
-- Kernels whose names are not recorded are not one kernel.
FROM {OPERATIONS} CROSS JOIN measured WHERE kind = 'computation' AND name IS NOT NULL
GROUP BY operation HAVING sum(inside_ns) >= {HOT_SHARE} * any_value(measured.window_ns)
"""

_TENSOR_SQL = f"""
WITH measured AS ({_MEASURED}),
products AS (
    SELECT *, regexp_matches(name, '{WITHOUT_TENSOR_CORES}') AS without
    FROM {OPERATIONS} WHERE kind = 'computation'
        AND regexp_matches(name, '{MATRIX_PRODUCT}|{WITHOUT_TENSOR_CORES}')
)
SELECT
    any_value(ranks) AS ranks,
    count(*) FILTER (without) AS kernels,
    CAST(round(sum(inside_ns) FILTER (without) / any_value(ranks)) AS BIGINT) AS time_ns,
    CAST(round(sum(inside_ns) / any_value(ranks)) AS BIGINT) AS products_ns,
    sum(inside_ns) FILTER (without) / sum(inside_ns) AS of_products,
    arg_max(name, inside_ns) FILTER (without) AS longest,
    sum(inside_ns) FILTER (without) / (SELECT sum(inside_ns) FROM {OPERATIONS} WHERE kind = 'computation') AS value
FROM products CROSS JOIN measured
HAVING sum(inside_ns) FILTER (without)
    >= {LEAST_SHARE} * (SELECT sum(inside_ns) FROM {OPERATIONS} WHERE kind = 'computation')
"""

_PLACES = f"""
SELECT rank, name AS operation, start_ns, duration_ns, inside_ns AS weight FROM {OPERATIONS}
WHERE kind = 'computation'
"""


def _short(name: str) -> str:
    return name if len(name) <= _MOST_OF_A_NAME else f"{name[: _MOST_OF_A_NAME - 1]}…"


def _hot(row: Row) -> str:
    takes = f"{duration(row['time_ns'])} per rank, {share(row['value'])} of the time measured"
    return f"the kernel {_short(row['operation'])} takes {takes}"


def _hot_detail(row: Row) -> str:
    launches = counted(row["kernels"], "launch", "launches")
    return f"{over_ranks(row['ranks'])}; {launches}, median {duration(row['median_ns'])}"


def _tensor(row: Row) -> str:
    of = f"{duration(row['time_ns'])} of {duration(row['products_ns'])} per rank"
    return f"matrix products do not use tensor cores: {of}"


def _tensor_detail(row: Row) -> str:
    return (
        f"by the names of {counted(row['kernels'], 'kernel', 'kernels')}; {share(row['of_products'])} of the products, "
        f"{share(row['value'])} of the time of computation kernels, {over_ranks(row['ranks'])}; the longest is "
        f"{_short(row['longest'])}"
    )


HOT = Rule(
    name="hot_kernel",
    of_class=FindingClass.OPPORTUNITY,
    question="Does one kernel take most of the time?",
    remedy="Look at this kernel first: another algorithm, data type or shape, or a fused version.",
    sql=_HOT_SQL,
    measure="share of the time measured, in one kernel",
    sentence=_hot,
    detail=_hot_detail,
    places=Places(_PLACES, ("operation",)),
    unpredicted="no edit of the step makes one kernel faster",
    unable_sql=UNMEASURED,
)

TENSOR_CORES = Rule(
    name="tensor_cores",
    of_class=FindingClass.OPPORTUNITY,
    question="Do matrix products use tensor cores?",
    remedy="Use bf16, fp16 or fp8 (autocast), or allow TF32: torch.set_float32_matmul_precision('high').",
    sql=_TENSOR_SQL,
    measure="share of the time of computation kernels",
    sentence=_tensor,
    detail=_tensor_detail,
    places=Places(_PLACES.rstrip() + f" AND regexp_matches(name, '{WITHOUT_TENSOR_CORES}')", ()),
    unpredicted="no edit of the step changes data types",
    unable_sql=UNMEASURED,
)

RULES = (HOT, TENSOR_CORES)
