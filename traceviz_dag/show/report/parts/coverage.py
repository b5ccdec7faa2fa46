"""What the report rests on: how it was captured, how much is classified by what evidence, and what cannot be said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.wording import share
from traceviz_dag.lake.summaries import COVERED
from traceviz_dag.printable import printable
from traceviz_dag.show.page import palette
from traceviz_dag.show.report.charts import Bar, Piece, legend, stacked_bars
from traceviz_dag.show.report.parts.part import (
    Page,
    Part,
    measured,
    paragraph,
    section,
    sentence,
    shortened,
    top,
)
from traceviz_dag.vocabulary import Severity

TRACES_SQL = """
SELECT count(*) AS ranks, count(*) FILTER (status = 'read') AS whole, sum(rows_read)::BIGINT AS rows_read,
    sum(rows_dropped)::BIGINT AS rows_dropped, sum(kernels)::BIGINT AS kernels,
    sum(launched_kernels)::BIGINT AS launched_kernels, sum(kernel_ns)::BIGINT AS kernel_ns,
    sum(classified_ns)::BIGINT AS classified_ns, sum(phase_known_ns)::BIGINT AS phase_known_ns,
    sum(microbatch_known_ns)::BIGINT AS microbatch_known_ns, sum(communication_ns)::BIGINT AS communication_ns,
    sum(dimension_known_ns)::BIGINT AS dimension_known_ns
FROM traces WHERE run = $run AND iteration = $iteration
"""

MODES_SQL = """
SELECT format, device_name, backend, has_stacks, has_shapes, has_groups, has_host_rows, count(*) AS ranks,
    min(rank) AS lowest_rank
FROM traces WHERE run = $run AND iteration = $iteration AND status <> 'failed'
GROUP BY format, device_name, backend, has_stacks, has_shapes, has_groups, has_host_rows
ORDER BY ranks DESC, lowest_rank
"""

RUN_SQL = """
SELECT ranks, expected_ranks, failed_ranks, partial_ranks, missing_ranks, complete, parity FROM runs
WHERE run = $run AND iteration = $iteration
"""

FAULTS_SQL = """
SELECT rank, file, status, fault, rows_read, rows_dropped, drop_reasons FROM traces
WHERE run = $run AND iteration = $iteration AND (status <> 'read' OR fault IS NOT NULL OR rows_dropped > 0)
ORDER BY status = 'read', rank
"""

EVIDENCE_SQL = f"""
WITH parts AS (
    SELECT 'phase' AS what, coalesce(phase_evidence, 'none') AS evidence, phase = 'unknown' AS unknown,
        count(*) AS kernels, sum(duration_ns)::BIGINT AS time_ns
    FROM kernels WHERE run = $run AND iteration = $iteration AND {COVERED} GROUP BY ALL
    UNION ALL
    SELECT 'dimension', coalesce(dimension_evidence, 'none'), coalesce(dimension = 'unknown', true), count(*),
        sum(duration_ns)::BIGINT
    FROM kernels WHERE run = $run AND iteration = $iteration AND kind = 'communication' AND {COVERED} GROUP BY ALL
)
SELECT what, evidence, unknown, kernels, time_ns, (sum(time_ns) OVER (PARTITION BY what))::BIGINT AS of_ns FROM parts
ORDER BY what DESC, time_ns DESC, evidence
"""

CANDIDATES_SQL = f"""
SELECT dimension_candidates, collective, group_description, count(*) AS kernels, sum(duration_ns)::BIGINT AS time_ns
FROM kernels
WHERE run = $run AND iteration = $iteration AND kind = 'communication' AND coalesce(dimension = 'unknown', true)
    AND {COVERED}
