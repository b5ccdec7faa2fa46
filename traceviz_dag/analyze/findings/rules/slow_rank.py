"""A rank that is slow: its kernels take longer than on its peers, or it comes late to communications with them."""

from __future__ import annotations

from traceviz_dag.analyze.findings.fragments import PAUSES, SLOW_ALONE, STAGES
from traceviz_dag.analyze.findings.rule import EditKey, Places, Row, Rule
from traceviz_dag.analyze.findings.rules import launch_bound
from traceviz_dag.analyze.findings.rules.host_pauses import UNNAMED_SQL
from traceviz_dag.analyze.findings.rules.slow_group import SLOW
from traceviz_dag.analyze.slow_words import MAY_BE_WORK, SLOWER, in_steps
from traceviz_dag.analyze.waits.blamed import share_of_step
from traceviz_dag.analyze.wording import counted, duration, own_delay
from traceviz_dag.vocabulary import FindingClass, SlowKind

MORE_WORK = 1.02
"""How many times as much as its peers a rank has to do before it is said to have more."""

MORE_TOKENS = 1.05
"""How many times as many tokens as its peers a rank's experts take before its late computation is theirs."""

_SQL = f"""
WITH slow AS (
    SELECT rank, stage, slow_ratio AS value, slow_more_ns AS more_ns, peers,
        CASE slow_in WHEN 'all' THEN 'peers' ELSE slow_in END AS against, kernel, work_by, slow_steps,
        kind, kind_evidence
    FROM rank_speeds WHERE run = $run AND iteration = $iteration AND slow_in IS NOT NULL
        AND rank NOT IN ({SLOW})
    UNION ALL
    -- A rank that is alone in its stage is held against the same kernels of the other stages.
    SELECT rank, stage, if(alone = 'memory', memory_ratio, stage_speeds.ratio), slower_ns, stages - 1,
        if(alone = 'memory', 'memory of stages', 'stages'), NULL, NULL, NULL, NULL, NULL
    FROM (SELECT *, {SLOW_ALONE} AS alone FROM stage_speeds WHERE run = $run AND iteration = $iteration) AS stage_speeds
        JOIN rank_speeds USING (run, iteration, rank, stage)
    WHERE peers = 0 AND alone IS NOT NULL
),
-- What the host of a rank did, as far as its trace names it, and its pauses are what other rules judge.
named AS (
    SELECT rank, sum(starved_ns) AS starved_ns FROM (
        SELECT rank, starved_ns FROM gpu_gaps
        WHERE run = $run AND iteration = $iteration AND host_work IN {PAUSES}
        UNION ALL SELECT rank, starved_ns FROM ({UNNAMED_SQL})
    ) GROUP BY rank
),
-- And who computes late for the tokens that its experts take is a finding of another rule.
crowded AS (
    SELECT rank FROM expert_loads WHERE run = $run AND iteration = $iteration AND load >= {MORE_TOKENS}
),
-- Who computes as fast as its peers and waits longer for slow ones than others wait for it hands their lateness on.
fast AS (
    SELECT rank FROM rank_speeds WHERE run = $run AND iteration = $iteration AND ratio < {1 + SLOWER}
),
handed_on AS (
    SELECT rank, sum(wait_ns) AS handed_on_ns FROM blame
    WHERE run = $run AND iteration = $iteration AND late_rank IN (SELECT rank FROM slow) GROUP BY rank
)
SELECT
    rank, stage, kind, kind_evidence, value, more_ns, peers, against,
    against LIKE '%stages' AS inferred, 'fault' AS class, kernel,
    NULL AS late_category, NULL AS last, NULL AS communications, NULL AS work, work_by, slow_steps, NULL AS steps
FROM slow WHERE NOT (against = 'extra' AND rank IN (SELECT rank FROM ({launch_bound.SQL}) WHERE rank IS NOT NULL))
UNION ALL
-- Who comes late for having more to do is nobody's fault.
SELECT rank, late.stage, NULL, NULL, own_share, own_ns, NULL, 'late', false,
    -- So it is where it comes late out of other communication, if that more takes as long; and where a peer that has
    -- less to do waits for it.
    CASE WHEN work >= {MORE_WORK} AND late_category LIKE '%_computation' THEN 'opportunity'
        WHEN greatest(work, work / least_work) >= {MORE_WORK} AND 2 * (more_work_ns - least(least_ns, 0)) >= own_ns
        THEN 'opportunity' ELSE 'fault' END, NULL,
    late_category, last, communications, work, work_by, NULL, steps
FROM (FROM late_ranks LEFT JOIN named USING (rank) LEFT JOIN {STAGES} USING (rank)
    LEFT JOIN handed_on USING (rank) WHERE run = $run AND iteration = $iteration) AS late
LEFT JOIN (
    SELECT rank, work, work_by, more_ns AS more_work_ns, min(more_ns) OVER of_stage AS least_ns,
        min(work) OVER of_stage AS least_work
    FROM rank_speeds WHERE run = $run AND iteration = $iteration WINDOW of_stage AS (PARTITION BY stage)
) USING (rank)
WHERE blamed AND rank NOT IN ({SLOW})
    AND rank NOT IN (SELECT rank FROM slow) AND coalesce(starved_ns, 0) < own_ns / 2
    AND NOT (late_category = 'host' AND rank IN (SELECT rank FROM ({launch_bound.SQL}) WHERE rank IS NOT NULL))
    AND NOT (rank IN (SELECT rank FROM crowded) AND regexp_matches(late_category, '_(computation|communication)$'))
    AND NOT (late_category LIKE '%_computation' AND coalesce(work, 1) < {MORE_WORK} AND rank IN (SELECT rank FROM fast)
        AND own_ns < coalesce(handed_on_ns, 0))
"""


