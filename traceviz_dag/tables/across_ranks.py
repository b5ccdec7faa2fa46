"""What only all ranks together show: matched collectives, clocks, pipelines and periods."""

from __future__ import annotations

import pyarrow as pa

from traceviz_dag.tables.schema import (
    BIGINT,
    BOOLEAN,
    BY_ITERATION,
    DICTIONARY,
    DOUBLE,
    INTEGER,
    RANKS,
    TEXT,
    Column,
    Table,
)

_BEYOND = "against its peers longer than these since they met, ns; negative where shorter"
"""The late parts of a wait compare two ranks: they add up to it, and one of them may be negative."""

COLLECTIVES = Table(
    "collectives",
    "One rank's part in one communication: when it came, how long it waited for the last one, how long it transferred.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("kernel_id", BIGINT, "Its kernel in table kernels."),
        Column("communication", BIGINT, "Number of the matched communication in the iteration; NULL where unmatched."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column("operation", DICTIONARY, "all_reduce, all_gather, reduce_scatter, all_to_all, send, recv ..."),
        Column("dimension", DICTIONARY, "Parallel dimension."),
        Column("phase", DICTIONARY, "Phase of the code that launched it."),
        Column("stage", INTEGER, "Stage of the rank; NULL where the topology is unknown."),
        Column("group_name", DICTIONARY, "Process group (pg_name); NULL where the trace does not name it."),
        Column("group_description", DICTIONARY, "Description of the process group."),
        Column("members", INTEGER, "Ranks that take part; for messages the rank and its peers; NULL where unknown."),
        Column("members_found", INTEGER, "Ranks whose kernel was found, this one included."),
        Column(
            "may_meet",
            BIGINT,
            "Number of the set of kernels that it met, or a part of it, by ends that agree; NULL where not known. It "
            "serves the replay; without a communication there is no wait.",
        ),
        Column(
            "matched_by",
            DICTIONARY,
            "What decided the match: sequence, order, schedule, peers, ends ... or none.",
        ),
        Column("fault", DICTIONARY, "Why it is not matched, or not wholly; NULL where nothing is wrong."),
        Column("scope", DICTIONARY, "intra_node or inter_node; NULL where the nodes are unknown."),
        Column("arrival_ns", BIGINT, "Start of its kernel, ns on the rank's own clock."),
        Column("duration_ns", BIGINT, "Duration of its kernel, ns."),
        Column("wait_ns", BIGINT, "Last arrival minus its own, clocks as recorded, ns; NULL where impossible."),
        Column("transfer_ns", BIGINT, "Duration minus wait_ns, ns."),
        Column("last_rank", BIGINT, "The last to arrive, clocks as recorded."),
        Column("wait_aligned_ns", BIGINT, "wait_ns on solved clocks, ns; NULL where they are refused."),
        Column("transfer_aligned_ns", BIGINT, "Duration minus wait_aligned_ns, ns."),
        Column("last_rank_aligned", BIGINT, "The last to arrive on solved clocks."),
        Column(
            "ahead",
            BOOLEAN,
            "Whether it waits for nobody, though others take part: a buffered send, or the root of a broadcast that "
            "ended before the last had come. NULL where the clocks are refused.",
        ),
        Column("wait_by_duration_ns", BIGINT, "Duration minus the members' shortest, ns; NULL if ends may differ."),
        Column("last_rank_by_duration", BIGINT, "The member with the shortest duration."),
        Column("recorded_refusal", DICTIONARY, "Why a matched row has no wait_ns; NULL where it has one."),
        Column("aligned_refusal", DICTIONARY, "Why a matched row has no wait_aligned_ns; NULL where it has one."),
        Column("clocks", DICTIONARY, "Behind all later columns: solved, or durations, which need none; else NULL."),
        Column(
            "last_transfer_ns",
            BIGINT,
            "Transfer of the last to arrive, ns: that of the communication itself; NULL where members are missing.",
        ),
        Column("bytes", BIGINT, "Message size as nccl-tests counts it; NULL where unknown."),
        Column("algorithm_gb_per_s", DOUBLE, "Algorithm bandwidth: bytes / last_transfer_ns, GB/s."),
        Column("bus_gb_per_s", DOUBLE, "Bus bandwidth by the factors of nccl-tests, GB/s."),
        Column("hidden_wait_ns", BIGINT, "Part of the wait beside computation of the rank, ns."),
        Column("exposed_wait_ns", BIGINT, "The rest of the wait, ns."),
        Column("hidden_transfer_ns", BIGINT, "Part of the transfer beside computation of the rank, ns."),
        Column("exposed_transfer_ns", BIGINT, "The rest of the transfer, ns."),
        Column("late_compute_ns", BIGINT, f"Of the wait: the last rank computed, {_BEYOND}."),
        Column(
            "late_communication_ns",
            BIGINT,
            f"Of the wait: the last rank was in other communication only, {_BEYOND}. And what no part explains.",
        ),
        Column("late_memory_ns", BIGINT, f"Of the wait: the last rank did memory operations only, {_BEYOND}."),
        Column(
            "late_host_ns",
            BIGINT,
            f"Of the wait: the last rank's GPU idled and its host had not launched yet, {_BEYOND}.",
        ),
        Column(
            "late_idle_ns", BIGINT, f"Of the wait: the last rank's GPU idled although the host had launched, {_BEYOND}."
        ),
        Column(
            "late_since_ns",
            BIGINT,
            "From when to the arrival of the last rank its late parts are counted, ns on its own clock; NULL where "
            "nothing waited.",
        ),
        Column("late_category", DICTIONARY, "What the last rank did longest: a kernel category, host or idle."),
    ),
    how="A row with `fault` is not matched, or not wholly. Read waits as the columns after `clocks` have them: "
    "they rest on solved clocks, else on durations; `wait_ns` is that of clocks as recorded, which may be "
    "wrong.",
    commands=("waits",),
)

