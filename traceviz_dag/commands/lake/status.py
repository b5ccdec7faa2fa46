"""``traceviz lake status``: how many files hold the tables of each iteration, and what packing would do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from traceviz_dag.commands.common.failures import end_gone
from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.lake.options import AtLeastOption, IterationOption, RunOption, lake_at
from traceviz_dag.lake.packing import LEAST_FILES
from traceviz_dag.tables import all_tables

_COLUMNS = (
    *("run", "iteration", "table", "ranks", "files", "rows", "MB"),
    *("packed ranks", "unread files", "packing would"),
)


def status(
    run: RunOption = None,
    iteration: IterationOption = None,
    at_least: AtLeastOption = LEAST_FILES,
    unpacked: Annotated[bool, typer.Option("--unpacked", help="Show only what packing would change.")] = False,
    home: HomeOption = DEFAULT_HOME,
    json: JsonOption = False,
) -> None:
    """Show how many files hold the tables of each iteration, and what traceviz lake pack would do.

    Tables have one file per rank until they are packed. Unread files are those of packed ranks; traceviz lake pack
    --prune removes them. Rows and MB are of the files that queries read.

    \f
    Raises:
        BadInputError: the home holds no lake, or a file of it cannot be read.
        IncompleteError: somebody deleted files of such tables; the rows are of the others.
    """
    from traceviz_dag.lake import packing

    lake = lake_at(home)
    found = packing.status(lake.tables_folder, run, iteration)
    found = [one for one in found if one.is_to_pack(at_least) or not unpacked]
    if json:
        print_json([{**asdict(one), "files": one.files, "to_pack": one.is_to_pack(at_least)} for one in found])
    else:
        rows = []
        for one in found:
            would = f"make 1 file of {one.files:,}" if one.is_to_pack(at_least) else "do nothing"
            numbers = (one.own + one.packed, one.files, one.rows, f"{one.bytes / 1e6:,.1f}", one.packed, one.kept)
            rows.append((one.run, one.iteration, one.table, *numbers, would))
        print_table("Files of tables by rank, per run, iteration and table", _COLUMNS, rows)
    by_rank = (name for name, table in all_tables().items() if "rank" in table.partitioned_by)
    end_gone(lake.gone_parts(" ".join(by_rank), run, iteration))
