"""``traceviz baseline``: names for runs and iterations that others are compared with, kept in the home."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_columns, print_json
from traceviz_dag.errors import UsageError
from traceviz_dag.system.paths import real_path

if TYPE_CHECKING:
    from pathlib import Path

    from traceviz_dag.lake.lake import Lake
    from traceviz_dag.pipeline.baselines import Baseline, SetBy

baseline_app = typer.Typer(
    name="baseline",
    help="Name runs and iterations to compare with: traceviz diff NAME B, and the nightly gate.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

NightArgument = Annotated[
    str, typer.Argument(metavar="RUN[@ITERATION]", help="A run of the home, or an iteration of it.", show_default=False)
]


@baseline_app.command("list")
def list_(home: HomeOption = DEFAULT_HOME, json: JsonOption = False) -> None:
    """List the baselines of a home: the name, the run or iteration, who set it, and whether the nightly gate uses it.

    The gate compares the nights of a series with those from the one on that has its name: a run, or a glob of
    nightly.series. It moves it itself where a shorter step is confirmed.
    """
    from traceviz_dag.pipeline.baselines import baselines
    from traceviz_dag.pipeline.home_settings import load_settings
    from traceviz_dag.pipeline.nights.judging import current_baselines

    lake = _lake(home)
    of_gate = current_baselines(lake, load_settings(lake.home).nightly)
    rows = [
        {"name": name, "run": one.run, "iteration": one.iteration, "by": one.by.value, "gate": name in of_gate}
        for name, one in sorted((baselines(lake.home) | of_gate).items())
    ]
    if json:
        print_json(rows)
    elif rows:
        told = [{**row, "gate": "yes" if row["gate"] else None} for row in rows]
        print_columns("Baselines", told, ["name", "run", "iteration", ("by", "set by"), ("gate", "nightly gate")])
    else:
        typer.echo("No baselines; traceviz baseline set NAME RUN sets one.")


@baseline_app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="Its name; that of a series for the nightly gate.", show_default=False)],
    night: NightArgument,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Give a run or an iteration a name, or move the name to it.

    With the name of a series, the next gate judges the nights after it anew, against those from it on.
    """
    from traceviz_dag.lake.partition_keys import split_name
    from traceviz_dag.pipeline.baselines import SetBy, keep_baseline
    from traceviz_dag.pipeline.home_settings import load_settings
    from traceviz_dag.pipeline.nights.decisions import decide
    from traceviz_dag.pipeline.nights.series import series_of

    lake = _lake(home)
    one, settings = _found(lake, night, SetBy.NAMED), load_settings(lake.home).nightly
    if any(each.name == name for each in series_of(lake, settings)):
        if not decide(lake, settings, one, name):
            raise UsageError(f"{night} is no night of the series {name}")
    elif any(part.run == name for part in lake.partitions("iterations")):
        raise UsageError(f"{name} is a run of this home, and no series: choose another name")
    elif not name.strip() or "/" in name or split_name(name, ())[1] is not None:
        raise UsageError(f"{name!r} can be no name: traceviz diff would take it for a path or an iteration")
    else:
        keep_baseline(lake.home, name, one)
    typer.echo(f"The baseline {name} is {one.key}.")


@baseline_app.command("accept")
def accept(night: NightArgument, home: HomeOption = DEFAULT_HOME) -> None:
    """Accept a night that is worse on purpose: it becomes the baseline of its series.

    This night passes at the next gate, which judges later ones anew, against those from it on.
    """
    from traceviz_dag.pipeline.baselines import SetBy
    from traceviz_dag.pipeline.home_settings import load_settings
    from traceviz_dag.pipeline.nights.decisions import decide

    lake = _lake(home)
    one = _found(lake, night, SetBy.ACCEPTED)
    decide(lake, load_settings(lake.home).nightly, one)
    typer.echo(f"{one.key} is accepted.")


@baseline_app.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The name.", show_default=False)], home: HomeOption = DEFAULT_HOME
) -> None:
    """Forget a name; what it named stays. Of a series, all that was set or accepted is forgotten: it is judged anew."""
    from traceviz_dag.pipeline.baselines import baselines, keep_baseline

    lake = _lake(home)
    known = baselines(lake.home)
    if name not in known:
        raise UsageError(f"no baseline {name!r} in {home}; there are {', '.join(known) or 'none'}")
    keep_baseline(lake.home, name, None)
    typer.echo(f"{name} is no baseline any more.")


def _lake(home: Path) -> Lake:
    from traceviz_dag.lake.lake import open_lake

    lake = open_lake(real_path(home))
    if not lake.partitions("iterations"):
        raise UsageError(f"no iterations in {home}; run traceviz analyze on traces first")
    return lake


def _found(lake: Lake, night: str, by: SetBy) -> Baseline:
    from traceviz_dag.lake.partition_keys import split_name
    from traceviz_dag.pipeline.baselines import Baseline

    partitions = lake.partitions("iterations")
    runs = sorted({one.run for one in partitions})
    run, iteration = split_name(night, runs)
    if run not in runs:
        raise UsageError(f"{night}: no such run in the home; there are {', '.join(runs[:5])}")
    if iteration is not None and not any((one.run, one.iteration) == (run, iteration) for one in partitions):
        raise UsageError(f"{night}: no such iteration with measures")
    return Baseline(run, iteration, by)