RANK_CLOCKS = Table(
    "rank_clocks",
    "One rank's clock against the common one: aligned = t - offset_ns - drift_ppm * 1e-6 * (t - reference_ns).",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("component", INTEGER, "Ordinal of the connected component of matches; offsets exist inside one only."),
        Column("reference_rank", BIGINT, "Rank of the component whose clock is the common one."),
        Column("offset_ns", BIGINT, "What the rank's clock is ahead of the common one, ns; NULL where refused."),
        Column("drift_ppm", DOUBLE, "How much faster it runs, ppm; NULL where the evidence is too short."),
        Column("reference_ns", BIGINT, "Instant at which the offset holds, ns."),
        Column("matches", BIGINT, "Matched communications of the rank that the solution rests on."),
        Column("span_ns", BIGINT, "From the first of them to the last, ns."),
        Column("residual_p05_ns", BIGINT, "5th percentile of its aligned end minus the members' median, ns."),
        Column("residual_p95_ns", BIGINT, "95th percentile of the same, ns."),
        Column(
            "early_receives",
            BIGINT,
            "Receives that end before their send starts on aligned clocks: clocks or matches are wrong.",
        ),
        Column("refusal", TEXT, "Why there is no offset; NULL where there is one."),
    ),
    how="Subtract `offset_ns` to put a time of the rank on the common clock. Offsets exist within a `component` "
    "only. Residuals near 0 say that the clocks agree.",
    commands=("clocks",),
)

