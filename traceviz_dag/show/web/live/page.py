"""The live page as HTML: its places, one script and one style sheet by their digests; the script asks for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from starlette.responses import HTMLResponse

from traceviz_dag.show.report import bundle
from traceviz_dag.show.report.stage import stage_markup
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
    stage = stage_markup(
        "regular expression in full names", further=Markup(_FINDINGS + " ".join(map(_trace_link, traces)))
    )
    text = _PAGE.format(
        title=markup(title), above=f"<nav>{above}</nav>" if above else "", stage=stage, script=script, styles=styles
    )
    return HTMLResponse(text, headers={"content-security-policy": policy})


def _trace_link(one: TraceLink) -> str:
    # Only those of class perfetto are opened at the window that is shown.
    kind = "chip perfetto" if one.whole else "chip"
    return f'<a class="{kind}" href="{markup(one.address)}">{markup(one.name)} in the Perfetto UI</a>'


_FINDINGS = '<button type="button" data-act="findings">findings</button> '

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
{stage}
<div id="notes"></div>
</main>
<div id="tip" role="tooltip" hidden></div>
<dialog id="help" aria-label="Keys"><h2>Keys</h2><dl id="keys" class="facts"></dl>
<button type="button" data-close="help">close</button></dialog>
<script>{script}</script>
</body>
</html>
"""
