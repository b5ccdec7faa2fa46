"""``traceviz lake verify``: read every file of the lake, and name each that is not as it was written."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption
from traceviz_dag.commands.common.output import print_json
from traceviz_dag.commands.lake.options import lake_at
from traceviz_dag.errors import BadInputError, IncompleteError
from traceviz_dag.printable import named


def verify(
    home: HomeOption = DEFAULT_HOME,
    set_aside: Annotated[
        bool,
        typer.Option(
            "--set-aside",
            help="Move files away that no writer put there, and forget deleted ones.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Read every file of the lake and compare it with the digest that was recorded when it was written.

    Damaged, missing and stray files are named, each in a line with what to do. The exit code is 2 if there is any, or a
    file of an earlier version has no recorded digest. Of a home at s3://, all of its objects are read, too.

    \f
    Raises:
        BadInputError: the home holds no lake.
        IncompleteError: a file is not as it was written, or has no digest.
    """
    from traceviz_dag.lake.published import published_at
    from traceviz_dag.lake.upgrade import ASIDE
    from traceviz_dag.lake.verify import set_aside as move_away
    from traceviz_dag.lake.verify import verify as verify_lake

    lake = lake_at(home)
    found = verify_lake(lake)
    published = published_at(lake.home)
    elsewhere = tuple(published.faults()) if published is not None else ()
    moved = move_away(lake, found.faults) if set_aside else 0
    if moved:
        where = lake.tables_folder / ASIDE
        typer.echo(f"traceviz: {moved:,} files are settled: foreign ones are in {where}", err=True)
        found = verify_lake(lake)
    found = replace(found, faults=(*found.faults, *elsewhere))
    if json:
        print_json(
            {
                "home": str(lake.home),
                "parts": found.parts,
                "bytes": found.bytes,
                "without_digest": found.without_digest,
                "faults": [
                    {
                        "path": named(one.path),
                        "fault": one.fault,
                        "table": one.table,
                        "run": one.run,
                        "iteration": one.iteration,
                        "rank": one.rank,
                    }
                    for one in found.faults
                ],
            }
        )
    else:
        typer.echo(f"{found.parts:,} files of tables ({found.bytes / 1e6:,.1f} MB) are as they were written.")
        for one in found.faults:
            typer.echo(str(BadInputError(one.path, one.fault_with_place, one.remedy)))
    problems = [f"{len(found.faults):,} files are not as they should be"] if found.faults else []
    if found.without_digest:
        problems.append(
            f"{found.without_digest:,} files of an earlier version have no recorded digest, and were not compared: "
            "the next traceviz analyze records it"
        )
    if problems:
        raise IncompleteError(f"{lake.home}: {'; '.join(problems)}")
