"""Who waits for whom in communication: late ranks, the map of pairs with what is behind each, slow links."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from traceviz_dag.analyze.clocks.clock_summary import clock_facts, clock_statement
from traceviz_dag.analyze.findings.rules.expert_load import UNEVEN
from traceviz_dag.analyze.findings.verdict import RELATIONS, Lead
from traceviz_dag.analyze.matching.communications import optional_integers
from traceviz_dag.analyze.measures import measure
from traceviz_dag.analyze.step_time import WINDOW_COLUMNS, step_time
from traceviz_dag.analyze.waits.blamed import JUDGED_COLUMNS, judged_waits, nobody_blamed, wait_basis
from traceviz_dag.analyze.waits.unknown_waits import uncertain_waits
from traceviz_dag.analyze.wording import activity, capitalised, numbered
from traceviz_dag.printable import printable
from traceviz_dag.show.figures.wait_rows import MOST_ROWS, MapRow, map_rows
from traceviz_dag.show.page import palette
from traceviz_dag.show.page.facts import delay_finding
from traceviz_dag.show.page.gain_rows import signed
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.heat_map import heat_map
from traceviz_dag.show.report.parts.part import Page, Part, data_rows, measured, paragraph, section, top
from traceviz_dag.tables.questions import DELAY_COSTS_SQL, UNMATCHED_SQL, WAIT_PARTS
from traceviz_dag.tables.rows import RankClockRow, columns_of

LATE_SQL = """
SELECT rank, communications, last, delay_ns, own_ns, own_share, late_category, blamed
FROM late_ranks WHERE run = $run AND iteration = $iteration
ORDER BY blamed DESC NULLS LAST, own_ns DESC, rank
"""

PAIRS_SQL = """
SELECT rank, late_rank, dimension, waits, wait_ns, late_compute_ns, late_communication_ns, late_memory_ns, late_host_ns,
    late_idle_ns, clocks_solved
FROM blame WHERE run = $run AND iteration = $iteration
ORDER BY wait_ns DESC, rank, late_rank, dimension
"""

GROUPED_PAIRS_SQL = """
WITH place AS (SELECT unnest({ranks}) AS rank, unnest({places}) AS place)
SELECT waiting.place AS waiting, late.place AS late, dimension, sum(waits)::BIGINT AS waits,
    sum(wait_ns)::BIGINT AS wait_ns, sum(late_compute_ns)::BIGINT AS late_compute_ns,
    sum(late_communication_ns)::BIGINT AS late_communication_ns, sum(late_memory_ns)::BIGINT AS late_memory_ns,
    sum(late_host_ns)::BIGINT AS late_host_ns, sum(late_idle_ns)::BIGINT AS late_idle_ns,
    bool_and(clocks_solved) AS clocks_solved
