"""What would fixing a fault save: edits to choose from, whose gain the page's script replays at once."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from traceviz_dag.analyze.causes.gains import named_edit
from traceviz_dag.analyze.causes.replay_data import DIFFERENCES, replay_data
from traceviz_dag.analyze.findings.verdict import Lead
from traceviz_dag.errors import BadInputError, NoEvidenceError
from traceviz_dag.printable import printable
from traceviz_dag.show.report.evidence import Asked
from traceviz_dag.show.report.limits import MOST_REPLAYED
from traceviz_dag.show.report.parts.part import Page, Part, measured, paragraph, section
from traceviz_dag.tables.questions import GAIN_IDS, GAINS_ORDER, GAINS_SQL

USUAL_SQL = f"SELECT * EXCLUDE (refusal) FROM ({GAINS_SQL}) WHERE steps > 0 {GAINS_ORDER}"
"""The edits that are not refused."""


def what_if(page: Page) -> Markup:
    """The part; the replay of the iteration's steps goes into the page's data."""
    source = page.book.source
    command = f"traceviz what-if --run {shlex.quote(printable(source.run))} --iteration {source.iteration}"
    asked = page.book.ask("What single edits gain", USUAL_SQL)
    try:
        steps = _replayed(page)
    # A table that was never written leaves nothing to replay; the other parts hold what they hold.
    except (NoEvidenceError, BadInputError) as error:
        why = paragraph(f"The page replays nothing: {printable(str(error))}.")
        return Markup("").join([why, _single_edits(asked, page.lead, live=False)])
    page.timeline.document["what_if"] = {
        "steps": steps,
        "usual": [{name: row[name] for name in GAIN_IDS} for row in asked.rows],
        "command": command,
    }
    several = f" All {len(steps)} training steps of the iteration are counted." if len(steps) > 1 else ""
    return Markup(_MARKUP).format(
        several=several, single=_single_edits(asked, page.lead, live=True), command=f"{command} --microbatches 16"
    )


def _replayed(page: Page) -> list[dict[str, Any]]:
    """Put the steps into the page's data.

    Raises:
        NoEvidenceError: the page has none, with the reason.
    """
    if page.timeline.kernels > MOST_REPLAYED:
        raise NoEvidenceError(
            f"this iteration has {page.timeline.kernels:,} kernels, and a page carries at most {MOST_REPLAYED:,}; "
            "traceviz what-if takes any number"
        )
    steps = []
    # All are made before any is kept: a step that shows nothing leaves none in the page.
    replays = [(number, replay_data(predictions)) for number, predictions in page.book.source.replays()]
    for place, (number, data) in enumerate(replays):
        steps.append({"number": number, **data.facts, "columns": list(data.columns)})
        for name, column in data.columns.items():
            page.timeline.columns.add(f"what_if/{place}/{name}", column, differences=name in DIFFERENCES)
    if not steps:
        raise NoEvidenceError("no training step is known")
    return steps


def _single_edits(asked: Asked, lead: Lead, *, live: bool) -> Markup:
    """The usual edits, each by itself; with buttons that choose them."""
    if not asked.rows:
        return Markup("")
    rows = []
    for row in lead.fixes_first(asked.rows):
        words = printable(named_edit(row))
        button = Markup(
            '<button type="button" data-edit="{}" aria-pressed="false" aria-label="choose {}" disabled>choose</button>'
        ).format(printable(_written(row)), words)
        gained = row["gain_ns"] / row["step_ns"] if row["step_ns"] else None
        rows.append({**row, "edit": words, "gain_share": gained, "choose": button if offers(row) else ""})
    columns = [
        *("edit", "gain_ns", ("gain_share", "of the step"), ("gain_low_ns", "at least"), ("gain_high_ns", "at most")),
        *(("predicted_step_ns", "step then"), *(["choose"] if live else [])),
    ]
    return section("Single edits, those of the findings first, then the largest gain", measured(asked, rows, columns))


def offers(row: Mapping[str, Any]) -> bool:
    """Whether the tab offers an edit: it fixes the hosts of all ranks or of none, and a rank as a whole."""
    return row["edit"] not in ("fix_gpu", "host_free", "no_pauses") or row["rank"] is None


def _written(row: Mapping[str, Any]) -> str:
    """An edit as the page's address has it."""
    ranks = None if row["ranks"] is None else row["ranks"].replace(", ", "+")
    what = next((one for one in (row["rank"], ranks, row["dimension"]) if one is not None), None)
    factor = "" if row["factor"] is None else f"={row['factor']:g}"
    return str(row["edit"]) if what is None else f"{row['edit']}:{what}{factor}"


_MARKUP = """
<section>
<h2>What would the step take if …</h2>
<p class="quiet">Choose what is fixed; the page replays every kernel, message and launch of the step with it.{several}
Gains are ceilings: nothing else gets slower. They do not add up, so choose together what you would do together.</p>
<div class="what-if">
<form id="what-if-choices" aria-label="Edits"></form>
<div class="answer">
<div class="scroll"><svg id="what-if-bars" class="chart" viewBox="0 0 600 58" role="img" aria-label="The step"
 data-left="96" data-room="496">
<text class="label" x="88" y="19" text-anchor="end">as it was</text><rect class="before" x="96" y="4" height="20"/>
<text class="label" x="88" y="47" text-anchor="end">with these</text><rect class="after" x="96" y="32" height="20"/>
<path class="whisker"/>
</svg></div>
<div id="what-if-answer" role="status" aria-live="polite" aria-label="Prediction"></div>
</div>
</div>
</section>
{single}
<p class="quiet">Another number of micro-batches or another schedule makes the order of the work anew, and this page has
no items for that: <code>{command}</code></p>
"""

PART = Part("what-if", "What if", ("what_if",), what_if, relation="Gains do not add up.")
