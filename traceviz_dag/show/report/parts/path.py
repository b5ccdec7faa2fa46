"""What limits the step: its critical path in parts that add up, imbalance on it, and what edits would gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.causes.gains import named_edit, over_steps
from traceviz_dag.analyze.findings.verdict import NOTABLE, RELATIONS
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.wording import capitalised, duration, share, signed_percent
from traceviz_dag.printable import printable
from traceviz_dag.show.figures.path_lanes import (
    SEGMENT_COLUMNS,
    StepPath,
    longest_path,
    path_finding,
    profile_of,
)
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import step_name, steps_left_out
from traceviz_dag.show.page.gain_rows import (
    MOST_ROWS,
    changes_step,
    is_gain,
    largest_gain,
    refused_edits,
    signed,
)
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, top
from traceviz_dag.show.report.parts.what_if import USUAL_SQL
from traceviz_dag.show.report.ranges import Range, gains
from traceviz_dag.tables.causes import PATH_WHAT_SQL
from traceviz_dag.tables.questions import HOSTS_OF_PATH_SQL, IMBALANCE_SQL
from traceviz_dag.vocabulary import Category

SEGMENTS_SQL = """
WITH longest AS (
    SELECT step, sum(duration_ns) AS step_ns FROM path_segments WHERE run = $run AND iteration = $iteration
    GROUP BY step ORDER BY step_ns DESC, step NULLS FIRST LIMIT 1
)
SELECT {place}, {part} AS part, sum(duration_ns)::BIGINT AS path_ns, count(*) AS segments,
    sum(sum(duration_ns)) OVER ()::BIGINT AS step_ns
FROM path_segments WHERE run = $run AND iteration = $iteration AND step IS NOT DISTINCT FROM (SELECT step FROM longest)
GROUP BY ALL ORDER BY path_ns DESC, part
"""


GAINS_SQL = """
SELECT step, edit, rank, dimension, factor, step_ns, predicted_step_ns, gain_ns, gain_low_ns, gain_high_ns,
    replay_error, refusal