_PLACES = """
-- Its communications for which others waited, as long as they waited together.
WITH judged AS (
    SELECT rank, kernel_id, communication,
        CASE WHEN clocks = 'solved' THEN last_rank_aligned ELSE last_rank_by_duration END AS last_rank,
        CASE WHEN clocks = 'solved' THEN wait_aligned_ns ELSE wait_by_duration_ns END AS wait_ns
    FROM collectives WHERE run = $run AND iteration = $iteration AND clocks IS NOT NULL
), waited AS (
    SELECT communication, last_rank AS rank, sum(wait_ns) AS weight FROM judged
    WHERE rank <> last_rank GROUP BY ALL
)
SELECT rank, start_ns, duration_ns, weight
FROM waited JOIN judged USING (communication, rank)
    JOIN (FROM kernels WHERE run = $run AND iteration = $iteration) AS kernels USING (rank, kernel_id)
"""


def _sentence(row: Row) -> str:
    who = f"rank {row['rank']}" + ("" if row["stage"] is None else f" (stage {row['stage']})")
    peers = "its peers" if row["peers"] != 1 else "its one peer"
    if row["against"] in ("stages", "memory of stages"):
        peers = "the other stages" if row["peers"] != 1 else "the other stage"
    times = f"{row['value']:.2f} times as long as on {peers}"
    says = {
        "memory": f"has slow memory: kernels that are bound by it take {times}",
        "arithmetic": f"computes slowly: products and attention take {times}, and no other kernels do",
        "part": f"computes slowly for a part of the step: the same kernels take {times} then",
        "kernel": f"has a slow kernel, which takes {times}",
        "algorithm": f"runs another algorithm, which takes {times.replace('as on', 'as that of')}",
        "extra": f"does extra work: it computes {times}",
        "late": f"is late: it delays its peers by {own_delay(duration(row['more_ns']), row['late_category'])}",
    }
    if row["against"] == "late" and row.get("class") == "opportunity":
        return f"{who} has more work than its peers, which wait {duration(row['more_ns'])} for it"
    slowly = f"computes slowly{in_steps(row['slow_steps'])}: the same kernels take {times}"
    return f"{who} {says.get(row['against'].removesuffix(' of stages'), slowly)}"


def _detail(row: Row) -> str:
    maybe = f"; {MAY_BE_WORK}" if _may_be_work(row) else ""
    if row["against"] == "late":
        last = f"last in {row['last']} of {row['communications']} communications with its peers"
        work = ""
        if row.get("class") == "opportunity":
            work = f"{_MORE[row['work_by']].format(row['work'])} as those of the median peer; "
        return f"{work}{last}; {share_of_step(row['value'], row['steps'])}{maybe}"
    of_stages = row["against"] in ("stages", "memory of stages")
    than = "the mean stage" if of_stages else f"the median of {counted(row['peers'], 'peer', 'peers')}"
    more = f"{duration(row['more_ns'])} more than {than}"
    match row["against"]:
        case "memory" | "memory of stages":
            return f"{more}; no other kernels take longer"
        case "algorithm":
            return f"it runs {row['kernel']}, which none of its peers runs: {more}"
        case "extra":
            return f"it runs all kernels of its peers and others as well, mostly {row['kernel']}: {more}"
    shown = f"; {row['kind_evidence']}{_MEANINGS.get(row['kind'], '')}" if row.get("kind_evidence") else ""
    return f"{more}{shown}{maybe}"


_MEANINGS = {
    SlowKind.GPU: ": the whole GPU is slow",
    SlowKind.CORE_CLOCK: ": its core clock is low",
    SlowKind.MEMORY: ": its memory is slow",
    SlowKind.THROTTLING: ": it is throttled",
}
"""What the evidence of a kind says."""

_MORE = {
    "sizes": "the inputs of its kernels' operators have {:.2f} times as many elements",
    "messages": "its messages within layers have {:.2f} times as many elements",
    "grids": "its kernels run {:.2f} times as many thread blocks",
}


