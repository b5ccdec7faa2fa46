"""``traceviz serve``: figures, reports and live timelines of a home in a browser, beside the Perfetto UI."""

from __future__ import annotations

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.serving import PortOption, serve_pages
from traceviz_dag.errors import BadInputError
from traceviz_dag.show.web.addresses import PORT
from traceviz_dag.system.paths import real_path


def serve(home: HomeOption = DEFAULT_HOME, port: PortOption = PORT) -> None:
    """Show the figures, reports, timelines and Perfetto traces of this home in a browser; tables do not change.

    The server listens on this machine alone. The printed address holds a token, new at each start: other users of the
    machine do not get in without it. Ctrl-C stops it.
    """
    folder = real_path(home)
    if not folder.is_dir():
        raise BadInputError(folder, "there is no such folder", "run traceviz analyze first, or name a home with --home")
    serve_pages(folder, port, [])
