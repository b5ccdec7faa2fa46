"""Serving the pages of a home on loopback until Ctrl-C, and the options of that."""

from __future__ import annotations

import secrets
import signal
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.ending import end_on

if TYPE_CHECKING:
    from traceviz_dag.show.web.live.sources import Source

PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 = any free one.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Also open the address in a browser of this machine.")]


def serve_pages(
    home: Path, port: int, opened: list[Source], path: str = "/", what: str = "", browser: bool = False, shown: str = ""
) -> None:
    """Print an address with a token once the server answers, and answer until SIGINT or SIGTERM.

    Args:
        home: absolute. opened: sources of live pages beside those of the home.
        path: of the page that is printed. what: what it shows, in words; the home by default.
        browser: open it in a browser. shown: what the page shows first, as its address has it.

    Raises:
        UsageError: the port is taken.
    """
    from traceviz_dag.pipeline.live_pages import iteration_source
    from traceviz_dag.show.web.addresses import LOOPBACK
    from traceviz_dag.show.web.door import TOKEN
    from traceviz_dag.show.web.guard import hosts_of_environment
    from traceviz_dag.show.web.listen import answer, listen
    from traceviz_dag.show.web.live.sources import Sources
    from traceviz_dag.show.web.site import site

    token = secrets.token_urlsafe(24)
    sources = Sources(lambda run, iteration: iteration_source(home, run, iteration), opened)
    # Whether Ctrl-C raises once the server has ended depends on who started it: a background job ignores it.
    with suppress(KeyboardInterrupt):
        end_on(signal.SIGTERM)
        with listen(port) as listening:
            chosen = listening.getsockname()[1]
            app = site(home, token, chosen, hosts_of_environment(), sources)
            address = f"http://{LOOPBACK}:{chosen}{path}?{f'{shown}&' if shown else ''}{TOKEN}={token}"

            def started() -> None:
                typer.echo(f"{what or f'Home {home}'}: {address}\nCtrl-C stops it.")
                if browser:
                    webbrowser.open(address)

            answer(app, listening, started)
    typer.echo("Ended.", err=True)