PIPELINES = Table(
    "pipelines",
    "One stage of one pipeline group in one training step: its span, its bubble in parts that add up, its idle time.",
    BY_ITERATION,
    (
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where the file has none."),
        Column("pipeline", INTEGER, "Ordinal of the pipeline group."),
        Column("stage", INTEGER, "Position in the pipeline, from 0."),
        Column("stages", INTEGER, "Stages of the pipeline."),
        Column("chunks", INTEGER, "Model chunks per stage."),
        Column("rank", BIGINT, "The global rank."),
        Column("dense_replica", INTEGER, "Dense replica of the rank; NULL where unknown."),
        Column("schedule", TEXT, "1f1b, interleaved, combined, forward_only or other, as the order of work shows."),
        Column("microbatches", INTEGER, "Micro-batches per step, m."),
        Column("span_ns", BIGINT, "T: first forward start to last backward end, ns."),
        Column("ideal_ns", BIGINT, "T0: m times the mean forward and backward time over all stages, ns."),
        Column("bubble_ns", BIGINT, "T - T0, ns: against the mean stage, so not this stage's idle time."),
        Column("fill_drain_ns", BIGINT, "Of the bubble: filling and draining the pipeline with equal stages, ns."),
        Column("imbalance_ns", BIGINT, "Of the bubble: stages differ from each other, ns; negative where it helps."),
        Column("jitter_ns", BIGINT, "Of the bubble: micro-batches differ from each other, ns; may be negative."),
        Column("stall_ns", BIGINT, "Of the bubble: transfers between stages and everything else, ns."),
        Column("bubble_share", DOUBLE, "bubble / T."),
        Column("ideal_share", DOUBLE, "Bubble share of a perfect schedule with equal stages: fill / (m + fill)."),
        Column("busy_ns", BIGINT, "Time inside forward and backward steps of the stage, ns."),
        Column("idle_ns", BIGINT, "T - busy, ns: no micro-batch runs."),
        Column("idle_share", DOUBLE, "idle / T; not the bubble, which is measured against the mean stage."),
        Column("warmup_idle_ns", BIGINT, "Of the idle time: before the first backward step, ns."),
        Column("steady_idle_ns", BIGINT, "Of the idle time: from the first backward to the last forward step, ns."),
        Column("cooldown_idle_ns", BIGINT, "Of the idle time: after the last forward step, ns."),
        Column("forward_ns", BIGINT, "Mean forward time per micro-batch over all chunks, ns; NULL where combined."),
        Column("backward_ns", BIGINT, "Mean backward time per micro-batch over all chunks, ns; NULL where combined."),
        Column("microbatch_ns", BIGINT, "Mean forward and backward time per micro-batch over all chunks, ns."),
        Column("refusal", TEXT, "Why the parts of the bubble are NULL; NULL where they are there."),
    ),
    how="Fill and drain, imbalance, jitter and stall add up to `bubble_ns`. The bubble is measured against the "
    "mean stage; `idle_ns` is the stage's own time without a micro-batch, and is not the bubble.",
    commands=("pipelines",),
)

