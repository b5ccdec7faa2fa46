"""``traceviz nsys iterations``: the training iterations of each GPU."""

from __future__ import annotations

from dataclasses import asdict

from traceviz_dag.analyze.nsys.iterations import iteration_measures
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import milliseconds, print_json, print_table
from traceviz_dag.commands.nsys.common import (
    MEASURES,
    GpuOption,
    ProfileArgument,
    RulesOption,
    TrimOption,
    opened,
    seconds,
)


def iterations(
    path: ProfileArgument,
    gpu: GpuOption = [],  # noqa: B006
    trim: TrimOption = None,
    rules: RulesOption = None,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show the training iterations, how they were recognised, and the overlap in each.

    An iteration lasts as long as its range on the host; kernels are cut at its edges.
    """
    given = opened(path, home, trim, rules)
    rows = [
        {"number": one.number, "source": one.source, **asdict(one.overlap)}
        for part in given.gpus(gpu)
        for one in iteration_measures(given.profile, part, given.rules, given.window)
    ]
    if json:
        print_json(rows)
        return
    sources = "; ".join(dict.fromkeys(row["source"] for row in rows))
    print_table(
        f"Iterations, from {sources}" if rows else "No iterations",
        ["GPU", "iteration", "from s", "kernels", *(f"{name} ms" for name in MEASURES)],
        [
            [row["device"], row["number"], seconds(row["window_start_ns"]), row["kernels"]]
            + [milliseconds(row[f"{name}_ns"]) for name in MEASURES]
            for row in rows
        ],
    )
