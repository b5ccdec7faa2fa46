"""Two iterations side by side: the step in parts whose differences add up, findings gone and new, overlap, trends."""

from __future__ import annotations

from markupsafe import Markup, escape

from traceviz_dag.analyze.diff.findings import by_culprit, gain_changed
from traceviz_dag.analyze.nights.verdicts import OTHER_RANKS, Measures, Tolerances, judge_nights
from traceviz_dag.analyze.step_parts import IDLE
from traceviz_dag.analyze.wording import duration, share, signed
from traceviz_dag.lake.summaries import DIMENSIONS_SQL
from traceviz_dag.printable import printable
from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars, trend
from traceviz_dag.show.report.evidence import Asked, Book
from traceviz_dag.show.report.parts.overview import STEP_PARTS, STEP_SQL, TREND_SQL
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section, sentence, top
from traceviz_dag.tables.findings import CULPRIT_COLUMNS
from traceviz_dag.vocabulary import Category, Kind

CAPTURE_SQL = """
SELECT ranks, expected_ranks, failed_ranks, partial_ranks, missing_ranks, device_name, backend,
    has_stacks, has_shapes, has_groups
FROM runs WHERE run = $run AND iteration = $iteration
"""

MEASURED_SQL = """
SELECT ranks, covered_ranks, partial, step_ns, exposed_ns, longest_computation_rank FROM iterations
WHERE run = $run AND iteration = $iteration
"""

LAYOUT_SQL = """
SELECT count(*) AS ranks, max(tp) + 1 AS tp, max(cp) + 1 AS cp, max(dp) + 1 AS dp, max(pp) + 1 AS pp, max(ep) + 1 AS ep,
    max(etp) + 1 AS etp, max(edp) + 1 AS edp
FROM topology WHERE run = $run AND iteration = $iteration
"""

FINDINGS_SQL = f"""
SELECT finding, rule, severity, {", ".join(CULPRIT_COLUMNS)}, gain_ns, statement FROM findings
WHERE run = $run AND iteration = $iteration AND severity = 'finding' ORDER BY finding
"""

_OF_KIND = {Kind.COMPUTATION: "computation", Kind.COMMUNICATION: "communication", Kind.MEMORY: "memory"}
_ORDERED = [
    (kind.value, category.value)
    for kind, word in _OF_KIND.items()
    for category in Category
    if word in category.value or category is Category.UNCLASSIFIED
]
_RUNNING = ",\n        ".join(
    f"sum(opens) FILTER (kind = '{kind}' AND category = '{category}') AS n{number}"
    for number, (kind, category) in enumerate(_ORDERED)
)
_FIRST = "\n            ".join(
    f"WHEN sum(n{number}) OVER past > 0 THEN '{category}'" for number, (_, category) in enumerate(_ORDERED)
)
STEP_PARTS_SQL = f"""
-- Each instant of the longest window of rank {{rank}} is of one part: computation first, then communication, then
-- memory operations, in this order of categories; what is left is idle. other_ranks: the longest step beyond it.
WITH chosen AS (
    SELECT device, window_start_ns AS begins, window_end_ns AS ends FROM overlap
    WHERE run = $run AND iteration = $iteration AND rank = {{rank}} AND dimension = 'all'
        AND window_name IN ('step', 'kernels')
    QUALIFY (window_name = 'step') = (count(*) FILTER (window_name = 'step') OVER () > 0)
    ORDER BY window_end_ns - window_start_ns DESC, device DESC LIMIT 1
), inside AS (
    SELECT kind, category, greatest(start_ns, begins) AS first_ns, least(start_ns + duration_ns, ends) AS last_ns
    FROM kernels JOIN chosen USING (device)
    WHERE run = $run AND iteration = $iteration AND rank = {{rank}} AND start_ns < ends
        AND start_ns + duration_ns > begins
), edges AS (
    SELECT first_ns AS at_ns, kind, category, 1 AS opens FROM inside
    UNION ALL SELECT last_ns, kind, category, -1 FROM inside
    UNION ALL SELECT begins, NULL, NULL, 0 FROM chosen
    UNION ALL SELECT ends, NULL, NULL, 0 FROM chosen
), moments AS (
    SELECT at_ns,
        {_RUNNING}
    FROM edges GROUP BY at_ns
), spans AS (
    SELECT lead(at_ns) OVER (ORDER BY at_ns) - at_ns AS ns,
        CASE
            {_FIRST}
            ELSE 'idle'
        END AS part
    FROM moments WINDOW past AS (ORDER BY at_ns ROWS UNBOUNDED PRECEDING)
), parts AS (
    SELECT part, sum(ns)::BIGINT AS ns FROM spans WHERE ns IS NOT NULL GROUP BY part
)
SELECT part, ns FROM parts
UNION ALL
SELECT '{OTHER_RANKS}', step_ns - (SELECT sum(ns) FROM parts)::BIGINT FROM iterations
WHERE run = $run AND iteration = $iteration AND EXISTS (FROM parts)
ORDER BY ns DESC, part
"""
"""Parts of the step as ``analyze.step_parts`` takes it apart on one rank; they add up to ``iterations.step_ns``."""