PERIODS = Table(
    "periods",
    "One unit of a repeating pair of stages: its period, both busy times, and how much of them must have overlapped.",
    BY_ITERATION,
    (
        Column("pair", TEXT, "Stages S and S+1, computation and a dimension, or the name that a file gives the pair."),
        Column("kind", TEXT, "stages, dimension or named."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where none."),
        Column("pipeline", INTEGER, "Ordinal of the pipeline group; NULL outside pipelines."),
        Column("stage", INTEGER, "Stage of stage0; NULL outside pipelines."),
        Column("rank", BIGINT, "Rank of stage0, on whose clock the period is."),
        Column("rank1", BIGINT, "Rank of stage1."),
        Column("dimension", TEXT, "Dimension of the communication that is stage1; NULL otherwise."),
        Column("unit", INTEGER, "Ordinal of the steady unit, from 0; NULL where there are none."),
        Column("chunk", INTEGER, "Chunk of the backward step that starts the unit; NULL where none."),
        Column("microbatch", INTEGER, "Micro-batch of the backward step that starts the unit; NULL where none."),
        Column("start_ns", BIGINT, "Start of the unit, ns on the clock of rank."),
        Column("period_ns", BIGINT, "Start of the next unit minus start, ns."),
        Column("stage0_ns", BIGINT, "Busy time of stage0 in the unit, ns."),
        Column("stage1_ns", BIGINT, "Busy time of stage1 in the unit, ns."),
        Column("derived_hidden_ns", BIGINT, "stage0 + stage1 - period, ns: net of gaps, so not a measured overlap."),
        Column("overlap_score", DOUBLE, "derived_hidden / min(stage0, stage1), not clamped; NULL where that is 0."),
        Column("refusal", TEXT, "Why there are no measures; NULL where there are."),
    ),
    how="A score of 1 says that the shorter of the pair is hidden, 0 that the two take turns; below 0 there are "
    "gaps. Compare units of one pair and stage.",
    commands=("periods", "gate --pairs pairs.toml"),
)

LATE_RANKS = Table(
    "late_ranks",
    "One rank: how much it delayed the peers of its own stage, and whether it is to blame for that.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("communications", BIGINT, "Communications among peers of its stage whose waits are known."),
        Column("last", BIGINT, "In how many of them it was the last to arrive."),
        Column(
            "delay_ns",
            BIGINT,
            "The longest waits for it, ns, one delay counted once: not a saving.",
        ),
        Column("own_ns", BIGINT, "Of it: the rank computed, copied, or had not launched beyond host jitter, ns."),
        Column(
            "own_share",
            DOUBLE,
            "own_ns as a share of the longest step; of several steps, that of the step in which it is greatest; NULL "
            "where the time of the step is unknown.",
        ),
        Column("steps", BIGINT, "Training steps of the iteration whose waits are known; 1 where none is marked."),
        Column("late_category", TEXT, "What it did longest meanwhile: a kernel category, host or idle."),
        Column("blamed", BOOLEAN, "Whether its own part is long in itself, and against all other ranks."),
    ),
    how="`own_ns` is the part of its delays that the rank caused itself. `blamed` is true where that is long in "
    "itself and against the others. A delay is not a saving: see `what_if`.",
    commands=("waits",),
)

BLAME = Table(
    "blame",
    "Who waited for whom, how long, and for what; without unknown waits and those with missing members.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The rank that waited."),
        Column("late_rank", BIGINT, "The rank that arrived last, on solved clocks or, without these, by durations."),
        Column("dimension", TEXT, "Parallel dimension of the communications."),
        Column("waits", BIGINT, "In how many communications the rank waited for it."),
        Column("wait_ns", BIGINT, "For how long in all, ns."),
        Column("late_compute_ns", BIGINT, f"Of it: the late rank computed, {_BEYOND}."),
        Column(
            "late_communication_ns",
            BIGINT,
            f"Of it: the late rank was in other communication only, {_BEYOND}. And what no part explains.",
        ),
        Column("late_memory_ns", BIGINT, f"Of it: the late rank did memory operations only, {_BEYOND}."),
        Column(
            "late_host_ns", BIGINT, f"Of it: the late rank's GPU idled and its host had not launched yet, {_BEYOND}."
        ),
        Column("late_idle_ns", BIGINT, f"Of it: the late rank's GPU idled although the host had launched, {_BEYOND}."),
        Column("clocks_solved", BOOLEAN, "Whether all of it rests on solved clocks; if not, some rests on durations."),
    ),
    how="The parts `late_…_ns` say what the late rank did meanwhile, and add up to `wait_ns`.",
    commands=("waits",),
)

LINKS = Table(
    "links",
    "The links of one rank, inside its node or out of it: its transfers against those of others of the same kind.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("scope", TEXT, "intra_node or inter_node; NULL where the nodes are unknown."),
        Column("dimensions", BIGINT, "Dimensions whose transfers could be compared."),
        Column("best_ratio", DOUBLE, "Lowest of the dimensions' ratios to the usual transfer; 1 is usual."),
        Column("worst_ratio", DOUBLE, "Highest of them."),
        Column("slow", BOOLEAN, "Whether the links are slow; NULL where they cannot be separated from those of or_of."),
        Column("or_of", RANKS, "Other ranks whose links may be the slow ones instead."),
    ),
    how="1 is the usual transfer; 2 takes twice as long. `or_of` names ranks whose links may be the slow ones instead.",
    commands=("waits",),
)