FROM blame JOIN place AS waiting ON blame.rank = waiting.rank JOIN place AS late ON blame.late_rank = late.rank
WHERE run = $run AND iteration = $iteration
GROUP BY waiting.place, late.place, dimension
ORDER BY wait_ns DESC, waiting, late, dimension
"""

MATCHED_SQL = """
SELECT dimension, matched_by, fault, coalesce(aligned_refusal, recorded_refusal) AS refusal, count(*) AS kernels
FROM collectives WHERE run = $run AND iteration = $iteration
GROUP BY ALL ORDER BY kernels DESC, dimension, matched_by, fault, refusal
"""

LINKS_SQL = """
SELECT rank, scope, dimensions, best_ratio, worst_ratio, slow, or_of
FROM links WHERE run = $run AND iteration = $iteration
ORDER BY slow DESC NULLS LAST, best_ratio DESC, rank
"""

EXPERTS_SQL = """
SELECT rank, exchanges, elements, load FROM expert_loads
WHERE run = $run AND iteration = $iteration ORDER BY load DESC, rank
"""

_SCOPES = {"intra_node": "inside its node", "inter_node": "to other nodes"}
_DID = {
    name: measure(name).header
    for name in ("late_compute_ns", "late_communication_ns", "late_memory_ns", "late_host_ns", "late_idle_ns")
}
_DID_WORDS = (
    "What the late rank did adds up to the wait. Of ranks of one stage it is what the late one did more of than the "
    "one that waited, since the two met last: so a part may be below 0, and other communication holds what it was "
    "late with before. Of other ranks it is what the late one did during the wait. Its host: it had not launched "
    "yet; idle: it had."
)
_LEAST_PART = 0.01
_MOST_CAUSES = 12
_WAITS = (
    ("exposed_wait_ns", palette.EXPOSED_WAIT),
    ("exposed_transfer_ns", palette.EXPOSED_TRANSFER),
    ("hidden_wait_ns", palette.COMPUTATION_ONLY),
    ("hidden_transfer_ns", palette.HIDDEN),
)


def waits(page: Page) -> Markup | None:
    """The part."""
    collectives = page.book.source.table("collectives", JUDGED_COLUMNS)
    if not collectives.num_rows:
        return None
    late = page.book.ask("Ranks that others of their stage waited for", LATE_SQL)
    matched = page.book.ask("How communications were matched", MATCHED_SQL)
    said = _said(page, late, matched)
    judged = judged_waits(collectives)
    if not judged.num_rows:
        lacks = paragraph("No wait is known: neither solved clocks nor durations show one.")
        return Markup("").join([said, lacks, _matching(page)])
    ranks = np.unique(optional_integers(collectives, "rank"))
    lead = page.lead
    rows = map_rows(judged, ranks, [*lead.ranks, *(row["rank"] for row in late.rows if row["blamed"])])
    parts = [
        said,
        _late(late, lead),
        _costs(page),
        _pairs(page, rows),
        _by_dimension(page),
        _links(page),
        _experts(page),
        _matching(page),
    ]
    return Markup("").join(parts)


def _said(page: Page, late: Asked, matched: Asked) -> Markup:
    """Who is to blame, and what the clocks allow to say."""
    source = page.book.source
    collectives = source.table("collectives", JUDGED_COLUMNS)
    step_ns = step_time(source.table("overlap", WINDOW_COLUMNS))
    blamed = [row for row in late.rows if row["blamed"]]
    uncertain = uncertain_waits(collectives)
    if blamed:
        lines = [f"{delay_finding(row)}." for row in blamed[:3]]  # type: ignore[arg-type]
        lines += [f"{len(blamed) - 3} more ranks are to blame."] if len(blamed) > 3 else []
    else:
        nobody = nobody_blamed(late.rows, step_ns, uncertain, collectives.num_rows)  # type: ignore[arg-type]
        lines = [f"{capitalised(nobody)}."]
    words = Markup("").join(paragraph(late.statement(line)) for line in lines)
    facts = clock_facts(source.table("rank_clocks", columns_of(RankClockRow)))
    basis = wait_basis(collectives)
    notes = []
    if facts["solved"] < facts["ranks"]:
        text = clock_statement(facts)
        notes.append(
            f"{capitalised(text)}. So waits that only clocks could show are left out, and so is who came last in them."
        )
    if basis["durations"]:
        notes.append(
            f"Waits of {basis['durations']:,} communication kernels come from durations, which need no clock: members "
            "end together, so the last to arrive has the shortest kernel."
        )
    if basis["untold"]:
        notes.append(
            f"Of {basis['untold']:,} matched communication kernels no wait is known: neither solved clocks nor "
            "durations show it."
        )
    marked = Markup("").join(Markup('<p class="attention">{}</p>').format(matched.statement(note)) for note in notes)
    return Markup("<section><h2>{}</h2>{}{}</section>").format("Who is late", words, marked)


def _late(late: Asked, lead: Lead) -> Markup:
    told = [row for row in late.rows if row["communications"]]
    told.sort(key=lambda row: lead.place(row["rank"]))
    if not told:
        return paragraph("No wait among peers of one stage is known.", quiet=True)
    shown, left = top(told, "ranks")
    bars = [
        Bar(
            f"rank {row['rank']}"
            + (" · at fault" if row["rank"] in lead.faults else " · late on its own" if row["blamed"] else ""),
            [
                Piece("own delay", row["own_ns"], palette.ATTENTION if row["blamed"] else palette.COMPUTATION_ONLY),
                Piece("handed on by others", max(row["delay_ns"] - row["own_ns"], 0), palette.IDLE),
            ],
            activity(row["late_category"] or ""),
        )
        for row in shown[:16]
    ]
    return section(
        "Late ranks, those at fault first",
        stacked_bars("How long each rank delayed the peers of its stage", bars),
        legend(
            {
                "late on its own": palette.ATTENTION,
                "own delay too small to count": palette.COMPUTATION_ONLY,
                "handed on: it was in other communication": palette.IDLE,
            }
        ),
        measured(
            late,
            shown,
            [
                *("rank", "communications", ("last", "last in"), "delay_ns", "own_ns", ("own_share", "own, of step")),
                *(("late_category", "doing"), ("blamed", "late on its own")),
            ],
            "Delay among the peers of a rank's stage: the longest wait of each communication, summed. A delay is not a "
            "saving.",
        ),
        left,
    )


def _pairs(page: Page, rows: Sequence[MapRow]) -> Markup:
    """The map of who waited for whom, and its rows for the page's script, which shows those behind a cell."""
    shared = any(len(row.ranks) > 1 for row in rows)
    place = {rank: number for number, row in enumerate(rows) for rank in row.ranks}
    if shared:
        listed = sorted(place)
        sql = GROUPED_PAIRS_SQL.format(ranks=listed, places=[place[rank] for rank in listed])
        asked = page.book.ask("Who waited for whom, by rows of the map", sql)
        known = [{**row, "at": (row["waiting"], row["late"])} for row in asked.rows]
        of_cell = "waiting.place = {row} AND late.place = {column}"
        of_cell = sql.replace("GROUP BY", f"    AND {of_cell}\nGROUP BY")
    else:
        asked = page.book.ask("Who waited for whom", PAIRS_SQL)
        known = [
            {**row, "at": (place[row["rank"]], place[row["late_rank"]])}
            for row in asked.rows
            if row["rank"] in place and row["late_rank"] in place
        ]
        of_cell = PAIRS_SQL.replace("ORDER BY", "    AND rank = {row} AND late_rank = {column}\nORDER BY")
    if not known:
        return section("Who waited for whom", paragraph("No rank waited, as far as waits are known."))
    cells: dict[tuple[int, int], int] = {}
    for row in known:
        cells[row["at"]] = cells.get(row["at"], 0) + row["wait_ns"]
    waiting, late = (sorted({at[side] for at in cells}) for side in (0, 1))
    row_of, column_of = ({place: number for number, place in enumerate(places)} for places in (waiting, late))
    placed = {(row_of[row], column_of[column]): value for (row, column), value in cells.items()}
    names = ([rows[number].label for number in waiting], [rows[number].label for number in late])
    title = "Who waited for whom: a row waits for a column"
    document = {
        "sql": page.book.bound(of_cell),
        "rows": names[0],
        "columns": names[1],
        "row_keys": waiting if shared else [rows[number].ranks[0] for number in waiting],
        "column_keys": late if shared else [rows[number].ranks[0] for number in late],
        "did": list(_DID.values()),
        "waits": [
            [row_of[row["at"][0]], column_of[row["at"][1]], row["dimension"], row["waits"], row["wait_ns"]]
            + [row[name] for name in _DID]
            for row in known
        ],
    }
    note = (
        f"Of {MOST_ROWS} ranks and more, those of a stage with similar waits share a row and a column: sums over all "
        "their pairs; outliers and blamed ranks have their own."
        if shared
        else ""
    )
    return section(
        "Who waited for whom",
        paragraph(
            "Choose a cell to see its dimensions, and what the late rank did. ", _DID_WORDS, " ", note, quiet=True
        ),
        heat_map(title, *names, placed, "{row} waited for {column}: {time}", ("waits", "late")),
        Markup('<div id="pair" class="panel" role="status" hidden></div>'),
        data_rows("pairs", json.dumps(document)),
        _pair_table(asked, known, rows),
    )


