"""What is wrong with the step: the worst findings with gain, culprit, what to do, and evidence; others are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.findings.losses import label, leading
from traceviz_dag.analyze.wording import duration, share
from traceviz_dag.printable import printable
from traceviz_dag.show.report.parts.part import Page, Part, paragraph, section, top
from traceviz_dag.vocabulary import Severity

_NOTES = (
    (Severity.NOTE, "Notes: savings of less than 1 % of the step, perhaps none, or not predicted", "notes"),
    (Severity.NOT_LOOKED_AT, "Not judged", "that are not judged"),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A section of findings.

    Attributes:
        rows: those that the page shows, the worst. left: says how many it leaves out.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    left: Markup


def shown_findings(found: Sequence[Mapping[str, Any]]) -> list[Shown]:
    """What a page shows of an iteration's findings: each that is shown asks the tables for its rows and places."""
    first = leading(found)
    leads = {row["finding"] for row in first}
    others = [row for row in found if row["finding"] not in leads]
    notes = [(title, [row for row in others if row["severity"] == kind], words) for kind, title, words in _NOTES]
    every = [("Findings", first, "findings and losses"), *notes]
    return [Shown(title, *top(rows, words)) for title, rows, words in every if rows]


def findings(page: Page) -> Markup | None:
    """The part."""
    parts = []
    number = 0
    for shown in shown_findings(page.findings):
        cards = []
        for row in shown.rows:
            number += 1
            kind = label(row) if shown.title == "Findings" else "note" if row["severity"] == Severity.NOTE else ""
            cards.append(finding_card(page, row, number, kind, whole=True))
        told = Markup('<div class="cards">{}</div>').format(Markup("").join(cards))
        parts.append(section(shown.title, told, shown.left))
    if not parts:
        return None
    return paragraph(
        "Faults first, then opportunities and losses, by what they cost. Savings do not add up.",
        quiet=True,
    ) + Markup("").join(parts)


def finding_card(page: Page, row: Mapping[str, Any], number: int, kind: str, *, whole: bool = False) -> Markup:
    """One finding.

    Args:
        number: its place among those that are shown. kind: what it is, in a word.
        whole: with what to do about it.
    """
    evidence = Markup("")
    if row["evidence_sql"]:
        name = page.book.quote(printable(row["statement"]), row["evidence_sql"])
        evidence = Markup('<button type="button" class="chip" data-evidence="{}">rows and SQL</button>').format(name)
    place = Markup("")
    in_time = any(each["finding"] == row["finding"] and each["places"] for each in page.timeline.document["findings"])
    if row["rank"] is not None or in_time:
        rank = "" if row["rank"] is None else f"&open=rank:{row['rank']}"
        what = "in the timeline" if row["rank"] is None else f"rank {row['rank']} in the timeline"
        place = Markup('<a href="#part=timeline&finding={0}{1}" class="chip" data-finding="{0}">{2}</a>').format(
            row["finding"], rank, what
        )
    remedy = row["remedy"] if whole else None
    return Markup(
        '<article class="card {}" tabindex="0"><header><b>{}. {}</b> '
        '<span class="quiet">{}</span><span class="gain">{}</span></header>'
        "<p>{}</p>{}{}<footer>{}{}</footer></article>"
    ).format(
        row["severity"],
        number,
        row["rule"].replace("_", " "),
        kind,
        _gain(row),
        printable(row["statement"]),
        Markup('<p class="quiet">{}</p>').format(printable(row["detail"])) if whole and row["detail"] else "",
        Markup('<p class="remedy">{}</p>').format(remedy) if remedy else "",
        place,
        evidence,
    )


def _gain(row: Mapping[str, Any]) -> str:
    if row["severity"] == Severity.NOT_LOOKED_AT:
        return ""
    if row["gain_ns"] is None:
        return "saving not predicted"
    alone, after, adds = row["gain_ns"], row["gain_after_ns"], row["gain_ns"] < 0
    sign = -1 if adds else 1
    ends = [row["gain_low_ns"], row["gain_high_ns"]][::sign]
    bar = f" ({duration(sign * ends[0])} to {duration(sign * ends[1])})" if None not in ends else ""
    of_step = f", {share(abs(alone), row['step_ns'])} of the step" if row["step_ns"] else ""
    gain = f"{duration(abs(alone))}{bar}{of_step}"
    # What mostly restates those above it must not look like the largest, nor what these turn into a loss like one.
    if after is not None and (2 * after < alone or adds):
        return f"saves {duration(max(after, 0))} after those above; alone {'adds ' * adds}{gain}"
    return f"{'adds' if adds else 'saves'} {gain}"


PART = Part("findings", "Findings", ("findings",), findings)
