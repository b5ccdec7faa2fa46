"""``traceviz nsys iterations``: the training iterations of each GPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from traceviz_dag.analyze.nsys.iterations import iteration_measures, names_in_iteration
from traceviz_dag.analyze.nsys.overlap import MEASURES
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns
from traceviz_dag.commands.nsys.common import GpuOption, ProfileArgument, RulesOption, TrimOption, opened
from traceviz_dag.vocabulary import WindowFrom

_WINDOWS = {
    WindowFrom.HOST: "windows of the host",
    WindowFrom.LAUNCHES: "windows of the kernels launched in them, as the host runs ahead",
    WindowFrom.UNKNOWN_LAUNCHES: "windows of the host, as launches are not recorded",
}


def iterations(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    number: Annotated[
        int | None,
        typer.Option(help="Show only this iteration, and its operations beside the others.", show_default=False),
    ] = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the training iterations, how they were recognised, and the overlap in each.

    An iteration lasts as long as its range on the host; where the host runs ahead of the GPU, from the first start to
    the last end of the kernels launched in it. Kernels are cut at its edges. What is usual is the median over the other
    iterations.
    """
    with opened(path, home, trim, rules) as given:
        rows: list[dict[str, Any]] = []
        for part in given.gpus(gpu):
            names = {}
            if number is not None:
                found = names_in_iteration(given.profile, part, given.rules, number, given.window)
                names = {"operations": [asdict(one) for one in found]}
            rows += [
                {
                    "number": one.number,
                    "source": one.source,
                    "window_from": one.window_from,
                    **asdict(one.overlap),
                    **names,
                }
                for one in iteration_measures(given.profile, part, given.rules, given.window)
                if number in (None, one.number)
            ]
        if json:
            given.print_json(rows)
            return
        sources = "; ".join(dict.fromkeys(f"{row['source']}; {_WINDOWS[row['window_from']]}" for row in rows))
        print_columns(
            f"Iterations, from {sources}" if rows else "No iterations",
            rows,
            ["device", ("number", "iteration"), "window_start_ns", *MEASURES],
        )
        for row in rows:
            if "operations" in row:
                print_columns(
                    f"Operations of iteration {row['number']} on GPU {row['device']}",
                    [
                        {**one, "more_ns": None if one["usual_ns"] is None else one["total_ns"] - one["usual_ns"]}
                        for one in row["operations"]
                    ],
                    [("name", "operation"), "kind", "count", "total_ns", "usual_ns", "more_ns"],
                )
