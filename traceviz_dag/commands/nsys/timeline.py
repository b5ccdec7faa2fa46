"""``traceviz nsys timeline``: the GPUs, threads and ranges of a profile over time, on the terminal."""

from __future__ import annotations

import os

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
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
from traceviz_dag.system.paths import real_path


def timeline(
    path: ProfileArgument,
    against: AgainstOption = None,
    iteration: IterationOption = None,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Walk through a profile on the terminal: its GPUs, streams, gaps, NVTX ranges and calls over time.

    Any window can be measured, every slice shows all that is known of it. --gpu shows only these GPUs, and the
    processes that drive them; --trim only this time, slices uncut. Press ? for the keys.
    """
    from traceviz_dag.show.terminal.look import look_of_terminal

    look = look_of_terminal(os.environ, "traceviz nsys timeline")
    from traceviz_dag.pipeline.screens import Chosen, bookmarks_of_profile, profile_model
    from traceviz_dag.show.screens.side_by_side import SideBySide
    from traceviz_dag.show.terminal.timeline.screen import TimelineApp

    check_alignment(against, iteration)
    chosen = Chosen(tuple(gpu_numbers(gpu)), trim)
    model = profile_model(path, home, rules, chosen)
    if against is None:
        TimelineApp(model, look, bookmarks_of_profile(real_path(home), path)).walk()
    else:
        TimelineApp(SideBySide(model, profile_model(against, home, rules, Chosen(chosen.gpus)), iteration), look).walk()
