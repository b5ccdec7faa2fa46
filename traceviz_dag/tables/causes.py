"""What limits a step's time: the edges of its graph, its critical path, and what fixing something would gain."""

from __future__ import annotations

from traceviz_dag.tables.schema import BIGINT, BOOLEAN, BY_ITERATION, DICTIONARY, DOUBLE, INTEGER, TEXT, Column, Table

_STEP = Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none.")

PATH_EDGES = Table(
    "path_edges",
    "A kernel or a host that waited for a kernel of another stream of its rank. Order within a stream is in kernels.",
    BY_ITERATION,
    (
        _STEP,
        Column("rank", BIGINT, "The global rank."),
        Column("kind", DICTIONARY, "event: a kernel waited; synchronisation: the host did."),
        Column(
            "edge_evidence",
            DICTIONARY,
            "recorded, inferred (holds for 99.5 % of its class), order (a host thread), or unknown: of the other end "
            "nothing shows.",
        ),
        Column("waiting_kernel_id", BIGINT, "The kernel that waited; NULL for the host, and where unknown."),
        Column("waited_for_kernel_id", BIGINT, "The kernel that was waited for; NULL where unknown."),
        Column(
            "waiting_ns",
            BIGINT,
            "Start of the kernel that waited, or return of the host's call, ns; NULL where unknown.",
        ),
        Column("ended_ns", BIGINT, "End of the kernel that was waited for, ns, on the same clock; NULL where unknown."),
    ),
    how="Why a kernel or host began when it did. `edge_evidence` says what is known: `recorded` is certain, "
    "`unknown` is named as such.",
    commands=("critical-path",),
)

