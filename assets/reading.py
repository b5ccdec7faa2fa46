"""The descriptions of assets: what a table or figure holds, how it is read, what NULL means, which command asks it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from assets.figure_assets import asset_of
from assets.plotted import PLOTS
from traceviz_dag.show.registry import FigureKind, figure_kinds
from traceviz_dag.tables import Table


@dataclass(frozen=True, slots=True)
class Reading:
    """How an asset is read.

    Attributes:
        how: sentences for who sees it for the first time.
        commands: those that show it, without the word traceviz.
    """

    how: str
    commands: tuple[str, ...] = ()


TABLES = {
    "traces": Reading(
        "`status` says whether a file was read: `partial` and `failed` come with `fault`, what is wrong and what "
        "to do. `classified_ns` over `kernel_ns` is how much of the kernel time has a category.",
        ("analyze",),
    ),
    "topology": Reading(
        "Ranks with equal coordinates but for one are a group of that dimension: those that differ in `tp` alone "
        "are a tensor-parallel group. Ranks of one `pipeline`, by `stage`, pass micro-batches on.",
        ("topology",),
    ),
    "process_groups": Reading(
        "`source` says who knows the group. Where another source contradicts it, `disagreement` says how, and the"
        " check `sources_agree` of `topology` warns.",
        ("topology",),
    ),
    "kernels": Reading(
        "`category` sums up kind, phase and dimension. `phase_evidence` and `dimension_evidence` say which "
        "observation decided; unknown stays `unknown`. Times are those of the rank's own clock: do not compare "
        "them between ranks.",
        ("classify", "overlap"),
    ),
    "microbatches": Reading(
        "Rows with dimension `all` measure the whole; those of one dimension repeat the computation beside it, so"
        " never add them up. `backward` includes `recompute`.",
        ("pipelines", "periods"),
    ),
    "synchronizations": Reading(
        "Who waits, a stream or the host, and for which kernel. Where only the host's call shows it, "
        "`evidence` is `order`.",
    ),
    "gpu_gaps": Reading(
        "`blocked_ns`, `starved_ns` and `unexplained_ns` add up to `duration_ns`: the GPU waited for something "
        "that still ran, for the host, or it is not known for what. `host_work` and `caller` name what the host "
        "did.",
        ("findings",),
    ),
    "operations": Reading(
        "Sort by `headroom_ns`: what perfect kernels save at most. `kernel_ns` is of all calls, `flops` and `bytes` "
        "are of one. Where one of these is NULL, `reason` says why.",
        ("kernels",),
    ),
    "overlap": Reading(
        "Take one window and one dimension: `hidden_ns` and `exposed_ns` add up to `communication_ns`. Rows of "
        "several dimensions do not add up to `all`, since communications run side by side.",
        ("overlap",),
    ),
    "contention": Reading(
        "`slowdown` compares kernels of one operation with the same input sizes: those that communication covers with "
        "those that run alone. Sort by `extra_ns`: what it costs in all.",
        ("kernels",),
    ),
    "overlap_savings": Reading(
        "`net_ns` is what hiding the communication saves: negative where it costs more. It is NULL where most of the "
        "computation beside it never runs alone.",
        ("overlap", "kernels"),
    ),
    "nvtx_ranges": Reading(
        "Ranges nest: `parent_id` leads to the one around. `busy_ns` is what the GPU did for it, whenever that was.",
        ("nsys tree", "nsys ranges"),
    ),
    "runs": Reading(
        "Look at `complete` first: if false, measures across ranks miss some. `parity` is false where ranks were "
        "captured in different modes, so that their times do not compare.",
    ),
    "iterations": Reading(
        "`step_ns` is the longest step over the ranks, the other times are means over the ranks. Iterations "
        "compare only where `covered_ranks` are the same. Every numeric column is plotted below, over the iterations. "
        "`mfu` counts what the model needs, without recompute, against the dense peak of all GPUs in `peak_format`; it "
        "takes the job's settings, which captures with traceviz's plugin keep.",
        ("iterations",),
    ),
    "collectives": Reading(
        "A row with `fault` is not matched, or not wholly. Read waits as the columns after `clocks` have them: "
        "they rest on solved clocks, else on durations; `wait_ns` is that of clocks as recorded, which may be "
        "wrong.",
        ("waits",),
    ),
    "rank_clocks": Reading(
        "Subtract `offset_ns` to put a time of the rank on the common clock. Offsets exist within a `component` "
        "only. Residuals near 0 say that the clocks agree.",
        ("clocks",),
    ),
    "late_ranks": Reading(
        "`own_ns` is the part of its delays that the rank caused itself. `blamed` is true where that is long in "
        "itself and against the others. A delay is not a saving: see `what_if`.",
        ("waits",),
    ),
    "blame": Reading(
        "The parts `late_…_ns` say what the late rank did meanwhile, and add up to `wait_ns`.",
        ("waits",),
    ),
    "links": Reading(
        "1 is the usual transfer; 2 takes twice as long. `or_of` names ranks whose links may be the slow ones instead.",
        ("waits",),
    ),
    "link_groups": Reading(
        "One of `ranks` has a slow link: the group's transfers take `ratio` times as long as those of like groups.",
        ("findings",),
    ),
    "expert_loads": Reading(
        "A `load` of 1.5 says: half as many tokens again as the mean of its peers.",
        ("waits",),
    ),
    "rank_speeds": Reading(
        "`ratio` compares the same kernels with those of the median peer of the stage: above 1 is slower. `slow` "
        "asks for nearly all kernels, so that one odd kernel blames no GPU. `kind` says why it is slow, and "
        "`kind_evidence` what shows it.",
        ("waits",),
    ),
    "class_speeds": Reading(
        "A rank that is above 1 in products alone has a low core clock, in memory-bound kernels alone slow memory, in "
        "all a slow GPU. `kind` of `rank_speeds` says what follows.",
        ("kernels", "findings"),
    ),
    "stage_speeds": Reading(
        "`more_work_ns`, `own_work_ns` and `slower_ns` say why a stage computes longer than the mean one: more of"
        " the same kernels, kernels that only it runs, slower kernels.",
        ("pipelines",),
    ),
    "group_speeds": Reading(
        "`ratio` compares all ranks of a tensor-parallel group, a node or a stage with ranks outside: above 1 is "
        "slower. `slow` asks it of every rank, and of the largest such set.",
        ("findings",),
    ),
    "utilization": Reading(
        "Take one `step` and `part`: `hfu` counts what was computed, recompute included, `mfu` what the model needs. "
        "A stage with a low `hfu` and a high `compute_utilization` has little to do; with both low, it computes badly.",
        ("utilization",),
    ),
    "pipelines": Reading(
        "Fill and drain, imbalance, jitter and stall add up to `bubble_ns`. The bubble is measured against the "
        "mean stage; `idle_ns` is the stage's own time without a micro-batch, and is not the bubble.",
        ("pipelines",),
    ),
    "periods": Reading(
        "A score of 1 says that the shorter of the pair is hidden, 0 that the two take turns; below 0 there are "
        "gaps. Compare units of one pair and stage.",
        ("periods", "gate --pairs pairs.toml"),
    ),
    "period_percentiles": Reading(
        "`statement` says it in a sentence. If `modes` is not empty, the median lies between two groups and is no"
        " typical value.",
        ("periods",),
    ),
    "messages": Reading(
        "Join both kernel ids with `kernels`, by their ranks.",
    ),
    "path_edges": Reading(
        "Why a kernel or host began when it did. `edge_evidence` says what is known: `recorded` is certain, "
        "`unknown` is named as such.",
        ("critical-path",),
    ),
    "path_segments": Reading(
        "Read in the order of `segment`: durations add up to the step. `cause` says why the path is there, `rank`"
        " where; where it moves to another rank, that one was waited for.",
        ("critical-path",),
    ),
    "path_items": Reading(
        "With `slack_ns` 0, any delay of it makes the step longer. A large slack means that hurrying it saves nothing.",
        ("critical-path",),
    ),
    "critical_imbalance": Reading(
        "High `imbalance_ns` says that the path runs more of the category than ranks usually do: spread it evenly.",
        ("critical-path",),
    ),
    "efficiencies": Reading(
        "Rows with `replica` NULL are of all ranks. `lost_ns` says what of the step each factor loses; factors multiply"
        " to the parallel efficiency, the losses add up. `parent` says what a row is a part of.",
        ("efficiencies",),
    ),
    "delay_costs": Reading(
        "Sort by `cost_ns`: the costs of a step add up to all its waits, each charged to its first cause. "
        "`passed_on_ns` came through ranks that waited themselves. A cost is no gain: `what_if` says what "
        "fixing the rank saves.",
        ("waits",),
    ),
    "what_if": Reading(
        "`gain_ns` between `gain_low_ns` and `gain_high_ns`. Gains of several edits do not add up.",
        ("what-if",),
    ),
    "advice": Reading(
        "Sort by `place`. `predicted_step_ns` between `low_ns` and `high_ns`; where no row `wins`, nothing is "
        "predicted to gain over 1 %. Flags are in `megatron_lm` and `megatron_bridge`.",
        ("advise",),
    ),
    "advice_items": Reading(
        "`place` 0 is the step as it is; the others are places of table `advice`. Times are of a replay, not measured.",
        ("advise",),
    ),
    "findings": Reading(
        "In the order of `finding`. `statement` is the sentence, `evidence_sql` the query with its numbers, "
        "`gain_ns` what fixing it would save. A `note` is small or without a predicted gain; `not_looked_at` "
        "says why a rule is silent.",
        ("findings",),
    ),
    "nights": Reading(
        "`statement` is the verdict. A night that is worse is no measure for the next one; to accept one that is "
        "slower on purpose, use `traceviz baseline accept`, or name it in the configuration of this asset.",
        ("iterations", "baseline"),
    ),
    "night_steps": Reading(
        "The sample of a night: the lower median of its steps, each of which takes as long as its longest rank.",
        ("iterations",),
    ),
    "night_changes": Reading(
        "A row is a change that lasts, in the night that confirmed it: `statement` says since when, by how much and "
        "what differs. Where `worse` holds it is an alarm.",
        ("iterations", "diff"),
    ),
    "night_deltas": Reading(
        "Sort by `delta_ns`: the deltas of an iteration add up to the change of its step.",
        ("iterations",),
    ),
    "memory_events": Reading(
        "Read in the order of `event_id`: `requested_bytes` and `reserved_bytes` are what is held after the event.",
        ("memory timeline", "memory oom"),
    ),
    "memory_blocks": Reading(
        "`category` is what a block holds, `evidence` how that is known. Sum `requested_bytes` where `live_at_peak` to"
        " see who holds the peak.",
        ("memory peak",),
    ),
    "memory_segments": Reading(
        "`inactive_bytes` are reserved and free. Many of them in small pieces is fragmentation.",
        ("memory fragmentation",),
    ),
    "memory_stacks": Reading(
        "Join by `stack_id` with blocks and events. `site` is who asked for the memory.",
        ("memory peak", "memory diff"),
    ),
    "memory_steps": Reading(
        "Join with `memory_events` between `first_event_id` and `last_event_id`.",
        ("memory leak",),
    ),
    "memory_recordings": Reading(
        "`matched_by` says what shows that the snapshot is of its rank's trace; `unknown` and `lost` count what of it "
        "was not understood or used.",
        ("memory summary",),
    ),
    "memory_peaks": Reading(
        "Take one `device` and `moment`: the categories add up to what is requested then.",
        ("memory summary", "memory peak"),
    ),
}
"""Table → how it is read."""

FIGURES = {
    "rank_timeline": (
        "below the computation a lane for each communication dimension; the lane at the foot says at each time "
        "what fills the wall clock"
    ),
    "overlap_bars": ("a bar for each micro-batch and phase; magenta is communication that nothing hides"),
    "pipeline_group": ("a row for each stage; grey is a stage that runs no micro-batch, the strip below it why"),
    "model_replica": (
        "a row for each rank, pipeline by pipeline; a rank that computes longer than its stage is marked"
    ),
    "all_ranks": ("as a model replica, of the whole job"),
    "wait_map": (
        "a row for each rank, a cell for each communication; a light row among dark ones is the rank that the "
        "others wait for"
    ),
    "same_work": (
        "a row for each rank, a column for each class of work; a dark cell takes longer than on the rank's peers"
    ),
    "overlap_savings": (
        "a bar for each dimension: its hidden communication, of which the magenta part is lost to slower computation"
    ),
    "roofline": (
        "a panel for each stage, a point for each operation; what is far below the line has headroom, under the slope "
        "its bytes limit it"
    ),
    "module_tree": (
        "a row for each module, below the one that holds it; magenta is communication that nothing hides, black the "
        "part of its time that is headroom"
    ),
    "bubble_waterfall": (
        "a row for each stage, from its ideal time, part by part, to the black line: the time it took"
    ),
    "period_distribution": ("above, how long units take; below, OverlapScores: 1 is hidden, 0 takes turns"),
    "critical_path": (
        "a lane for each rank that limits the step, along the path; where it changes lanes, one rank waits for another"
    ),
    "efficiency_tree": (
        "above, the step: useful time, then what is lost, the most first; below each loss what it is made of"
    ),
    "advised_pipelines": ("a pipeline as it is, and below with the best changes: a row for each stage, a box a step"),
    "predicted_gains": ("a bar for each edit: what the replay predicts that it would save"),
    "memory_timeline": "requested memory by category; the line above it is what is reserved, below it micro-batches",
    "memory_peak": "a rectangle for each call site; its area is what the site holds when most is requested",
    "memory_segments": "the segments at the end, row by row, and what is free in them",
    "memory_stages": "the activations that each rank keeps at once, beside what its schedule implies",
    "clock_residuals": ("how far ends of communications are from each other on solved clocks: near 0 is good"),
}
"""Kind of figure → how it is read."""


def table_description(table: Table) -> str:
    """What Dagster shows above a table's columns, as Markdown."""
    reading = TABLES.get(table.name)
    parts = [table.comment]
    if reading is not None:
        parts.append(f"**How to read it.** {reading.how}")
    nullable = [f"`{column.name}`" for column in table.columns if "NULL" in column.comment]
    if nullable:
        several = f"columns {', '.join(nullable)} say below when they are NULL"
        one = f"column {nullable[0]} says below when it is NULL"
        parts.append(f"**NULL** is an answer: {several if len(nullable) > 1 else one}.")
    asked = [f"`traceviz {command}`" for command in (reading.commands if reading else ())]
    asked.append(f'`traceviz sql "SELECT * FROM {table.name} LIMIT 10"`')
    parts.append(f"**Ask:** {', '.join(asked)}.")
    plots = [f"`{name}` ({plot.says})" for name, plot in PLOTS.get(table.name, {}).items()]
    if plots:
        parts.append(f"**Plotted** over the iterations, under Metadata: {'; '.join(plots)}.")
    drawn = [kind for kind in figure_kinds().values() if table.name in kind.tables]
    if drawn:
        shown = ", ".join(f"`{kind.name}` ([{asset_of(kind)}](/assets/{asset_of(kind)}))" for kind in drawn)
        parts.append(f"**Drawn in** {shown}.")
    return "\n\n".join(parts)


def figures_description(kinds: Iterable[FigureKind]) -> str:
    """What Dagster shows of an asset that draws some kinds of figures, as Markdown."""
    kinds = tuple(kinds)
    lines = []
    for kind in kinds:
        how = FIGURES.get(kind.name)
        tables = ", ".join(f"[{name}](/assets/{name})" for name in kind.tables)
        lines.append(f"- `{kind.name}`: {kind.shows}{f'. {how[:1].upper()}{how[1:]}' if how else ''}. From {tables}.")
    names = ",".join(kind.name for kind in kinds)
    return "\n\n".join(
        (
            "Each figure's title is its finding, with its numbers. What the tables do not show is not drawn.",
            "\n".join(lines),
            f"**Ask:** `traceviz figures --kind {names}`; `traceviz serve` shows them in a browser.",
        )
    )