_WORDS = {IDLE: "idle", OTHER_RANKS: "longer on other ranks"}
_MODE = {
    "device_name": "GPU",
    "backend": "backend",
    "has_stacks": "call stacks",
    "has_shapes": "shapes",
    "has_groups": "process groups",
}
_NONE = Markup("–")
_AXES = ("tp", "cp", "dp", "pp", "ep", "etp", "edp")


def against(page: Page) -> Markup | None:
    """The part."""
    if page.against is None:
        return None
    here, there = page.book, page.book.of(page.against)
    names = (_name(here, there), _name(there, here))
    parts = [_holds(page, here, there, names), _step(here, there, names), _findings(here, there)]
    return Markup("").join([*parts, _overlap(here, there, names), _trends(here, there)])


def _name(one: Book, other: Book) -> str:
    source = one.source
    if source.run == other.source.run:
        return f"iteration {source.iteration}"
    return printable(f"{source.run}, iteration {source.iteration}")


def _holds(page: Page, here: Book, there: Book, names: tuple[str, str]) -> Markup:
    """What keeps the two from being compared."""
    captured = [
        book.ask(f"How {name} was captured", CAPTURE_SQL) for book, name in zip((here, there), names, strict=True)
    ]
    layouts = [book.ask(f"Layout of {name}", LAYOUT_SQL) for book, name in zip((here, there), names, strict=True)]
    said = [
        Markup("{}: {}.").format(name, asked.fact(mark))
        for name, asked, mark in zip(names, captured, (page.mark, page.against_mark), strict=True)
        if mark
    ]
    rows = [asked.rows[0] if asked.rows else {} for asked in captured]
    worlds = [row.get("expected_ranks") or row.get("ranks") for row in rows]
    if worlds[0] != worlds[1]:
        words = Markup("{} ranks and {} ranks: the work of a rank differs, and so does what sums and means are of.")
        said.append(words.format(*(asked.fact(f"{world}") for asked, world in zip(captured, worlds, strict=True))))
    read = [row.get("ranks") for row in rows]
    if worlds[0] == worlds[1] and read[0] != read[1]:
        words = Markup("Traces of {} and of {} ranks were read: longest and mean are not of the same ranks.")
        said.append(words.format(*(asked.fact(f"{count}") for asked, count in zip(captured, read, strict=True))))
    modes = [word for name, word in _MODE.items() if rows[0].get(name) != rows[1].get(name)]
    if modes:
        said.append(
            Markup(
                "Captured in different modes ({}; {}, {}): recording takes time, so part of a difference may be it."
            ).format(", ".join(modes), captured[0].fact("this one"), captured[1].fact("the other"))
        )
    sizes = [asked.rows[0] if asked.rows else {} for asked in layouts]
    moved = [axis for axis in _AXES if sizes[0].get(axis) != sizes[1].get(axis)]
    if moved:
        layout = "; ".join(
            f"{axis} {'not known' if sizes[0].get(axis) is None else sizes[0][axis]} and "
            f"{'not known' if sizes[1].get(axis) is None else sizes[1][axis]}"
            for axis in moved
        )
        said.append(Markup("Other parallel sizes ({}): ranks of one number do other work.").format(layout))
    lines = Markup("").join(Markup('<p class="attention">{}</p>').format(line) for line in said)
    verdict = paragraph("Both were captured in the same mode, with as many ranks.", quiet=True) if not said else lines
    same = here.source.run == there.source.run
    first = names[0].replace("iteration", "Iteration", 1) if same else f"Run {names[0]}"
    return section(f"{first} against {names[1]}", verdict)