FROM what_if WHERE run = $run AND iteration = $iteration AND (refusal IS NULL OR edit IS NULL)
ORDER BY gain_ns DESC NULLS LAST, edit, rank, dimension
"""

ITEMS_SQL = """
SELECT count(*) AS items, count(*) FILTER (critical) AS critical FROM path_items
WHERE run = $run AND iteration = $iteration
"""

EDGES_SQL = """
SELECT kind, edge_evidence, count(*) AS edges FROM path_edges
WHERE run = $run AND iteration = $iteration GROUP BY ALL ORDER BY edges DESC, kind, edge_evidence
"""

_OF_PATH = ("path_ns", ("share", "of step"), "segments")
_CAUSES = {
    "work": "kernels run",
    "transfer": "communication for which all have arrived",
    "unmatched": "communication whose wait and transfer cannot be separated",
    "host": "the host's own time",
    "launch": "lag from launch to start",
    "synchronisation": "lag of the host after what it waited for",
    "unexplained": "a start later than all that is known to be waited for",
    "late_begin": "the rank began its step late",
}


def path(page: Page) -> Markup | None:
    """The part."""
    gain_rows = page.book.ask("What edits would gain", GAINS_SQL)
    step = longest_path(page.book.source.table("path_segments", SEGMENT_COLUMNS))
    refused = [f"{capitalised(text)}." for text in steps_left_out(gain_rows.rows)]
    notes = Markup("").join(
        Markup('<p class="attention">{}</p>').format(gain_rows.statement(printable(line))) for line in refused
    )
    if step is None:
        return section("Critical path", notes) if notes else None
    parts = [_path(page, step, notes), _hosts(page), _imbalance(page), _gains(page, gain_rows), _known(page)]
    return Markup("").join(parts)


def _path(page: Page, step: StepPath, notes: Markup) -> Markup:
    items = page.book.source.table("path_items", ("rank", "stage"))
    ranks, stages = (optional_integers(items, name).tolist() for name in ("rank", "stage"))
    stage_of = dict(zip(ranks, stages, strict=True))
    by = "stage" if len(set(step.stage.tolist())) > 1 else "rank"
    placed = page.book.ask(
        f"The critical path by {by} and what it is", SEGMENTS_SQL.format(place=by, part=PATH_WHAT_SQL)
    )
    whole = page.book.ask(
        "What the critical path is made of", SEGMENTS_SQL.format(place="NULL AS place", part=PATH_WHAT_SQL)
    )
    cause = page.book.ask("The critical path by cause", SEGMENTS_SQL.format(place="NULL AS place", part="cause"))
    which = f", the longest of {step.steps}" if step.steps > 1 else ""
    on = "Each nanosecond of the step is one segment's: a kernel's run, a transfer, the host's, or a lag; never a wait."
    if len(stage_of) == 1:
        on += " Of one rank alone, what it communicates with others counts whole, waits included."
    return section(
        f"Critical path of {step_name(step.step)}{which}",
        paragraph(whole.statement(f"{path_finding(step, stage_of, profile_of(step, 14))}.")),
        notes,
        _bars(placed, by, step.step_ns),
        measured(
            whole,
            [*_lines(whole, step.step_ns, lambda name: word_of(name).label), _sum(whole)],
            [("part", "what"), *_OF_PATH],
            f"What the path is made of. {on} Being on the path is not yet a gain.",
        ),
        measured(
            cause,
            [*_lines(cause, step.step_ns, lambda name: _CAUSES.get(name, name)), _sum(cause)],
            [("part", "cause"), *_OF_PATH],
            "The same by cause",
        ),
    )


def _bars(asked: Asked, by: str, step_ns: int) -> Markup:
    """A bar a stage or rank, the longest first; its pieces in the order of the vocabulary."""
    of_place: dict[int | None, list[Mapping[str, Any]]] = {}
    for row in asked.rows:
        of_place.setdefault(row[by], []).append(row)
    totals = {place: sum(row["path_ns"] for row in rows) for place, rows in of_place.items()}
    order = [str(category) for category in Category]
    places = sorted(of_place, key=lambda place: (-totals[place], place is None, place))
    if by == "stage":
        places.sort(key=lambda place: (place is None, place))
    shown, left = top(places, f"{by}s", 20)
    bars = []
    for place in shown:
        rows = sorted(of_place[place], key=lambda row: order.index(row["part"]) if row["part"] in order else len(order))
        pieces = [Piece(word_of(row["part"]).label, row["path_ns"], word_of(row["part"]).colour) for row in rows]
        label = f"{by} {place}" if place is not None else f"no {by} known"
        bars.append(Bar(label, pieces, share(totals[place], step_ns)))
    # Those that the vocabulary does not order stay as the query gives them: a set's order differs between processes.
    present = sorted(
        dict.fromkeys(row["part"] for row in asked.rows),
        key=lambda name: order.index(name) if name in order else len(order),
    )
    colours: dict[str, str] = {}
    for name in present:
        part = word_of(name)
        colours[part.label] = part.colour
    return Markup("").join(
        [stacked_bars(f"The critical path by {by}; the bars add up to the step", bars), legend(colours), left]
    )


def _lines(asked: Asked, step_ns: int, named: Any) -> list[dict[str, Any]]:
    return [{**row, "part": named(row["part"]), "share": row["path_ns"] / step_ns} for row in asked.rows]


def _sum(asked: Asked) -> dict[str, Any]:
    total = sum(row["path_ns"] for row in asked.rows)
    exact = Markup("<b>{}</b> ({:,} ns)").format(duration(total), total)
    segments = Markup("{:,}").format(sum(row["segments"] for row in asked.rows))
    return {"part": Markup("<b>the step</b>"), "path_ns": exact, "share": Markup("100.0 %"), "segments": segments}


def _hosts(page: Page) -> Markup:
    """What hosts do where the path runs on them, where that is more than a little."""
    asked = page.book.ask("Hosts on the critical path", HOSTS_OF_PATH_SQL)
    steps_ns = asked.rows[0]["steps_ns"] if asked.rows else 0
    if sum(row["path_ns"] for row in asked.rows) <= NOTABLE * steps_ns:
        return Markup("")
    shown, left = top(asked.rows, "operations", 20)
    rows = [
        {**row, "operation": row["operation"] or "after the last launch", "share": row["path_ns"] / steps_ns}
        for row in shown
    ]
    return section(
        "Hosts on the critical path",
        measured(
            asked,
            rows,
            ["operation", ("place", "in"), "path_ns", ("share", "of all steps"), "launches"],
            "Time until each launch of a host, of any thread, by what launches; a wait without a gap of the GPU has no "
            "name.",
        ),
        left,
    )


def _imbalance(page: Page) -> Markup:
    asked = page.book.ask("Critical imbalance by category", IMBALANCE_SQL)
    uneven = [row for row in asked.rows if row["imbalance_ns"]]
    if not uneven:
        return Markup("")
    bars = [
        Bar(
            word_of(row["category"]).label,
            [
                Piece("of the mean rank", min(row["mean_ns"], row["path_ns"]), palette.COMPUTATION_ONLY),
                Piece("imbalance: beyond the mean rank", row["imbalance_ns"], palette.IMBALANCE),
            ],
        )
        for row in uneven
    ]
    return section(
        "Imbalance on the critical path",
        stacked_bars("What the critical path has of a category, and how much of it is beyond the mean rank", bars),
        legend({"of the mean rank": palette.COMPUTATION_ONLY, "imbalance: beyond the mean rank": palette.IMBALANCE}),
        measured(
            asked,
            uneven,
            ["category", "path_ns", ("mean_ns", "mean rank"), "imbalance_ns"],
            f"Mean of {max(row['ranks'] for row in uneven)} ranks, without what they wait for others.",
        ),
    )


def _gains(page: Page, by_step: Asked) -> Markup:
    known = over_steps([row for row in by_step.rows if row["refusal"] is None])
    refused = refused_edits(by_step.rows)
    if not known:
        return section("Predicted gains", paragraph("Nothing can be predicted."))
    asked = page.book.ask("What edits would gain, over the steps", USUAL_SQL)
    changing = [row for row in known if changes_step(row)] or known
    shown, left = top(changing, "edits that change the step", MOST_ROWS)
    ranges = [
        Range(
            named_edit(row),
            row["gain_ns"],
            row["gain_low_ns"],
            row["gain_high_ns"],
            palette.HIDDEN if is_gain(row) else palette.COMPUTATION_ONLY,
            signed(row["gain_ns"]),
        )
        for row in shown
    ]
    rows = [
        {
            **row,
            "edit": named_edit(row) + (f" ({row['steps']} steps)" if row["steps"] > 1 else ""),
            "share": row["gain_ns"] / row["step_ns"],
            "bar": asked.fact(f"{signed(row['gain_low_ns'])} to {signed(row['gain_high_ns'])}"),
        }
        for row in shown
    ]
    idle = [named_edit(row) for row in known if not changes_step(row)]
    largest = largest_gain(known)
    errors = [row["replay_error"] for row in by_step.rows if row["refusal"] is None and row["replay_error"] is not None]
    worst = max(errors, key=abs, default=None)
    return section(
        "Predicted gains",
        paragraph(asked.fact(f"{largest}.")),
        gains("What each edit alone would gain, with its error bar", ranges),
        legend({"gain": palette.HIDDEN, "its error bar is not above 0: it may be no gain": palette.COMPUTATION_ONLY}),
        measured(
            asked,
            rows,
            ["edit", "gain_ns", ("share", "of step"), ("bar", "error bar"), ("predicted_step_ns", "step then")],
            "Ceilings that the replay of the step predicts, each edit alone: gains do not add up.",
        ),
        left,
        paragraph(f"Without effect: {', '.join(idle)}.", quiet=True) if idle else "",
        paragraph(
            by_step.statement(
                f"Replayed without lags, the step is off by {signed_percent(worst)}".replace("-", "−") + "."
            ),
            quiet=True,
        )
        if worst is not None
        else "",
        _refused(by_step, refused),
    )


def _refused(asked: Asked, refused: Sequence[Mapping[str, Any]]) -> Markup:
    if not refused:
        return Markup("")
    rows = [{**row, "edit": named_edit(row)} for row in refused]
    return measured(asked, rows, ["edit", "refusal"], "Edits that are refused")


def _known(page: Page) -> Markup:
    """What the graph rests on."""
    items = page.book.ask("Critical items", ITEMS_SQL)
    edges = page.book.ask("Waits between streams and of hosts", EDGES_SQL)
    streams = {row["edge_evidence"]: row["edges"] for row in edges.rows if row["kind"] == "event"}
    hosts = sum(row["edges"] for row in edges.rows if row["kind"] == "synchronisation")
    row = items.rows[0]
    waits = (
        f"{streams.get('recorded', 0):,} waits between streams are recorded, {streams.get('inferred', 0):,} "
        f"inferred, of {streams.get('unknown', 0):,} the other end is not known; hosts waited {hosts:,} times"
    )
    return section(
        "What this rests on",
        paragraph(
            items.fact(f"{row['critical']:,} of {row['items']:,} items"),
            " (a micro-batch's steps by rank and phase, and work outside of them) are critical: their slack is "
            "within 1 % of the step. ",
            edges.statement(f"{waits}."),
            quiet=True,
        ),
    )


PART = Part(
    "path",
    "Critical path",
    ("path_segments", "what_if"),
    path,
    relation=RELATIONS["critical path"],
)