GROUP BY dimension_candidates, collective, group_description
ORDER BY time_ns DESC, dimension_candidates, collective, group_description
"""

UNCLASSIFIED_SQL = f"""
SELECT name, count(*) AS kernels, sum(duration_ns)::BIGINT AS time_ns, count(*) OVER () AS names
FROM kernels WHERE run = $run AND iteration = $iteration AND category = 'unclassified' AND {COVERED}
GROUP BY name ORDER BY time_ns DESC, name LIMIT 40
"""

_LACKING = {
    "topology": "which rank is in which parallel group",
    "microbatches": "micro-batches",
    "collectives": "waits: no kernel communicates",
    "rank_clocks": "clocks against each other",
    "pipelines": "bubbles of pipeline stages",
    "period_percentiles": "periods and OverlapScores",
    "path_segments": "the critical path",
    "findings": "findings: nothing was looked through",
    "gpu_gaps": "why the GPU idles between kernels",
    "memory_peaks": "GPU memory: no snapshot lies beside the traces",
}
ROWS_SQL = "\nUNION ALL\n".join(
    f"SELECT '{name}' AS \"table\", count(*) AS rows FROM {name} WHERE run = $run AND iteration = $iteration"
    for name in _LACKING
)

SNAPSHOTS_SQL = """
SELECT rank, device, file, matched_by, events, overwritten, unknown, unknown_names, lost, lost_names, contradictions
FROM memory_recordings WHERE run = $run AND iteration = $iteration ORDER BY rank, device
"""

_MATCHED = {"time": "rank and time", "name": "its name alone"}
_OVERWRITTEN = {True: "overwritten", False: "all kept", None: "unknown"}

_MODES = {
    "has_stacks": "call stacks",
    "has_shapes": "shapes",
    "has_groups": "process groups",
    "has_host_rows": "the host's operations",
}
_COVERED = (
    ("classified_ns", "kernel_ns", "category"),
    ("phase_known_ns", "kernel_ns", "phase"),
    ("microbatch_known_ns", "kernel_ns", "micro-batch"),
    ("dimension_known_ns", "communication_ns", "dimension"),
)

_NOT_KNOWN = "not known, or none"
_CLASSIFIED = (
    "Sums of the durations of kernels over all ranks read; dimensions of those that communicate. The optimizer, and "
    "what belongs to the whole step, are of no micro-batch."
)


def coverage(page: Page) -> Markup | None:
    """The part."""
    parts = [_unsaid(page), _capture(page), _classified(page), _evidence(page), _unknown(page), _faults(page)]
    parts.append(_snapshots(page))
    return Markup("").join(parts)


def _unsaid(page: Page) -> Markup:
    """What this iteration does not show, and why."""
    asked = page.book.ask("Rows of each table", ROWS_SQL)
    lacking = [row["table"] for row in asked.rows if not row["rows"]]
    if page.book.source.holds("findings"):
        # Rules that find nothing leave no row: that says something.
        lacking = [name for name in lacking if name != "findings"]
    lines: list[Markup | str] = [Markup("{}").format(page.mark)] if page.mark else []
    lines += [Markup("{} (table {} {})").format(_LACKING[name], name, asked.fact("has no rows")) for name in lacking]
    for row in page.findings:
        if row["severity"] == Severity.NOT_LOOKED_AT:
            lines.append(f"{row['rule'].replace('_', ' ')}: {printable(row['statement'])}")
    if not lines:
        return section("What is unknown", paragraph("Nothing that was looked for is lacking.", quiet=True))
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in lines)
    return section("What is unknown", Markup("<ul>{}</ul>").format(items))


def _capture(page: Page) -> Markup:
    modes = page.book.ask("How each rank was captured", MODES_SQL)
    run = page.book.ask("Whether ranks agree", RUN_SQL)
    if not modes.rows:
        return section("Capture", paragraph("No trace of this iteration could be read."))
    rows = [
        {
            "ranks": modes.fact(f"{row['ranks']:,}"),
            "from": f"rank {row['lowest_rank']}" + (" …" if row["ranks"] > 1 else ""),
            **{name: row[name] or "not known" for name in ("format", "device_name", "backend")},
            "recorded": ", ".join(word for name, word in _MODES.items() if row[name]) or "kernels alone",
            "not_known_whether": ", ".join(word for name, word in _MODES.items() if row[name] is None) or "–",
        }
        for row in modes.rows[:16]
    ]
    said = Markup("")
    if run.rows and run.rows[0]["parity"] is False:
        words = "Ranks were captured in different modes or hold different steps: compare their times with care."
        said = Markup('<p class="attention">{}</p>').format(run.fact(words))
    elif run.rows and run.rows[0]["parity"]:
        said = paragraph(run.fact("All ranks that were read were captured in the same mode."))
    return section(
        "Capture",
        said,
        measured(modes, rows, [*rows[0]], "How ranks were captured"),
    )


def _classified(page: Page) -> Markup:
    asked = page.book.ask("What was read, and how much of it is classified", TRACES_SQL)
    row = asked.rows[0]
    if not row["kernels"]:
        return section("Classified", paragraph("No kernel was read."))
    known = [(words, row[part] or 0, row[whole]) for part, whole, words in _COVERED if row[whole]]
    bars = [
        Bar(
            words,
            [
                Piece("known", part / whole * 100, palette.HIDDEN),
                Piece(_NOT_KNOWN, 100 - part / whole * 100, palette.IDLE),
            ],
            share(part, whole),
        )
        for words, part, whole in known
    ]
    rows = [
        {"of": Markup(words), "known_ns": part, "of_all_ns": whole, "share": part / whole}
        for words, part, whole in known
    ]
    return section(
        "How much of the kernel time is classified",
        paragraph(
            asked.fact(f"{row['rows_read']:,} events read"),
            ", ",
            asked.fact(f"{row['rows_dropped'] or 0:,} dropped"),
            "; ",
            asked.fact(f"{row['launched_kernels'] or 0:,} of {row['kernels']:,} kernels"),
            " with the call that launched them.",
        ),
        stacked_bars("Share of the kernel time of all ranks that is known", bars, words=lambda value: f"{value:.0f} %"),
        legend({"known": palette.HIDDEN, _NOT_KNOWN: palette.IDLE}),
        measured(asked, rows, ["of", "known_ns", "of_all_ns", "share"], _CLASSIFIED),
    )


def _evidence(page: Page) -> Markup:
    asked = page.book.ask("By what evidence phases and dimensions are known", EVIDENCE_SQL)
    if not asked.rows:
        return Markup("")
    rows = [
        {
            **row,
            "what": f"{row['what']}, unknown" if row["unknown"] else row["what"],
            "evidence": row["evidence"].replace("_", " "),
            "share": row["time_ns"] / row["of_ns"] if row["of_ns"] else None,
        }
        for row in asked.rows
    ]
    caption = "What decided: phases of all kernels, dimensions of those that communicate, of all ranks that are covered"
    return section(
        "Evidence", measured(asked, rows, [("what", "of"), "evidence", "kernels", "time_ns", "share"], caption)
    )


def _unknown(page: Page) -> Markup:
    candidates = page.book.ask("Communication of no known dimension", CANDIDATES_SQL)
    unclassified = page.book.ask("Kernels without a category", UNCLASSIFIED_SQL)
    parts = []
    if candidates.rows:
        shown, left = top(candidates.rows, "kinds", 12)
        rows = [
            {
                "may be of": row["dimension_candidates"] or "nothing shows",
                "operation": shortened(row["collective"]),
                "group": shortened(row["group_description"] or "not described"),
                "kernels": row["kernels"],
                "time_ns": row["time_ns"],
            }
            for row in shown
        ]
        parts += [
            measured(candidates, rows, [*rows[0]], "Communication of no known dimension, and which it may be of"),
            left,
        ]
    if unclassified.rows:
        shown, names = unclassified.rows[:12], unclassified.rows[0]["names"]
        left = (
            paragraph(f"The first {len(shown)} of {names:,} names.", quiet=True) if names > len(shown) else Markup("")
        )
        parts += [measured(unclassified, shown, ["name", "kernels", "time_ns"], "Kernels without a category"), left]
    return section("Unknown", *parts) if parts else Markup("")


def _faults(page: Page) -> Markup:
    asked = page.book.ask("Files with faults, and events that were dropped", FAULTS_SQL)
    if not asked.rows:
        return section("Files", paragraph("Every file was read whole; no event was dropped.", quiet=True))
    shown, left = top(asked.rows, "files", 16)
    rows = [
        {
            "rank": row["rank"],
            "file": shortened(row["file"]),
            "status": row["status"],
            "fault": sentence(row["fault"] or ""),
            "events_dropped": asked.fact(f"{row['rows_dropped'] or 0:,} of {row['rows_read'] or 0:,}"),
            "refusal": _reasons(row),
        }
        for row in shown
    ]
    caption = "Files with a fault or with events that could not be used"
    return section("Files", measured(asked, rows, [*rows[0]], caption), left)


def _snapshots(page: Page) -> Markup:
    """How the snapshots of GPU memory are known to be of their traces, and what of them was not understood."""
    asked = page.book.ask("Snapshots of GPU memory", SNAPSHOTS_SQL)
    if not asked.rows:
        return Markup("")
    shown, left = top(asked.rows, "GPUs with snapshots", 16)
    rows = [
        {
            **{name: row[name] for name in ("rank", "device", "events")},
            "snapshot": shortened(row["file"]),
            "matched_to_its_trace_by": _MATCHED.get(row["matched_by"], "unknown"),
            "older_events": _OVERWRITTEN[row["overwritten"]],
            "keys_and_actions_not_understood": _named(asked.fact(f"{row['unknown']:,}"), row["unknown_names"]),
            "rows_and_values_not_used": _named(asked.fact(f"{row['lost']:,}"), row["lost_names"]),
            "contradictions": _named(None, row["contradictions"]),
        }
        for row in shown
    ]
    caption = "Snapshots that were read, by rank"
    return section("Snapshots of GPU memory", measured(asked, rows, [*rows[0]], caption), left)


def _named(count: Markup | None, names: str) -> Markup:
    """A number, and what it is made of."""
    told = json.loads(names or "{}")
    words = "; ".join(f"{printable(str(name))}: {number:,}" for name, number in told.items())
    parts = [part for part in (count, words and shortened(words)) if part]
    return Markup(" · ").join(parts) if parts else Markup("–")


def _reasons(row: Mapping[str, Any]) -> str:
    reasons = json.loads(row["drop_reasons"] or "{}")
    return "; ".join(f"{printable(str(reason)).replace('_', ' ')}: {count:,}" for reason, count in reasons.items())


PART = Part("coverage", "Coverage", ("traces",), coverage)
