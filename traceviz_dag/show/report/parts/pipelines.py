"""Pipelines: the bubble of each stage in parts that add up, where stages idle, which are slow, and their periods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from traceviz_dag.analyze.stage_times import STAGE_COLUMNS, StageTimes, slowest_statement, stage_times
from traceviz_dag.analyze.wording import capitalised, share
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.words import rank_label
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.bubbles import PARTS, bubble_finding, chosen_pipelines
from traceviz_dag.show.page.facts import step_name
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, percent, section, sentence, top
from traceviz_dag.show.report.ranges import Fall, waterfall
from traceviz_dag.tables.rows import is_parted

STAGES_SQL = """
SELECT step, pipeline, stage, rank, schedule, microbatches, span_ns, ideal_ns, bubble_ns, fill_drain_ns, imbalance_ns,
    jitter_ns, stall_ns, bubble_share, ideal_share, idle_ns, idle_share, warmup_idle_ns, steady_idle_ns,
    cooldown_idle_ns, refusal
FROM pipelines WHERE run = $run AND iteration = $iteration
ORDER BY step, pipeline, stage, rank
"""

SPEEDS_SQL = """
SELECT stage, stages, ranks, rank, compute_ns, mean_ns, compute_ns - mean_ns AS excess_ns, more_work_ns, own_work_ns,
    slower_ns, ratio
FROM stage_speeds WHERE run = $run AND iteration = $iteration
ORDER BY stage
"""

TIMES_SQL = """
WITH units AS (
    SELECT rank, stage, step, microbatch, sum(compute_ns) AS compute_ns, count(*) AS steps FROM microbatches
    WHERE run = $run AND iteration = $iteration AND dimension = 'all' AND phase IN ('forward', 'backward')
        AND stage IS NOT NULL
    GROUP BY rank, stage, step, microbatch
), each AS (
    SELECT rank, stage, round(avg(compute_ns))::BIGINT AS compute_ns
    FROM (SELECT * FROM units QUALIFY steps = max(steps) OVER (PARTITION BY stage))
    GROUP BY rank, stage
)
SELECT stage, count(*) AS ranks, quantile_disc(compute_ns, 0.5) AS compute_ns,
    quantile_disc(compute_ns, 0.5) / avg(quantile_disc(compute_ns, 0.5)) OVER () - 1 AS excess
FROM each GROUP BY stage ORDER BY compute_ns DESC, stage
"""

PERIODS_SQL = """
SELECT kind, pair, step, stage, ranks, units, first_unit, last_unit, period_p50_ns, period_p90_ns, period_p99_ns,
    stage0_p50_ns, stage1_p50_ns, score_p10, score_p50, score_p90, worst_rank, modes, statement, refusal, ranks_without,
    "without", over_fewer_ranks, nothing_to_overlap