LINK_GROUPS = Table(
    "link_groups",
    "Ranks of a group whose transfers are slow, where other dimensions do not show whose link it is.",
    BY_ITERATION,
    (
        Column("dimension", TEXT, "The dimension that the group serves; NULL where unknown."),
        Column("scope", TEXT, "intra_node or inter_node; NULL where the nodes are unknown."),
        Column("ranks", TEXT, "Those of its ranks that no other group shows to be fast, such as 1, 3."),
        Column("members", RANKS, "The same as a list."),
        Column("rank", BIGINT, "That rank, where it is one alone; else NULL."),
        Column("of_ranks", BIGINT, "How many ranks the group has."),
        Column("transfers", BIGINT, "How many transfers of each of its ranks were compared."),
        Column("ratio", DOUBLE, "Its median transfer to that of like groups."),
    ),
    how="One of `ranks` has a slow link: the group's transfers take `ratio` times as long as those of like groups.",
    commands=("findings",),
)

EXPERT_LOADS = Table(
    "expert_loads",
    "The experts of one rank: the tokens that they took in all-to-alls, against its expert-parallel peers.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("exchanges", BIGINT, "Matched all-to-alls with message sizes."),
        Column("elements", BIGINT, "Elements that its experts took in all of them."),
        Column("load", DOUBLE, "elements against the mean of its peers; 1 is even."),
    ),
    how="A `load` of 1.5 says: half as many tokens again as the mean of its peers.",
    commands=("waits",),
)

_SHARES, _SCORE_SHARES = (50, 90, 99), (10, 50, 90)
PERIOD_PERCENTILES = Table(
    "period_percentiles",
    "Percentiles of each pair and stage over its steady window, which is first_unit to last_unit of each rank.",
    BY_ITERATION,
    (
        Column("kind", TEXT, "stages, dimension or named."),
        Column("pair", TEXT, "Stages S and S+1, computation and a dimension, or the name that a file gives the pair."),
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where none."),
        Column("stage", BIGINT, "Stage of stage0; NULL outside pipelines."),
        Column("ranks", BIGINT, "Ranks with measures."),
        Column("units", BIGINT, "Steady units of all of them."),
        Column("first_unit", BIGINT, "First unit of the steady window."),
        Column("last_unit", BIGINT, "Last unit of the steady window."),
        *(Column(f"period_p{share}_ns", BIGINT, f"{share}th percentile of the periods, ns.") for share in _SHARES),
        *(Column(f"stage{number}_p50_ns", BIGINT, f"Median busy time of stage{number}, ns.") for number in (0, 1)),
        *(Column(f"score_p{share}", DOUBLE, f"{share}th percentile of the OverlapScores.") for share in _SCORE_SHARES),
        Column("worst_rank", BIGINT, "The rank with the lowest median score."),
        Column("modes", TEXT, "A note where the periods have two modes."),
        Column("statement", TEXT, "What the percentiles say, in one sentence."),
        Column("refusal", TEXT, "Why no rank has measures; NULL where one has."),
        Column("ranks_without", BIGINT, "Ranks of the pair without measures."),
        Column("without", TEXT, "Each reason of these, with their ranks or pipelines, where others have measures."),
        Column("over_fewer_ranks", BOOLEAN, "Whether it is unknown what the ranks without measures would add."),
        Column("nothing_to_overlap", BOOLEAN, "No rank has measures, and each reason says that nothing could overlap."),
    ),
    how="`statement` says it in a sentence. If `modes` is not empty, the median lies between two groups and is no"
    " typical value.",
    commands=("periods",),
)

