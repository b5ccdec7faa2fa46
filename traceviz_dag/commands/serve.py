"""``traceviz serve``: the newest figures and reports of a home in a browser, read-only, beside the Perfetto UI."""

from __future__ import annotations

import secrets
import signal
from contextlib import suppress
from typing import Annotated

import typer

from traceviz_dag.commands.common.ending import end_on
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.errors import BadInputError
from traceviz_dag.show.web.addresses import LOOPBACK, PORT
from traceviz_dag.system.paths import real_path


def serve(
    home: HomeOption = DEFAULT_HOME,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 = any free one.")] = PORT,
) -> None:
    """Show the figures, reports and Perfetto traces of this home in a browser; nothing can be changed there.

    The server listens on this machine alone. The printed address holds a token, new at each start: other users of the
    machine do not get in without it. Ctrl-C ends it.
    """
    folder = real_path(home)
    if not folder.is_dir():
        raise BadInputError(folder, "there is no such folder", "run traceviz analyze first, or name a home with --home")
    from traceviz_dag.show.web.door import TOKEN
    from traceviz_dag.show.web.guard import hosts_of_environment
    from traceviz_dag.show.web.listen import answer, listen
    from traceviz_dag.show.web.site import site

    token = secrets.token_urlsafe(24)
    # Whether Ctrl-C raises once the server has ended hangs on who started it: a background job ignores it.
    with suppress(KeyboardInterrupt):
        end_on(signal.SIGTERM)
        with listen(port) as listening:
            chosen = listening.getsockname()[1]
            app = site(folder, token, chosen, hosts_of_environment())
            told = f"Home {folder}, read-only: http://{LOOPBACK}:{chosen}/?{TOKEN}={token}\nCtrl-C ends it."
            answer(app, listening, lambda: typer.echo(told))
    typer.echo("Ended.", err=True)