def _step(here: Book, there: Book, names: tuple[str, str]) -> Markup:
    means = [book.ask(f"What {name} was spent on", STEP_SQL) for book, name in zip((here, there), names, strict=True)]
    bars = [
        Bar(name, [Piece(word, asked.rows[0][column], colour) for column, (word, colour) in STEP_PARTS.items()])
        for name, asked in zip(names, means, strict=True)
        if asked.rows and asked.rows[0]["ranks"]
    ]
    chart = (
        stacked_bars("What both were spent on, mean of the ranks", bars) + legend(dict(STEP_PARTS.values()))
        if bars
        else Markup("")
    )
    windows = {asked.rows[0]["has_steps"] for asked in means if asked.rows and asked.rows[0]["ranks"]}
    if len(windows) > 1:
        why = "One of them has training steps and the other only kernels, so their windows are not of the same work."
        return section("The step", chart, Markup('<p class="attention">{}</p>').format(why))
    return section("The step", chart, _parts(here, there, names))


def _parts(here: Book, there: Book, names: tuple[str, str]) -> Markup:
    """The step of both taken apart on the same rank; differences add up to that of the step."""
    asked = [book.ask(f"The step of {name}", MEASURED_SQL) for book, name in zip((here, there), names, strict=True)]
    rows = [each.rows[0] if each.rows else {} for each in asked]
    if any(row.get("step_ns") is None for row in rows):
        return paragraph("A step was not measured in both, so nothing is compared.")
    rank = rows[0]["longest_computation_rank"]
    covered = rank in (rows[1]["covered_ranks"] or [])
    ranks = (rank, rank if covered else rows[1]["longest_computation_rank"])
    taken = [
        book.ask(f"The step of {name}, taken apart on rank {number}", STEP_PARTS_SQL.format(rank=number))
        for book, name, number in zip((here, there), names, ranks, strict=True)
        if number is not None
    ]
    if len(taken) < 2 or not all(each.rows for each in taken):
        return paragraph("No rank's step can be taken apart in both.")
    measures = [
        Measures(name, row["step_ns"], row["exposed_ns"], {each["part"]: each["ns"] for each in parts.rows})
        for name, row, parts in zip(names, rows, taken, strict=True)
    ]
    deltas = judge_nights(measures[0], measures[1], (), Tolerances()).deltas
    now, before = (row["step_ns"] for row in rows)
    change = now - before
    longer = "as long as" if not change else f"{duration(abs(change))} ({share(abs(change), before)}) "
    if change:
        longer += "longer than" if change > 0 else "shorter than"
    moved = (
        f"; {_word(deltas[0].part)} moved most in this direction, {_change(deltas[0].delta_ns)}"
        if change and deltas
        else ""
    )
    lines = [
        {
            "part": escape(_word(delta.part)),
            "duration_ns": _of(taken[0], delta.part, delta.duration_ns),
            "reference_ns": _of(taken[1], delta.part, delta.reference_ns),
            "change_ns": delta.delta_ns,
        }
        for delta in sorted(deltas, key=lambda delta: (-abs(delta.delta_ns), delta.part))
    ]
    total = {
        "part": Markup("<b>the longest step</b>"),
        "duration_ns": asked[0].fact(duration(now)),
        "reference_ns": asked[1].fact(duration(before)),
        "change_ns": Markup("<b>{}</b> ({} ns)").format(_change(change), f"{change:+,}" if change else "0"),
    }
    where = (
        f"rank {rank}, which computes longest here"
        if covered
        else f"ranks {ranks[0]} and {ranks[1]}: rank {rank} is not in both"
    )
    return Markup("").join(
        [
            paragraph(f"The longest step is {longer} that of {names[1]}{moved}."),
            measured(
                taken[0],
                [*lines, total],
                ["part", ("duration_ns", names[0]), ("reference_ns", names[1]), "change_ns"],
                f"The step taken apart on {where}. Each instant is of one part: computation first, then "
                "communication (so its exposed time), then memory operations. The parts add up to the step, and so "
                "do the changes.",
                {"reference_ns": taken[1], "change_ns": None},
            ),
        ]
    )


