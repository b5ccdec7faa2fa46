"""``traceviz lake clean``: remove what killed writers and servers left behind."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from traceviz_dag.commands.common.options import DEFAULT_HOME, HomeOption, JsonOption, check_number
from traceviz_dag.commands.common.output import print_json, print_table
from traceviz_dag.commands.lake.options import lake_at
from traceviz_dag.errors import IncompleteError
from traceviz_dag.lake.lake import open_lake
from traceviz_dag.printable import named

_HOUR_NS = 3_600_000_000_000
_MOST_HOURS = 1_000_000


def clean(
    home: HomeOption = DEFAULT_HOME,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            min=0,
            max=_MOST_HOURS,
            help="Leave what was written within so many hours: it may be named yet.",
        ),
    ] = 24,
    json: JsonOption = False,
) -> None:
    """Remove what killed writers left: files that no record names and, of a home at s3://, parts that no manifest does.

    They are what traceviz lake verify says that it removes. Files that traceviz did not write stay.

    \f
    Raises:
        BadInputError: the home holds no lake. StoreError: the store cannot be asked, or lost what says which parts are
            needed. IncompleteError: a file cannot be removed.
    """
    from traceviz_dag.lake.published import published_at
    from traceviz_dag.lake.verify import clean as clean_lake

    check_number("--older-than", older_than)
    now = time.time_ns()
    before = now - int(older_than * _HOUR_NS)
    published = published_at(home)
    # Of a home at s3:// nothing may be here yet.
    lake = lake_at(home) if published is None else open_lake(home)
    done = [published.clean(before)] if published is not None else []
    done.append(clean_lake(lake, before))
    kept, stuck = sum(one.younger for one in done), sum(one.stuck for one in done)
    removed = [one for each in done for one in each.removed]
    rows = [(named(one.path), one.bytes, (now - one.changed_ns) / _HOUR_NS) for one in removed]
    if json:
        print_json(
            {
                "home": str(lake.home),
                "removed": [dict(zip(("path", "bytes", "hours"), row, strict=True)) for row in rows],
                "kept": kept,
            }
        )
    else:
        shown = [(path, f"{size / 1e6:,.1f}", f"{hours:,.0f}") for path, size, hours in rows]
        print_table("Removed, as no record and no manifest names it", ("file", "MB", "hours old"), shown)
        if kept:
            typer.echo(f"{kept:,} more were written within {older_than:g} hours, and stay.")
    if stuck:
        raise IncompleteError(
            f"{lake.home}: {stuck:,} files could not be removed; see that it can be written and locked"
        )
