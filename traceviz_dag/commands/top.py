"""``traceviz top``: a home while runs arrive, on the terminal."""

from __future__ import annotations

import os

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.errors import BadInputError, TracevizError
from traceviz_dag.system.paths import real_path


def top(home: HomeOption = DEFAULT_HOME) -> None:
    """Watch a home on the terminal: trend and iterations, what is being analysed, verdicts and findings.

    The screen reads the home once a second and changes nothing there. Press ? for the keys.
    """
    from traceviz_dag.show.terminal.look import look_of_terminal

    folder = real_path(home)
    if not folder.is_dir():
        raise BadInputError(folder, "there is no such folder", "run traceviz analyze first, or name a home with --home")
    look = look_of_terminal(os.environ, "traceviz top")
    from traceviz_dag.lake.lake import open_lake
    from traceviz_dag.lake.partitions import Partition
    from traceviz_dag.pipeline.screens import bookmarks_of_iteration, iteration_model
    from traceviz_dag.show.terminal.home.screen import HomeApp
    from traceviz_dag.show.terminal.home.watch import HomeWatch
    from traceviz_dag.show.terminal.timeline.screen import TimelineApp

    watch = HomeWatch(folder)
    at: Partition | None = None
    said = ""
    while True:
        screen = HomeApp(watch, look, at=at, said=said)
        screen.walk()
        at = screen.wanted
        if at is None:
            return
        try:
            model = iteration_model(open_lake(folder), at.run, at.iteration)
        except TracevizError as error:
            # Of an iteration that is being analysed there may be nothing to show yet.
            said = str(error)
        else:
            said = ""
            TimelineApp(model, look, bookmarks_of_iteration(folder, at.run, at.iteration)).walk()
