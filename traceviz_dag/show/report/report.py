"""The report of an iteration: one page that opens from disk and asks nothing of a network."""

from __future__ import annotations

import shlex
from importlib import resources

import jinja2
from markupsafe import Markup

from traceviz_dag.analyze.findings.rules.registry import RULES
from traceviz_dag.printable import printable
from traceviz_dag.show.report import bundle
from traceviz_dag.show.report.evidence import Book, ReportSource
from traceviz_dag.show.report.limits import MOST_KERNELS
from traceviz_dag.show.report.parts.part import Told, paragraph
from traceviz_dag.show.report.parts.registry import PARTS
from traceviz_dag.show.report.timeline import read_timeline
from traceviz_dag.tables import all_tables
from traceviz_dag.vocabulary import FindingClass


def report_page(
    source: ReportSource,
    *,
    mark: str = "",
    most_kernels: int = MOST_KERNELS,
    against: ReportSource | None = None,
    against_mark: str = "",
) -> str:
    """The page, as HTML.

    Args:
        mark: what of the iteration was not read, in words; empty where all of it was.
        most_kernels: that the timeline carries.
        against: another iteration to compare with. against_mark: what of that was not read.
    """
    book = Book(source)
    timeline = read_timeline(source, most_kernels)
    findings = source.table("findings", [column.name for column in all_tables()["findings"].columns]).to_pylist()
    findings.sort(key=lambda row: row["finding"])
    timeline.document |= {
        "run": source.run,
        "iteration": source.iteration,
        "whole": timeline.kept == timeline.kernels,
        "overlap_command": f"traceviz overlap --run {shlex.quote(source.run)} --iteration {source.iteration}",
        "findings": [
            {
                **{name: row[name] for name in _OF_FINDING},
                "class": FindingClass(row["class"]).value if row["class"] else None,
            }
            for row in findings
        ],
    }
    told = Told(book, timeline, mark, {rule.name: rule.remedy for rule in RULES}, findings, against, against_mark)
    parts = []
    for part in PARTS:
        markup = part.markup(told)
        if markup is None:
            if not part.expected:
                continue
            markup = paragraph(f"Nothing to show: table {', '.join(part.tables)} holds no rows of this iteration.")
        parts.append({"name": part.name, "title": part.title, "markup": markup})
    script, styles = bundle.script(), bundle.styles()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {bundle.digest(script)}",
            f"style-src {bundle.digest(styles)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = resources.files("traceviz_dag.show.report.templates").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title=printable(f"{source.run} · iteration {source.iteration}"),
        mark=mark,
        parts=parts,
        evidence=book.markup(),
        data=timeline.columns.packed(timeline.document),
        policy=policy,
        script=Markup(script),
        styles=Markup(styles),
    )


_OF_FINDING = ("finding", "rule", "severity", "statement", "rank", "stage", "dimension")
