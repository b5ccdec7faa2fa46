"""``traceviz timeline``: all ranks of an iteration over time, on the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.compared import AgainstOption, compared_with
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.partial import end_partial
from traceviz_dag.commands.common.serving import OpenOption, PortOption, serve_pages
from traceviz_dag.commands.common.shown import completeness_of, iterations_of
from traceviz_dag.errors import UsageError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.printable import printable
from traceviz_dag.show.web.addresses import PORT, opened_path, timeline_path
from traceviz_dag.system.paths import real_path
from traceviz_dag.vocabulary import TimeAlignment

if TYPE_CHECKING:
    from traceviz_dag.pipeline.lake_source import LakeSource
    from traceviz_dag.show.screens.bookmarks import Bookmarks
    from traceviz_dag.show.screens.model import ScreenModel
    from traceviz_dag.show.terminal.look import Look


def timeline(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|PATH]",
            help="A run of the home, or traces, which are analysed first where they are new; default: what the home "
            "holds.",
            show_default=False,
        ),
    ] = None,
    run: Annotated[str | None, typer.Option(help="Show this run.")] = None,
    iteration: Annotated[int | None, typer.Option(help="Show this iteration; default: the last.")] = None,
    against: AgainstOption = None,
    time_alignment: Annotated[
        TimeAlignment, typer.Option(help="How the clocks of the ranks are aligned.")
    ] = TimeAlignment.SOLVED,
    web: Annotated[bool, typer.Option("--web", help="Show it in a browser instead, until Ctrl-C.")] = False,
    port: PortOption = PORT,
    browser: OpenOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Walk through an iteration on the terminal, or in a browser: its ranks, streams, micro-batches, gaps, findings.

    Any window can be measured, every slice shows all that is known of it. With --against, two iterations lie on one
    axis, so that a step of both starts at the same instant. Press ? for the keys.
    """
    look = None
    if not web:
        from traceviz_dag.show.terminal.look import look_of_terminal

        look = look_of_terminal(os.environ, "traceviz timeline")
    folder = real_path(home)
    paths = []
    if what is not None:
        held = folder.is_dir() and not Path(what).exists()
        if held and any(part.run == what for part in open_lake(folder).partitions("topology")):
            run = what
        else:
            paths = [Path(what)]
    with iterations_of(folder, paths, run, iteration) as found:
        runs = sorted({source.run for source in found})
        if len(runs) > 1:
            raise UsageError(f"there are {len(runs)} runs; name one: {', '.join(runs[:5])}")
        chosen = max(found, key=lambda source: source.iteration)
        other = None if against is None else compared_with(chosen, against)
        if look is None:
            _serve(folder, chosen, other, time_alignment, port, browser)
        else:
            _walk(look, folder, chosen, other, time_alignment)
        end_partial(completeness_of([chosen, *([other] if other else [])], paths))


def _walk(look: Look, folder: Path, chosen: LakeSource, other: LakeSource | None, alignment: TimeAlignment) -> None:
    """On the terminal."""
    from traceviz_dag.pipeline.screens import bookmarks_of_iteration, iteration_model
    from traceviz_dag.show.screens.side_by_side import SideBySide
    from traceviz_dag.show.terminal.timeline.screen import TimelineApp

    model: ScreenModel = iteration_model(chosen.lake, chosen.run, chosen.iteration, alignment)
    bookmarks: Bookmarks | None = bookmarks_of_iteration(folder, chosen.run, chosen.iteration)
    if other is not None:
        model, bookmarks = SideBySide(model, iteration_model(other.lake, other.run, other.iteration, alignment)), None
    TimelineApp(model, look, bookmarks).walk()


def _serve(
    folder: Path, chosen: LakeSource, other: LakeSource | None, alignment: TimeAlignment, port: int, browser: bool
) -> None:
    """In a browser; a comparison and other clocks have a page beside those of the home."""
    from traceviz_dag.pipeline.live_pages import iteration_source, pair_source

    source = iteration_source(folder, chosen.run, chosen.iteration, alignment)
    if other is not None:
        source = pair_source(source, iteration_source(folder, other.run, other.iteration, alignment))
    # What cannot be shown is said here, and not on a page.
    source.open()
    usual = other is None and alignment is TimeAlignment.SOLVED
    path = timeline_path(chosen.run, chosen.iteration) if usual else opened_path(0)
    serve_pages(folder, port, [] if usual else [source], path, f"Timeline of {printable(source.title)}", browser)