RANK_SPEEDS = Table(
    "rank_speeds",
    "One rank: how fast it computes, kernel by kernel, against the peers of its stage. This needs no clock.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("stage", BIGINT, "Stage of the rank; NULL where the topology is unknown."),
        Column("peers", BIGINT, "Ranks of its stage beside it."),
        Column(
            "items",
            BIGINT,
            "Kernels by name, operator, phase and step that all ranks of the stage ran equally often, or, by the sizes "
            "of their inputs where these were recorded, that it and another one ran.",
        ),
        Column("slower_items", DOUBLE, "Share of these in which it is slower than usual; NULL without items."),
        Column("ratio", DOUBLE, "Its time in all of them to that of the median peer; NULL without items."),
        Column("more_ns", BIGINT, "Its time less that of the median peer, ns; NULL without items."),
        Column(
            "work",
            DOUBLE,
            "How much more it has to do than the median peer, by what shows most of it; 1 where nothing differs; NULL "
            "where nothing shows.",
        ),
        Column(
            "work_by",
            TEXT,
            "What shows it: sizes (elements of its operators' inputs), messages (elements of those within layers) or "
            "grids (thread blocks of kernels whose number differs between ranks); NULL where nothing does.",
        ),
        Column("slow", BOOLEAN, "Whether it is slow in nearly all of them, beyond its work; NULL without items."),
        Column(
            "slow_in",
            TEXT,
            "all, memory (kernels bound by memory alone), arithmetic (products and attention alone), kernel (one "
            "alone), part (all, for a part of the time), algorithm (it runs other kernels instead of its peers') or "
            "extra (it runs its peers' kernels and others besides); NULL where it is not slow.",
        ),
        Column(
            "slow_steps",
            pa.list_(pa.int64()),
            "Training steps of several in which alone it is slow in nearly all kernels; else NULL.",
        ),
        Column(
            "slow_ratio",
            DOUBLE,
            "Time of the kernels that slow_in names, in slow_steps where it names steps, and of part from slow_from_ns "
            "to slow_to_ns, to that of the median peer; else NULL.",
        ),
        Column("slow_more_ns", BIGINT, "Their time less that of the median peer, ns; NULL where it is not slow."),
        Column("kernel", TEXT, "Where it runs other kernels, or one is slow: the longest of them; else NULL."),
        Column(
            "kind",
            TEXT,
            "What follows: gpu (all kernels alike), core_clock, memory, throttling (for a part of the time), kernel, "
            "algorithm, extra_work; of ranks that compute as their peers, link (table links) or host (late_ranks). "
            "NULL where nothing is slow, or nothing shows.",
        ),
        Column("kind_evidence", TEXT, "The measures that show the kind, in words; NULL without one."),
        Column("slow_from_ns", BIGINT, "Of throttling within a step: when it starts, ns from the step's first kernel."),
        Column("slow_to_ns", BIGINT, "When it stops, ns from the step's first kernel; NULL as slow_from_ns."),
    ),
    how="`ratio` compares the same kernels with those of the median peer of the stage: above 1 is slower. `slow` "
    "asks for nearly all kernels, so that one odd kernel blames no GPU. `kind` says why it is slow, and "
    "`kind_evidence` what shows it.",
    commands=("waits",),
)

CLASS_SPEEDS = Table(
    "class_speeds",
    "One rank's time for a class of work, to that of the median peer of its stage for the same work.",
    BY_ITERATION,
    (
        Column("rank", BIGINT, "The global rank."),
        Column("stage", BIGINT, "Stage of the rank; NULL where the topology is unknown."),
        Column(
            "work_class",
            TEXT,
            "products, attention, memory_bound (all other computation), by the names of kernels; or transfers (of "
            "communications, as table links compares them).",
        ),
        Column("items", BIGINT, "Kernels of the class that were compared, as items in table rank_speeds."),
        Column("slower_items", DOUBLE, "Share of these in which it is slower; NULL for transfers."),
        Column("ratio", DOUBLE, "Its time to that of the median peer; 1 is usual."),
        Column("more_ns", BIGINT, "Its time less that of the median peer, ns; NULL for transfers."),
    ),
    how="A rank that is above 1 in products alone has a low core clock, in memory-bound kernels alone slow memory, in "
    "all a slow GPU. `kind` of `rank_speeds` says what follows.",
    commands=("kernels", "findings"),
)