FROM period_percentiles WHERE run = $run AND iteration = $iteration
ORDER BY kind <> 'named', kind = 'dimension', step, stage, pair
"""

_IDLE = (
    ("warmup_idle_ns", "before the first backward step", palette.FILL_DRAIN),
    ("steady_idle_ns", "between", palette.IMBALANCE),
    ("cooldown_idle_ns", "after the last forward step", palette.STALL),
)
_IDEAL = "ideal: micro-batches × mean stage"


def pipelines(page: Page) -> Markup | None:
    """The part."""
    asked = page.book.ask("The bubble of each stage", STAGES_SQL)
    microbatches = page.book.source.table("microbatches", STAGE_COLUMNS)
    parts = [_bubbles(page, asked, stage_times(microbatches)), _idle(asked), _speeds(page), _periods(page)]
    return Markup("").join(parts) if any(parts) else None


def _bubbles(page: Page, asked: Asked, times: StageTimes) -> Markup:
    if not asked.rows:
        return Markup("")
    known = [row for row in asked.rows if is_parted(row)]  # type: ignore[arg-type]
    refused: dict[str, list[int]] = {}
    for row in asked.rows:
        if row["refusal"] is not None:
            refused.setdefault(row["refusal"], []).append(row["pipeline"])
    notes = Markup("").join(
        Markup('<p class="attention">{}</p>').format(
            asked.statement(f"The bubble of {_pipelines(found)} is not parted: {printable(reason)}.")
        )
        for reason, found in refused.items()
    )
    if not known:
        return section("Bubble", notes)
    step = max(known, key=lambda row: row["span_ns"])["step"]
    of_step = [row for row in known if row["step"] == step]
    groups = chosen_pipelines(of_step, page.lead)
    drawn = [(group, row) for group in groups for row in group.stages]
    pipelines_of_step = len({row["pipeline"] for row in of_step})
    falls = [
        Fall(
            f"stage {row['stage']} · {group.heading}" if len(groups) > 1 else rank_label(row["rank"], row["stage"]),
            Piece(_IDEAL, row["ideal_ns"], palette.COMPUTATION_ONLY),
            [Piece(word, row[name], colour) for name, word, colour in PARTS],
            f"bubble {share(row['bubble_ns'], row['span_ns'])}"
            if row["bubble_ns"] >= 0
            else f"no bubble: {share(-row['bubble_ns'], row['ideal_ns'])} below ideal",
        )
        for group, row in drawn
    ]
    steps = len({row["step"] for row in asked.rows})
    which = f" in {step_name(step)}, the longest of {steps}" if steps > 1 else ""
    first = known[0]
    of_all = len(drawn) < len(of_step)
    left = (
        f"{len(drawn)} of {len(of_step)} stages of {pipelines_of_step} pipelines are shown: the longest pipelines, "
        "and one of each set of similar ones. "
        if of_all
        else ""
    )
    slowest = slowest_statement(times)
    found = f"{bubble_finding(of_step, times.slowest)}."
    return section(
        f"Bubble of each stage{which}",
        paragraph(asked.statement(found)),
        paragraph(
            page.book.ask("Computation of a micro-batch, lower median of each stage's ranks", TIMES_SQL).statement(
                f"{capitalised(slowest)}."
            )
        )
        if slowest
        else "",
        notes,
        waterfall("From the ideal time of each stage, part by part of its bubble, to the time that it took", falls),
        legend({_IDEAL: palette.COMPUTATION_ONLY, **{word: colour for _, word, colour in PARTS}}),
        paragraph(
            "The line marks the time that the stage took. A part that points back is negative: there the stage took "
            "less time than in a pipeline of mean stages, because it has less work or made up for a wait.",
            quiet=True,
        )
        if any(row["bubble_ns"] < 0 or any(row[part] < 0 for part, _, _ in PARTS) for _, row in drawn)
        else "",
        measured(
            asked,
            [row for _, row in drawn],
            [
                *("pipeline", "stage", "rank", "span_ns", "ideal_ns", "bubble_ns", *(name for name, _, _ in PARTS)),
                *("bubble_share", "ideal_share"),
            ],
            f"Schedule {printable(first['schedule'] or 'not known')}, {first['microbatches']} micro-batches. The span "
            "is from the first forward start to the last backward end of the stage, on its own clock; ideal and the "
            "four parts add up to it. The ideal share: the bubble's share of equal stages without jitter and stall.",
        ),
        paragraph(left, "A part below 0 points back: there it helps.", quiet=True),
    )


def _pipelines(numbers: Sequence[int]) -> str:
    found = sorted(set(numbers))
    return f"pipeline {found[0]}" if len(found) == 1 else f"{len(found)} pipelines, such as pipeline {found[0]},"


def _idle(asked: Asked) -> Markup:
    if not asked.rows:
        return Markup("")
    step = max(asked.rows, key=lambda row: row["span_ns"])["step"]
    worst = sorted((row for row in asked.rows if row["step"] == step), key=lambda row: -(row["idle_share"] or 0))
    shown, left = top(worst, "stages", 16)
    bars = [
        Bar(
            f"pipeline {row['pipeline']} · stage {row['stage']}",
            [Piece(word, row[name] or 0, colour) for name, word, colour in _IDLE],
            percent(row["idle_share"]) if row["idle_share"] is not None else "",
        )
        for row in shown
    ]
    return section(
        "Idle time of each stage, the most first",
        stacked_bars("Time in which a stage runs no micro-batch", bars),
        legend({word: colour for _, word, colour in _IDLE}),
        measured(
            asked,
            shown,
            ["pipeline", "stage", "rank", "idle_ns", "idle_share", *(name for name, _, _ in _IDLE)],
            "Time of its span in which the stage runs no micro-batch: not its bubble, which is measured against the "
            "mean stage.",
        ),
        left,
    )


def _speeds(page: Page) -> Markup:
    asked = page.book.ask("Computation of each stage against the mean stage", SPEEDS_SQL)
    if not asked.rows:
        return Markup("")
    rows = [
        {**row, "of": f"rank {row['rank']}" if row["rank"] is not None else f"{row['ranks']} ranks"}
        for row in asked.rows
    ]
    return section(
        "How fast stages compute",
        measured(
            asked,
            rows,
            [
                *("stage", "of", "compute_ns", ("excess_ns", "beyond the mean"), "more_work_ns", "own_work_ns"),
                *("slower_ns", ("ratio", "same kernels, ratio")),
            ],
            "Kernels in the micro-batches of a step, mean of the stage's ranks without those that are slow among their "
            "peers. Beyond the mean stage = more runs of kernels that all stages run + its own kernels + the same "
            "kernels taking longer.",
        ),
    )


def _periods(page: Page) -> Markup:
    asked = page.book.ask("Periods and OverlapScores of each pair", PERIODS_SQL)
    if not asked.rows:
        return Markup("")
    known = [row for row in asked.rows if row["refusal"] is None]
    rest = [row for row in asked.rows if row["refusal"] is not None]
    steps = len({row["step"] for row in asked.rows}) > 1
    shown, left = top(known, "pairs with measures")
    rows = [{**row, "pair": _pair(row, steps), "statement": sentence(row["statement"] or "")} for row in shown]
    notes = [f"{_pair(row, steps)}: {printable(row['modes'])}." for row in known if row["modes"]]
    notes += [
        f"{_pair(row, steps)}: measures of fewer than all ranks; {row['ranks_without']} have none "
        f"({printable(row['without'])})."
        for row in known
        if row["over_fewer_ranks"]
    ]
    told_notes, more = top(notes, "notes", 8)
    return section(
        "Periods",
        measured(
            asked,
            rows,
            [
                *("pair", "units", "period_p50_ns", ("period_p90_ns", "p90"), ("period_p99_ns", "p99")),
                *(("stage0_p50_ns", "first"), ("stage1_p50_ns", "second")),
                *("score_p10", ("score_p50", "p50"), ("score_p90", "p90"), ("statement", "in words")),
            ],
            "Time from one unit of a repeating pair to the next, over the steady units; first and second: the median "
            "busy time of either in a unit. Score 1: the shorter of the pair is wholly hidden; 0: the period is as "
            "long as both one after the other; below 0 it is longer still.",
        )
        if rows
        else paragraph("No pair has measures."),
        left,
        Markup("").join(paragraph(note, quiet=True) for note in told_notes),
        more,
        _without(asked, rest, steps),
    )


def _without(asked: Asked, rest: Sequence[Mapping[str, Any]], steps: bool) -> Markup:
    """Pairs without measures, by reason."""
    reasons: dict[str, list[Markup]] = {}
    for row in rest:
        reasons.setdefault(printable(row["refusal"]), []).append(_pair(row, steps))
    lines = [
        {"refusal": reason, "pairs": found[0] + (f" and {len(found) - 1} more" if len(found) > 1 else "")}
        for reason, found in reasons.items()
    ]
    shown, left = top(lines, "reasons", 12)
    if not shown:
        return Markup("")
    return measured(asked, shown, ["refusal", "pairs"], "Pairs without measures") + left


def _pair(row: Mapping[str, Any], steps: bool) -> Markup:
    stage = "" if row["stage"] is None or row["kind"] == "stages" else f", stage {row['stage']}"
    step = "" if row["step"] is None or not steps else f", step {row['step']}"
    return escape(printable(f"{row['pair']}{stage}{step}"))


PART = Part("pipelines", "Pipelines", ("pipelines", "period_percentiles"), pipelines, relation="A bubble is no saving.")