def _of(asked: Asked, part: str, length: int) -> Markup | int:
    """The length of a part; it need not be in both."""
    return length if any(row["part"] == part for row in asked.rows) else _NONE


def _word(part: str) -> str:
    return _WORDS.get(part) or word_of(part).label


def _change(nanoseconds: int) -> str:
    return signed(nanoseconds).replace("-", "−")


def _findings(here: Book, there: Book) -> Markup:
    asked = [book.ask("Findings", FINDINGS_SQL) for book in (here, there)]
    now, before = (by_culprit(each.rows) for each in asked)
    rows = []
    for key in [*now, *(key for key in before if key not in now)]:
        new, old = now.get(key), before.get(key)
        kept = now[key] if new else before[key]
        what = gain_changed(new["gain_ns"], old["gain_ns"]) if new and old else "new" if new else "gone"
        rows.append(
            {
                "change": escape(what),
                "rule": escape(key[0].replace("_", " ")),
                "gain_ns": new["gain_ns"] if new else _NONE,
                "gain_before_ns": old["gain_ns"] if old else _NONE,
                "statement": sentence(kept["statement"]),
            }
        )
    if not rows:
        return section("Findings", paragraph("Neither has a finding.", quiet=True))
    shown, left = top(rows, "findings")
    caption = "Findings of the same rule and culprit are one row; its sentence is this one's where it has it."
    columns = ["change", "rule", "gain_ns", "gain_before_ns", ("statement", "in words")]
    return section("Findings", measured(asked[0], shown, columns, caption, {"gain_before_ns": asked[1]}), left)


def _overlap(here: Book, there: Book, names: tuple[str, str]) -> Markup:
    asked = [book.ask(f"Overlap of {name}", DIMENSIONS_SQL) for book, name in zip((here, there), names, strict=True)]
    now, before = ({row["dimension"]: row for row in each.rows} for each in asked)
    dimensions = [*now, *(name for name in before if name not in now)]
    if not dimensions:
        return Markup("")
    bars, rows = [], []
    for name in dimensions:
        sides = [now.get(name), before.get(name)]
        for label, found in zip(names, sides, strict=True):
            if found is None:
                continue
            pieces = [
                Piece("hidden", found["hidden_ns"], palette.HIDDEN),
                Piece("exposed", found["exposed_ns"], palette.EXPOSED),
            ]
            bars.append(
                Bar(
                    f"{printable(name)} · {label}",
                    pieces,
                    f"{share(found['hidden_ns'], found['communication_ns'])} hidden",
                )
            )
        exposed = [found["exposed_ns"] if found else 0 for found in sides]
        row = {"dimension": name, "change_ns": exposed[0] - exposed[1]}
        for when, found in zip(("", "_before"), sides, strict=True):
            row[f"exposed{when}_ns"] = found["exposed_ns"] if found else _NONE
            row[f"hidden{when}_share"] = found["hidden_share"] if found else _NONE
        rows.append(row)
    columns = [
        *("dimension", "exposed_ns", "hidden_share", "exposed_before_ns"),
        *(("hidden_before_share", "hidden share before"), ("change_ns", "change of exposed")),
    ]
    apart = {"exposed_before_ns": asked[1], "hidden_before_share": asked[1], "change_ns": None}
    return section(
        "Communication by dimension",
        stacked_bars("Hidden and exposed communication of both, mean of the ranks", bars),
        legend({"hidden": palette.HIDDEN, "exposed": palette.EXPOSED}),
        measured(asked[0], rows, columns, "Mean of the ranks. Before: in the other.", apart),
    )


def _trends(here: Book, there: Book) -> Markup:
    books = [here] if here.source.run == there.source.run else [here, there]
    drawn = []
    for book in books:
        asked = book.ask_run(f"Steps of {printable(book.source.run)}", TREND_SQL)
        points = [(row["iteration"], float(row["step_ns"])) for row in asked.rows if row["step_ns"] is not None]
        if len(points) > 1 and book.source.iteration in dict(points):
            title = f"Longest step of {printable(book.source.run)} by iteration"
            drawn += [Markup("<h3>{}</h3>").format(title), trend(title, points, book.source.iteration)]
    return section("Trends", *drawn) if drawn else Markup("")


PART = Part("against", "Against", ("iterations",), against, expected=False)
