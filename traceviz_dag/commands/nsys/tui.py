"""``traceviz nsys tui``: the NVTX ranges of a profile as a tree on the terminal."""

from __future__ import annotations

import os
import shlex
from functools import partial

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened


def tui(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Walk through the NVTX ranges on the terminal: host time, span on the GPU, busy and idle time inside.

    Paths or single ranges, the heaviest first or in order of time; what is inside is measured when it is opened. --trim
    takes the ranges that start in a window, with all that they launched, uncut. Press ? for the keys.
    """
    from traceviz_dag.show.terminal.look import look_of_terminal

    look = look_of_terminal(os.environ, "traceviz nsys tui")
    from traceviz_dag.analyze.nsys.lost import partial_mark
    from traceviz_dag.analyze.nsys.outline import Outline
    from traceviz_dag.show.terminal.tree.screen import TreeApp

    with opened(path, home, trim, rules) as given:
        outlines = {part.device: partial(Outline, given.profile, part, given.window) for part in given.gpus(gpu)}

        def command(device: int, each: bool) -> str:
            # Of a shorter time, the tree cuts what the ranges launched, and the list of ranges does not.
            listed = ["ranges", *(["--each"] if each else [])] if each or trim is not None else ["tree"]
            words = ["traceviz", "nsys", listed[0], str(path), *listed[1:], "--gpu", str(device)]
            return shlex.join([*words, *(["--trim", *map(str, trim)] if trim is not None else [])])

        TreeApp(path.name, outlines, command, look, partial_mark(given.profile, list(outlines))).walk()
