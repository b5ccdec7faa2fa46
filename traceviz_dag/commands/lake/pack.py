"""``traceviz lake pack``: one file per table for all ranks of an iteration, so that queries open few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption
from traceviz_dag.commands.lake.options import AtLeastOption, IterationOption, RunOption, lake_at
from traceviz_dag.errors import BadInputError, IncompleteError
from traceviz_dag.lake.packing import LEAST_FILES
from traceviz_dag.lake.partitions import ANALYSE_AGAIN


def pack(
    run: RunOption = None,
    iteration: IterationOption = None,
    at_least: AtLeastOption = LEAST_FILES,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove the files of single ranks that are packed and no longer read.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
) -> None:
    """Join the files of all ranks of an iteration into one per table, so that queries over many ranks open few files.

    Answers stay the same. A rank that is analysed again has a file of its own, which wins until the table is packed
    anew. Iterations that are being analysed are left for the next time. The files of single ranks stay unless you give
    --prune; keep them if the traces are gone, because a damaged packed file can be made anew from them. The exit code
    is 2 if one is damaged and they are not there.

    \f
    Raises:
        BadInputError: the home holds no lake, or the record of an iteration is damaged.
        IncompleteError: a packed file is damaged, and cannot be made anew.
    """
    from traceviz_dag.lake import packing
    from traceviz_dag.lake.partition_keys import iteration_key
    from traceviz_dag.lake.under_way import is_under_way

    lake = lake_at(home)
    done, lost = False, list[Path]()
    for place in packing.chosen_iterations(lake.tables_folder, run, iteration):
        if is_under_way(lake.home, iteration_key(*place)):
            typer.echo(f"traceviz: run {place[0]}, iteration {place[1]} is being analysed: not packed", err=True)
            continue
        packed = packing.pack(lake.tables_folder, *place, at_least)
        lost += packing.unsound(lake.tables_folder, *place)
        removed = packing.prune(lake.tables_folder, *place) if prune else 0
        for words in ([f"packed {', '.join(packed)}"] if packed else []) + (
            [f"removed {removed:,} files of single ranks"] if removed else []
        ):
            typer.echo(f"run {place[0]}, iteration {place[1]}: {words}")
            done = True
    lake.refresh_catalogue()
    for path in lost:
        fault = "is damaged or gone, and so are files of its ranks, of which it would be made anew; it stays as it is"
        typer.echo(str(BadInputError(path, fault, ANALYSE_AGAIN)), err=True)
    if lost:
        raise IncompleteError(f"{lake.home}: {len(lost):,} packed files are not as they should be")
    if not done:
        typer.echo(f"Nothing to pack: no table of an iteration has {at_least:,} unpacked files; see --at-least.")