PATH_SEGMENTS = Table(
    "path_segments",
    "A segment of a step's critical path, in the order of time. Durations add up to the step, to the nanosecond.",
    BY_ITERATION,
    (
        _STEP,
        Column("segment", BIGINT, "Its place on the path, from 0."),
        Column("rank", BIGINT, "The global rank that the path runs on."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("kernel_id", BIGINT, "Kernel that runs, or that its lag holds up; NULL for the host."),
        Column(
            "cause", DICTIONARY, "work, transfer, unmatched, host, launch, synchronisation, unexplained or late_begin."
        ),
        Column("entered_by", DICTIONARY, "What the segment waited for last: stream, event, launch, host, arrival ..."),
        Column("category", DICTIONARY, "Category of the kernel; NULL for the host."),
        Column("dimension", DICTIONARY, "Parallel dimension of a communication; NULL for others."),
        Column("phase", DICTIONARY, "Phase of the kernel; NULL for the host."),
        Column("chunk", INTEGER, "Model chunk, from 0; NULL where none."),
        Column("microbatch", INTEGER, "Micro-batch, from 0; NULL where none."),
        Column("module", DICTIONARY, "Innermost nn.Module around the launch; NULL where unknown."),
        Column("start_ns", BIGINT, "Start, ns on the rank's clock."),
        Column("duration_ns", BIGINT, "Duration, ns."),
    ),
    how="Read in the order of `segment`: durations add up to the step. `cause` says why the path is there, `rank`"
    " where; where it moves to another rank, that one was waited for.",
    commands=("critical-path",),
)

PATH_ITEMS = Table(
    "path_items",
    "A micro-batch's forward or backward step on a rank: how much of it is on the critical path, and its slack.",
    BY_ITERATION,
    (
        _STEP,
        Column("rank", BIGINT, "The global rank."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("chunk", INTEGER, "Model chunk, from 0; NULL for work outside micro-batches."),
        Column("microbatch", INTEGER, "Micro-batch, from 0; NULL for work outside micro-batches."),
        Column("phase", DICTIONARY, "Phase of its kernels."),
        Column("own_ns", BIGINT, "Sum of its kernels that wait for no other rank, ns."),
        Column("path_ns", BIGINT, "Time of its kernels on the critical path, ns."),
        Column(
            "slack_ns", BIGINT, "By how much one of its kernels may end later, at least, without a longer step, ns."
        ),
        Column("critical", BOOLEAN, "Whether its slack is within 1 % of the step."),
    ),
    how="With `slack_ns` 0, any delay of it makes the step longer. A large slack means that hurrying it saves nothing.",
    commands=("critical-path",),
)

CRITICAL_IMBALANCE = Table(
    "critical_imbalance",
    "A category in a step: what of it runs on the critical path beyond what the mean rank runs. The host has none.",
    BY_ITERATION,
    (
        _STEP,
        Column("category", DICTIONARY, "Category of the kernels."),
        Column(
            "path_ns",
            BIGINT,
            "Time of its kernels on the critical path, ns: causes work, transfer and unmatched, without lags.",
        ),
        Column("mean_ns", BIGINT, "Time in which a rank runs it without waiting for others, mean of the ranks, ns."),
        Column("ranks", BIGINT, "How many ranks that is the mean of."),
        Column("imbalance_ns", BIGINT, "path_ns less mean_ns, ns; 0 where that is below 0."),
    ),
    how="High `imbalance_ns` says that the path runs more of the category than ranks usually do: spread it evenly.",
    commands=("critical-path",),
)

EFFICIENCIES = Table(
    "efficiencies",
    "A factor of a step's parallel efficiency (POP): the time without a loss over the time with it. Factors multiply.",
    BY_ITERATION,
    (
        _STEP,
        Column("replica", INTEGER, "The model replica whose ranks count; NULL for all ranks."),
        Column("ranks", BIGINT, "How many ranks count; NULL where refused."),
        Column(
            "factor",
            DICTIONARY,
            "parallel_efficiency = load_balance x serialisation x transfer x host; load_balance = between_stages x "
            "within_stages; transfer = the product over its dimensions.",
        ),
        Column("dimension", DICTIONARY, "Dimension whose transfers it is of; NULL for all else."),
        Column("parent", DICTIONARY, "The factor that it is a part of; NULL for parallel_efficiency."),
        Column("value", DOUBLE, "ideal_ns / time_ns: 1 loses nothing; NULL where not known."),
        Column("ideal_ns", BIGINT, "The time without this loss, ns; first the mean useful time of a rank."),
        Column("time_ns", BIGINT, "The time with it, ns: the next factor's ideal_ns; of the last one the step."),
        Column("lost_ns", BIGINT, "time_ns less ideal_ns; below 0 where the replay is slower than the step was."),
        Column("reason", TEXT, "Why it is not known; NULL where it is."),
    ),
    how="Rows with `replica` NULL are of all ranks. `lost_ns` says what of the step each factor loses; factors multiply"
    " to the parallel efficiency, the losses add up. `parent` says what a row is a part of.",
    commands=("efficiencies",),
)

DELAY_COSTS = Table(
    "delay_costs",
    "What waits of ranks for one another cost, charged through chains to the first cause. A cost is no gain.",
    BY_ITERATION,
    (
        _STEP,
        Column("rank", BIGINT, "The rank that made others wait; NULL where nothing shows who did."),
        Column("stage", INTEGER, "Stage of the rank; NULL where unknown."),
        Column(
            "cause",
            DICTIONARY,
            "What it did longer than those that waited: computation, communication, memory, host or unexplained; "
            "unknown where the communication lacks members.",
        ),
        Column("cost_ns", BIGINT, "Time of all ranks that waits by it took, ns; adds up to all waits of the step."),
        Column("direct_ns", BIGINT, "Of it: waits for this rank, ns."),
        Column("passed_on_ns", BIGINT, "Of it: waits for ranks that waited for this one, ns."),
    ),
    how="Sort by `cost_ns`: the costs of a step add up to all its waits, each charged to its first cause. "
    "`passed_on_ns` came through ranks that waited themselves. A cost is no gain: `what_if` says what "
    "fixing the rank saves.",
    commands=("waits",),
)

WHAT_IF = Table(
    "what_if",
    "What an edit of the step would gain, as the replay predicts it. Gains of several edits do not add up.",
    BY_ITERATION,
    (
        _STEP,
        Column(
            "edit",
            TEXT,
            "fix_rank, fix_gpu, fix_ranks, fix_group, fix_node, fix_link, fix_links, even_layers, equal_stages, "
            "equal_ranks, no_jitter, no_pauses, no_hidden_waits, host_free, balanced_experts, no_congestion, hide or "
            "faster; NULL where the whole step is refused.",
        ),
        Column("rank", BIGINT, "The rank that is fixed, or whose links are; NULL for other edits."),
        Column("ranks", TEXT, "The ranks that are fixed together, such as 0-3, 6; NULL for other edits."),
        Column("dimension", TEXT, "The dimension that is hidden or faster, or all; NULL for other edits."),
        Column("factor", DOUBLE, "How many times faster; NULL for other edits."),
        Column("step_ns", BIGINT, "The step as it was, ns: from its start on the host to the end of its last kernel."),
        Column("predicted_step_ns", BIGINT, "The step as the replay of the edit predicts it, ns."),
        Column("gain_ns", BIGINT, "step_ns less predicted_step_ns; below 0 where the step would be longer."),
        Column("gain_low_ns", BIGINT, "Lower end of the error bar, ns: of replays with and without the host's lags."),
        Column("gain_high_ns", BIGINT, "Upper end of the error bar, ns."),
        Column(
            "untouched_share",
            DOUBLE,
            "Of fix_link and fix_links, the share of the transfers' time that stays: no similar transfer shows what is "
            "usual in its dimensions. NULL for other edits.",
        ),
        Column("replay_error", DOUBLE, "Step replayed without lags over step_ns, less 1: what lags are of it."),
        Column("refusal", TEXT, "Why nothing can be predicted; NULL where it is."),
    ),
    how="`gain_ns` between `gain_low_ns` and `gain_high_ns`. Gains of several edits do not add up.",
    commands=("what-if",),
)


ADVICE = Table(
    "advice",
    "A change of schedule, chunks, layers, recomputation, micro-batches or order of ranks, and its predicted step.",
    BY_ITERATION,
    (
        _STEP,
        Column("place", BIGINT, "Its place among the changes, from 1: the fastest of the same batch first."),
        Column("microbatches", BIGINT, "Micro-batches of a step, where they change; NULL elsewhere."),
        Column(
            "schedule",
            TEXT,
            "1f1b, zero-bubble, interleaved, interleaved-overlapped or combined-1f1b, where named; NULL elsewhere.",
        ),
        Column("chunks", BIGINT, "Model chunks of each stage, where they change; NULL elsewhere."),
        Column("layers", TEXT, "Layers of each stage, such as 7,8,8,7, where they change; NULL elsewhere."),
        Column("no_recompute", TEXT, "Stages that recompute nothing, such as 0,1; NULL where recomputation stays."),
        Column("rank_order", TEXT, "Order of ranks on nodes, tp-dp-pp or tp-pp-dp, where it changes; NULL elsewhere."),
        Column("step_ns", BIGINT, "The step as it was, ns; NULL where refused."),
        Column("predicted_step_ns", BIGINT, "The step as the replay of its items predicts it, ns; NULL where refused."),
        Column("low_ns", BIGINT, "Lower end of its error bar, ns."),
        Column("high_ns", BIGINT, "Upper end of its error bar, ns."),
        Column("tokens_per_second", DOUBLE, "Tokens per second over those of the step as it was."),
        Column("same_batch", BOOLEAN, "Whether the global batch stays; NULL where refused."),
        Column("wins", BOOLEAN, "Whether it gains over 1 % with the same batch; memory is not looked at."),
        Column("in_flight", TEXT, "Per stage, the most micro-batches whose activations it keeps, such as 4,3,2,1."),
        Column("megatron_lm", TEXT, "Flags of Megatron-LM that make it."),
        Column("megatron_bridge", TEXT, "Settings of Megatron Bridge that make it."),
        Column("assumptions", TEXT, "What was assumed; empty where nothing was."),
        Column("refusal", TEXT, "Why nothing can be advised of the step; NULL where it can."),
    ),
    how="Sort by `place`. `predicted_step_ns` between `low_ns` and `high_ns`; where no row `wins`, nothing is "
    "predicted to gain over 1 %. Flags are in `megatron_lm` and `megatron_bridge`.",
    commands=("advise",),
)


ADVICE_ITEMS = Table(
    "advice_items",
    "A forward or backward step of the pipeline that ends last, as replayed: now, and with the best three changes.",
    BY_ITERATION,
    (
        _STEP,
        Column("place", BIGINT, "Place of the change in table advice; 0 for now."),
        Column("stage", INTEGER, "Pipeline stage."),
        Column("chunk", INTEGER, "Model chunk, from 0."),
        Column("microbatch", INTEGER, "Micro-batch, from 0."),
        Column("phase", DICTIONARY, "forward or backward."),
        Column("start_ns", BIGINT, "Start from the begin of the step, ns."),
        Column("duration_ns", BIGINT, "Duration, ns."),
    ),
    how="`place` 0 is the step as it is; the others are places of table `advice`. Times are of a replay, not measured.",
    commands=("advise",),
)

PATH_OF_KERNELS = ("work", "transfer", "unmatched")
"""Causes in rows of ``path_segments`` in which a kernel runs."""

PATH_CATEGORY_SQL = f"CASE WHEN cause IN {PATH_OF_KERNELS} THEN coalesce(category, 'unclassified') END"
"""The category of the kernel that runs in a row of ``path_segments``; NULL where none does."""

PATH_WHAT_SQL = f"coalesce({PATH_CATEGORY_SQL}, cause)"
"""What a row of ``path_segments`` is: the category of a kernel that runs, else the cause: the host, or a lag."""

PATH_HOSTS_SQL = """
WITH launched AS (
    SELECT run, iteration, rank, kernel_id, launch_start_ns AS until_ns, coalesce(operator, launch_name) AS operation,
        module
    FROM kernels WHERE launch_start_ns IS NOT NULL
),
gaps AS (
    SELECT run, iteration, rank, kernel_id, arg_max(caller, doing_ns) AS caller,
        arg_max(doing, doing_ns) FILTER (host_work IS NOT NULL) AS pause
    FROM gpu_gaps WHERE kernel_id IS NOT NULL GROUP BY ALL
),
on_host AS (
    SELECT run, iteration, step, rank, start_ns, start_ns + duration_ns AS end_ns, row_number() OVER () AS host
    FROM path_segments WHERE cause = 'host'
),
pieces AS (
    SELECT on_host.*, kernel_id, operation, module, until_ns,
        until_ns - lag(until_ns, 1, start_ns) OVER (PARTITION BY host ORDER BY until_ns, kernel_id) AS piece_ns
    FROM on_host JOIN launched USING (run, iteration, rank)
    WHERE until_ns > start_ns AND until_ns <= end_ns
),
rest AS (
    SELECT run, iteration, step, rank, end_ns - coalesce(last_ns, start_ns) AS piece_ns
    FROM on_host LEFT JOIN (SELECT host, max(until_ns) AS last_ns FROM pieces GROUP BY host) USING (host)
)
SELECT run, iteration, step, rank, caller, module, coalesce(pause, operation) AS operation,
    CAST(sum(piece_ns) AS BIGINT) AS path_ns, count(kernel_id) AS launches
FROM (
    SELECT run, iteration, step, rank, kernel_id, operation, module, piece_ns FROM pieces
    UNION ALL BY NAME SELECT * FROM rest
) LEFT JOIN gaps USING (run, iteration, rank, kernel_id)
WHERE piece_ns > 0 GROUP BY ALL
"""
"""Rows of the view ``path_hosts``, from ``path_segments``, ``kernels`` and ``gpu_gaps``: a host's time is cut at its
launches, of all threads, and each piece is of the launch that ends it."""
