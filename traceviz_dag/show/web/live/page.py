"""The live page as HTML: its places, one script and one style sheet by their digests; the script asks for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import HTMLResponse

from traceviz_dag.show.report import bundle
from traceviz_dag.show.web.layout import link, markup

SCRIPT = "live"
"""The module of the page's script that nothing imports."""


@dataclass(frozen=True, slots=True)
class TraceLink:
    """A Perfetto trace of what is shown.

    Attributes:
        address: opens it in the Perfetto UI.
        whole: whether it holds all ranks, so that a window is found in it.
    """

    name: str
    address: str
    whole: bool


def live_page(title: str, links: Sequence[tuple[str, str]], traces: Sequence[TraceLink]) -> HTMLResponse:
    """The page.

    Args:
        title: text. links: address and text of other pages.
        traces: what the Perfetto UI can open of it.
    """
    script, styles = bundle.script(SCRIPT), bundle.styles()
    policy = "; ".join(
        (
            *("default-src 'none'", f"script-src {bundle.digest(script)}", f"style-src {bundle.digest(styles)}"),
            *("connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        )
    )
    above = " · ".join(link(address, text) for address, text in links)
    opened = " ".join(map(_trace_link, traces))
    text = _PAGE.format(
        title=markup(title), above=f"<nav>{above}</nav>" if above else "", traces=opened, script=script, styles=styles
    )
    return HTMLResponse(text, headers={"content-security-policy": policy})


def _trace_link(one: TraceLink) -> str:
    # Only those of class perfetto are opened at the window that is shown.
    kind = "chip perfetto" if one.whole else "chip"
    return f'<a class="{kind}" href="{markup(one.address)}">{markup(one.name)} in the Perfetto UI</a>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · timeline</title>
<link rel="icon" href="data:,">
<style>{styles}</style>
</head>
<body>
<header class="top">
{above}
<h1>{title}</h1>
</header>
<main>
<p id="failure" class="attention" role="alert" hidden></p>
<div class="bar">
<label>Search <input id="search" type="search" maxlength="500" placeholder="regular expression in full names"></label>
<span id="matches" role="status"></span>
<label><input id="here" type="checkbox"> in this lane</label>
<label>Group by <select id="grouping"></select></label>
<label>Dimension <select id="dimension"><option value="">all</option></select></label>
<label>At least <input id="shortest" type="number" min="0" step="any" placeholder="0"> µs</label>
<button type="button" data-act="all">all</button>
<button type="button" data-act="measure">measure</button>
<button type="button" data-act="measureAll">measure all</button>
<button type="button" data-act="findings">findings</button>
<button type="button" data-act="bookmark">bookmark</button>
<button type="button" data-act="help">keys</button>
{traces}
<span id="bookmarks"></span>
<span id="said" class="quiet" role="status"></span>
</div>
<div class="stage">
<canvas id="timeline-canvas" tabindex="0" role="img"
 aria-label="Timeline by lanes; the panel beside it shows what is chosen or measured. Keys: question mark."></canvas>
<aside id="details" aria-live="polite"><p class="quiet">Click a slice to see all that is known of it, a label to open
or close its lanes. Drag moves, the wheel zooms, Shift and drag selects a window to measure.</p></aside>
</div>
<div id="legend" class="legend"></div>
<div id="notes"></div>
</main>
<div id="tip" role="tooltip" hidden></div>
<dialog id="help" aria-label="Keys"><h2>Keys</h2><dl id="keys" class="facts"></dl>
<button type="button" data-close="help">close</button></dialog>
<script>{script}</script>
</body>
</html>
"""