def _pair_table(asked: Asked, known: Sequence[Mapping[str, Any]], rows: Sequence[MapRow]) -> Markup:
    shown, left = top(known, "pairs by dimension", 20)
    return Markup("").join(
        [
            measured(
                asked,
                [
                    {
                        **row,
                        **{side: rows[at].label for side, at in zip(("waiting", "late"), row["at"], strict=True)},
                        "did": _did(asked, row),
                    }
                    for row in shown
                ],
                ["waiting", "late", "dimension", "waits", "wait_ns", ("did", "what made the late rank late")],
                "The longest waits, by who waited, for whom and in which dimension",
            ),
            left,
        ]
    )


def _did(asked: Asked, row: Mapping[str, Any]) -> Markup:
    lengths = sorted(((row[name] or 0, words) for name, words in _DID.items()), reverse=True)
    return Markup("; ").join(
        Markup("{} {}").format(words, asked.fact(signed(length)))
        for length, words in lengths
        if abs(length) >= _LEAST_PART * row["wait_ns"]
    )


def _costs(page: Page) -> Markup:
    """The first causes of waits, each beside what fixing its rank gains."""
    asked = page.book.ask("First causes of waits", DELAY_COSTS_SQL)
    if not asked.rows:
        return Markup("")
    shown, left = top(asked.rows, "causes", _MOST_CAUSES)
    whose = "the ranks read" if page.mark else "all ranks"
    return section(
        "First causes of waits",
        measured(
            asked,
            shown,
            [
                *("rank", "stage", "cause", "cost_ns", ("cost_share", "of all waits"), "direct_ns", "passed_on_ns"),
                "gain_ns",
            ],
            f"A cost is what waits of {whose} took together, charged through "
            "chains to whoever was late first. It is no saving; the gain is what the replay predicts for fixing the "
            "rank, where it was asked.",
        ),
        left,
    )


