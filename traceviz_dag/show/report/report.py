"""The report of an iteration: one page that opens from disk and asks nothing of a network."""

from __future__ import annotations

import shlex

from traceviz_dag.analyze.findings.verdict import Verdict, lead_of
from traceviz_dag.show.report.evidence import Book, ReportSource
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.parts.findings import shown_findings
from traceviz_dag.show.report.parts.part import Page, paragraph
from traceviz_dag.show.report.parts.registry import PARTS
from traceviz_dag.show.report.places import places_of
from traceviz_dag.show.report.shell import Tab, page
from traceviz_dag.show.report.timeline import read_timeline
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import FindingClass


def report_page(
    source: ReportSource,
    *,
    mark: str = "",
    verdict: Verdict | None = None,
    most_kernels: int = MOST_KERNELS,
    against: ReportSource | None = None,
    against_mark: str = "",
) -> str:
    """The page, as HTML.

    Args:
        mark: what of the iteration was not read, in words; empty where all of it was.
        verdict: on the iteration; None where nothing was judged.
        most_kernels: that the timeline carries.
        against: another iteration to compare with. against_mark: what of that was not read.
    """
    book = Book(source)
    timeline = read_timeline(source, most_kernels)
    findings = source.table("findings", [column.name for column in all_tables()["findings"].columns]).to_pylist()
    findings.sort(key=lambda row: row["finding"])
    lead = lead_of(findings)
    shown = {row["finding"] for part in shown_findings(findings) for row in part.rows}
    timeline.document |= {
        "run": source.run,
        "iteration": source.iteration,
        "whole": timeline.kept == timeline.kernels,
        "overlap_options": "--rank {rank} --start-ns {start_ns} --end-ns {end_ns}",
        "overlap_command": f"traceviz overlap --run {shlex.quote(source.run)} --iteration {source.iteration}",
        "findings": [
            {
                **{name: row[name] for name in _OF_FINDING},
                "class": FindingClass(row["class"]).value if row["class"] else None,
                "places": places_of(source, row, findings, timeline.document["ranks"]),
            }
            for row in findings
            if row["finding"] in shown
        ],
    }
    known = Page(book, timeline, mark, findings, lead, against, against_mark, verdict)
    tabs = []
    for part in PARTS:
        markup = part.markup(known)
        if markup is None:
            if not part.expected:
                continue
            markup = paragraph(f"Nothing to show: table {', '.join(part.tables)} holds no rows of this iteration.")
        elif part.relation and lead.limit:
            markup = paragraph(f"{lead.limit}. {part.relation}") + markup
        tabs.append(Tab(part.name, part.title, markup))
    data = timeline.columns.packed(timeline.document)
    title = f"{source.run} · iteration {source.iteration}"
    return page(title, tabs, data, mark=mark, evidence=book.markup())


_OF_FINDING = ("finding", "rule", "severity", "statement", "rank", "stage", "dimension")