def _may_be_work(row: Row) -> bool:
    """Whether a slow GPU cannot be distinguished from one that has more to do."""
    computes = row["against"] == "peers" or str(row["late_category"]).endswith("_computation")
    return row["against"] in ("peers", "late") and computes and row["work_by"] is None


_REMEDY = (
    "Compare the clocks, power limit and temperature of that GPU with its neighbours' (nvidia-smi -q -d "
    "PERFORMANCE,CLOCK), look for another process on it, and take it out of the job if it stays slow."
)

_OF_LATE = {
    "host": "Look at that rank's host, not its GPU: what it runs while its peers have launched already (table "
    "gpu_gaps, caller and doing), other processes on its cores, and where it is pinned (numactl, taskset).",
    "idle": "Its work had been launched and its GPU did not run it: look for waits between streams (capture with "
    "cuda_sync rows) and for another process on that GPU (nvidia-smi).",
    "memory": "Look at that rank's copies: pageable memory, and the width and rate of its PCIe link (nvidia-smi -q).",
    "computation": "The same kernels were not found slow enough there to explain it: see whether it has more of them, "
    "such as longer sequences, packing that differs or more tokens for its experts (capture with shapes, which "
    "show these), or work of its own such as logging or checkpoints.",
    "communication": "It comes late out of other communication: traceviz waits says whom it waited for there.",
    "unclassified": "See what that rank runs before its peers wait for it (traceviz waits, table kernels): the trace "
    "does not show what that work is for.",
}
"""What to do about a rank that comes late, by the last word of what it did meanwhile."""


_OF_KINDS = {
    "memory": "Test that GPU's memory (nvidia-smi -q -d ECC,CLOCK: memory clock, remapped rows; dcgmi diag -r 3), and "
    "look for another process that uses it.",
    "extra": launch_bound.EXTRA,
    "algorithm": "Compare that rank's libraries and settings with its peers' (cuBLAS, Transformer Engine, "
    "CUBLAS_WORKSPACE_CONFIG, NVTE_ variables, autotuning caches, free memory for workspaces): rule environment lists "
    "differences that the traces record.",
}
_OF_KINDS["memory of stages"] = _OF_KINDS["memory"]
_OF_CLOCK = (
    "Compare that GPU's core clock, power limit and temperature with its neighbours' while they compute (nvidia-smi -q "
    "-d PERFORMANCE,CLOCK,POWER,TEMPERATURE): reset locked clocks (nvidia-smi -rgc) and the power limit, and clean its "
    "cooling."
)
_OF_THROTTLING = (
    "Record clocks, power and temperature of that GPU over a step (nvidia-smi --query-gpu=clocks.sm,power.draw,"
    "temperature.gpu,clocks_event_reasons.active --format=csv -lms 20): it is throttled for a part of the time."
)
_OF_KINDS |= {
    "arithmetic": _OF_CLOCK,
    "part": _OF_THROTTLING,
    "kernel": "Compare that rank's inputs and libraries with its peers': one kernel takes longer there, and no others.",
}
_UNEVEN = (
    "Sequences or packing give that rank more work, which is no fault of its GPU: sort or pack sequences so that "
    "data-parallel ranks get as many tokens."
)


def _remedy(row: Row) -> str:
    if row["against"] == "late" and row.get("class") == "opportunity":
        return _UNEVEN
    if row["against"] == "peers":
        of_kind: dict[str, str] = {SlowKind.CORE_CLOCK: _OF_CLOCK, SlowKind.THROTTLING: _OF_THROTTLING}
        return of_kind.get(row.get("kind") or "", _REMEDY)
    if row["against"] != "late":
        return _OF_KINDS.get(row["against"], _REMEDY)
    kinds = [kind for kind in _OF_LATE if kind in (row["late_category"] or "unclassified")]
    return _OF_LATE[kinds[0]]


def _edit(row: Row) -> EditKey | None:
    if row["work_by"] == "sizes" and row["class"] == "opportunity":
        return None
    return EditKey("fix_rank" if row["against"] in ("late", "extra") else "fix_gpu", rank=row["rank"])


RULE = Rule(
    name="slow_rank",
    of_class=FindingClass.FAULT,
    question="Which rank is slow, by its kernels or by coming late?",
    remedy=_REMEDY,
    remedy_of=_remedy,
    sql=_SQL,
    measure="times as long; of a late rank, share of the step",
    sentence=_sentence,
    detail=_detail,
    edit=_edit,
    # Where its host does not pause, fixing the GPU is all that fixing the rank does.
    otherwise=lambda row: None if _edit(row) is None else EditKey("fix_rank", rank=row["rank"]),
    unpredicted="fixing the rank would leave it the work, and no edit spreads sequences anew",
    places=Places(_PLACES),
    unable_sql="""
SELECT 'no kernel ran equally often on all ranks of a stage' AS reason
WHERE NOT EXISTS (FROM rank_speeds WHERE run = $run AND iteration = $iteration AND items > 0)
    AND NOT EXISTS (FROM stage_speeds WHERE run = $run AND iteration = $iteration)
""",
)
