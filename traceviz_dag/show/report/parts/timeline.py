"""The timeline's place on the page; the page's script fills it."""

from __future__ import annotations

from markupsafe import Markup

from traceviz_dag.show.lanes.words import word_of
from traceviz_dag.show.report.charts import legend, swatch
from traceviz_dag.show.report.parts.part import Page, Part, paragraph
from traceviz_dag.show.report.places import MOST_PLACES
from traceviz_dag.show.report.timeline import Timeline
from traceviz_dag.vocabulary import Phase, Severity


def timeline(page: Page) -> Markup:
    """The part."""
    return timeline_markup(page.timeline)


def timeline_markup(gathered: Timeline, bare: bool = False) -> Markup:
    """A timeline's place on a page, its bar and its legends.

    Args:
        bare: without a choice of clocks, and without a critical path.
    """
    document = gathered.document
    clocks = Markup("").join(
        Markup('<option value="{}"{}>{}</option>').format(
            axis["name"],
            Markup(" disabled") if "refusal" in axis else "",
            _CLOCKS[axis["name"]],
        )
        for axis in document["axes"]
    )
    sentence = next((axis["sentence"] for axis in document["axes"] if "sentence" in axis), "")
    refusals = Markup("").join(paragraph(axis["refusal"], quiet=True) for axis in document["axes"] if "refusal" in axis)
    filters = Markup("").join(
        Markup('<label><input type="checkbox" value="{}" checked>{} {}</label>').format(
            place, swatch(word_of(category).colour), word_of(category).label
        )
        for place, category in enumerate(document["categories"])
    )
    shown = [*document["parts"], *document["legend"]]
    # Phases have the colours of the categories above.
    parts = legend(dict(word_of(kind) for kind in shown if kind not in {*document["categories"], *Phase}))
    notes = Markup("").join(paragraph(note, quiet=True) for note in gathered.notes)
    if any(finding["places"] for finding in document["findings"] if finding["severity"] == Severity.FINDING):
        marks = f"Brackets above rows: findings, each in the places that hold most of it, at most {MOST_PLACES}."
        notes = paragraph(marks, quiet=True) + notes
    return Markup(_MARKUP).format(
        clocks=clocks,
        sentence=sentence,
        filters=filters,
        parts=parts,
        notes=refusals + notes,
        counted=f"{gathered.kept:,} {'operation' if bare else 'kernel'}{'s' if gathered.kept != 1 else ''}",
        searched="name" if bare else "name, module, dimension",
        member=f"{document['member']}s",
        bare=Markup(" hidden") if bare else "",
    )


_CLOCKS = {
    "solved": "clocks solved from communications",
    "global": "clocks as recorded",
    "individual": "each rank from its first kernel",
}

_MARKUP = """
<div class="bar">
<label{bare}>Clocks <select id="clocks">{clocks}</select></label>
<label>Group by <select id="grouping"></select></label>
<label>Search <input id="search" type="search" placeholder="{searched}, /regular expression/"></label>
<span id="matches" role="status"></span>
<label>At least <input id="shortest" type="number" min="0" step="any" placeholder="0"> µs</label>
<button type="button" data-act="all">all</button>
<button type="button" data-act="measure">measure</button>
<button type="button" id="path-button" data-act="path" aria-pressed="false"{bare}>critical path</button>
<button type="button" data-act="help">keys</button>
<span id="bookmarks"></span>
<span id="said" class="quiet" role="status"></span>
</div>
<p class="quiet" id="clocks-sentence">{sentence}</p>
<div class="stage">
<canvas id="timeline-canvas" tabindex="0" role="img"
 aria-label="Timeline of all {member}; the tables of the other tabs have its numbers. Keys: question mark."></canvas>
<aside id="details" aria-live="polite"><p class="quiet">Click anything on the timeline to see all that is known of
it. Drag moves, the wheel zooms, Shift and drag measure a window, a click on a label opens or folds its row.</p></aside>
</div>
<details id="filters" open>
<summary>Categories of {counted}</summary><div class="legend">{filters}</div></details>
{parts}
{notes}
"""

PART = Part("timeline", "Timeline", (), timeline)