GROUP_SPEEDS = Table(
    "group_speeds",
    "Ranks that share hardware or a layer's work: how fast they compute together, against ranks outside.",
    BY_ITERATION,
    (
        Column("kind", TEXT, "tp (a tensor-parallel group), node or stage."),
        Column("ranks", TEXT, "Its ranks, such as 0-3, 6."),
        Column("members", RANKS, "The same as a list."),
        Column("stage", BIGINT, "Their pipeline stage; NULL where they are of several."),
        Column("slower_items", DOUBLE, "Of the rank that is slower in fewest: share of kernel names in which it is."),
        Column("ratio", DOUBLE, "Time of their kernels to that of the median rank outside; lowest of its ranks'."),
        Column("more_ns", BIGINT, "Their time less that of the median rank outside, the mean of its ranks, ns."),
        Column("slow", BOOLEAN, "Whether all its ranks are slow, and no larger such set holds them."),
    ),
    how="`ratio` compares all ranks of a tensor-parallel group, a node or a stage with ranks outside: above 1 is "
    "slower. `slow` asks it of every rank, and of the largest such set.",
    commands=("findings",),
)

STAGE_SPEEDS = Table(
    "stage_speeds",
    "A stage's computation in the micro-batches of a step, against the mean stage: what its excess consists of.",
    BY_ITERATION,
    (
        Column("stage", BIGINT, "Position in the pipeline, from 0."),
        Column("stages", BIGINT, "Stages of the job."),
        Column("ranks", BIGINT, "Its ranks that are counted: those that are slow among their peers are left out."),
        Column("rank", BIGINT, "Its rank, where it has only one; else NULL."),
        Column("compute_ns", BIGINT, "Sum of its kernels in the micro-batches of a step, mean of its ranks, ns."),
        Column("mean_ns", BIGINT, "The same, mean of all stages, ns."),
        Column("more_work_ns", BIGINT, "Of compute_ns - mean_ns: it runs kernels that all stages run more often, ns."),
        Column(
            "own_work_ns", BIGINT, "Of it: it runs kernels that not all stages run, or that do other work there, ns."
        ),
        Column(
            "unsure_ns",
            BIGINT,
            "Of own_work_ns: kernels that all stages run and that differ as no others do; no sizes say whether they do "
            "other work or they alone are slow, ns.",
        ),
        Column("slower_ns", BIGINT, "Of it: its kernels take longer than the same of other stages, ns."),
        Column(
            "ratio",
            DOUBLE,
            "Time of kernels that all stages run, to what they take on the median of the other stages; NULL without.",
        ),
        Column("slower_items", DOUBLE, "Share of these kernels in which it is slower; NULL without."),
        Column("memory_ratio", DOUBLE, "As ratio, of those that memory bounds; NULL without."),
        Column("memory_slower_items", DOUBLE, "Share of these in which it is slower; NULL without."),
        Column("arithmetic_ratio", DOUBLE, "As ratio, of products and attention; NULL without."),
    ),
    how="`more_work_ns`, `own_work_ns` and `slower_ns` say why a stage computes longer than the mean one: more of"
    " the same kernels, kernels that only it runs, slower kernels.",
    commands=("pipelines",),
)
"""What the same kernels are says ``analyze.slow_stages``. The three parts add up to compute_ns - mean_ns."""

