"""``traceviz nsys overlap``: computation, communication, and how much of it is hidden."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.analyze.nsys.overlap import MEASURES, PairOverlap, gpu_overlap, overlap_matrix
from traceviz_dag.analyze.wording import activity
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened


def overlap(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Show how long each pair of categories runs at the same time.")
    ] = False,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show computation, communication, and how much of it is hidden, per GPU.

    Without --trim, the window runs from the first start to the last end of kernels and memory operations. Times are
    unions. Memory copies keep a GPU busy: idle time is the window minus everything that ran.
    """
    with opened(path, home, trim, rules) as given:
        if matrix:
            pairs = [overlap_matrix(part, given.window) for part in given.gpus(gpu)]
            if json:
                given.print_json([asdict(pair) for one in pairs for pair in one])
            else:
                for one in pairs:
                    _print_matrix(one)
            return
        measures = [gpu_overlap(part, given.window) for part in given.gpus(gpu)]
        if json:
            given.print_json([asdict(one) for one in measures])
            return
        print_columns(
            "Overlap; idle time counts memory operations as busy",
            [
                {
                    **asdict(one),
                    "hidden_share": one.hidden_share,
                    "hidden_over_min": one.hidden_over_min,
                }
                for one in measures
            ],
            ["device", "window_start_ns", "window_end_ns", *MEASURES, "hidden_share", "hidden_over_min"],
        )


def _print_matrix(pairs: list[PairOverlap]) -> None:
    names = list(dict.fromkeys(pair.first for pair in pairs))
    beside = {(pair.first, pair.second): pair.beside_ns for pair in pairs}
    beside |= {(second, first): length for (first, second), length in beside.items()}
    print_columns(
        f"GPU {pairs[0].device}: time in which both run; in the diagonal, in which one runs",
        [{"category": one, **{f"{other}_ns": beside[one, other] for other in names}} for one in names],
        ["category", *((f"{name}_ns", activity(name)) for name in names)],
    )
