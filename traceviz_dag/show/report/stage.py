"""The place of a timeline on a page: its bar, canvas, panel and legend, which the page's script fills."""

from __future__ import annotations

from markupsafe import Markup


def stage_markup(
    searched: str,
    *,
    clocks: Markup | str = "",
    sentence: str = "",
    further: Markup | str = "",
    counted: str = "",
) -> Markup:
    """The place of a timeline.

    Args:
        searched: what its search takes.
        clocks: the choices of clocks; none where there is one. sentence: about the clocks.
        further: buttons and links beside those of every timeline.
        counted: how many slices of which sort the kinds below it are of.
    """
    return Markup(_MARKUP).format(
        searched=searched,
        clocks=clocks,
        single="" if clocks else Markup(" hidden"),
        sentence=sentence,
        further=further,
        legend=f"Kinds of {counted}" if counted else "Kinds",
    )


_MARKUP = """
<div class="bar">
<label{single}>Clocks <select id="clocks">{clocks}</select></label>
<label>Group by <select id="grouping"></select></label>
<label>Search <input id="search" type="search" maxlength="500" placeholder="{searched}"></label>
<span id="matches" role="status"></span>
<label><input id="here" type="checkbox"> in this lane</label>
<label>Dimension <select id="dimension"><option value="">all</option></select></label>
<label>At least <input id="shortest" type="number" min="0" step="any" placeholder="0"> µs</label>
<button type="button" data-act="all">all</button>
<button type="button" data-act="measure">measure</button>
<button type="button" data-act="measureAll">measure all</button>
<button type="button" data-act="bookmark">bookmark</button>
{further}
<button type="button" data-act="help">keys</button>
<span id="bookmarks"></span>
<span id="said" class="quiet" role="status"></span>
</div>
<p class="quiet" id="clocks-sentence">{sentence}</p>
<div class="stage">
<canvas id="timeline-canvas" tabindex="0" role="img"
 aria-label="Timeline by lanes; the panel beside it shows what is chosen or measured. Keys: question mark."></canvas>
<aside id="details" aria-live="polite"><p class="quiet">Click a slice to see all that is known of it, a label to open
or close its lanes. Drag moves, the wheel zooms, Shift and drag measures a window.</p></aside>
</div>
<details id="filters" open><summary>{legend}</summary><div id="legend" class="legend"></div></details>
"""