UTILIZATION = Table(
    "utilization",
    "What GPUs really computed in a training step, of the job, a model replica, a stage or a rank, against their peak.",
    BY_ITERATION,
    (
        Column("step", BIGINT, "Number of the ProfilerStep; NULL where none is marked."),
        Column("part", TEXT, "job, replica (a model replica), stage or rank."),
        Column("number", BIGINT, "Number of the replica, stage or rank; NULL for the job."),
        Column("ranks", BIGINT, "Its ranks that are counted."),
        Column("gpus", BIGINT, "Ranks of the whole job, for part job; NULL where nothing states them."),
        Column("step_ns", BIGINT, "The longest window of the step over all ranks that are counted, ns."),
        Column("compute_ns", BIGINT, "Union of computation in the step, mean of its ranks, ns."),
        Column(
            "flops_per_gpu",
            BIGINT,
            "Hardware FLOPs: floating-point operations of all products, attention and convolutions that ran, recompute "
            "included, mean of its ranks; NULL where too many are unknown (hfu_refusal).",
        ),
        Column("recompute_flops_per_gpu", BIGINT, "Those of them in phase recompute; NULL as flops_per_gpu."),
        Column(
            "coverage",
            DOUBLE,
            "Share of the kernel time of products, attention and convolutions whose FLOPs are known; NULL without any.",
        ),
        Column(
            "model_flops_per_gpu",
            BIGINT,
            "As in table iterations, for part job; NULL where the job's settings do not show them.",
        ),
        Column(
            "tokens", BIGINT, "Tokens of the step of the whole job, for part job; NULL where no setting shows them."
        ),
        Column("tokens_per_s", DOUBLE, "tokens / (step_ns / 1e9); NULL where one is unknown, or no step is marked."),
        Column("gpu", TEXT, "GPU whose peaks are used, as the table of peaks names it; NULL if unknown."),
        Column("peak_format", TEXT, "Number format of the peak; NULL where nothing shows it."),
        Column(
            "peak_named_by",
            TEXT,
            "settings (the job's name the format) or operations (the one with the most FLOPs); NULL where none does.",
        ),
        Column("peak_flops_per_s", BIGINT, "Dense peak of one GPU in this format; NULL where unknown."),
        Column(
            "mfu",
            DOUBLE,
            "Model FLOP utilisation, for part job: model_flops_per_gpu / (step_ns / 1e9 * peak_flops_per_s); NULL "
            "where mfu_refusal says why.",
        ),
        Column("mfu_refusal", TEXT, "Why mfu is NULL, for part job; NULL where it is there."),
        Column(
            "hfu",
            DOUBLE,
            "Hardware FLOP utilisation: flops_per_gpu / (step_ns / 1e9 * peak_flops_per_s); NULL where hfu_refusal "
            "says why.",
        ),
        Column("hfu_refusal", TEXT, "Why hfu is NULL; NULL where it is there."),
        Column(
            "compute_utilization",
            DOUBLE,
            "The same in the time in which it computes: flops_per_gpu / (compute_ns / 1e9 * peak_flops_per_s). NULL "
            "where hfu is.",
        ),
    ),
    how="Take one `step` and `part`: `hfu` counts what was computed, recompute included, `mfu` what the model needs. "
    "A stage with a low `hfu` and a high `compute_utilization` has little to do; with both low, it computes badly.",
    commands=("utilization",),
)

MESSAGES = Table(
    "messages",
    "One point-to-point message: the kernels at its two ends. A kernel may carry several.",
    BY_ITERATION,
    (
        Column("sender_rank", BIGINT, "Rank that sends it."),
        Column("sender_kernel_id", BIGINT, "Its kernel in table kernels."),
        Column("receiver_rank", BIGINT, "Rank that receives it."),
        Column("receiver_kernel_id", BIGINT, "Its kernel in table kernels."),
        Column("communication", BIGINT, "Number of the communication in table collectives."),
        Column("carries", TEXT, "activation or gradient between pipeline stages; NULL elsewhere."),
        Column("virtual_stage", INTEGER, "Virtual stage that receives it; NULL outside pipelines."),
        Column("microbatch", INTEGER, "Its micro-batch; NULL outside pipelines."),
        Column(
            "buffered",
            BOOLEAN,
            "Whether its sender does not wait for its receiver: a send between these ranks ended before its receive "
            "began. NULL where the clocks of the two are not solved.",
        ),
    ),
    how="Join both kernel ids with `kernels`, by their ranks.",
)
