"""``traceviz nsys web`` and ``traceviz nsys timeline-web``: a profile over time in a browser, drawn as it is asked."""

from __future__ import annotations

from pathlib import Path

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.common.serving import OpenOption, PortOption, serve_pages
from traceviz_dag.commands.nsys.common import (
    AgainstOption,
    GpuOption,
    IterationOption,
    ProfileArgument,
    RulesOption,
    TrimOption,
    check_alignment,
    gpu_numbers,
)
from traceviz_dag.printable import printable
from traceviz_dag.show.web.addresses import PORT, opened_path
from traceviz_dag.system.paths import real_path


def timeline_web(
    path: ProfileArgument,
    against: AgainstOption = None,
    iteration: IterationOption = None,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    port: PortOption = PORT,
    browser: OpenOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Walk through a profile of any size in a browser: its GPUs, streams, gaps, NVTX ranges and calls over time.

    --gpu shows only these GPUs, and the processes that drive them; --trim only this time, slices uncut.

    The page asks this server for what it draws. The server listens on this machine alone, and the printed address
    holds a token. Ctrl-C stops it.
    """
    _serve(path, against, iteration, gpu, trim, rules, port, browser, home)


def web(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    port: PortOption = PORT,
    browser: OpenOption = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Open a profile in a browser: the page of timeline-web, with measures and the names that took most time.

    Ctrl-C stops it.
    """
    _serve(path, None, None, gpu, trim, rules, port, browser, home, "measure=yes")


def _serve(
    path: Path,
    against: Path | None,
    iteration: int | None,
    gpu: list[str],
    trim: tuple[float, float] | None,
    rules: Path | None,
    port: int,
    browser: bool,
    home: Path,
    shown: str = "",
) -> None:
    check_alignment(against, iteration)
    from traceviz_dag.pipeline.live_pages import pair_source, profile_source
    from traceviz_dag.pipeline.screens import Chosen

    folder = real_path(home)
    chosen = Chosen(tuple(gpu_numbers(gpu)), trim)
    source = profile_source(path, folder, rules, chosen)
    # What cannot be read is said here, and not on a page.
    source.open()
    if against is not None:
        source = pair_source(source, profile_source(against, folder, rules, Chosen(chosen.gpus)), iteration)
        source.open()
    serve_pages(folder, port, [source], opened_path(0), f"Timeline of {printable(source.title)}", browser, shown)