def _by_dimension(page: Page) -> Markup:
    asked = page.book.ask("Waits and transfers by dimension, sums over kernels", WAIT_PARTS.sql)
    bars = [
        Bar(
            printable(row["dimension"] or "unknown"),
            [Piece(measure(name).header, row[name] or 0, colour) for name, colour in _WAITS],
        )
        for row in asked.rows
    ]
    return section(
        "Wait and transfer by dimension",
        stacked_bars("Wait and transfer by dimension, sums over the kernels of all ranks", bars),
        legend({measure(name).header: colour for name, colour in _WAITS}),
        measured(
            asked,
            asked.rows,
            ["dimension", "kernels", *(name for name, _ in _WAITS)],
            "Sums over kernels of all ranks whose waits are known; kernels that run side by side each count.",
        ),
    )


def _links(page: Page) -> Markup:
    asked = page.book.ask("Links of each rank against the usual transfer", LINKS_SQL)
    if not asked.rows:
        return section("Links", paragraph("No transfers could be compared, so links are not judged.", quiet=True))
    suspected = [row for row in asked.rows if row["slow"] or row["or_of"]]
    if not suspected:
        worst = max(asked.rows, key=lambda row: row["best_ratio"] or 0)
        ranks = len({row["rank"] for row in asked.rows})
        fact = asked.fact(f"{worst['best_ratio']:.2f} times as long as usual")
        return section(
            "Links",
            paragraph(
                f"No slow link among those of {ranks} rank{'s' if ranks > 1 else ''} that could be compared: the "
                f"transfers of rank {worst['rank']} take longest, ",
                fact,
                ".",
            ),
        )
    shown, left = top(suspected, "ranks")
    rows = [
        {
            **row,
            "links": _SCOPES.get(row["scope"] or "", "not known where"),
            "verdict": "slow" if row["slow"] else f"slow, or those of {numbered('rank', list(row['or_of']))}",
        }
        for row in shown
    ]
    columns = ["rank", "links", "verdict", ("best_ratio", "least of usual"), ("worst_ratio", "most of usual")]
    caption = (
        "Slow links: transfers against those of other ranks; least and most over the dimensions that were compared."
    )
    return section("Slow links", measured(asked, rows, columns, caption), left)


def _experts(page: Page) -> Markup:
    asked = page.book.ask("Tokens that each rank's experts took", EXPERTS_SQL)
    if not asked.rows:
        return Markup("")
    worst = asked.rows[0]
    even = "Experts are loaded unevenly" if worst["load"] >= UNEVEN else "Experts are loaded about evenly"
    fact = asked.fact(f"{worst['load']:.2f} times the mean of their peers")
    return section("Experts", paragraph(f"{even}: those of rank {worst['rank']} take ", fact, "."))


def _matching(page: Page) -> Markup:
    asked = page.book.ask("Communication that is not matched, or not wholly", UNMATCHED_SQL)
    total = asked.rows[0]["of_kernels"]
    faults = [row for row in asked.rows if row["fault"] is not None]
    if not faults:
        matched = asked.fact(f"All {total:,} communication kernels")
        return section("Matching", paragraph(matched, " are matched with all their members.", quiet=True))
    rows = [{**row, "fault": row["fault"].replace("_", " "), "share": row["kernels"] / total} for row in faults]
    caption = f"Of {total:,} communication kernels, those that are not matched with all their members"
    return section("Not matched, or not wholly", measured(asked, rows, [("fault", "why"), "kernels", "share"], caption))


PART = Part("waits", "Waits", ("collectives",), waits, relation=RELATIONS["waits"])
