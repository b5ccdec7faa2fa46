"""The timeline's place on the page; the page's script fills it."""

from __future__ import annotations

from markupsafe import Markup

from traceviz_dag.show.report.parts.part import Page, Part, paragraph
from traceviz_dag.show.report.places import MOST_PLACES
from traceviz_dag.show.report.stage import stage_markup
from traceviz_dag.show.report.timeline import Timeline
from traceviz_dag.vocabulary import Severity


def timeline(page: Page) -> Markup:
    """The part."""
    return timeline_markup(page.timeline)


def timeline_markup(gathered: Timeline, bare: bool = False) -> Markup:
    """A timeline's place on a page, and what it leaves out.

    Args:
        bare: without a choice of clocks, and without a critical path.
    """
    axes, findings = gathered.document["axes"], gathered.document["findings"]
    clocks = Markup("").join(
        Markup('<option value="{}"{}>{}</option>').format(
            axis["name"], Markup(" disabled") if "refusal" in axis else "", _CLOCKS[axis["name"]]
        )
        for axis in axes
    )
    notes = [axis["refusal"] for axis in axes if "refusal" in axis]
    if any(finding["places"] for finding in findings if finding["severity"] == Severity.FINDING):
        marks = f"Brackets above rows: findings, each in the places that hold most of it, at most {MOST_PLACES}."
        notes.append(marks)
    what = "operation" if bare else "kernel"
    place = stage_markup(
        f"{'name' if bare else 'name, module, dimension'}, /regular expression/",
        clocks="" if bare else clocks,
        sentence=next((axis["sentence"] for axis in axes if "sentence" in axis), ""),
        further="" if bare else _PATH,
        counted=f"{gathered.kept:,} {what}{'s' if gathered.kept != 1 else ''}",
    )
    return place + Markup("").join(paragraph(note, quiet=True) for note in (*notes, *gathered.notes))


_CLOCKS = {
    "solved": "clocks solved from communications",
    "global": "clocks as recorded",
    "individual": "each rank from its first kernel",
}

_PATH = Markup('<button type="button" id="path-button" data-act="path" aria-pressed="false">critical path</button>')

PART = Part("timeline", "Timeline", (), timeline)
